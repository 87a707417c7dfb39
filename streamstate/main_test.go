package streamstate

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/internal/rules"
)

var stress = flag.Bool("stress", false, "long forms")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRules(t *testing.T) {
	rules.Gate(t, ".", "book.go", "registry.go")
	rules.Core(t, ".", "core.go", "data.go", "deadline.go", "due.go", "effects.go", "errors.go", "flush.go", "hash.go", "ledger.go",
		"phase.go", "phases.go", "position.go", "state.go", "vector.go")
	rules.Panics(t, ".")
}
