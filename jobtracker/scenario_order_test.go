package jobtracker

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/J11-straggler.patch.
func TestJ11_StragglerRetiresOnItsOwnCompletion(t *testing.T) {
	for _, kind := range []Kind{Write, Zero, Trim, Barrier} {
		t.Run(kind.String(), func(t *testing.T) {
			x := newRig(t, Config[*load]{Order: ReplicaOrders})
			before := x.write(1, 1)
			op := Op{Kind: kind, Start: 1, Blocks: 2}
			if kind == Barrier {
				op = Op{Kind: kind}
			}
			late := x.submit(op, 7)
			after, f := x.write(2, 1), x.flush()
			for _, p := range x.peers {
				p.takeAnswer(before, after, f)
				if p.r != 2 {
					p.answer(late.ID())
				}
			}
			require.NoError(t, f.Err())
			for _, j := range []*Job[*load]{before, after, f} {
				x.requireGone(j)
				require.Equal(t, 1, x.retired[j.ID()])
			}
			x.requireState(late, StateDone, StateDone, StateSent)
			require.Equal(t, kind != Barrier, late.Resolved())
			require.Zero(t, x.retired[late.ID()], "its payload may still be needed")
			require.Equal(t, 1, x.tr.Dump().Active)

			next := x.write(40, 1) // no flush comes
			x.peers[2].takeAnswer(late)
			x.requireGone(late)
			require.Equal(t, 1, x.retired[late.ID()])
			require.NoError(t, late.Err())
			x.orphan(x.peers[2].conn, late.ID(), Result{}, OrphanRetired)
			_, gone := x.state(next, 0)
			require.False(t, gone)
			x.finish()
		})
	}
}

// A straggler may be undecided, fail, or lose its replica: in each case it is decided and goes.
func TestJ11_EveryEndOfAStraggler(t *testing.T) {
	for name, end := range map[string]func(x *rig, j *Job[*load]){
		"done":  func(x *rig, j *Job[*load]) { x.peers[1].answer(j.ID()); x.peers[2].answer(j.ID()) },
		"fails": func(x *rig, j *Job[*load]) { x.peers[1].answer(j.ID()); x.peers[2].failLate(j) },
		"cut":   func(x *rig, _ *Job[*load]) { x.peers[1].close(); x.peers[2].close() },
		"fault": func(x *rig, j *Job[*load]) { x.peers[1].answer(j.ID()); _ = x.tr.Fault(2, errDisk) },
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, Config[*load]{Order: ReplicaOrders})
			late, f := x.write(1, 1), x.flush()
			for _, p := range x.peers {
				p.takeAnswer(f)
			}
			x.peers[0].answer(late.ID())
			x.requireState(late, StateDone, StateSent, StateSent)
			require.False(t, late.Resolved())
			end(x, late)
			require.True(t, late.Resolved())
			require.NoError(t, late.Err())
			x.requireGone(late)
			x.tainted = true
			x.finish()
		})
	}
}

// Where the tracker orders, a flush is not even dispatched before everything earlier is answered there.
func TestJ11_TrackerHoldsTheFlushBack(t *testing.T) {
	x := newRig(t, Config[*load]{})
	late, r, f := x.write(1, 1), x.read(9, 1), x.flush()
	for _, p := range x.peers {
		p.take()
		require.False(t, p.has(f))
		if p.has(r) {
			p.answer(r.ID())
		}
	}
	for _, p := range x.peers {
		p.take()
		require.False(t, p.has(f), "the write is outstanding")
		p.answer(late.ID())
		require.Equal(t, []JobID{f.ID()}, p.take())
	}
	x.finish()
}

// A straggler that is out on a replica whose flush was skipped is still ordered: no later write overtakes it there.
func TestJ11_StragglerOfAnAbortedRepair(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		require.NoError(t, x.tr.Fault(2, errDisk))
		p := x.peers[2]
		p.comeBack()
		first, err := x.tr.Repair(2)
		require.NoError(t, err)
		w1 := x.write(5, 1)
		for _, o := range x.peers {
			o.take()
		}
		x.requireState(w1, StateSent, StateSent, StateSent)
		require.NoError(t, first.Abort(nil))
		f := x.flush()
		for _, o := range x.peers[:2] {
			o.takeAnswer(w1)
			o.takeAnswer(f)
		}
		require.NoError(t, f.Err())
		x.requireState(w1, StateDone, StateDone, StateSent)
		_, err = x.tr.Repair(2)
		require.NoError(t, err)
		w3 := x.write(5, 1)
		p.take()
		if cfg.Order == TrackerOrders {
			require.False(t, p.has(w3), "w1 may be executed after it")
		} else {
			require.Equal(t, []JobID{w1.ID()}, p.deps(w3))
		}
		p.answer(w1.ID())
		x.settle()
		x.requireGone(w1)
		x.requireGone(f)
		require.NoError(t, x.tr.Fault(2, errDisk))
		x.finish()
	})
}

