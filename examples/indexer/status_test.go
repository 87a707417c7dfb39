package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgress(t *testing.T) {
	began := time.Now()
	p := progress{began, 1000}
	require.Equal(t, "building: 3000 of 9000 records (33 %), 1000/s, 6s left", p.line(view{Done: 3000, Goal: 9000}, began.Add(2*time.Second)))
	require.Equal(t, "building: 1000 of 9000 records (11 %), 0/s", p.line(view{Done: 1000, Goal: 9000}, began.Add(2*time.Second)))
	require.Equal(t, "building: 500 of 700 records", p.line(view{Done: 500, Goal: 700}, began.Add(2*time.Second)), "partitions have gone: no rate can be told")
}

func TestTally(t *testing.T) {
	counts := map[string]uint64{"stale-claim": 12, "phase": 3}
	require.Equal(t, "12 stale-claim, 3 phase", tally(counts))
	require.Equal(t, counts, untally(tally(counts)))
	require.Equal(t, "none", tally(nil))
	require.Empty(t, untally("none"))
}

func TestCompareCanFail(t *testing.T) {
	require.NoError(t, compare([]string{"a", "b"}, []string{"b", "a"}))
	require.ErrorContains(t, compare([]string{"a"}, []string{"a", "b"}), "1 entries are lost (b)")
	require.ErrorContains(t, compare([]string{"a", "a"}, []string{"a"}), "1 are double or wrong (a)")
	require.ErrorContains(t, compare([]string{"a", "c"}, []string{"a", "b"}), "1 entries are lost (b) and 1 are double or wrong (c)")
}

// TestShow builds an index and looks at what is told meanwhile.
func TestShow(t *testing.T) {
	p := newPond(t, 1)
	p.things(5)
	gate := make(chan struct{})
	a := p.rig(t.TempDir(), func(c *config) { c.beforeApply = func(*parcel) { <-gate } })
	p.settle(a)
	v := a.view()
	require.True(t, v.Building)
	require.Equal(t, uint64(5), v.Goal)
	require.Zero(t, v.Done)
	require.Equal(t, uint64(5), v.Behind)
	close(gate)
	p.caughtUp(a)
	v = a.view()
	require.False(t, v.Building)
	require.Equal(t, uint64(5), v.Done)
	require.Zero(t, v.Behind)
	require.True(t, strings.HasPrefix(a.statusLine(v), "1 partitions, generation 1 | 5 records, 0 behind"), a.statusLine(v))
}
