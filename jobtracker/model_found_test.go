package jobtracker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What the model found, each as a plain test.

// Waiters' channels were pooled across trackers: used in two synctest bubbles, they ended the process.
func TestFound_WaitersOfTwoBubbles(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			x := newRig(t, Config[*load]{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, x.write(1, 1).Wait(ctx), context.DeadlineExceeded)
		})
	}
}

// A flush that failed at admission, for a snapshot with a replica away, was terminal everywhere and retired what had not
// even been dispatched: the next write of the block did not wait for the one before, in either mode.
func TestFound_FailedFlushRetiresNothingOutstanding(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		require.NoError(t, x.tr.Fault(2, nil))
		first := x.write(1, 1)
		_ = x.submit(Op{Kind: Flush, Snapshot: true}, 0)
		second := x.write(1, 1)
		if x.cfg.Order == TrackerOrders {
			require.Equal(t, []JobID{first.ID()}, x.peers[0].take())
			return
		}
		require.Equal(t, []JobID{first.ID(), second.ID()}, x.peers[0].take())
		require.Equal(t, []JobID{first.ID()}, x.peers[0].deps(second))
	})
}

// A replica that came back to a table of which nothing was for it was told to expect a replay.
func TestFound_PlanOfAReplicaThatMissedNothing(t *testing.T) {
	x := newRig(t, Config[*load]{})
	x.peers[0].cut()
	x.read(1, 1)
	x.peers[0].connect()
	x.settle()
	x.peers[0].cut()
	require.Equal(t, PlanFresh, x.peers[0].connect().Plan())
	x.peers[0].cut()
	x.write(1, 1)
	require.Equal(t, PlanReplay, x.peers[0].connect().Plan())
}

// Applications whose context had ended stayed in the queue, and were counted as waiting, until the one before them was
// decided: polls behind one that had to wait took ever more memory.
func TestFound_WithdrawnApplicationsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newRig(t, Config[*load]{MaxJobs: 1})
		x.write(1, 1)
		go func() { _, _ = x.tr.Submit(context.Background(), Op{Kind: Flush}, nil) }()
		synctest.Wait()
		for range 100 {
			_, err := x.tr.Submit(ended(), Op{Kind: Flush}, nil)
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, 1, x.tr.Dump().Waiting)
	})
}

// A write that a replica had done, and no flush, is to be replayed when its connection ends. A barrier that the replica had
// done as well retired it all the same once the barrier was terminal elsewhere: the next write of the block did not wait.
func TestFound_BarrierOfAFormerLifeRetiresNothingHeld(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		first := x.write(1, 1)
		barrier := x.submit(Op{Kind: Barrier}, 0)
		second := x.write(1, 1)
		for _, p := range x.peers[:2] {
			p.takeAnswer(first)
			p.takeAnswer(barrier)
		}
		x.peers[0].cut()
		require.NoError(t, x.tr.Fault(2, nil))
		x.peers[0].connect()
		got := x.peers[0].take()
		if x.cfg.Order == TrackerOrders {
			require.Equal(t, []JobID{first.ID()}, got)
		} else {
			require.Equal(t, []JobID{first.ID(), second.ID()}, got)
			require.Equal(t, []JobID{first.ID()}, x.peers[0].deps(second))
		}
		x.heal()
		x.finish()
	})
}

// A flush that cannot reach its quorum was left nowhere and yet retired what was done: whose connection ended then needed a
// repair, and with the last one the activation was over.
func TestFound_FlushWithoutQuorumIsDoneAllTheSame(t *testing.T) {
	for _, snapshot := range []bool{false, true} {
		x := newRig(t, Config[*load]{WriteQuorum: 3})
		w := x.write(1, 1)
		x.settle()
		require.NoError(t, w.Err())
		require.NoError(t, x.tr.Fault(2, nil))
		f := x.submit(Op{Kind: Flush, Snapshot: snapshot}, 0)
		require.ErrorIs(t, f.Err(), ErrQuorum)
		x.settle()
		x.peers[0].cut()
		x.peers[1].cut()
		x.requireReplica(0, Down, HomeOffline)
		x.requireReplica(1, Down, HomeOffline)
		x.tainted = true
		x.peers[0].connect()
		x.peers[1].connect()
		x.heal()
		x.finish()
	}
}

// The identity of a device that never became active was pinned to the next one, if that one did not name itself at first.
func TestFound_IdentityOfTheDeviceThatBecameActive(t *testing.T) {
	x := newRig(t, Config[*load]{})
	require.NoError(t, x.tr.Replace(0))
	p := x.peers[0]
	for _, id := range []ID{{1}, {}} { // the first device to stand in fails, the second says nothing of itself
		p.id, p.gen, p.num = id, 0, 0
		p.connect()
		if id != (ID{}) {
			p.cut()
		}
	}
	p.repair()
	p.cut()
	p.id = ID{2}
	p.connect()
	x.requireReplica(0, Voting, HomeOffline)
	p.cut()
	p.id = ID{}
	p.connect() // that it says nothing now frees nothing
	p.cut()
	p.id = ID{3}
	_, err := x.tr.Connect(0, p.hello())
	require.ErrorIs(t, err, ErrHello)
	p.id = ID{2}
	p.connect()
	x.finish()
}

// A write that was acknowledged early fails for those who voted when it was admitted. A flush behind it, for which one more
// votes that was under repair by then, is done by a quorum and must fail all the same (J18). No other test saw the doom of
// flushes that are already behind the write taken away.
func TestFound_LostWriteDoomsTheFlushBehindIt(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		cfg.WriteBack = true
		x := newRig(t, cfg)
		x.tainted = true
		require.NoError(t, x.tr.Fault(2, nil))
		target := x.peers[2]
		target.comeBack()
		ticket, err := x.tr.Repair(2)
		require.NoError(t, err)
		_, err = ticket.Copy(0, 0, rigBlocks, &load{})
		require.NoError(t, err)
		x.settle()
		w := x.write(1, 1)
		require.NoError(t, w.Err())
		require.NoError(t, ticket.Finish())
		target.takeAnswer(w)
		target.take()
		target.answer(w.ID() + 1) // the last flush
		x.requireReplica(2, Voting, HomeOffline)
		f := x.flush()
		x.peers[0].take()
		x.peers[0].fail(w)
		x.settle()
		require.ErrorIs(t, f.Err(), ErrLostWrite)
		x.heal()
		x.finish()
	})
}
