package jobtracker

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/rules"
)

// TestRules holds the package to its architecture: one gate, a core that is plain data, no panic but for a bug.
func TestRules(t *testing.T) {
	core := []string{
		"ack.go", "activation.go", "agree.go", "complete.go", "core.go", "deadline.go", "dispatch.go", "effects.go", "extent.go",
		"lifecycle.go",
		"order.go", "order_answer.go", "order_state.go", "order_sweep.go", "rebuild.go", "replica.go", "retire.go",
		"state.go", "submit.go", "view.go",
	}
	shell := []string{
		"call.go", "conn.go", "doc.go", "errors.go", "handle.go", "job.go", "options.go", "orphan.go", "reconcile.go", "repair.go",
		"stats.go", "tracker.go",
	}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
	require.ElementsMatch(t, files, slices.Concat(core, shell), "each file is of the core or of the shell")

	rules.Gate(t, ".", "tracker.go")
	rules.Core(t, ".", core...)
	rules.Panics(t, ".")
}
