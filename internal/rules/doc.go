// Package rules checks, from a package's own tests, the architecture that the compiler cannot see: one file takes the
// lock ([Gate]), the core is a plain machine without lock, clock, goroutine or log ([Core]), a panic is only for a bug
// of ours ([Panics]), and no test waits by sleeping ([Sleeps]).
//
// The checks read syntax, not types: what they forbid is forbidden by name, whatever it is a method of. They have no
// state and are safe for concurrent use. A file named to a check that does not exist fails it, so a list cannot rot.
//
//	func TestRules(t *testing.T) {
//		rules.Gate(t, ".", "tracker.go")
//		rules.Core(t, ".", "ledger.go", "state.go")
//		rules.Panics(t, ".")
//	}
package rules
