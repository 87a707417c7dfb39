// Package explore is the engine of the gap explorers of this module's fixtures: it runs a scenario, counts how often a
// lock is acquired, and runs it again with an adversary going first at one of these acquisitions.
package explore

import (
	"fmt"
	"strings"
	"testing"
)

// Finding is a promise that was broken.
type Finding struct {
	Adversary   string // empty: nobody has interfered
	Acquisition int    // the acquisition before which the adversary went, from 0
	Problems    []string
}

// String is the finding in a line and its problems.
func (f Finding) String() string {
	s := strings.Join(f.Problems, "\n")
	if f.Adversary == "" {
		return s
	}
	return fmt.Sprintf("%s before acquisition %d: %s", f.Adversary, f.Acquisition, s)
}

// Report is what an explorer did and found.
type Report struct {
	Acquisitions int // of an undisturbed run of the scenario
	Pairs        int // of an adversary and an acquisition, each a run
	Refusals     int // refused calls that were compared
	Findings     []Finding
}

// Outcome is what came of one run.
type Outcome struct {
	Acquisitions int
	Refusals     int
	Problems     []string
}

// Run runs the scenario once, with the adversary of that number going first before that acquisition; with a negative
// number, undisturbed.
type Run func(adversary, at int) Outcome

// Test runs undisturbed and then, in a subtest each, with each adversary before each acquisition.
func Test(t *testing.T, adversaries []string, run Run) Report {
	t.Helper()
	rep := Report{}
	rep.Acquisitions = rep.add("", 0, run(-1, 0))
	for _, f := range rep.Findings {
		t.Fatal(f)
	}
	for i, name := range adversaries {
		t.Run(name, func(t *testing.T) {
			for at := range rep.Acquisitions {
				t.Run(fmt.Sprint(at), func(t *testing.T) {
					n := len(rep.Findings)
					rep.add(name, at, run(i, at))
					for _, f := range rep.Findings[n:] {
						t.Error(f)
					}
				})
			}
		})
	}
	return rep
}

// Search is [Test] without a test: it returns what it found.
func Search(adversaries []string, run Run) Report {
	rep := Report{}
	rep.Acquisitions = rep.add("", 0, run(-1, 0))
	for i, name := range adversaries {
		for at := range rep.Acquisitions {
			rep.add(name, at, run(i, at))
		}
	}
	return rep
}

// add counts a run and returns the number of its acquisitions.
func (rep *Report) add(adversary string, at int, o Outcome) int {
	if adversary != "" {
		rep.Pairs++
	}
	rep.Refusals += o.Refusals
	if len(o.Problems) > 0 {
		rep.Findings = append(rep.Findings, Finding{adversary, at, o.Problems})
	}
	return o.Acquisitions
}
