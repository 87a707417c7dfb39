package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// comparing is a repair of replica 2 which has missed a write of block 3, and a comparison of that extent with replica 0.
func comparing(t *testing.T) (tr *Tracker[int], conns []*Conn[int], rep *Repair[int], j *Job[int]) {
	t.Helper()
	tr, conns = running(t, Config[int]{Blocks: 8, ExtentBlocks: 1})
	require.NoError(t, tr.Fault(2, errDisk))
	submit(t, tr, write(3, 1))
	serve(t, conns[0], conns[1])
	require.NoError(t, conns[2].Quiesced())
	c, err := tr.Connect(2, knows(tr))
	require.NoError(t, err)
	conns[2] = c
	rep, err = tr.Repair(2)
	require.NoError(t, err)
	j, err = rep.Compare(0, 3, 7)
	require.NoError(t, err)
	return tr, conns, rep, j
}

// knows is the hello of a replica that was active in this activation, and has flushed nothing.
func knows(tr *Tracker[int]) Hello { return Hello{Generation: tr.Dump().Generation} }

// half takes a half of a comparison, which is all there is for a replica.
func half(t *testing.T, c *Conn[int], j *Job[int], want Half) {
	t.Helper()
	got := all(t, c)
	require.Len(t, got, 1)
	require.Equal(t, Dispatch[int]{ID: j.ID(), Kind: Copy, Half: want, Start: 3, Blocks: 1, Payload: 7, Deps: got[0].Deps}, got[0])
}

// all takes all that is ready.
func all(t *testing.T, c *Conn[int]) (got []Dispatch[int]) {
	t.Helper()
	for {
		var d Dispatch[int]
		if c.Next(ended(), &d) != nil {
			return got
		}
		got = append(got, d)
	}
}

func stateOf(t *testing.T, rep *Repair[int], i int) ExtentState {
	t.Helper()
	e, err := rep.Extent(i)
	require.NoError(t, err)
	return e.State
}

// Nothing that the guest writes comes between the halves of a comparison, and what it says is believed as a copy is.
func TestR24_ComparedInTheOrder(t *testing.T) {
	for name, same := range map[string]bool{"same": true, "differs": false} {
		t.Run(name, func(t *testing.T) {
			tr, conns, rep, j := comparing(t)
			require.Equal(t, ExtentCopying, stateOf(t, rep, 3))
			behind := submit(t, tr, write(3, 1))
			half(t, conns[0], j, HalfSum)
			require.Empty(t, take(t, conns[2]), "before the source has said what it holds; and the write waits")
			require.NoError(t, conns[0].Complete(j.ID(), Result{Kind: Copy, Same: !same})) // not the source's to say
			half(t, conns[2], j, HalfCompare)
			require.NoError(t, conns[2].Complete(j.ID(), Result{Same: same}))
			require.NoError(t, j.Err())
			require.True(t, j.Resolved())
			want := ExtentDirty
			if same {
				want = ExtentCopied
			}
			require.Equal(t, want, stateOf(t, rep, 3))
			serve(t, conns...)
			require.NoError(t, behind.Err())
			require.Equal(t, want, stateOf(t, rep, 3))
		})
	}
}

