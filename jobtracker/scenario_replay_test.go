package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/J05-requeue.patch.
func TestJ05_SubmittedWhileAwayIsSentOnce(t *testing.T) {
	for name, home := range map[string]func(p *peer){
		"not quiesced": func(p *peer) { p.close() },
		"quiesced":     func(p *peer) { p.cut() },
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				x := newRig(t, cfg)
				p := x.peers[2]
				home(p)
				jobs := []*Job[*load]{
					x.write(1, 4), x.write(2, 2), x.submit(Op{Kind: Trim, Start: 3, Blocks: 2}, 0), x.flush(),
					x.write(3, 1), x.submit(Op{Kind: Zero, Start: 0, Blocks: 2}, 0),
					x.submit(Op{Kind: Write, Start: 9, Blocks: 1, FUA: true}, 5), x.write(9, 2), x.write(9, 1),
				}
				for _, j := range jobs {
					x.requireState(j, StateQueued, StateQueued, StateHeld)
				}
				x.settle()
				for _, j := range jobs {
					require.NoError(t, j.Err())
					require.True(t, j.Resolved())
				}
				p.comeBack()
				require.Equal(t, PlanReplay, p.conn.Plan())
				x.settle()
				for _, j := range jobs {
					require.Equal(t, 1, p.sent[j.ID()], "job %d", j.ID())
				}
				p.cut() // what a flush vouches for is not sent again
				p.connect()
				x.settle()
				for i, j := range jobs {
					want := 1
					if i >= 4 {
						want = 2
					}
					require.Equal(t, want, p.sent[j.ID()], "job %d", j.ID())
				}
				x.finish()
			})
		})
	}
}

// A replica that goes and comes many times in the middle of it all: nothing is missing, nothing is in the wrong order.
func TestJ05_ManyLives(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		cfg.AutoSyncJobs = 24
		x := newRig(t, cfg)
		for i := range uint64(300) {
			p := x.peers[i/7%3]
			switch i % 7 {
			case 0:
				p.close()
			case 2:
				p.comeBack()
			case 3:
				for _, id := range p.take() {
					p.run(id) // executed, but the answer will not count
				}
				p.cut()
			case 5:
				p.comeBack()
			}
			x.write(i*11%rigBlocks/2, 1+i%5)
			r := x.read(i*7%rigBlocks/2, 1+i%9)
			x.step()
			if i%13 == 0 {
				x.flush()
			}
			require.NoError(t, x.tr.Check())
			_ = r
		}
		x.finish()
		for _, j := range x.jobs {
			require.NoError(t, j.Err())
		}
	})
}

// A read waits for a replica that may come back, if no other can answer, and is sent to it once.
func TestJ05_ReadWithNobodyThere(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		w := x.write(3, 1)
		x.settle()
		require.NoError(t, w.Err())
		for _, p := range x.peers {
			p.cut()
		}
		r := x.read(3, 1)
		require.False(t, r.Resolved())
		x.peers[1].connect()
		x.settle()
		require.True(t, r.Resolved())
		require.NoError(t, r.Err())
		require.Equal(t, 1, x.peers[1].sent[r.ID()])
		x.finish()
	})
}

// The same, where the replica that would have been asked is faulted meanwhile.
func TestJ05_ReadWithNobodyThereIsPassedOn(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		for _, p := range x.peers {
			p.cut()
		}
		r := x.read(3, 1)
		require.NoError(t, x.tr.Fault(0, errDisk))
		require.NoError(t, x.tr.Fault(1, errDisk))
		require.False(t, r.Resolved())
		x.peers[2].connect()
		x.settle()
		require.NoError(t, r.Err())
		require.True(t, r.Resolved())
		x.finish()
	})
}

// Seen red with mutants/J12-replayable.patch.
func TestJ12_BarrierRetiredWhatAReplicaMayHaveLost(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		w := x.write(5, 1)
		x.settle()
		require.NoError(t, w.Err())
		b := x.submit(Op{Kind: Barrier}, 0)
		x.settle()
		require.NoError(t, b.Err())
		x.requireGone(w)
		p.disk = map[uint64]int{} // it had not been flushed
		p.close()
		x.requireReplica(1, Stopping, HomeFaulted)
		p.quiesce()
		x.requireReplica(1, Down, HomeFaulted)
		p.connect()
		require.Equal(t, PlanRepair, p.conn.Plan())
		x.requireReplica(1, RepairReady, HomeFaulted)
		require.Empty(t, p.take(), "no replay")
		x.finish()
	})
}

