package jobtracker

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// opOf is an operation of a kind.
func opOf(k Kind) Op {
	if k.fences() {
		return Op{Kind: k}
	}
	return Op{Kind: k, Start: 5, Blocks: 2}
}

var changing = []Kind{Write, Zero, Trim, Flush, Barrier}

// requireJobError demands how a job failed.
func requireJobError(t *testing.T, j *Job[*load], kind Kind, sentinel error, done, failed, skipped int) {
	t.Helper()
	require.Error(t, jobError(t, j, kind, sentinel, done, failed, skipped))
}

// jobError is requireJobError, for a look at the error.
func jobError(t *testing.T, j *Job[*load], kind Kind, sentinel error, done, failed, skipped int) *JobError {
	t.Helper()
	require.True(t, j.Resolved())
	require.ErrorIs(t, j.Err(), sentinel)
	e, ok := errors.AsType[*JobError](j.Err())
	require.True(t, ok)
	require.Equal(t, &JobError{
		Job: j.ID(), Kind: kind, Done: done, Failed: failed, Skipped: skipped, Err: sentinel, Cause: e.Cause,
	}, e)
	return e
}

// Skipped on one replica, failed on another, done on the third, in each order.
//
// Seen red with mutants/J09-skip-counts.patch.
func TestJ09_SkippedFailedDone(t *testing.T) {
	for _, kind := range changing {
		for name, order := range map[string][3]int{
			"skip fail done": {0, 1, 2}, "skip done fail": {0, 2, 1}, "fail skip done": {1, 0, 2},
			"fail done skip": {1, 2, 0}, "done skip fail": {2, 0, 1}, "done fail skip": {2, 1, 0},
		} {
			t.Run(fmt.Sprint(kind, "/", name), func(t *testing.T) {
				eachOrder(t, func(t *testing.T, cfg Config[*load]) {
					x := newRig(t, cfg)
					x.tainted = true
					j := x.submit(opOf(kind), 7)
					for _, p := range x.peers {
						p.take()
					}
					bad, done := 0, 0
					for _, what := range order {
						was := j.Resolved()
						switch what {
						case 0:
							require.NoError(t, x.tr.Fault(0, errDisk))
							bad++
						case 1:
							x.peers[1].fail(j)
							bad++
						default:
							if j.Resolved() {
								x.orphanOrDone(j, 2)
							} else {
								x.peers[2].answer(j.ID())
								done++
							}
						}
						require.Equal(t, bad == 2, j.Resolved(), "two of three are too many bad")
						if !was && j.Resolved() {
							e := jobError(t, j, kind, ErrQuorum, done, 1, 1)
							require.ErrorIs(t, e, errDisk)
						}
					}
					require.Equal(t, uint64(1), x.tr.Stats().Failed)
					x.finish()
				})
			})
		}
	}
}

// orphanOrDone hands in an answer to a job that has been decided: it is applied while the job is in the table.
func (x *rig) orphanOrDone(j *Job[*load], r int) {
	x.t.Helper()
	was := j.Err()
	if s, gone := x.state(j, r); gone || s != StateSent {
		require.ErrorIs(x.t, x.peers[r].conn.Complete(j.ID(), Result{}), ErrOrphan)
	} else {
		x.peers[r].answer(j.ID())
	}
	require.Equal(x.t, was, j.Err(), "the outcome stays")
}

// Bad are also the replicas that have no vote; W says how many may be bad, from 1 to all.
func TestJ09_QuorumOfEachSize(t *testing.T) {
	for n := 1; n <= MaxReplicas; n++ {
		for w := 1; w <= n; w++ {
			t.Run(fmt.Sprintf("%d of %d", w, n), func(t *testing.T) {
				for _, kind := range []Kind{Write, Flush} {
					for bad := range n {
						x := newRig(t, Config[*load]{Replicas: n, WriteQuorum: w, Order: ReplicaOrders})
						x.tainted = true
						j := x.submit(opOf(kind), 1)
						for r := range bad {
							require.Equal(t, r > n-w, j.Resolved())
							if r%2 == 0 {
								require.NoError(t, x.tr.Fault(r, errDisk))
							} else {
								x.peers[r].fail(j)
							}
						}
						require.Equal(t, bad > n-w, j.Resolved())
						for i, p := range x.peers[bad:] {
							if j.Resolved() {
								break
							}
							require.Less(t, i, w, "%d are done", i)
							p.takeAnswer(j)
						}
						require.True(t, j.Resolved())
						if bad > n-w {
							few := n - w + 1 // bad when it was decided
							requireJobError(t, j, kind, ErrQuorum, 0, few/2, (few+1)/2)
						} else {
							require.NoError(t, j.Err())
						}
						x.finish()
					}
				}
			})
		}
	}
}

