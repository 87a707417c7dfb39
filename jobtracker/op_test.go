package jobtracker

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

var badOps = []struct {
	op  Op
	err OpError
}{
	{Op{}, OpError{"Kind", 0, 1, 6}},
	{Op{Kind: Copy, Blocks: 1}, OpError{"Kind", 7, 1, 6}},
	{Op{Kind: numKinds}, OpError{"Kind", 8, 1, 6}},
	{Op{Kind: 255}, OpError{"Kind", 255, 1, 6}},
	{Op{Kind: Read}, OpError{"Blocks", 0, 1, 50}},
	{Op{Kind: Read, Blocks: 51}, OpError{"Blocks", 51, 1, 50}},
	{Op{Kind: Write, Blocks: 51}, OpError{"Blocks", 51, 1, 50}},
	{Op{Kind: Write, Blocks: math.MaxUint64}, OpError{"Blocks", math.MaxUint64, 1, 50}},
	{Op{Kind: Write, Start: 51, Blocks: 50}, OpError{"Start", 51, 0, 50}},
	{Op{Kind: Read, Start: math.MaxUint64, Blocks: 1}, OpError{"Start", math.MaxUint64, 0, 99}},
	{Op{Kind: Zero}, OpError{"Blocks", 0, 1, math.MaxUint32}},
	{Op{Kind: Zero, Blocks: 1 << 32}, OpError{"Blocks", 1 << 32, 1, math.MaxUint32}},
	{Op{Kind: Zero, Blocks: 101}, OpError{"Blocks", 101, 1, 100}},
	{Op{Kind: Trim, Start: 1, Blocks: 100}, OpError{"Start", 1, 0, 0}},
	{Op{Kind: Flush, Start: 1}, OpError{"Start", 1, 0, 0}},
	{Op{Kind: Flush, Blocks: 1}, OpError{"Blocks", 1, 0, 0}},
	{Op{Kind: Barrier, Start: 1}, OpError{"Start", 1, 0, 0}},
	{Op{Kind: Barrier, Blocks: 2}, OpError{"Blocks", 2, 0, 0}},
	{Op{Kind: Read, Blocks: 1, FUA: true}, OpError{"FUA", 1, 0, 0}},
	{Op{Kind: Flush, FUA: true}, OpError{"FUA", 1, 0, 0}},
	{Op{Kind: Barrier, FUA: true}, OpError{"FUA", 1, 0, 0}},
	{Op{Kind: Read, Blocks: 1, Snapshot: true}, OpError{"Snapshot", 1, 0, 0}},
	{Op{Kind: Write, Blocks: 1, Snapshot: true}, OpError{"Snapshot", 1, 0, 0}},
	{Op{Kind: Barrier, Snapshot: true}, OpError{"Snapshot", 1, 0, 0}},
}

func TestOpNamesTheBadField(t *testing.T) {
	tr, conns := running(t, Config[int]{Blocks: 100, MaxBytes: 50 * 512})
	for _, tc := range badOps {
		for call, err := range map[string]error{
			"Submit": unchanged(t, tr, func() error { _, err := tr.Submit(t.Context(), tc.op, 1); return err }),
			"Do":     unchanged(t, tr, func() error { return tr.Do(t.Context(), tc.op, 1) }),
		} {
			require.ErrorIs(t, err, ErrOp, call)
			require.Equal(t, &tc.err, err, "%s(%+v)", call, tc.op)
			require.EqualError(t, err, fmt.Sprintf("jobtracker: bad operation: %s is %d, want %d to %d", tc.err.Field, tc.err.Got, tc.err.Min, tc.err.Max))
		}
	}
	err := unchanged(t, tr, func() error {
		got, err := conns[0].NextBatch(t.Context(), nil)
		require.Empty(t, got)
		return err
	})
	require.Equal(t, &OpError{Field: "len(buf)", Min: 1, Max: math.MaxInt}, err)
}

// TestOpIsLookedAtFirst has a bad operation named in every phase: it is the caller's fault, whatever the phase.
func TestOpIsLookedAtFirst(t *testing.T) {
	tr := idle(t, Config[int]{})
	require.ErrorIs(t, unchanged(t, tr, func() error { return tr.Do(t.Context(), Op{}, 0) }), ErrOp)
	require.NoError(t, tr.Close().Wait(t.Context()))
	require.ErrorIs(t, unchanged(t, tr, func() error { return tr.Do(t.Context(), Op{}, 0) }), ErrOp)
}

func TestOpLargest(t *testing.T) {
	tr, conns := running(t, Config[int]{Blocks: 100, MaxBytes: 50 * 512})
	for _, op := range []Op{
		write(50, 50), read(0, 50), write(99, 1),
		{Kind: Zero, Blocks: 100},
		{Kind: Trim, Blocks: 100, FUA: true},
		{Kind: Write, Start: 3, Blocks: 1, FUA: true},
		{Kind: Flush, Snapshot: true},
		{Kind: Barrier},
	} {
		j := submit(t, tr, op)
		serve(t, conns...)
		require.True(t, j.Resolved())
		require.NoError(t, j.Err(), "%+v", op)
	}
}

// TestCopyNamesTheBadField has the same limits for the copies of a repair.
func TestCopyNamesTheBadField(t *testing.T) {
	tr, conns := running(t, Config[int]{Blocks: 100, MaxBytes: 50 * 512})
	rep := startRepair(t, tr, conns, 2)
	for _, tc := range []struct {
		start, blocks uint64
		err           OpError
	}{
		{0, 0, OpError{"Blocks", 0, 1, 50}},
		{0, 51, OpError{"Blocks", 51, 1, 50}},
		{51, 50, OpError{"Start", 51, 0, 50}},
		{math.MaxUint64, 1, OpError{"Start", math.MaxUint64, 0, 99}},
	} {
		err := unchanged(t, tr, func() error { _, err := rep.Copy(0, tc.start, tc.blocks, 0); return err })
		require.Equal(t, &tc.err, err)
	}
	for _, i := range []int{-1, 100} {
		err := unchanged(t, tr, func() error { _, err := rep.Compare(0, i, 0); return err })
		require.Equal(t, &OpError{Field: "extent", Got: uint64(i), Max: 99}, err)
	}
}

// startRepair faults a replica, has it come back, and starts its repair.
func startRepair(t *testing.T, tr *Tracker[int], conns []*Conn[int], r int) *Repair[int] {
	t.Helper()
	require.NoError(t, tr.Fault(r, errDisk))
	require.NoError(t, conns[r].Quiesced())
	c, err := tr.Connect(r, Hello{})
	require.NoError(t, err)
	require.Equal(t, PlanRepair, c.Plan())
	conns[r] = c
	rep, err := tr.Repair(r)
	require.NoError(t, err)
	return rep
}
