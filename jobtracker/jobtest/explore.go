package jobtest

import (
	"testing"
	"testing/synctest"

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
//   - every refusal was typed and has changed nothing;
//   - the invariants of each tracker hold;
//   - once the replicas are healed and have reconnected, every job resolves, a repair of who needs one succeeds, the active
//     replicas hold the same, the activation ends, and table and charges are empty;
//   - no id was used twice, and no callback lost, repeated or out of order;
//   - what the scenario itself requires, and promises by [Trial.Promise].
//
// With no adversaries given, it is all [Adversaries]. The scenario must tolerate typed refusals. It works on the user's own
// code as well: see [Trial.Watch] and [Trial.Gap].
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

// ExploreInTurns is [Explore] for a scenario that runs code with goroutines of its own, such as a driver of package repair.
// Each run is in a bubble of testing/synctest. What the scenario has started goes on only in [Trial.Yield], one goroutine
// at a time from one acquisition of the lock to the next, so that nobody comes between the calls of an adversary. It must
// have ended when the scenario, or what it gave to [Trial.Cleanup], returns.
func ExploreInTurns(t *testing.T, scenario func(x *Trial), adversaries ...Adversary) Report {
	t.Helper()
	if len(adversaries) == 0 {
		adversaries = Adversaries
	}
	one := start(scenario, adversaries, explore.NewInTurns)
	return explore.Test(t, names(adversaries), func(adversary, at int) (o explore.Outcome) {
		synctest.Test(t, func(*testing.T) { o = one(adversary, at) })
		return o
	})
}

// run is the scenario with one of the adversaries, as the engine runs it.
func run(scenario func(x *Trial), adversaries []Adversary) explore.Run {
	return start(scenario, adversaries, explore.New)
}

func start(scenario func(x *Trial), adversaries []Adversary, engine func(func(error) bool, func(), int) *explore.Trial) explore.Run {
	return func(adversary, at int) explore.Outcome {
		x := &Trial{}
		var act func()
		if adversary >= 0 {
			act = func() { adversaries[adversary].Act(x) }
		}
		x.engine = engine(Typed, act, at)
		return x.engine.Run(func() { scenario(x) }, x.finish)
	}
}