// Seen red with mutants/J19-terminal-dep.patch.
func TestJ19_SkippedDependencyDoesNotTravel(t *testing.T) {
	x := newRig(t, Config[*load]{Order: ReplicaOrders, Reads: ReadAll})
	j := x.read(5, 2)
	for _, p := range x.peers {
		p.take()
	}
	x.peers[0].answer(j.ID())
	x.peers[2].cut()
	x.peers[2].connect()
	x.requireState(j, StateDone, StateSent, StateSkipped)
	k := x.write(6, 1)
	for _, p := range x.peers {
		p.take()
	}
	require.Empty(t, x.peers[0].deps(k), "done")
	require.Equal(t, []JobID{j.ID()}, x.peers[1].deps(k), "outstanding")
	require.Empty(t, x.peers[2].deps(k), "skipped")
	x.finish()
}

// What a replica under repair was never sent does not travel either, of any kind; what it was sent does.
func TestJ19_RepairedReplicaGetsNoOlderDependency(t *testing.T) {
	for _, kind := range []Kind{Write, Zero, Trim, Read, Flush, Barrier} {
		t.Run(kind.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				x := newRig(t, cfg)
				require.NoError(t, x.tr.Fault(2, errDisk))
				x.peers[2].comeBack()
				op := Op{Kind: kind, Start: 5, Blocks: 2}
				if kind.fences() {
					op = Op{Kind: kind}
				}
				j := x.submit(op, 3)
				for _, p := range x.peers[:2] {
					p.take()
				}
				_, err := x.tr.Repair(2)
				require.NoError(t, err)
				k, l := x.write(5, 1), x.write(5, 1)
				p := x.peers[2]
				p.take()
				require.True(t, p.has(k), "it waits for nothing there")
				require.Empty(t, p.deps(k))
				require.Equal(t, cfg.Order == ReplicaOrders, p.has(l))
				if p.has(l) {
					require.Equal(t, []JobID{k.ID()}, p.deps(l))
				}
				s, _ := x.state(j, 2)
				require.Equal(t, StateSkipped, s)
				require.NoError(t, x.tr.Fault(2, errDisk))
				x.finish()
			})
		})
	}
}

// Seen red with mutants/J31-transitive.patch.
func TestJ31_NoWriteOvertakesThroughASkip(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		w1, r2, w3 := x.write(5, 1), x.read(5, 1), x.write(5, 1)
		for _, p := range x.peers {
			p.take()
		}
		b := x.askedFor(r2, w1)
		a := x.peers[(b.r+1)%3]
		s, _ := x.state(w1, a.r)
		require.Equal(t, StateSent, s)
		b.takeAnswer(r2)
		s, _ = x.state(r2, a.r)
		require.Equal(t, StateSkipped, s)
		a.take()
		if cfg.Order == TrackerOrders {
			require.False(t, a.has(w3), "before w1 is answered")
			a.answer(w1.ID())
			a.take()
			require.True(t, a.has(w3), "and at once after it")
		} else {
			require.Equal(t, []JobID{w1.ID()}, a.deps(w3))
			a.answer(w3.ID()) // executes w1 first
		}
		x.finish()
	})
}

