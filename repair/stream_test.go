package repair

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

var errSource = errors.New("the source does not answer")

// TestStreamBatches has partitions that fail together asked for together, each from what is received.
func TestStreamBatches(t *testing.T) {
	inWorld(t, 5, func(t *testing.T, w *world) {
		w.o.MaxBatch = 3
		w.drive(t.Context())
		w.fail(0, 2)
		w.sleep(19 * time.Millisecond)
		w.fail(1, 4)
		first := <-w.src.calls
		second := <-w.src.calls
		require.Equal(t, time.Now(), first.at)
		require.ElementsMatch(t, []int{3, 1}, []int{len(first.parts), len(second.parts)})
		require.ElementsMatch(t, []int{0, 1, 2, 4}, append(first.parts, second.parts...))
		for _, c := range []*call{first, second} {
			for _, p := range c.parts {
				require.Equal(t, next(10), c.from[p])
				w.begin(p, "B", 10)
			}
			c.reply <- nil // it comes after the begins: no harm
		}
		w.quiet(time.Hour)
		require.Equal(t, streamstate.Begun, w.view(4).State)
	})
}

// TestStreamPartitionErrors has each partition of a batch get its own answer.
func TestStreamPartitionErrors(t *testing.T) {
	inWorld(t, 4, func(t *testing.T, w *world) {
		w.drive(t.Context())
		w.lose(0, 1, 2, 3)
		w.asks("restart", 0, 1, 2, 3).reply <- fmt.Errorf("some: %w", PartitionErrors{2: errSource, 3: ErrPending})
		w.asks("restart", 2).reply <- PartitionErrors{2: ErrRefused, 7: errSource}
		c := w.asks("resubscribe", 0, 1, 2, 3)
		for p := range 4 {
			w.begin(p, "B", 10)
		}
		c.reply <- PartitionErrors{0: errSource} // of a resubscribe it is an error as any other
		w.asks("resubscribe", 0, 1, 2, 3).reply <- nil
		w.quiet(time.Hour)
	})
}

// TestStreamLeaves gives back what it has not asked for: the next driver takes it at once (S12). What was accepted stays
// accepted.
func TestStreamLeaves(t *testing.T) {
	inWorld(t, 3, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancelCause(t.Context())
		w.drive(ctx)
		w.lose(0, 1)
		w.asks("restart", 0, 1).reply <- PartitionErrors{1: errSource}
		w.asks("restart", 1)
		reason := errors.New("moved elsewhere")
		cancel(reason)
		require.ErrorIs(t, <-w.done, reason)
		require.NoError(t, w.s.Check())

		at := time.Now()
		w.drive(t.Context())
		w.asks("restart", 1).reply <- nil
		w.after(at, 20*time.Millisecond, 0)
		w.asks("resubscribe", 0, 1, 2) // 0 did not begin in time, and has nobody to be shut down
		w.after(at, deadlines.BeginWithin, look+time.Second)
	})
}

// TestStreamLeavesAResubscribe has a resubscribe that a driver began taken by the next one, not counted as failed.
func TestStreamLeavesAResubscribe(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		w.drive(ctx)
		w.lose(0)
		w.asks("restart", 0).reply <- ErrRefused
		w.asks("resubscribe", 0, 1)
		cancel()
		require.ErrorIs(t, <-w.done, context.Canceled)
		w.drive(t.Context())
		w.asks("resubscribe", 0, 1).reply <- nil
		w.begin(0, "B", 10)
		w.begin(1, "B", 10)
		w.quiet(time.Hour)
	})
}

// TestStreamResubscribesAlone has no other call run beside it, even where the source does not heed its contexts.
func TestStreamResubscribesAlone(t *testing.T) {
	inWorld(t, 3, func(t *testing.T, w *world) {
		w.src.deaf = true
		w.drive(t.Context())
		w.fail(1)
		slow := w.asks("restart", 1)
		w.lose(0)
		w.asks("restart", 0).reply <- ErrRefused
		w.quiet(time.Second)
		require.ErrorIs(t, context.Cause(slow.ctx), streamstate.ErrResubscribed)
		slow.reply <- nil
		w.asks("resubscribe", 0, 1, 2).reply <- nil
		for p := range 3 {
			w.begin(p, "B", 10)
		}
		w.quiet(time.Hour)
	})
}

