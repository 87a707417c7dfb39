package repair

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/internal/rules"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRules holds the package to having no lock: there is no file that may have one.
func TestRules(t *testing.T) {
	rules.Gate(t, ".")
	rules.Panics(t, ".")
}
