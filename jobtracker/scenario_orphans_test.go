package jobtracker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/J01-gate-check.patch.
func TestJ01_LateReplyOfAStoppedReplica(t *testing.T) {
	errStop := errors.New("stopped by an operator")
	stops := map[string]struct {
		stop  func(x *rig) error
		cause error
	}{
		"faulted":       {func(x *rig) error { return x.tr.Fault(1, errStop) }, errStop},
		"replaced":      {func(x *rig) error { return x.tr.Replace(1) }, ErrReplaced},
		"closed":        {func(x *rig) error { x.peers[1].conn.Close(errStop); return x.tr.Fault(1, nil) }, errStop},
		"failed a job":  {func(x *rig) error { x.peers[1].fail(x.write(50, 1)); return nil }, ErrJobFailed},
		"offline limit": {func(x *rig) error { x.peers[1].conn.Close(errStop); return nil }, errStop},
	}
	for name, tc := range stops {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				if name == "offline limit" {
					cfg.OfflineJobs = 4
				}
				x := newRig(t, cfg)
				p := x.peers[1]
				var load []*Job[*load]
				for i := range uint64(8) {
					load = append(load, x.write(i, 1))
				}
				for _, o := range x.peers {
					require.Len(t, o.take(), 8)
				}
				p.run(load[3].ID()) // executed, and its answer is on its way

				old := p.conn
				require.NoError(t, tc.stop(x))
				x.requireState(load[3], StateSent, StateSkipped, StateSent)
				x.orphan(old, load[3].ID(), Result{}, OrphanStaleConn)
				f := x.flush()
				x.settle()
				require.NoError(t, f.Err())
				for _, j := range load {
					require.NoError(t, j.Err())
					x.requireGone(j)
					e := x.orphanError(old, j.ID(), Result{Kind: Write}, OrphanStaleConn)
					require.ErrorIs(t, e, tc.cause)
					require.Zero(t, e.Current)
				}

				x.heal()
				require.NotEqual(t, old.ID(), p.conn.ID())
				e := x.orphanError(old, load[3].ID(), Result{}, OrphanStaleConn)
				require.Equal(t, p.conn.ID(), e.Current)
				x.orphan(p.conn, load[3].ID(), Result{}, OrphanRetired)
				x.finish()
			})
		})
	}
}

// Every call on a connection that has ended is refused alike; what needs no live connection is not an error.
func TestJ01_EveryCallOnAnEndedConnection(t *testing.T) {
	x := newRig(t, Config[*load]{})
	j := x.write(1, 1)
	p := x.peers[2]
	p.take()
	require.NoError(t, x.tr.Fault(2, errDisk))
	var d Dispatch[*load]
	for name, call := range map[string]func() error{
		"Next":          func() error { return p.conn.Next(ended(), &d) },
		"NextBatch":     func() error { _, err := p.conn.NextBatch(ended(), make([]Dispatch[*load], 1)); return err },
		"Complete":      func() error { return p.conn.Complete(j.ID(), Result{}) },
		"CompleteBatch": func() error { b := []Completion{{ID: j.ID()}}; p.conn.CompleteBatch(b); return b[0].Err },
	} {
		t.Run(name, func(t *testing.T) {
			err := x.refused(call)
			require.ErrorIs(t, err, ErrStaleConn)
			require.ErrorIs(t, err, errDisk)
			if e, ok := errors.AsType[*ConnError](err); ok {
				require.Equal(t, ConnError{Replica: 2, Conn: p.conn.ID(), Cause: e.Cause}, *e)
			} else {
				require.ErrorIs(t, err, ErrOrphan)
			}
		})
	}
	was := x.tr.Fingerprint()
	p.conn.Close(errors.New("late"))
	require.Equal(t, was, x.tr.Fingerprint(), "a second end is none")
	require.ErrorIs(t, context.Cause(p.conn.Context()), errDisk)
	require.ErrorIs(t, context.Cause(p.conn.Context()), ErrEnded)
	x.finish()
}

// Seen red with mutants/J02-conn-id.patch.
func TestJ02_ReplyDecodedWhileTheJobIsReplayed(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		j, r := x.write(5, 1), x.read(9, 1)
		for _, o := range x.peers {
			o.take()
		}
		old := p.cut()
		p.connect()
		x.requireState(j, StateSent, StateQueued, StateSent)
		x.orphan(old, j.ID(), Result{}, OrphanStaleConn)           // queued for replay
		x.orphan(p.conn, j.ID(), Result{}, OrphanNotSent)          // and not dispatched again
		require.Contains(t, p.take(), j.ID())                      // now it is
		e := x.orphanError(old, j.ID(), Result{}, OrphanStaleConn) // the former life's answer is no answer of this one
		require.ErrorIs(t, e, ErrPeerClosed)
		x.orphan(old, r.ID(), Result{Digest: 7}, OrphanStaleConn)
		x.requireState(j, StateSent, StateSent, StateSent)
		p.answer(j.ID())
		x.orphan(old, j.ID(), Result{Err: errDisk}, OrphanStaleConn) // a late failure faults nobody
		x.requireReplica(1, Voting, HomeOffline)
		x.finish()
		require.Equal(t, 2, p.sent[j.ID()])
	})
}