// After a flush a barrier does no harm: replay is possible again.
func TestJ12_FlushMakesReplayPossibleAgain(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		x.write(5, 1)
		x.submit(Op{Kind: Barrier}, 0)
		x.settle()
		x.flush()
		x.settle()
		p.cut()
		x.requireReplica(1, Down, HomeOffline)
		w := x.write(6, 1)
		p.connect()
		require.Equal(t, PlanReplay, p.conn.Plan())
		require.Equal(t, []JobID{w.ID()}, p.take())
		p.cut()
		p.connect()
		x.settle()
		// A barrier with nothing new before it takes nothing away.
		x.flush()
		x.submit(Op{Kind: Barrier}, 0)
		x.settle()
		p.cut()
		x.requireReplica(1, Down, HomeOffline)
		x.finish()
	})
}

// A barrier that is not done everywhere has retired nothing.
func TestJ12_BarrierWaitsForWhoIsAway(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		w := x.write(5, 1)
		p.take()
		p.cut()
		b := x.submit(Op{Kind: Barrier}, 0)
		x.settle()
		require.False(t, b.Resolved())
		x.requireState(w, StateDone, StateHeld, StateDone)
		p.connect()
		require.Equal(t, PlanReplay, p.conn.Plan())
		x.settle()
		require.NoError(t, b.Err())
		x.requireGone(w)
		x.finish()
	})
}

// What a barrier retired is made durable before an activation ends.
func TestJ12_DeactivateFlushesBehindABarrier(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		x.write(5, 1)
		x.submit(Op{Kind: Barrier}, 0)
		x.settle()
		require.Zero(t, x.tr.Dump().Active)
		h := x.tr.Deactivate()
		require.Equal(t, Deactivating, x.tr.Stats().Phase, "there is something to be made durable")
		x.settle()
		require.Equal(t, Inactive, x.tr.Stats().Phase)
		require.NoError(t, h.Err())
		for _, p := range x.peers {
			require.Equal(t, uint64(1), p.num, "replica %d was not flushed", p.r)
		}
	})
}

// Seen red with mutants/J30-not-quiesced.patch.
func TestJ30_NoConnectionBeforeTheOldOneIsDrained(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[1]
		w := x.write(5, 1)
		for _, o := range x.peers {
			o.take()
		}
		socket := p.box // what the stopped peer will still execute
		old := p.close()
		v := x.write(5, 1)
		x.settle()
		connect := func() error { _, err := x.tr.Connect(1, p.hello()); return err }
		for range 3 {
			err := x.refused(connect)
			require.ErrorIs(t, err, ErrNotQuiesced)
			require.NotErrorIs(t, err, ErrLifecycle)
			require.Equal(t, &LifecycleError{
				Replica: 1, State: ReplicaState{Stopping, HomeOffline}, Event: EventConnect, Conn: old.ID(),
			}, err)
		}
		p.box = socket // the peer goes on: the old write is executed now
		res := p.run(w.ID())
		x.orphan(old, w.ID(), res, OrphanStaleConn)
		require.NoError(t, old.Quiesced())
		require.NoError(t, old.Quiesced(), "it may be said twice")
		p.connect()
		require.NoError(t, old.Quiesced(), "it says nothing of the next connection")
		x.requireReplica(1, Voting, HomeOffline)
		x.settle()
		x.finish()
		require.Equal(t, x.loads[v.ID()].value, p.disk[5])
	})
}

// Quiesced is a fact of one connection: it is refused while that one lives, and one that has ended says nothing of another.
func TestJ30_QuiescedIsOfOneConnection(t *testing.T) {
	x := newRig(t, Config[*load]{})
	p := x.peers[0]
	first := p.conn
	err := x.refused(first.Quiesced)
	require.ErrorIs(t, err, ErrLifecycle)
	require.Equal(t, &LifecycleError{Replica: 0, State: ReplicaState{Voting, HomeOffline}, Event: EventQuiesced, Conn: first.ID()}, err)
	_, err = x.tr.Connect(0, p.hello())
	require.ErrorIs(t, err, ErrLifecycle, "a second connection beside a live one")
	p.cut()
	second := p.connect()
	p.close()
	was := x.tr.Fingerprint()
	require.NoError(t, first.Quiesced())
	require.Equal(t, was, x.tr.Fingerprint())
	require.ErrorIs(t, x.refused(func() error { _, err := x.tr.Connect(0, p.hello()); return err }), ErrNotQuiesced)
	require.NoError(t, second.Quiesced())
	p.connect()
	x.finish()
}