// Seen red with mutants/J10-nowhere.patch.
func TestJ10_NowhereToGoResolvesInTheCall(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		x.tainted = true
		require.NoError(t, x.tr.Fault(0, errDisk))
		require.NoError(t, x.tr.Fault(2, errDisk))
		for _, kind := range changing {
			j := x.submit(opOf(kind), 1)
			e := jobError(t, j, kind, ErrQuorum, 0, 0, 2)
			require.ErrorIs(t, e, errDisk, "it says why")
			require.Equal(t, 1, x.resolved[j.ID()])
			if kind.fences() { // it is done by whoever is left, so that jobs retire
				x.peers[1].takeAnswer(j)
				x.requireGone(j)
			} else {
				require.Empty(t, x.peers[1].take(), "nobody has seen it")
			}
			require.Equal(t, e, errors.Unwrap(fmt.Errorf("%w", j.Wait(ended()))), "nobody waits")
		}
		require.ErrorIs(t, x.tr.Do(t.Context(), opOf(Write), &load{}), ErrQuorum)
		jobs, bytes := x.charges(1)
		require.Zero(t, jobs)
		require.Zero(t, bytes)
		r := x.read(1, 1)
		x.settle()
		require.True(t, r.Resolved())
		require.NoError(t, r.Err(), "one voter is enough for a read")
		x.finish()
	})
}

// A write-back job is not acknowledged if it cannot go anywhere.
func TestJ10_WriteBackNowhere(t *testing.T) {
	x := newRig(t, Config[*load]{WriteBack: true})
	require.NoError(t, x.tr.Fault(0, errDisk))
	require.NoError(t, x.tr.Fault(2, errDisk))
	x.tainted = true
	requireJobError(t, x.write(1, 1), Write, ErrQuorum, 0, 0, 2)
	require.Zero(t, x.tr.Stats().Lost, "it never said that it was done")
	x.finish()
}

// When the last voter goes the activation ends, with everything that waits for it; later jobs are refused.
func TestJ10_AllFaulted(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		cfg.MaxJobs = 4
		x := newRig(t, cfg)
		x.tainted = true
		w, r := x.write(1, 1), x.read(2, 1)
		for _, p := range x.peers {
			p.take()
		}
		require.NoError(t, x.tr.Fault(0, errDisk))
		x.peers[1].fail(w)
		require.True(t, w.Resolved())
		require.NoError(t, x.tr.Fault(2, errDisk))
		require.Equal(t, Inactive, x.tr.Stats().Phase)
		requireJobError(t, w, Write, ErrQuorum, 0, 1, 1)
		require.True(t, r.Resolved())
		require.ErrorIs(t, r.Err(), ErrQuorum)
		x.requireEmpty()
		err := x.refused(func() error { _, err := x.tr.Submit(t.Context(), opOf(Write), nil); return err })
		require.ErrorIs(t, err, ErrPhase)
		require.ErrorIs(t, err, ErrAllFaulted)
		require.Equal(t, &PhaseError{Call: "submit", Phase: Inactive, Cause: ErrAllFaulted}, err)
	})
}