// Seen red with mutants/J03-dies-at-death.patch.
func TestJ03_ReplyBetweenTwoConnections(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[0]
		j := x.write(5, 1)
		for _, o := range x.peers {
			o.take()
		}
		res := p.run(j.ID())
		old := p.close()
		x.requireReplica(0, Stopping, HomeOffline)
		x.requireState(j, StateHeld, StateSent, StateSent)
		x.orphan(old, j.ID(), res, OrphanStaleConn) // the epoch advanced at death, not at the next connect
		x.orphan(old, 0, res, OrphanStaleConn)      // whatever it names
		x.orphan(old, 1<<40, res, OrphanStaleConn)
		p.quiesce()
		x.requireReplica(0, Down, HomeOffline)
		e := x.orphanError(old, j.ID(), res, OrphanStaleConn)
		require.Zero(t, e.Current)
		require.Equal(t, ErrPeerClosed, e.Cause)
		p.connect()
		x.orphan(old, j.ID(), res, OrphanStaleConn)
		x.finish()
	})
}

// Seen red with mutants/J04-window.patch.
func TestJ04_ReplyAfterTenThousandJobs(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		old := x.write(1, 1)
		f := x.flush()
		x.settle()
		x.requireGone(old)
		require.NoError(t, f.Err())
		cost := func(id JobID, n uint64) float64 {
			was := x.tr.Fingerprint()
			got := testing.AllocsPerRun(100, func() {
				if err := x.peers[0].conn.Complete(id, Result{}); !errors.Is(err, ErrRetired) {
					t.Errorf("job %d after %d: %v", id, n, err)
				}
			})
			require.Equal(t, was, x.tr.Fingerprint())
			return got
		}
		young := cost(old.ID(), 0)
		for i := range uint64(10_000) {
			x.write(i%rigBlocks, 1)
			if i%100 == 99 {
				x.flush()
				x.answerAll(x.peers...)
			}
		}
		require.Equal(t, uint64(10_102), x.tr.Stats().Retired)
		for _, id := range []JobID{old.ID(), f.ID(), 2000, 5000, 10_102} {
			x.orphan(x.peers[2].conn, id, Result{}, OrphanRetired)
			require.InDelta(t, young, cost(id, 10_000), 0, "the age of a reply costs nothing")
		}
		x.finish()
	})
}

// Seen red with mutants/J06-charge-once.patch.
func TestJ06_CompleteDisconnectReplayComplete(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		w, z := x.write(5, 2), x.submit(Op{Kind: Zero, Start: 9, Blocks: 1}, 0)
		for _, o := range x.peers {
			o.takeAnswer(w, z)
		}
		for life := range 4 {
			for r := range x.peers {
				jobs, bytes := x.charges(r)
				require.Zero(t, jobs, "replica %d, life %d", r, life)
				require.Zero(t, bytes)
			}
			x.orphan(p.conn, w.ID(), Result{}, OrphanDuplicate) // once per life
			old := p.cut()
			x.requireState(w, StateDone, StateHeld, StateDone)
			require.Equal(t, 2, x.tr.Dump().Replicas[1].Held)
			p.connect()
			require.Equal(t, PlanReplay, p.conn.Plan())
			p.takeAnswer(w, z)
			x.orphan(old, w.ID(), Result{}, OrphanStaleConn)
			x.requireState(w, StateDone, StateDone, StateDone)
			require.Zero(t, x.tr.Dump().Replicas[1].Held)
		}
		require.Equal(t, 5, p.sent[w.ID()])
		x.flush() // the counters are exact when the table is empty
		x.settle()
		stats := x.tr.Stats()
		require.Equal(t, uint64(3), stats.Acked)
		require.Equal(t, uint64(11), stats.Replicas[1].Answered)
		require.Equal(t, uint64(11), stats.Replicas[1].Dispatched)
		x.finish()
	})
}

// What was not answered before it is replayed keeps its one charge all the while.
func TestJ06_ChargeIsKeptThroughReplay(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		w := x.write(5, 2)
		check := func(want int) {
			jobs, bytes := x.charges(1)
			require.Equal(t, want, jobs)
			require.Equal(t, int64(want)*1024, bytes)
		}
		for range 3 {
			p.take()
			check(1)
			p.cut()
			check(1)
			p.connect()
			check(1)
		}
		p.takeAnswer(w)
		check(0)
		x.finish()
	})
}