// Whatever ended the connection, the rule is the same; Replace is the way out of a peer that never quiesces.
func TestJ30_EveryEndNeedsQuiesced(t *testing.T) {
	for name, end := range map[string]func(x *rig) error{
		"fault":      func(x *rig) error { return x.tr.Fault(1, errDisk) },
		"failed job": func(x *rig) error { x.peers[1].fail(x.write(1, 1)); return nil },
		"close":      func(x *rig) error { x.peers[1].conn.Close(nil); return nil },
		"disable": func(x *rig) error {
			err := x.tr.Disable(errDisk)
			x.activate(ActivateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, Config[*load]{})
			x.flush()
			x.settle()
			p := x.peers[1]
			old := p.conn
			require.NoError(t, end(x))
			_, err := x.tr.Connect(1, p.hello())
			require.ErrorIs(t, err, ErrNotQuiesced)
			require.NoError(t, x.tr.Replace(1))
			x.requireReplica(1, Down, HomeReplaced)
			p.gen, p.num, p.id = 0, 0, ID{9}
			c := p.connect()
			require.NoError(t, old.Quiesced())
			require.True(t, x.replica(1).Connected())
			require.NoError(t, c.Context().Err())
			for _, o := range x.peers {
				o.comeBack()
			}
			x.settle()
			x.tainted = true
			x.finish()
		})
	}
}

// Seen red with mutants/J32-vouch.patch.
func TestJ32_FlushVouchesForWhatIsUnanswered(t *testing.T) {
	for _, kind := range []Kind{Write, Zero, Trim} {
		t.Run(kind.String(), func(t *testing.T) {
			x := newRig(t, Config[*load]{Order: ReplicaOrders})
			w1 := x.submit(Op{Kind: kind, Start: 5, Blocks: 2}, 7)
			f2 := x.flush()
			w3 := x.write(5, 1)
			p := x.peers[0]
			p.take()
			p.answer(f2.ID())
			p.answer(w3.ID())
			x.requireState(w1, StateSent, StateQueued, StateQueued)
			jobs, _ := x.charges(0)
			require.Equal(t, 1, jobs)
			p.cut()
			x.requireState(w1, StateDone, StateQueued, StateQueued)
			x.requireState(w3, StateHeld, StateQueued, StateQueued)
			jobs, _ = x.charges(0)
			require.Zero(t, jobs, "a charge returns when the job is terminal")
			p.connect()
			require.Equal(t, []JobID{w3.ID()}, p.take(), "the earlier write is not replayed behind the later one")
			x.orphan(p.conn, w1.ID(), Result{}, OrphanNotSent)
			x.settle()
			require.NoError(t, w1.Err())
			require.Equal(t, 1, p.sent[w1.ID()])
			x.finish()
		})
	}
}

// The vouched-for write's vote counts.
func TestJ32_VouchedWriteVotes(t *testing.T) {
	x := newRig(t, Config[*load]{Order: ReplicaOrders})
	w, f := x.write(5, 2), x.flush()
	for _, p := range x.peers[:2] {
		p.take()
		p.answer(f.ID())
		require.False(t, w.Resolved())
		p.cut()
	}
	require.True(t, w.Resolved())
	require.NoError(t, w.Err())
	x.finish()
}

// A number that a replica remembers vouches like a flush that was answered: only the answer was lost.
func TestJ32_NumberInTheHelloVouches(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[0]
		w := x.write(5, 2)
		if cfg.Order == TrackerOrders {
			p.takeAnswer(w)
		}
		f := x.flush()
		v := x.write(5, 1)
		p.take()
		p.run(f.ID())
		require.Equal(t, uint64(1), p.num, "it remembers")
		p.cut()
		x.requireState(f, StateHeld, StateQueued, StateQueued)
		p.connect()
		x.requireState(f, StateDone, StateQueued, StateQueued)
		x.requireState(w, StateDone, StateQueued, StateQueued)
		require.Equal(t, []JobID{v.ID()}, p.take())
		x.finish()
	})
}