// TestStreamEvents are those of one partition that climbs to a resubscribe, in order.
func TestStreamEvents(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		w.drive(t.Context())
		require.NoError(t, w.claims[0].Fence(nil))
		w.asks("shut-down", 0).reply <- errSource
		w.asks("shut-down", 0).reply <- nil
		w.asks("restart", 0).reply <- ErrRefused
		w.asks("resubscribe", 0).reply <- nil
		w.begin(0, "B", 10)
		cause := errors.New("enough")
		w.s.Stop(cause)
		require.ErrorIs(t, <-w.done, cause)

		var got []string
		for _, e := range w.told() {
			require.Equal(t, orders, e.Key)
			require.Equal(t, w.s.ID(), e.Session)
			require.False(t, e.Time.IsZero())
			require.Zero(t, e.Lost)
			got = append(got, fmt.Sprintf("%v %s %d/%d p%d: %v", e.Kind, e.Work, e.Ticket, e.Attempt, e.Partition, e.Err != nil))
		}
		require.Equal(t, []string{
			"started  0/0 p-1: false",
			"escalated shut-down 1/0 p0: false", "asked shut-down 1/1 p0: false", "answered shut-down 1/1 p0: true",
			"asked shut-down 1/2 p0: false", "answered shut-down 1/2 p0: false", "outcome shut-down 1/0 p0: true",
			"asked restart 2/1 p0: false", "answered restart 2/1 p0: true", "outcome restart 2/0 p0: true",
			"escalated resubscribe 3/0 p-1: false", "asked resubscribe 3/1 p-1: false", "answered resubscribe 3/1 p-1: false",
			"outcome resubscribe 3/0 p-1: true", "ended  0/0 p-1: true",
		}, got)
	})
}

func TestStreamArguments(t *testing.T) {
	book := streamstate.NewBook[int](streamstate.Options{})
	s, err := book.Open(orders, streamstate.OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	before := s.Fingerprint()
	for field, o := range map[string]StreamOptions{
		"MaxBatch": {MaxBatch: -1}, "Attempts": {Attempts: -1}, "MinBackoff": {MinBackoff: -1}, "MaxBackoff": {MaxBackoff: -1},
		"MaxEvents": {MaxEvents: -1},
	} {
		err := Stream(t.Context(), s, newSource(), o)
		require.ErrorIs(t, err, streamstate.ErrArgument)
		require.ErrorContains(t, err, field)
	}
	require.ErrorIs(t, Stream(t.Context(), s, newSource(), StreamOptions{MinBackoff: 2, MaxBackoff: 1}), streamstate.ErrArgument)
	require.ErrorIs(t, Stream(t.Context(), s, nil, StreamOptions{}), streamstate.ErrArgument)
	require.Equal(t, before, s.Fingerprint())
	require.NoError(t, s.Drop().Wait(t.Context()))
	require.ErrorIs(t, Stream(t.Context(), s, newSource(), StreamOptions{}), streamstate.ErrDropped)
}

func TestBackoff(t *testing.T) {
	o := StreamOptions{MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second}
	o.setDefaults()
	for n, most := range []time.Duration{0, 100, 200, 400, 800, 1000, 1000} {
		most *= time.Millisecond
		require.Equal(t, most, o.backoff(n, -1))
	}
	require.Equal(t, 500*time.Millisecond, o.backoff(6, 4*time.Second), "an eighth of the ticket")
	o = StreamOptions{MinBackoff: 1 << 61, MaxBackoff: 1<<63 - 1}
	require.Equal(t, time.Duration(1<<63-1), o.backoff(40, -1))
	o = StreamOptions{MaxBackoff: time.Millisecond}
	o.setDefaults()
	require.NoError(t, o.check(newSource()))
	o = StreamOptions{MinBackoff: time.Hour}
	o.setDefaults()
	require.NoError(t, o.check(newSource()))
}

func TestStreamNames(t *testing.T) {
	for k := range StreamEventKind(numStreamEventKinds) {
		require.NotContains(t, k.String(), "(")
	}
	require.Equal(t, "event(99)", StreamEventKind(99).String())
	require.Equal(t, "repair: 2 partitions failed, 1: "+ErrPending.Error()+", 2: "+errSource.Error(),
		PartitionErrors{2: errSource, 1: ErrPending}.Error())
	many := PartitionErrors{}
	for p := range 1000 {
		many[p] = errSource
	}
	require.Less(t, len(many.Error()), 300)
}

// TestStreamWaitsForOpening takes nothing before the session is active, and no deadline counts from before.
func TestStreamWaitsForOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		require.NoError(t, w.s.Drop().Wait(t.Context()))
		var err error
		w.s, err = w.book.Open(orders, streamstate.OpenOptions[int]{Partitions: 1, Pending: true})
		require.NoError(t, err)
		w.drive(t.Context())
		w.quiet(time.Hour)
		require.NoError(t, w.s.Opened())
		at := time.Now()
		c := w.asks("restart", 0)
		require.Empty(t, c.from, "nothing is received")
		w.after(at, deadlines.BeginWithin, look+20*time.Millisecond)
	})
}