// Seen red with mutants/J17-mismatch.patch.
func TestJ17_ReplicasAnswerAReadDifferently(t *testing.T) {
	for m := range Mismatch(numMismatches) {
		t.Run(m.String(), func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				cfg.Reads, cfg.Mismatch = ReadAll, m
				x := newRig(t, cfg)
				r := x.read(3, 1)
				w := x.write(3, 1)
				for _, p := range x.peers {
					p.take()
				}
				complete := func(i int, d Digest) {
					x.peers[i].run(r.ID())
					require.NoError(t, x.peers[i].conn.Complete(r.ID(), Result{Kind: Read, Digest: d}), "it is accepted")
					x.peers[i].drop(r.ID())
				}
				complete(1, 7)
				require.True(t, r.Resolved())
				complete(0, 8)
				require.NoError(t, r.Err(), "the first answer stays")
				if m == MismatchReport {
					x.requireState(r, StateFailed, StateDone, StateSent)
					x.requireReplica(0, Voting, HomeOffline)
				} else {
					x.requireReplica(0, Stopping, HomeFaulted)
				}
				complete(2, 7)
				require.Equal(t, uint64(1), x.tr.Stats().Mismatches)
				require.Equal(t, uint64(1), x.tr.Stats().Replicas[0].Failed)
				require.Equal(t, 1, x.count(func(e Event) bool {
					return e.Kind == ReadMismatch && e.Replica == 0 && e.Other == 1 && e.Job == r.ID()
				}))
				if m == MismatchFault {
					require.Equal(t, 1, x.count(func(e Event) bool {
						return e.Kind == ReplicaChanged && e.Replica == 0 && errors.Is(e.Cause, ErrMismatch)
					}))
				}
				x.settle()
				require.NoError(t, w.Err())
				x.finish()
			})
		})
	}
}

// What gives no digest is not compared; a read that failed first leaves nothing to compare with.
func TestJ17_WhatIsNotCompared(t *testing.T) {
	for name, answers := range map[string][3]Result{
		"none":         {{}, {}, {}},
		"first none":   {{}, {Digest: 1}, {Digest: 2}},
		"second none":  {{Digest: 1}, {}, {Digest: 1}},
		"first failed": {{Err: errDisk, Digest: 9}, {Digest: 1}, {Digest: 1}},
		"last failed":  {{Digest: 1}, {Digest: 1}, {Err: errDisk, Digest: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, Config[*load]{Reads: ReadAll, Mismatch: MismatchFault})
			r := x.read(3, 1)
			for i, p := range x.peers {
				p.take()
				require.NoError(t, p.conn.Complete(r.ID(), answers[i]))
				p.drop(r.ID())
			}
			require.NoError(t, r.Err())
			require.Zero(t, x.tr.Stats().Mismatches)
			x.finish()
		})
	}
}

// Seen red with mutants/J23-snapshot-all.patch.
func TestJ23_SnapshotNeedsAllReplicas(t *testing.T) {
	snap := Op{Kind: Flush, Snapshot: true}
	for name, bad := range map[string]func(x *rig, j *Job[*load]){
		"fails":   func(x *rig, j *Job[*load]) { x.peers[1].fail(j) },
		"faulted": func(x *rig, _ *Job[*load]) { _ = x.tr.Fault(1, errDisk) },
		"replaced": func(x *rig, _ *Job[*load]) {
			x.peers[1].id = ID{4}
			_ = x.tr.Replace(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				x := newRig(t, cfg)
				j, plain := x.submit(snap, 0), x.flush()
				for _, p := range x.peers {
					p.take()
					require.True(t, p.inBox(j.ID())[0].Snapshot)
				}
				x.peers[0].answer(j.ID())
				x.peers[2].answer(j.ID())
				require.False(t, j.Resolved(), "a quorum is not enough")
				bad(x, j)
				require.True(t, j.Resolved())
				require.ErrorIs(t, j.Err(), ErrQuorum)
				x.settle()
				require.NoError(t, plain.Err(), "without a snapshot it succeeds")

				again, plain := x.submit(snap, 0), x.flush()
				requireJobError(t, again, Flush, ErrQuorum, 0, 0, 1) // one replica is away: at once
				x.settle()
				require.NoError(t, plain.Err())
				x.heal()
				last := x.submit(snap, 0)
				x.settle()
				require.NoError(t, last.Err())
				x.finish()
			})
		})
	}
}

// A replica that is away and may replay is not bad: the snapshot waits for it.
func TestJ23_SnapshotWaitsForWhoMayReplay(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		x.peers[1].cut()
		j := x.submit(Op{Kind: Flush, Snapshot: true}, 0)
		x.settle()
		require.False(t, j.Resolved())
		x.peers[1].connect()
		x.settle()
		require.NoError(t, j.Err())
		require.True(t, j.Resolved())
		x.finish()
	})
}

