package jobtest

import (
	"fmt"
	"strings"
	"testing"
)

// Adversary is who goes first. Act runs in the place of another goroutine: right before an acquisition of a lock, with no
// lock held. It may call anything that does not wait.
type Adversary struct {
	Name string
	Act  func(x *Trial)
}

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

// Report is what the explorer did and found.
type Report struct {
	Acquisitions int // of an undisturbed run of the scenario
	Pairs        int // of an adversary and an acquisition, each a run
	Refusals     int // refused calls that were compared
	Findings     []Finding
}

// Explore runs the scenario once, to count how often it acquires a lock, and then again for each adversary and each of
// these acquisitions, with the adversary going first right there: a subtest each. After each run the faults stop, and the
// promises are checked:
//
//   - nothing has panicked;
//   - every refusal was typed and has changed nothing;
//   - the invariants of each tracker hold;
//   - once the replicas are healed and have reconnected, every job resolves, a repair of who needs one succeeds, the active
//     replicas hold the same, the activation ends, and table and charges are empty;
//   - no id was used twice, and no callback lost, repeated or out of order;
//   - what the scenario itself requires, and promises by [Trial.Promise].
//
// The scenario must tolerate typed refusals. It works on the user's own code as well: see [Trial.Watch] and [Trial.Gap].
func Explore(t *testing.T, scenario func(x *Trial), adversaries ...Adversary) Report {
	t.Helper()
	rep := Report{}
	rep.Acquisitions = rep.try(scenario, nil, 0)
	for _, f := range rep.Findings {
		t.Fatal(f)
	}
	for i := range adversaries {
		a := &adversaries[i]
		t.Run(a.Name, func(t *testing.T) {
			for at := range rep.Acquisitions {
				t.Run(fmt.Sprint(at), func(t *testing.T) {
					n := len(rep.Findings)
					rep.try(scenario, a, at)
					for _, f := range rep.Findings[n:] {
						t.Error(f)
					}
				})
			}
		})
	}
	return rep
}

// Search is [Explore] without a test: it returns what it found.
func Search(scenario func(x *Trial), adversaries ...Adversary) Report {
	rep := Report{}
	rep.Acquisitions = rep.try(scenario, nil, 0)
	for i := range adversaries {
		for at := range rep.Acquisitions {
			rep.try(scenario, &adversaries[i], at)
		}
	}
	return rep
}

// try runs the scenario once and returns the number of its acquisitions.
func (rep *Report) try(scenario func(x *Trial), a *Adversary, at int) int {
	x := &Trial{adversary: a, at: at}
	f := Finding{Acquisition: at, Problems: x.run(scenario)}
	if a != nil {
		f.Adversary = a.Name
		rep.Pairs++
	}
	counted := x.counted()
	rep.Refusals += counted.refusals
	if len(f.Problems) > 0 {
		rep.Findings = append(rep.Findings, f)
	}
	return counted.steps
}