// Seen red with mutants/J07-not-sent.patch.
func TestJ07_NeverIssuedNotSentKindMismatch(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		c := x.peers[0].conn
		for _, id := range []JobID{0, 1, 2, 1 << 20, math.MaxUint64} {
			x.orphan(c, id, Result{Kind: Write}, OrphanNeverIssued)
		}
		jobs := []*Job[*load]{
			x.write(1, 1), x.submit(Op{Kind: Zero, Start: 2, Blocks: 1}, 0), x.submit(Op{Kind: Trim, Start: 3, Blocks: 1}, 0),
		}
		kindOf := []Kind{Write, Zero, Trim}
		behind := x.write(1, 1)
		for _, j := range jobs {
			x.orphan(c, j.ID(), Result{}, OrphanNotSent) // ready, not dispatched
			x.orphan(c, j.ID(), Result{Kind: Flush, Err: errDisk}, OrphanNotSent)
		}
		x.orphan(c, behind.ID(), Result{}, OrphanNotSent) // waits for another
		x.orphan(c, behind.ID()+1, Result{}, OrphanNeverIssued)
		x.peers[0].take()
		for i, j := range jobs {
			kind := kindOf[i]
			for k := range Kind(numKinds + 1) {
				if k == kind || k == 0 {
					continue
				}
				e := x.orphanError(c, j.ID(), Result{Kind: k}, OrphanKindMismatch)
				require.Equal(t, kind, e.Kind)
				require.Equal(t, k, e.GotKind)
				x.orphan(c, j.ID(), Result{Kind: k, Err: errDisk}, OrphanKindMismatch) // a mismatch faults nobody
			}
			x.requireState(j, StateSent, StateQueued, StateQueued)
			x.peers[0].answer(j.ID())
			x.orphan(c, j.ID(), Result{}, OrphanDuplicate)
			x.orphan(c, j.ID(), Result{Kind: Barrier}, OrphanDuplicate) // comes before the kind
		}
		x.finish()
		x.orphan(x.peers[0].conn, behind.ID(), Result{}, OrphanRetired)
	})
}

// A read that another voter is asked is not sent here; one that was decided elsewhere is written off.
func TestJ07_ReadOfAnotherVoter(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		r := x.read(3, 1)
		asked := -1
		for i, p := range x.peers {
			if len(p.take()) > 0 {
				require.Negative(t, asked, "one voter is asked")
				asked = i
			}
		}
		other := (asked + 1) % 3
		x.orphan(x.peers[other].conn, r.ID(), Result{}, OrphanNotSent)
		x.peers[asked].answer(r.ID())
		x.orphan(x.peers[other].conn, r.ID(), Result{}, OrphanSkipped)
		x.orphan(x.peers[asked].conn, r.ID(), Result{}, OrphanDuplicate)
		x.finish()
	})
}

// A replica under repair gets no reads and nothing older than its repair.
func TestJ07_SkippedOnALiveConnection(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		require.NoError(t, x.tr.Fault(2, errDisk))
		x.peers[2].comeBack()
		w := x.write(1, 1)
		x.orphan(x.peers[2].conn, w.ID(), Result{}, OrphanSkipped)
		_, err := x.tr.Repair(2)
		require.NoError(t, err)
		r, v := x.read(1, 1), x.write(2, 1)
		require.Equal(t, []JobID{v.ID()}, x.peers[2].take())
		x.orphan(x.peers[2].conn, r.ID(), Result{}, OrphanSkipped)
		x.orphan(x.peers[2].conn, w.ID(), Result{}, OrphanSkipped)
		require.NoError(t, x.tr.Fault(2, errDisk))
		x.finish()
	})
}

// One reply of a batch ends the connection: those behind it are orphans of it, each counted.
func TestJ07_BatchThatEndsItsConnection(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		x.tainted = true
		a, b, c := x.write(1, 1), x.write(2, 1), x.write(3, 1)
		p := x.peers[0]
		p.take()
		batch := []Completion{
			{ID: a.ID()}, {ID: a.ID()}, {ID: b.ID(), Result: Result{Err: errDisk}}, {ID: c.ID()}, {ID: 99}, {},
		}
		require.Equal(t, 4, p.conn.CompleteBatch(batch))
		require.NoError(t, batch[0].Err)
		require.ErrorIs(t, batch[1].Err, ErrDuplicate)
		require.NoError(t, batch[2].Err)
		for _, late := range batch[3:] {
			x.requireOrphan(late.Err, p.conn, late.ID, OrphanStaleConn)
			require.ErrorIs(t, late.Err, errDisk, fmt.Sprint(late.ID))
		}
		x.finish()
	})
}
