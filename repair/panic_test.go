package repair

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// Code of the caller's panics on the goroutine that called, and somebody above recovers: the ticket went with the driver,
// and another can begin. Without that the replica would be under repair for ever.
func TestR03_CallerPanics(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		told := make(chan LiveProgress, 3)
		bad := metaFunc(func(context.Context, int) ([]ExtentMeta, error) { panic("foreign") })
		require.PanicsWithValue(t, "foreign", func() {
			_ = Live(t.Context(), c.Tracker, 2, payload, LiveOptions{Meta: bad, OnProgress: func(p LiveProgress) { told <- p }})
		})
		require.Equal(t, jobtracker.RepairReady, c.Replica(2).State().Phase)
		<-told
		require.ErrorIs(t, (<-told).Err, errPanicked)
		result := begin(c, 2, LiveOptions{})
		settle(c)
		require.NoError(t, result())
		c.RequireRecovery()
	})
}

// seenContext keeps what a reconciliation gives its replicas.
type seenContext struct {
	*crashing
	ctx context.Context //nolint:containedctx // it is what is looked at
}

func (s *seenContext) Extents(ctx context.Context, replica int) ([]ExtentMeta, error) {
	s.ctx = ctx
	return s.crashing.Extents(ctx, replica)
}

func TestR16_CallerPanics(t *testing.T) {
	w := apart(t)
	w.write(t, 0)
	w.take(0)
	w.take(1)
	restart(w)
	for r := range w.n {
		w.connect(r)
	}
	seen := &seenContext{crashing: whole(w)}
	require.PanicsWithValue(t, "foreign", func() {
		_ = Reconcile(t.Context(), w.tr, seen, ReconcileOptions{OnPlan: func(Plan) error { panic("foreign") }})
	})
	require.Equal(t, jobtracker.Activating, w.tr.Stats().Phase)
	require.ErrorIs(t, context.Cause(seen.ctx), errPanicked)
	require.ErrorIs(t, context.Cause(seen.ctx), jobtracker.ErrEnded, "the ticket has")
	w.reconcileNow(t)
	require.NoError(t, w.calm())
}