// The same through a long chain of skips, and through a chain of them on a replica under repair.
func TestJ31_ThroughManySkips(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		require.NoError(t, x.tr.Fault(2, errDisk))
		p := x.peers[2]
		p.comeBack()
		rep, err := x.tr.Repair(2)
		require.NoError(t, err)
		w1 := x.write(5, 2)
		p.take()
		require.True(t, p.has(w1))
		require.NoError(t, rep.Abort(nil)) // what was sent stays outstanding
		for range 20 {
			x.write(5, 1)
			x.read(5, 2)
			x.submit(Op{Kind: Zero, Start: 6, Blocks: 1}, 0)
		}
		_, err = x.tr.Repair(2)
		require.NoError(t, err)
		w, v := x.write(6, 1), x.write(5, 1)
		p.take()
		for _, j := range []*Job[*load]{w, v} {
			if cfg.Order == TrackerOrders {
				require.False(t, p.has(j))
			} else {
				require.Equal(t, []JobID{w1.ID()}, p.deps(j))
			}
		}
		p.answer(w1.ID())
		p.take()
		require.True(t, p.has(w))
		require.True(t, p.has(v))
		require.NoError(t, x.tr.Fault(2, errDisk))
		x.finish()
	})
}

// A write that was done and may be lost is outstanding again: what is replayed waits for it.
func TestJ31_ReplayKeepsTheOrder(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		w1 := x.write(5, 1)
		x.settle()
		r2, w3 := x.read(5, 1), x.write(5, 1)
		for range 2 {
			for _, p := range x.peers[:2] {
				p.take()
				if p.has(r2) {
					p.answer(r2.ID())
				}
			}
		}
		p := x.peers[2]
		p.cut()
		p.disk = map[uint64]int{}
		p.connect()
		p.take()
		require.True(t, p.has(w1))
		if cfg.Order == TrackerOrders {
			require.False(t, p.has(w3))
		} else if p.has(w3) {
			require.Contains(t, p.deps(w3), w1.ID())
		}
		x.finish()
	})
}

// Seen red with mutants/J33-sent-dep.patch.
func TestJ33_FlushBehindAFailedWriteHasNoVote(t *testing.T) {
	x := newRig(t, Config[*load]{Order: ReplicaOrders})
	w1, f2 := x.write(5, 1), x.flush()
	a := x.peers[0]
	a.take()
	require.Equal(t, []JobID{w1.ID()}, a.deps(f2), "it must be failed if w1 fails")
	a.bad[w1.ID()] = errDisk
	res := a.run(f2.ID())
	require.ErrorIs(t, res.Err, errDep)
	require.NoError(t, a.conn.Complete(f2.ID(), res)) // overtakes w1's
	x.requireReplica(0, Stopping, HomeFaulted)
	x.requireState(f2, StateFailed, StateQueued, StateQueued)
	x.requireState(w1, StateSkipped, StateQueued, StateQueued)
	x.orphan(a.conn, w1.ID(), a.run(w1.ID()), OrphanStaleConn)

	x.peers[1].takeAnswer(w1, f2)
	require.False(t, f2.Resolved(), "a has no vote")
	x.peers[2].takeAnswer(w1, f2)
	require.NoError(t, f2.Err())
	require.NoError(t, w1.Err())
	require.Zero(t, a.num, "it remembers no flush")
	x.finish()
}

// Where the tracker orders, the flush never reaches the replica that failed the write.
func TestJ33_TrackerOrders(t *testing.T) {
	x := newRig(t, Config[*load]{})
	w1, f2 := x.write(5, 1), x.flush()
	a := x.peers[0]
	a.take()
	require.False(t, a.has(f2))
	a.fail(w1)
	x.requireState(w1, StateFailed, StateQueued, StateQueued)
	x.requireState(f2, StateSkipped, StateQueued, StateQueued)
	x.settle()
	require.NoError(t, w1.Err())
	require.NoError(t, f2.Err())
	x.finish()
}

// Everything a replica got before a job and that the job must follow travels with it, or holds it back: what is left of
// the order on each replica is that of ids, per block.
func TestJ31_WritesReachEachDiskInOrder(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		for i := range uint64(400) {
			start, n := i*17%20, 1+i%6
			switch i % 5 {
			case 0, 1, 2:
				x.write(start, n)
			case 3:
				x.read(start, n)
			default:
				x.submit(Op{Kind: Zero, Start: start, Blocks: n}, 0)
			}
			p := x.peers[i%3]
			ids := p.take()
			slices.Reverse(ids) // answers come in any order the order allows
			for k, id := range ids {
				if k%3 != 2 {
					p.answer(id)
				}
			}
			if i%90 == 89 {
				p.cut()
				p.connect()
			}
			if i%70 == 69 {
				x.flush()
			}
		}
		x.settle()
		x.finish()
		for _, j := range x.jobs {
			require.NoError(t, j.Err())
		}
	})
}
