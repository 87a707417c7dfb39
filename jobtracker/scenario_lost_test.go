package jobtracker

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// lose has an early-acknowledged write fail: all replicas must do it, and one cannot.
func lose(t *testing.T, x *rig, w *Job[*load]) {
	t.Helper()
	x.peers[0].fail(w)
	require.Equal(t, 1, x.count(func(e Event) bool { return e.Kind == WriteLost && e.Job == w.ID() }))
}

func lossy(cfg Config[*load]) Config[*load] {
	cfg.WriteBack, cfg.WriteQuorum = true, 3
	return cfg
}

func requireLost(t *testing.T, f, w *Job[*load]) {
	t.Helper()
	e := jobError(t, f, Flush, ErrLostWrite, 3, 0, 0)
	lost, ok := errors.AsType[*JobError](e.Cause)
	require.True(t, ok)
	require.Equal(t, w.ID(), lost.Job)
	require.Equal(t, ErrQuorum, lost.Err)
	require.ErrorIs(t, f.Err(), errDisk)
}

// Seen red with mutants/J18-fua.patch.
func TestJ18_FUAIsNeverAckedEarly(t *testing.T) {
	for _, kind := range []Kind{Write, Zero, Trim} {
		t.Run(kind.String(), func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				cfg.WriteBack = true
				x := newRig(t, cfg)
				early := x.submit(Op{Kind: kind, Start: 1, Blocks: 1}, 1)
				require.True(t, early.Resolved())
				require.NoError(t, early.Err())
				fua := x.submit(Op{Kind: kind, Start: 2, Blocks: 1, FUA: true}, 2)
				read, flush, barrier := x.read(9, 1), x.flush(), x.submit(Op{Kind: Barrier}, 0)
				for _, j := range []*Job[*load]{fua, read, flush, barrier} {
					require.False(t, j.Resolved(), "job %d", j.ID())
				}
				p := x.peers[0]
				p.take()
				require.True(t, p.inBox(fua.ID())[0].FUA)
				require.False(t, p.inBox(early.ID())[0].FUA)
				p.answer(fua.ID())
				require.False(t, fua.Resolved())
				x.peers[1].takeAnswer(fua)
				require.True(t, fua.Resolved())
				x.finish()
			})
		})
	}
}

// The failure of an early-acknowledged write reaches the flush behind it, those that are on their way, and the next one
// admitted after it; then it is forgotten.
func TestJ18_LostWriteFailsTheNextFlushOnce(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, lossy(cfg))
		x.tainted = true
		w := x.write(1, 1)
		require.True(t, w.Resolved())
		behind := x.flush()
		lose(t, x, w)
		require.NoError(t, w.Err(), "what was said stays said")
		require.Equal(t, uint64(1), x.tr.Stats().Lost)
		require.True(t, behind.Resolved())
		require.ErrorIs(t, behind.Err(), ErrQuorum) // a replica is bad for the flush, too
		x.heal()                                    // its own flush reports to nobody

		first, second := x.flush(), x.flush()
		x.settle()
		requireLost(t, first, w)
		requireLost(t, second, w) // admitted before the first had failed
		third := x.flush()
		x.settle()
		require.NoError(t, third.Err(), "once")
		require.Equal(t, uint64(1), x.tr.Stats().Lost)
		x.finish()
	})
}

// A flush of the tracker itself has nobody to tell, so it does not use the report up.
func TestJ18_AutomaticFlushReportsToNobody(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		cfg = lossy(cfg)
		cfg.AutoSyncJobs = 3
		x := newRig(t, cfg)
		x.tainted = true
		w := x.write(1, 1)
		lose(t, x, w)
		x.heal()
		for range 10 {
			x.write(2, 1)
			x.settle()
		}
		require.Greater(t, x.peers[1].num, uint64(2), "automatic flushes went by")
		f := x.flush()
		x.settle()
		requireLost(t, f, w)
		x.finish()
	})
}

// The flush of a deactivation tells who deactivates.
func TestJ18_DeactivationReportsALostWrite(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, lossy(cfg))
		x.tainted = true
		w := x.write(1, 1)
		lose(t, x, w)
		x.heal()
		x.write(2, 1)
		h := x.tr.Deactivate()
		x.settle()
		require.Equal(t, Inactive, x.tr.Stats().Phase)
		require.ErrorIs(t, h.Err(), ErrLostWrite)
		// It was told: the next activation starts afresh.
		x.activate(ActivateOptions{})
		for _, p := range x.peers {
			p.comeBack()
		}
		f := x.flush()
		x.settle()
		require.NoError(t, f.Err())
		x.finish()
	})
}

// The same where it is lost while the deactivation runs, and a second loss is reported by itself.
func TestJ18_TwoLosses(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, lossy(cfg))
		x.tainted = true
		w1 := x.write(1, 1)
		lose(t, x, w1)
		x.heal()
		f1 := x.flush()
		w2 := x.write(2, 1)
		x.peers[1].take()
		if cfg.Order == TrackerOrders {
			x.settleButLast(w2)
		} else {
			for _, p := range x.peers {
				p.takeAnswer(f1)
			}
		}
		requireLost(t, f1, w1)
		lose(t, x, w2)
		x.heal()
		f2 := x.flush()
		x.settle()
		requireLost(t, f2, w2)
		f3 := x.flush()
		x.settle()
		require.NoError(t, f3.Err())
		require.Equal(t, uint64(2), x.tr.Stats().Lost)
		x.finish()
	})
}

// settleButLast answers everything but one job.
func (x *rig) settleButLast(last *Job[*load]) {
	x.t.Helper()
	for range 4 {
		for _, p := range x.peers {
			p.take()
			for _, d := range append([]Dispatch[*load](nil), p.box...) {
				if d.ID != last.ID() {
					p.answer(d.ID)
				}
			}
		}
	}
}
