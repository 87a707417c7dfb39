package repair

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// apart is a front end whose replicas differ: a write was done on some of them, and it has crashed. Contents are those
// of the model in live_model_test.go, with nothing left to chance.
func apart(t *testing.T) *mWorld {
	t.Helper()
	w := newFront(func(n int) int { return min(1, n-1) }) // three replicas
	require.Equal(t, 3, w.n)
	w.settle()
	return w
}

// restart crashes the front end; what lies in the sockets is executed.
func restart(w *mWorld) {
	for _, n := range w.nodes {
		w.drain(n, false)
		n.conn = nil
	}
	w.tr.Close()
	w.flushes = nil
	w.start(jobtracker.ActivateOptions{})
}

func (w *mWorld) write(t *testing.T, b uint64) *jobtracker.Job[*mIO] {
	t.Helper()
	w.values++
	j, err := w.tr.Submit(gone, jobtracker.Op{Kind: jobtracker.Write, Start: b, Blocks: 1}, &mIO{value: w.values})
	require.NoError(t, err)
	w.history[b] = append(w.history[b], mWrite{value: w.values, job: j})
	w.newest[b/mExtent] = j.ID()
	return j
}

func (w *mWorld) sync(t *testing.T) *jobtracker.Job[*mIO] {
	t.Helper()
	j, err := w.tr.Submit(gone, jobtracker.Op{Kind: jobtracker.Flush}, nil)
	require.NoError(t, err)
	return j
}

func whole(w *mWorld) *crashing { return &crashing{w: w, step: 4} }

func (w *mWorld) reconcileNow(t *testing.T) Plan {
	t.Helper()
	var plan Plan
	require.NoError(t, Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{OnPlan: func(p Plan) error { plan = p; return nil }}))
	require.NoError(t, w.begins())
	return plan
}

// All replicas need a repair: that is no repair, but a reconciliation, and it is reported.
func TestR05_AllNeedRepair(t *testing.T) {
	w := apart(t)
	w.write(t, 0)
	w.take(0)
	w.write(t, 5)
	w.take(1)
	restart(w)
	for r := range w.n {
		w.connect(r)
	}
	require.True(t, w.reconcile)
	require.Equal(t, jobtracker.Activating, w.tr.Stats().Phase)
	require.ErrorIs(t, Live(t.Context(), w.tr, 0, func(jobtracker.Extent) *mIO { return &mIO{} }, LiveOptions{}), jobtracker.ErrPhase)
	w.reconcileNow(t)
	require.Equal(t, w.nodes[0].data, w.nodes[1].data)
	require.Equal(t, w.nodes[0].data, w.nodes[2].data)
	require.NoError(t, w.calm())
}

// A participant is lost half way: the reconciliation ends and is begun again as a whole. What the former attempt says is
// refused, and so is a ticket that another has followed.
func TestR16_ParticipantIsLost(t *testing.T) {
	w := apart(t)
	w.write(t, 0)
	w.take(0)
	w.take(1)
	restart(w)
	for r := range w.n {
		w.connect(r)
	}
	old, err := w.tr.Reconcile()
	require.NoError(t, err)
	now, err := w.tr.Reconcile()
	require.NoError(t, err)
	require.ErrorIs(t, old.Ended().Err(), jobtracker.ErrSuperseded)
	require.ErrorIs(t, context.Cause(old.Context()), jobtracker.ErrSuperseded)
	was := w.tr.Fingerprint()
	require.ErrorIs(t, old.Done(), jobtracker.ErrSuperseded)
	require.ErrorIs(t, old.Abort(nil), jobtracker.ErrSuperseded)
	require.Equal(t, was, w.tr.Fingerprint())
	require.Len(t, now.Participants(), 3)
	require.NoError(t, now.Context().Err())

	err = Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{OnPlan: func(Plan) error {
		w.cut(2, false)
		return nil
	}})
	require.ErrorIs(t, err, jobtracker.ErrPeerClosed)
	require.ErrorIs(t, err, jobtracker.ErrEnded)
	require.ErrorIs(t, now.Ended().Err(), jobtracker.ErrSuperseded)
	require.Equal(t, jobtracker.Activating, w.tr.Stats().Phase)
	plan := w.reconcileNow(t)
	require.Len(t, plan.Participants, 2)
	require.Equal(t, 1, plan.Absent)
	require.NoError(t, w.calm())
}

