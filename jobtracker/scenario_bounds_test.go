package jobtracker

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// autos is how many jobs of the tracker's own are in the table.
func (x *rig) autos() (flushes, barriers int) {
	for _, j := range x.tr.Dump().Jobs {
		if j.Auto && j.Kind == Flush.String() {
			flushes++
		}
		if j.Auto && j.Kind == Barrier.String() {
			barriers++
		}
	}
	return flushes, barriers
}

// What unblocks others goes through when admission is exhausted.
//
// Seen red with mutants/J22-sync-waits.patch.
func TestJ22_AutomaticSyncNeverWaitsForAdmission(t *testing.T) {
	for sync := range SyncOff {
		t.Run(sync.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				cfg.MaxJobs, cfg.AutoSyncJobs, cfg.AutoSync = 4, 4, sync
				x := newRig(t, cfg)
				jobs := x.fill()
				require.Len(t, jobs, 4)
				x.answerAll(x.peers[0])
				for _, j := range jobs {
					x.peers[1].takeAnswer(j) // the last of these resolves the fourth job
				}
				for r, want := range []int{1, 1, 5} {
					n, _ := x.charges(r)
					require.Equal(t, want, n, "the third replica was full")
				}
				flushes, barriers := x.autos()
				require.Equal(t, 1, flushes+barriers)
				require.Equal(t, sync == SyncBarrier, barriers == 1)
				require.Empty(t, x.fill(), "others wait")
				x.finish()
			})
		})
	}
}

// The flush of a deactivation does not wait either.
func TestJ22_DeactivationNeverWaitsForAdmission(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.MaxJobs, cfg.MaxBytes = 4, 1<<20
			x := newRig(t, cfg)
			require.Len(t, x.fill(), 4)
			a := x.apply(t.Context(), 9)
			require.True(t, a.waits())
			h := x.tr.Deactivate()
			<-a.done
			require.ErrorIs(t, a.err, ErrEnded)
			require.ErrorIs(t, a.err, ErrDeactivated)
			require.Equal(t, &EndedError{What: "admission", Cause: ErrDeactivated}, a.err)
			flushes, _ := x.autos()
			require.Equal(t, 1, flushes)
			x.settle()
			require.NoError(t, h.Wait(t.Context()))
			x.requireEmpty()
			require.Equal(t, uint64(1), x.peers[2].num)
		})
	})
}

// Neither do the copies and the last flush of a repair, though the target is full of jobs behind them.
func TestJ22_RepairNeverWaitsForAdmission(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		cfg.MaxJobs, cfg.MaxBytes = 4, rigBlocks*512
		x := newRig(t, cfg)
		require.NoError(t, x.tr.Fault(2, errDisk))
		p := x.peers[2]
		p.comeBack()
		rep, err := x.tr.Repair(2)
		require.NoError(t, err)
		require.Len(t, x.fill(), 4)
		var copies []*Job[*load]
		for i := range uint64(8) {
			j, err := rep.Copy(int(i%2), i*8, 8, &load{})
			require.NoError(t, err)
			copies = append(copies, j)
		}
		n, _ := x.charges(2)
		require.Equal(t, 4+8, n)
		x.settle()
		require.Len(t, x.fill(), 4)
		require.NoError(t, rep.Finish())
		n, _ = x.charges(2)
		require.Equal(t, 4+1, n)
		require.Empty(t, x.fill())
		x.settle()
		for _, j := range copies {
			require.NoError(t, j.Err())
		}
		require.NoError(t, rep.Ended().Err())
		x.requireReplica(2, Voting, HomeOffline)
		x.finish()
	})
}

// Applicants that wait get in, in their order, as soon as charges return: nothing else has to happen.
func TestJ22_WaitersGetInByThemselves(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.MaxJobs, cfg.AutoSync = 1, SyncOff
			x := newRig(t, cfg)
			now := x.fill()[0]
			var waiting []*applied
			for i := range uint64(6) {
				waiting = append(waiting, x.apply(t.Context(), i))
			}
			for i, a := range waiting {
				for _, p := range x.peers {
					require.True(t, a.waits())
					p.takeAnswer(now)
					synctest.Wait()
				}
				require.False(t, a.waits())
				require.NoError(t, a.err)
				require.Equal(t, now.ID()+1, a.job.ID())
				now = a.job
				x.keep(now, Op{Kind: Write, Start: uint64(i), Blocks: 1}, &load{value: 1000 + i})
			}
			x.finish()
		})
	})
}