// Seen red with mutants/J25-read-ends.patch.
func TestJ25_PermanentErrorEndsTheJob(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		r := x.read(3, 1)
		failed := 0
		for range 3 {
			for _, p := range x.peers {
				p.take()
				if p.has(r) {
					require.False(t, r.Resolved())
					p.fail(r)
					failed++
				}
			}
		}
		require.Equal(t, 3, failed)
		e := jobError(t, r, Read, ErrQuorum, 0, 3, 0)
		require.ErrorIs(t, e, errDisk)
		for _, p := range x.peers {
			require.Empty(t, p.take(), "no retry")
			require.Equal(t, 1, p.sent[r.ID()])
			x.requireReplica(p.r, Voting, HomeOffline) // a failed read faults nobody
			p.cut()
			p.connect()
			require.Empty(t, p.take(), "nor in another life")
		}
		x.finish()
	})
}

// A write that a replica fails is not sent to it again: it is faulted, and repaired.
func TestJ25_FailedWriteIsNotRetried(t *testing.T) {
	for _, kind := range changing {
		t.Run(kind.String(), func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				x := newRig(t, cfg)
				j := x.submit(opOf(kind), 3)
				p := x.peers[1]
				p.fail(j)
				x.settle()
				require.NoError(t, j.Err())
				require.True(t, j.Resolved())
				p.bad = nil
				p.quiesce()
				p.connect()
				require.Equal(t, PlanRepair, p.conn.Plan())
				require.Empty(t, p.take())
				p.repair()
				require.Equal(t, 1, p.sent[j.ID()])
				x.finish()
			})
		})
	}
}

// Seen red with mutants/J28-fault-in-hold.patch.
func TestJ28_FailedWriteFaultsInTheSameHold(t *testing.T) {
	for _, kind := range changing {
		t.Run(kind.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				var x *rig
				gap, armed := 0, false
				cfg.Gap = func() {
					if armed {
						if gap++; gap > 1 {
							x.requireReplica(1, Stopping, HomeFaulted) // before any other hold
						}
					}
				}
				x = newRig(t, cfg)
				before := x.read(9, 1)
				j := x.submit(opOf(kind), 3)
				behind := x.read(5, 1)
				for _, p := range x.peers {
					p.take()
				}
				for _, p := range x.peers {
					if p.has(before) {
						p.answer(before.ID())
					}
				}
				p := x.peers[1]
				p.take()
				p.bad[j.ID()] = errDisk
				res := p.run(j.ID())
				armed = true
				require.NoError(t, p.conn.Complete(j.ID(), res))
				armed = false
				require.Positive(t, gap)
				x.requireReplica(1, Stopping, HomeFaulted)
				e := x.orphanError(p.conn, behind.ID(), Result{}, OrphanStaleConn)
				fault, ok := errors.AsType[*FaultError](e.Cause)
				require.True(t, ok)
				require.Equal(t, &FaultError{Replica: 1, Job: j.ID(), Err: ErrJobFailed, Cause: errDisk}, fault)

				after := x.read(5, 2)
				x.settle()
				for _, r := range []*Job[*load]{behind, after} {
					require.NoError(t, r.Err())
					require.True(t, r.Resolved())
				}
				require.NoError(t, j.Err(), "two of three are a quorum")
				require.Zero(t, p.sent[after.ID()], "the read never comes from it")
				p.quiesce()
				p.connect()
				again := x.read(5, 2)
				require.Empty(t, p.take())
				x.settle()
				require.NoError(t, again.Err())
				x.finish()
			})
		})
	}
}

// A failed read leaves the read to the others and faults nobody.
func TestJ28_FailedReadIsLeftToTheOthers(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		r := x.read(5, 1)
		for _, p := range x.peers {
			if p.take(); p.has(r) {
				p.fail(r)
				x.requireReplica(p.r, Voting, HomeOffline)
				break
			}
		}
		require.False(t, r.Resolved())
		x.settle()
		require.NoError(t, r.Err())
		require.True(t, r.Resolved())
		require.NoError(t, r.Wait(context.Background()))
		x.finish()
	})
}