// endedInside are replicas of which the first thing asked ends the ticket, and looks whether its context has ended then.
type endedInside struct {
	*crashing
	end func()
	saw []error
}

func (e *endedInside) Extents(ctx context.Context, replica int) ([]ExtentMeta, error) {
	e.end()
	e.saw = append(e.saw, context.Cause(ctx))
	return e.crashing.Extents(ctx, replica)
}

// A call that began before the ticket ended must know that it has, before anybody else can have gone on: else what it has a
// replica remember could come after what the next reconciliation has it remember. With the context ended by a goroutine
// this fails most times.
func TestR16_ContextEndsWithTheTicket(t *testing.T) {
	w := apart(t)
	w.write(t, 0)
	w.take(0)
	w.take(1)
	restart(w)
	for r := range w.n {
		w.connect(r)
	}
	type key struct{}
	ctx, cancel := context.WithDeadline(context.WithValue(t.Context(), key{}, 1), time.Now().Add(time.Hour))
	defer cancel()
	e := &endedInside{crashing: whole(w), end: func() {
		_, err := w.tr.Reconcile()
		require.NoError(t, err)
	}}
	require.ErrorIs(t, Reconcile(ctx, w.tr, e, ReconcileOptions{}), jobtracker.ErrSuperseded)
	require.Len(t, e.saw, 1, "nobody else is asked")
	require.ErrorIs(t, e.saw[0], jobtracker.ErrSuperseded)
	under, leave := join(ctx, t.Context())
	at, ok := under.Deadline()
	want, _ := ctx.Deadline()
	require.True(t, ok)
	require.Equal(t, want, at)
	require.Equal(t, 1, under.Value(key{}))
	leave()
	require.Error(t, under.Err())
	w.reconcileNow(t)
	require.NoError(t, w.calm())
}

// A write is sent to one replica, unacknowledged; the front end crashes, and the write executes there. The dirty bit was
// there first.
func TestR18_DirtyBeforeItIsSent(t *testing.T) {
	w := apart(t)
	w.write(t, 4)
	w.take(0)
	require.Zero(t, w.nodes[0].data[4])
	require.True(t, w.nodes[0].dirty[2])
	restart(w)
	require.NotZero(t, w.nodes[0].data[4])
	w.connect(0)
	w.connect(2)
	plan := w.reconcileNow(t)
	require.Equal(t, []int{2}, plan.Participants[1].Copies)
	require.Equal(t, w.nodes[0].data, w.nodes[2].data)
	require.NoError(t, w.calm())
}

// A replica misses a write and a flush while it is faulted; the others do not forget what they wrote, since not all have
// flushed it.
func TestR19_ClearedByAFlushOfAll(t *testing.T) {
	w := apart(t)
	require.NoError(t, w.tr.Fault(0, errTest))
	j := w.write(t, 4)
	w.settle()
	f := w.sync(t)
	w.settle()
	require.NoError(t, j.Err())
	require.NoError(t, f.Err())
	w.tidy(1)
	w.tidy(2)
	require.True(t, w.nodes[1].dirty[2])
	restart(w)
	w.connect(0)
	w.connect(1)
	plan := w.reconcileNow(t)
	require.Equal(t, 1, plan.Source)
	require.Equal(t, []int{2}, plan.Participants[0].Copies)
	require.Equal(t, w.nodes[1].data, w.nodes[0].data)
	require.NoError(t, w.calm())
}

// A flush executes on a replica and its answer is refused: it does not remember the number.
func TestR22_RefusedFlushRaisesNoNumber(t *testing.T) {
	w := apart(t)
	w.sync(t)
	w.take(0)
	n := w.nodes[0]
	was := n.flush
	n.conn.Close(nil)
	w.execute(n)
	require.Len(t, n.replies, 1)
	w.deliver(0)
	require.Equal(t, was, n.flush)
	w.connect(0)
	w.settle()
	require.Greater(t, n.flush, was, "it was replayed")
	require.NoError(t, w.calm())
}

