package streamtest

import (
	"testing"

	"github.com/staleproof/staleproof/internal/explore"
)

// Adversary is who goes first. Act runs in the place of another goroutine: right before an acquisition of a lock, with no
// lock held. It may call anything that does not wait.
type Adversary struct {
	Name string
	Act  func(x *Trial)
}

// Finding is a promise that was broken: Adversary (empty if nobody has interfered), the number of the Acquisition before
// which it went, from 0, and Problems, a text each.
type Finding = explore.Finding

// Report is what the explorer did and found: Acquisitions of an undisturbed run of the scenario, Pairs of an adversary and
// an acquisition, each a run, Refusals that were compared, and Findings.
type Report = explore.Report

// Explore runs the scenario once, to count how often it acquires a lock, and then again for each adversary and each of
// these acquisitions, with the adversary going first right there: a subtest each. After each run the faults stop, and the
// promises are checked:
//
//   - nothing has panicked;
//   - every refusal was typed and has changed nothing: neither the books nor what was applied;
//   - the invariants of each key hold;
//   - nothing of one session or claim has shown in the next: no call was let in with a token that had ended, and no data but
//     of a live claim of the session was applied;
//   - once the sources are healed, stopped sessions are opened again, flushes and holds have ended and repair is answered,
//     every key is healthy, nothing and nobody waits, and what was applied is what the sources have;
//   - every handle has ended, and events came in order, one at a time, each going on where the last one led;
//   - what the scenario itself requires, and promises by [Trial.Promise].
//
// With no adversaries given, it is all [Adversaries]. The scenario must tolerate typed refusals. It works on the user's own
// code as well: see [Watch] and [Trial.Gap].
func Explore(t *testing.T, scenario func(x *Trial), adversaries ...Adversary) Report {
	t.Helper()
	if len(adversaries) == 0 {
		adversaries = Adversaries // a search that tries nobody would find nothing
	}
	return explore.Test(t, names(adversaries), run(scenario, adversaries))
}

// Search is [Explore] without a test: it returns what it found. With no adversaries given, it is the undisturbed run alone.
func Search(scenario func(x *Trial), adversaries ...Adversary) Report {
	return explore.Search(names(adversaries), run(scenario, adversaries))
}

func names(adversaries []Adversary) []string {
	all := make([]string, 0, len(adversaries))
	for _, a := range adversaries {
		all = append(all, a.Name)
	}
	return all
}

// run is the scenario with one of the adversaries, as the engine runs it.
func run(scenario func(x *Trial), adversaries []Adversary) explore.Run {
	return func(adversary, at int) explore.Outcome {
		x := &Trial{}
		var act func()
		if adversary >= 0 {
			act = func() { adversaries[adversary].Act(x) }
		}
		x.engine = explore.New(Typed, act, at)
		x.engine.Cleanup(x.checkHandles) // the first one is called last
		return x.engine.Run(func() { scenario(x) }, x.finish)
	}
}