// A half that fails ends the comparison, faults nobody, and leaves the extent to be copied; so does the loss of the source, and
// a source that has stopped voting by the time the target answers.
func TestR02_ComparisonThatFails(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, tr *Tracker[int], conns []*Conn[int], j *Job[int]){
		"source": func(t *testing.T, _ *Tracker[int], conns []*Conn[int], j *Job[int]) {
			half(t, conns[0], j, HalfSum)
			require.NoError(t, conns[0].Complete(j.ID(), Result{Err: errDisk}))
			require.Empty(t, take(t, conns[2]))
			require.ErrorIs(t, j.Err(), errDisk)
		},
		"target": func(t *testing.T, _ *Tracker[int], conns []*Conn[int], j *Job[int]) {
			half(t, conns[0], j, HalfSum)
			require.NoError(t, conns[0].Complete(j.ID(), Result{}))
			half(t, conns[2], j, HalfCompare)
			require.NoError(t, conns[2].Complete(j.ID(), Result{Err: errDisk, Same: true}))
			require.ErrorIs(t, j.Err(), errDisk)
		},
		"source is lost": func(t *testing.T, _ *Tracker[int], conns []*Conn[int], j *Job[int]) {
			half(t, conns[0], j, HalfSum)
			conns[0].Close(nil)
			require.ErrorIs(t, j.Err(), ErrPeerClosed)
		},
		"source is faulted": func(t *testing.T, tr *Tracker[int], conns []*Conn[int], j *Job[int]) {
			half(t, conns[0], j, HalfSum)
			require.NoError(t, conns[0].Complete(j.ID(), Result{}))
			half(t, conns[2], j, HalfCompare)
			require.NoError(t, tr.Fault(0, errDisk))
			require.NoError(t, conns[2].Complete(j.ID(), Result{Same: true}))
			require.NoError(t, j.Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, conns, rep, j := comparing(t)
			fail(t, tr, conns, j)
			require.True(t, j.Resolved())
			require.Equal(t, ExtentDirty, stateOf(t, rep, 3), "and not for ever on its way")
			require.NoError(t, rep.Context().Err())
			e, ok, err := rep.Next(3)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, 3, e.Index)
		})
	}
}

// What was compared is proven by a flush that the target has done since, like what was copied; and not by one before.
func TestR25_ComparedAndFlushed(t *testing.T) {
	for name, flush := range map[string]func(t *testing.T, tr *Tracker[int], conns []*Conn[int], j *Job[int]) ExtentState{
		"never": func(t *testing.T, _ *Tracker[int], conns []*Conn[int], _ *Job[int]) ExtentState {
			serveSame(t, conns)
			return ExtentDirty
		},
		"since": func(t *testing.T, tr *Tracker[int], conns []*Conn[int], _ *Job[int]) ExtentState {
			serveSame(t, conns)
			submit(t, tr, Op{Kind: Flush})
			serve(t, conns...)
			return ExtentClean
		},
		"it has failed": func(t *testing.T, tr *Tracker[int], conns []*Conn[int], _ *Job[int]) ExtentState {
			serveSame(t, conns)
			submit(t, tr, Op{Kind: Flush})
			serve(t, conns[0], conns[1])
			return ExtentDirty
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, conns, rep, j := comparing(t)
			want := flush(t, tr, conns, j)
			require.Equal(t, ExtentCopied, stateOf(t, rep, 3))
			conns[2].Close(nil)
			require.NoError(t, conns[2].Quiesced())
			_, err := tr.Connect(2, knows(tr))
			require.NoError(t, err)
			again, err := tr.Repair(2)
			require.NoError(t, err)
			require.Equal(t, want, stateOf(t, again, 3))
		})
	}
}

// serveSame has all replicas do what there is; a comparison finds that it is the same.
func serveSame(t *testing.T, conns []*Conn[int]) {
	t.Helper()
	for range 2 {
		for _, c := range conns {
			for _, d := range all(t, c) {
				require.NoError(t, c.Complete(d.ID, Result{Same: d.Half == HalfCompare}))
			}
		}
	}
}

// An answer to the comparison of an earlier repair says nothing in the next one, whichever it is; and the end of a repair
// leaves what was not sent of it.
func TestR06_ComparisonOfAnEarlierRepair(t *testing.T) {
	for _, same := range []bool{true, false} {
		tr, conns, rep, j := comparing(t)
		half(t, conns[0], j, HalfSum)
		require.NoError(t, conns[0].Complete(j.ID(), Result{}))
		half(t, conns[2], j, HalfCompare)
		unsent, err := rep.Compare(1, 4, 7)
		require.NoError(t, err)
		require.NoError(t, rep.Abort(nil))
		require.ErrorIs(t, unsent.Err(), ErrAborted)
		require.False(t, j.Resolved(), "it was sent")
		now, err := tr.Repair(2)
		require.NoError(t, err)
		was := stateOf(t, now, 3)
		require.NoError(t, conns[2].Complete(j.ID(), Result{Same: same}))
		require.True(t, j.Resolved())
		require.Equal(t, was, stateOf(t, now, 3))
		require.Equal(t, ExtentDirty, was)
	}
}
