package jobtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// TestExploreInTurns has three goroutines, each of which comes to two acquisitions: one has the turn at a time, in the same
// order in each run, and an adversary goes before each of them with nobody in between.
func TestExploreInTurns(t *testing.T) {
	type world struct{ trace string }
	var first string    // the trace of the undisturbed run
	var before []string // what was done when the adversary went
	scenario := func(x *jobtest.Trial) {
		w := &world{}
		x.Subject = w
		step := func(name string) {
			x.Gap()
			w.trace += name // shared: the race detector would see two at a time
		}
		done := make(chan struct{}, 3)
		go func() { step("a"); step("b"); done <- struct{}{} }()
		go func() { step("c"); step("d"); done <- struct{}{} }()
		x.Quietly(func() { step("-") }) // the scenario has the turn until it yields
		go func() { <-done; <-done; step("e"); step("f"); done <- struct{}{} }()
		x.Yield()
		if first == "" {
			first = w.trace
		}
		require.Equal(x, first, w.trace)
		require.Len(x, done, 1)
	}
	rep := jobtest.ExploreInTurns(t, scenario, jobtest.Adversary{Name: "looks", Act: func(x *jobtest.Trial) {
		before = append(before, x.Subject.(*world).trace)
		x.Gap() // its own are not counted
	}})
	require.Contains(t, []string{"-abcdef", "-cdabef"}, first)
	require.Len(t, before, 6)
	for i, trace := range before {
		require.Equal(t, first[:1+i], trace)
	}
	require.Equal(t, 6, rep.Acquisitions)
	require.Equal(t, 6, rep.Pairs)
}
