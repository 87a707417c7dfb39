package jobtracker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// orderBytes is what o holds on to.
func orderBytes(o *order) int {
	return 8*(cap(o.ids)+cap(o.gone)+cap(o.cells)+cap(o.many)) + 24*(cap(o.segs)+cap(o.wide)+cap(o.pieces)) +
		4*(cap(o.renumber)+cap(o.forward))
}

// orderBound is what o may hold on to after at most n operations were unretired at a time.
func orderBound(n int) int { return 256<<10 + 300*n }

func requireBounded(t *testing.T, o *order, n int, what string) {
	t.Helper()
	slots := 2*n + sweepMin + 2
	require.NoError(t, o.check(), what)
	require.LessOrEqual(t, len(o.ids), slots, what)
	require.LessOrEqual(t, len(o.segs), 2*slots, what)
	require.LessOrEqual(t, len(o.cells), maxShare*slots, what)
	require.LessOrEqual(t, orderBytes(o), orderBound(n), what)
}

// TestOrderMemoryWithoutAll runs for long without an orderAll and with a fixed number of unretired operations.
func TestOrderMemoryWithoutAll(t *testing.T) {
	lines := 200_000
	if *stress {
		lines = 10_000_000
	}
	const lag = 100
	for _, c := range []struct {
		name      string
		space     uint64
		blocks    uint64
		gap       JobID
		straggler *orderOp // added first, never retired
		readsOnly bool     // so that nothing has to wait for a straggling read
	}{
		{name: "random", space: 1 << 40, blocks: 64},
		{name: "dense", space: 2000, blocks: 64},
		{name: "gaps in ids", space: 1 << 40, blocks: 64, gap: 1 << 30},
		{name: "straggler", space: 1 << 40, blocks: 64, straggler: &orderOp{kind: orderWrite, start: 1 << 50, blocks: 1}},
		{name: "read of all straggles", space: 4000, blocks: 8, straggler: &orderOp{kind: orderRead, blocks: 1 << 20}, readsOnly: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 5))
			var o order
			var deps []JobID
			var recent [lag]JobID
			id, n := JobID(1), lag
			if s := c.straggler; s != nil {
				o.add(id, s.kind, s.start, s.blocks, nil)
				n++
			}
			for i := range lines {
				id += 1 + c.gap
				kind := orderRead
				if !c.readsOnly && r.IntN(2) == 0 {
					kind = orderWrite
				}
				deps = o.add(id, kind, r.Uint64N(c.space), 1+r.Uint64N(c.blocks), deps[:0])
				o.retire(recent[i%lag])
				recent[i%lag] = id
				if i%9973 == 0 {
					requireBounded(t, &o, n, fmt.Sprint("operation ", i))
				}
			}
			requireBounded(t, &o, n, "at the end")
		})
	}
}

// TestOrderMemoryIsLinear has as many reads as it can of distinct blocks, then reads of all of them: lists
// of their own for all would take a cell for each read and each block.
func TestOrderMemoryIsLinear(t *testing.T) {
	const n = 1500
	var o order
	var deps []JobID
	id := JobID(0)
	for i := range uint64(n) {
		id++
		o.add(id, orderRead, 10*i, 3, nil)
	}
	for range n {
		id++
		deps = o.add(id, orderRead, 0, math.MaxUint64, deps[:0])
		require.Empty(t, deps)
	}
	requireBounded(t, &o, 2*n, "all read")
	o.sweep()
	requireBounded(t, &o, 2*n, "swept")
	deps = o.add(id+1, orderWrite, 11, 1, deps[:0])
	require.Len(t, deps, 1+n)
	require.Equal(t, JobID(2), deps[0])
	require.Len(t, o.add(id+2, orderAll, 0, 0, deps[:0]), 2*n+1)
}

// TestOrderMemoryAfterBurst checks that what a burst took is given back, with an orderAll and without.
func TestOrderMemoryAfterBurst(t *testing.T) {
	const burst = 20_000
	for _, every := range []int{0, 100} {
		r := rand.New(rand.NewPCG(6, 6))
		var o order
		for id := range JobID(burst) {
			o.add(id, orderKind(r.IntN(2)), r.Uint64(), 5, nil)
		}
		requireBounded(t, &o, burst, "burst")
		for id := range JobID(burst) {
			o.retire(id)
		}
		for i := range JobID(2 * burst) {
			kind := orderWrite
			if every != 0 && int(i)%every == 0 {
				kind = orderAll
			}
			o.add(burst+i, kind, r.Uint64(), 5, nil)
			o.retire(burst + i)
		}
		requireBounded(t, &o, 1, fmt.Sprint("an orderAll every ", every))
	}
}

// TestOrderSweepJoins checks that what only retired operations told apart is one again.
func TestOrderSweepJoins(t *testing.T) {
	var o order
	o.add(1, orderRead, 0, 1, nil)
	o.add(2, orderRead, 1, 1, nil)
	o.add(3, orderRead, 0, 2, nil) // onto two lists
	o.add(4, orderRead, 1, 5, nil)
	for _, id := range []JobID{1, 2, 4} {
		o.retire(id)
	}
	o.sweep()
	require.NoError(t, o.check())
	require.Equal(t, []segment{{start: 0, last: 1, readers: 1}}, o.segs)
	require.Len(t, o.cells, 2)
	require.Len(t, o.ids, 3)
}

func TestOrderSteadyStateDoesNotAllocate(t *testing.T) {
	b := newOrderBench(generatedTrace(), 100)
	var o order
	b.run(&o, 3*len(b.jobs))
	require.Zero(t, testing.AllocsPerRun(5, func() { b.run(&o, len(b.jobs)) }))
}