// Seen red with mutants/J26-auto-sync.patch.
func TestJ26_NobodyFlushes(t *testing.T) {
	for sync := range SyncOff {
		t.Run(sync.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				cfg.AutoSync, cfg.AutoSyncJobs, cfg.MaxJobs = sync, 32, 16
				x := newRig(t, cfg)
				most := 0
				for i := range uint64(1200) {
					if i%3 == 2 {
						x.read(i*7%60, 1+i%4)
					} else {
						x.write(i*5%60, 1+i%4)
					}
					if i%8 == 7 {
						x.answerAll(x.peers...)
					}
					most = max(most, int(x.tr.Stats().Active))
				}
				x.settle()
				require.LessOrEqual(t, most, 16+32+2, "what is outstanding, what is done, and the sync")
				require.Greater(t, most, 16, "the figure means something")
				room := 0
				_ = x.tr.do(nil, asking{}, func(k *core) error { room = len(k.ring) + len(k.deps); return nil })
				require.LessOrEqual(t, room, 64+256, "the room does not grow")
				f, b := x.syncs()
				require.Equal(t, sync == SyncFlush, f > 20)
				require.Equal(t, sync == SyncBarrier, b > 20)
				if sync == SyncFlush {
					x.finish()
				}
			})
		})
	}
}

// syncs is how many jobs of the tracker's own there have been, by what the replicas remember of them.
func (x *rig) syncs() (flushes, barriers uint64) {
	s := x.tr.Stats()
	own := s.Submitted - uint64(len(x.jobs))
	return x.peers[0].num, own - x.peers[0].num
}

// Bytes count as well, and jobs that nobody flushes because the device is only read.
func TestJ26_BytesAndReads(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		cfg.AutoSyncBytes = 16 * 512
		x := newRig(t, cfg)
		for i := range uint64(8) {
			x.write(i, 2)
			x.settle()
		}
		require.Equal(t, uint64(1), x.peers[0].num)
		require.Zero(t, x.tr.Dump().Active)
		for range 5 {
			x.read(0, 4)
			x.settle()
		}
		require.Equal(t, uint64(2), x.peers[0].num)
		x.finish()
	})
}

// A read-only activation is flushed by nobody: a barrier does.
func TestJ26_ReadOnly(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		cfg.AutoSyncJobs = 8
		x := newRig(t, cfg)
		x.write(0, 4)
		h := x.tr.Deactivate()
		x.settle()
		require.NoError(t, h.Err())
		x.activate(ActivateOptions{ReadOnly: true})
		for _, p := range x.peers {
			p.comeBack()
		}
		require.Equal(t, Active, x.tr.Stats().Phase)
		for _, kind := range []Kind{Write, Zero, Trim} {
			require.ErrorIs(t, x.refused(func() error { _, err := x.tr.Submit(t.Context(), opOf(kind), nil); return err }), ErrReadOnly)
		}
		for range 100 {
			x.read(1, 4)
			x.settle()
			require.LessOrEqual(t, x.tr.Dump().Active, 9)
		}
		require.Equal(t, uint64(1), x.peers[0].num, "no flush")
		x.flush()
		x.settle()
		x.finish()
	})
}

// Too few replicas for any flush to succeed: what the last one reads is bounded all the same.
func TestJ26_BelowTheQuorum(t *testing.T) {
	for sync := range SyncOff {
		eachMode(t, func(t *testing.T, cfg Config[*load]) {
			cfg.AutoSync, cfg.AutoSyncJobs = sync, 32
			x := newRig(t, cfg)
			x.write(1, 1)
			x.settle()
			require.NoError(t, x.tr.Fault(0, errDisk))
			require.NoError(t, x.tr.Fault(2, errDisk))
			x.tainted = true
			for range 500 {
				x.read(1, 1)
				require.ErrorIs(t, x.write(1, 1).Err(), ErrQuorum)
				x.answerAll(x.peers[1])
				require.LessOrEqual(t, x.tr.Stats().Active, uint64(32+4))
			}
			x.finish()
		})
	}
}

// Without automatic syncs it is the caller who bounds the table.
func TestJ26_Off(t *testing.T) {
	x := newRig(t, Config[*load]{AutoSync: SyncOff, AutoSyncJobs: 8})
	for range 1000 {
		x.write(1, 1)
		x.answerAll(x.peers...)
	}
	require.Equal(t, 1000, x.tr.Dump().Active)
	x.finish()
}
