package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// repairing is a rig with a repair of replica 2, and the first copy of it: blocks 4 to 11, from replica 0.
func repairing(t *testing.T, cfg Config[*load]) (*rig, *Repair[*load], *Job[*load]) {
	t.Helper()
	x := newRig(t, cfg)
	x.write(0, 16)
	x.settle()
	require.NoError(t, x.tr.Fault(2, errDisk))
	x.peers[2].comeBack()
	rep, err := x.tr.Repair(2)
	require.NoError(t, err)
	pay := &load{}
	j, err := rep.Copy(0, 4, 8, pay)
	require.NoError(t, err)
	x.jobs = append(x.jobs, j)
	x.loads[j.ID()] = pay
	return x, rep, j
}

// A permanent error ends a copy, too: a source's leaves everybody in place, a target's faults the target. Either way what
// waited for it runs.
func TestJ25_CopyThatFails(t *testing.T) {
	for _, half := range []Half{HalfRead, HalfWrite} {
		t.Run(half.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				x, rep, j := repairing(t, cfg)
				behind, aside := x.write(5, 1), x.write(40, 1)
				source, target := x.peers[0], x.peers[2]
				source.take()
				require.Equal(t, HalfRead, source.inBox(j.ID())[0].Half)
				target.take()
				require.False(t, target.has(j), "before the source has answered")
				require.False(t, target.has(behind))
				require.True(t, target.has(aside), "the rest goes on")
				if half == HalfRead {
					source.fail(j)
					require.NoError(t, rep.Ended().Err())
					x.requireReplica(0, Voting, HomeOffline)
					x.requireReplica(2, Repairing, HomeFaulted)
				} else {
					source.answer(j.ID())
					target.take()
					require.Equal(t, HalfWrite, target.inBox(j.ID())[0].Half)
					target.fail(j)
					x.requireReplica(2, Stopping, HomeFaulted)
					require.ErrorIs(t, rep.Ended().Err(), ErrJobFailed)
					require.ErrorIs(t, x.refused(rep.Finish), ErrSuperseded)
				}
				require.True(t, j.Resolved())
				require.ErrorIs(t, j.Err(), ErrQuorum)
				require.ErrorIs(t, j.Err(), errDisk)
				x.settle()
				require.NoError(t, behind.Err())
				require.True(t, behind.Resolved())
				require.Equal(t, half == HalfWrite, target.sent[j.ID()] == 1)
				target.bad = nil
				if half == HalfRead {
					require.NoError(t, rep.Abort(nil))
				}
				x.finish()
			})
		})
	}
}

// A repair that ends leaves nobody waiting for a half that was never sent; what was sent stays outstanding.
func TestJ31_CopyThatWasSentStaysOutstanding(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x, rep, j := repairing(t, cfg)
		source, target := x.peers[0], x.peers[2]
		source.takeAnswer(j)
		target.take()
		require.True(t, target.has(j))
		require.NoError(t, rep.Abort(errDisk))
		require.Equal(t, &EndedError{What: "repair", Cause: errDisk}, rep.Ended().Err())
		require.ErrorIs(t, x.refused(func() error { _, err := rep.Copy(0, 0, 1, nil); return err }), ErrSuperseded)
		require.ErrorIs(t, x.refused(func() error { return rep.Abort(nil) }), ErrSuperseded)
		require.False(t, j.Resolved())
		f := x.flush()
		x.answerAll(x.peers[:2]...)
		require.NoError(t, f.Err())
		require.True(t, f.Resolved())

		next, err := x.tr.Repair(2)
		require.NoError(t, err)
		w := x.write(6, 1)
		target.take()
		if cfg.Order == TrackerOrders {
			require.False(t, target.has(w), "it would be overtaken by the copy")
		} else {
			require.Equal(t, []JobID{j.ID()}, target.deps(w))
		}
		target.answer(j.ID())
		require.NoError(t, j.Err())
		x.settle()
		require.NoError(t, next.Abort(nil))
		x.finish()
	})
}

// The loss of the source ends a copy where its write was not sent, and its dependents run.
func TestJ25_CopyLosesAnEnd(t *testing.T) {
	for _, who := range []int{0, 2} {
		for _, sent := range []Half{HalfNone, HalfRead, HalfWrite} {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				x, rep, j := repairing(t, cfg)
				behind := x.write(5, 1)
				if sent != HalfNone {
					x.peers[0].take()
				}
				if sent == HalfWrite {
					x.peers[0].answer(j.ID())
					x.peers[2].take()
					require.True(t, x.peers[2].has(j))
				}
				x.peers[who].close()
				require.Equal(t, who == 2, rep.Ended().Err() != nil)
				require.Equal(t, who == 2 || sent != HalfWrite, j.Resolved())
				x.settle()
				require.True(t, j.Resolved())
				if who == 0 { // the target has it, but one of two voters is away
					require.Equal(t, 1, x.peers[2].sent[behind.ID()])
					require.NoError(t, rep.Abort(nil))
					x.peers[0].comeBack()
					x.settle()
				}
				require.NoError(t, behind.Err())
				require.True(t, behind.Resolved())
				x.finish()
			})
		}
	}
}