// Two activations on different pairs of replicas, each of which made its pair equal, and then one on a mixed pair: what they
// remember tells which is newer, also where a reconciliation was cut short.
func TestR23_VersionsNeverCollide(t *testing.T) {
	w := apart(t)
	w.write(t, 0)
	w.take(0)
	w.write(t, 5)
	w.take(1) // the write of block 0
	w.take(1)
	restart(w)
	w.connect(1)
	w.connect(2)
	c := whole(w)
	c.step, c.luck = 3, 1<<(2*mExtents) // only replica 2 remembers
	require.NoError(t, Reconcile(t.Context(), w.tr, c, ReconcileOptions{}))
	middle := w.nodes[2].generation
	restart(w) // before anything else was done
	w.connect(0)
	w.connect(1)
	require.NoError(t, Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{})) // and before anything else was done
	require.NotZero(t, w.nodes[1].data[0], "replica 0 is the source")
	require.Greater(t, w.nodes[0].generation, middle)
	restart(w)
	w.connect(0)
	w.connect(2)
	require.Equal(t, jobtracker.Activating, w.tr.Stats().Phase, "both are clean, and they differ")
	plan := w.reconcileNow(t)
	require.Equal(t, 0, plan.Source)
	require.Equal(t, w.nodes[0].data, w.nodes[2].data)
	require.NoError(t, w.calm())
}

func TestReconcileRefuses(t *testing.T) {
	w := apart(t)
	require.ErrorIs(t, Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{}), jobtracker.ErrPhase)
	restart(w)
	w.connect(0)
	var few *jobtracker.TooFewError
	require.ErrorAs(t, Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{}), &few)
	require.Equal(t, jobtracker.TooFewError{Counted: 1, Need: 2, Here: 1, Quorum: 2}, *few)
	require.ErrorIs(t, few, jobtracker.ErrTooFew)
	require.ErrorIs(t, Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{Parallel: -1}), ErrOption)
	w.nodes[1].dirty[0], w.nodes[1].equal = true, false
	w.connect(1)
	err := Reconcile(t.Context(), w.tr, whole(w), ReconcileOptions{OnPlan: func(Plan) error { return errTest }})
	require.ErrorIs(t, err, errTest)
	ctx, cancel := context.WithCancelCause(t.Context())
	err = Reconcile(ctx, w.tr, whole(w), ReconcileOptions{OnPlan: func(Plan) error { cancel(errTest); return nil }})
	require.ErrorIs(t, err, errTest)
	w.reconcileNow(t)
	require.NoError(t, w.calm())
}

// TestPlan has a plan as people and programs read it: the highest is the source, a blank gets everything.
func TestPlan(t *testing.T) {
	metas := map[int][]ExtentMeta{0: make([]ExtentMeta, 6), 1: make([]ExtentMeta, 6), 3: make([]ExtentMeta, 6)}
	for _, e := range []int{1, 2, 5} {
		metas[1][e].Dirty = true
	}
	metas[0][4].Flush = 9 // not what the source remembers of it
	ps := []jobtracker.Participant{
		{Replica: 0, Generation: 7, Flush: 3}, {Replica: 1, Generation: 7, Flush: 4, Dirty: true}, {Replica: 3, Blank: true},
	}
	p, err := NewPlan(5, ps, metas)
	require.NoError(t, err)
	require.Equal(t, `make 3 replicas equal to replica 1 (generation 7, flush 4); 2 are not here
replica 0: generation 7, flush 3, 0 extents dirty: copy 4 of 6 extents (1-2, 4-5)
replica 1: generation 7, flush 4, 3 extents dirty: the source
replica 3: blank: copy 6 of 6 extents (0-5)
`, p.String())
	text, err := p.JSON()
	require.NoError(t, err)
	require.JSONEq(t, `{"Source": 1, "Generation": 7, "Flush": 4, "Absent": 2, "Extents": 6, "Participants": [
		{"Replica": 0, "Generation": 7, "Flush": 3, "Dirty": 0, "Copies": [1, 2, 4, 5]},
		{"Replica": 1, "Generation": 7, "Flush": 4, "Dirty": 3},
		{"Replica": 3, "Generation": 0, "Flush": 0, "Blank": true, "Dirty": 6, "Copies": [0, 1, 2, 3, 4, 5]}]}`, string(text))
	metas[3] = metas[3][1:]
	_, err = NewPlan(5, ps, metas)
	require.ErrorIs(t, err, ErrMeta)
	_, err = NewPlan(5, ps[2:], metas)
	require.ErrorIs(t, err, ErrNoSource)
}
