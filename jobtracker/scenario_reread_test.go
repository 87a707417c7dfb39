package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/J29-vouched-read.patch.
func TestJ29_ReadInFlightBehindADoneFlush(t *testing.T) {
	for _, n := range []int{1, 3} {
		for m := range Reads(numReads) {
			t.Run(m.String(), func(t *testing.T) {
				x := newRig(t, Config[*load]{Replicas: n, Order: ReplicaOrders, Reads: m})
				w, r, f := x.write(5, 2), x.read(5, 2), x.flush()
				var asked []*peer
				for _, p := range x.peers {
					p.takeAnswer(w)
				}
				for _, p := range x.peers {
					p.take()
					if p.has(r) {
						asked = append(asked, p)
						p.answer(f.ID()) // its reply overtakes the read's
					}
				}
				require.False(t, r.Resolved(), "no data yet")
				for _, p := range asked {
					s, gone := x.state(r, p.r)
					require.False(t, gone)
					require.Equal(t, StateSent, s)
					require.Equal(t, uint64(1), p.num, "the flush was done")
					old := p.cut()
					require.False(t, r.Resolved(), "a flush does not answer a read")
					x.orphan(old, r.ID(), Result{}, OrphanStaleConn)
				}
				if len(asked) == n {
					asked[0].connect()
				}
				x.settle()
				require.True(t, r.Resolved())
				require.NoError(t, r.Err())
				require.Equal(t, x.want[r.ID()], x.loads[r.ID()].got)
				for _, p := range asked[1:] {
					s, gone := x.state(r, p.r)
					require.True(t, gone || s == StateSkipped, "%v", s)
				}
				x.finish()
				for _, p := range x.peers[1:] {
					require.LessOrEqual(t, p.sent[r.ID()], 1, "no one is asked for what was answered")
				}
			})
		}
	}
}

// A read that was answered elsewhere is not asked again.
func TestJ29_AnsweredReadIsNotAskedAgain(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		cfg.Reads = ReadAll
		x := newRig(t, cfg)
		r := x.read(5, 2)
		for _, p := range x.peers {
			p.take()
		}
		x.peers[0].answer(r.ID())
		p := x.peers[2]
		p.cut()
		x.requireState(r, StateDone, StateSent, StateSkipped)
		p.connect()
		require.Empty(t, p.take())
		x.finish()
	})
}

// The answer of a read that was asked again may rightly differ: a later write was vouched for. It is not compared.
func TestJ29_AskedAgainIsNotCompared(t *testing.T) {
	x := newRig(t, Config[*load]{Order: ReplicaOrders, Reads: ReadAll, Mismatch: MismatchFault})
	x.tainted = true
	r := x.read(5, 1)
	w := x.write(5, 1)
	f := x.flush()
	p := x.peers[0]
	p.take()
	p.run(f.ID())
	p.answer(w.ID())
	p.answer(f.ID())
	p.cut()
	x.requireState(w, StateDone, StateQueued, StateQueued)
	for _, o := range x.peers[1:] {
		o.cut()
	}
	p.connect()
	require.Equal(t, []JobID{r.ID()}, p.take(), "only the read")
	require.NoError(t, p.conn.Complete(r.ID(), Result{Digest: 2})) // it sees the write
	p.drop(r.ID())
	require.NoError(t, r.Err())
	require.True(t, r.Resolved())
	require.Zero(t, x.tr.Stats().Mismatches)
	x.finish()
}

// A read is asked again long after what it depended on has retired: nothing travels with it.
func TestJ29_OldReadIsAskedAgainAlone(t *testing.T) {
	for _, n := range []int{1, 3} {
		x := newRig(t, Config[*load]{Replicas: n, Order: ReplicaOrders, Reads: ReadAll})
		w, r, f := x.write(5, 2), x.read(5, 2), x.flush()
		answer := func() {
			for _, p := range x.peers {
				for _, id := range p.take() {
					if id != r.ID() {
						p.answer(id)
					}
				}
			}
		}
		answer()
		require.NoError(t, f.Err())
		x.requireGone(w)
		for i := range uint64(1000) { // the room of its dependencies is used again
			x.write(10+i%7, 2)
			if i%50 == 49 {
				x.flush()
			}
			answer()
		}
		for i := range uint64(100) {
			x.write(10+i%7, 2)
		}
		p := x.peers[0]
		p.cut()
		p.connect()
		p.take()
		require.Empty(t, p.deps(r), "what it depended on is gone")
		p.answer(r.ID())
		require.NoError(t, r.Err())
		x.tainted = true // it rightly sees nothing newer, but the disk has no history
		x.settle()
		x.finish()
	}
}
