package handle_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/handle"
)

var (
	errDisk  = errors.New("disk")
	errEnded = errors.New("ended")
)

// ended is a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestHandle(t *testing.T) {
	h := handle.New()
	require.NoError(t, h.Err())
	require.ErrorIs(t, h.Wait(ended()), context.Canceled)
	select {
	case <-h.Done():
		t.Fatal("it has not ended")
	default:
	}
	handle.Resolve(h, errDisk)
	handle.Resolve(h, nil) // only the first counts
	require.ErrorIs(t, h.Err(), errDisk)
	require.ErrorIs(t, h.Wait(ended()), errDisk, "the end comes before the context's")
	<-h.Done()

	require.NoError(t, handle.Resolved(nil).Wait(t.Context()))
	require.ErrorIs(t, handle.Resolved(errDisk).Err(), errDisk)
	handle.Resolve(nil, nil) // nobody waits
}

func TestHandleWaitGivesTheCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDisk)
	require.ErrorIs(t, handle.New().Wait(ctx), errDisk)
}

func TestHandleManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := handle.New()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancelCause(t.Context())
		errs := make(chan error, 20)
		for range 10 {
			wg.Go(func() { errs <- h.Wait(t.Context()) })
			wg.Go(func() { errs <- h.Wait(ctx) })
		}
		synctest.Wait()
		require.Empty(t, errs)
		cancel(errDisk) // ends waits, not what they wait for
		synctest.Wait()
		require.Len(t, errs, 10)
		require.NoError(t, h.Err())
		handle.Resolve(h, errEnded)
		wg.Wait()
		close(errs)
		got := map[error]int{}
		for err := range errs {
			got[err]++
		}
		require.Equal(t, map[error]int{errDisk: 10, errEnded: 10}, got)
	})
}

func TestJoin(t *testing.T) {
	require.NoError(t, handle.Join(nil).Wait(ended()))
	one, two := handle.New(), handle.New()
	j := handle.Join([]*handle.Handle{one, handle.Resolved(nil), two, one})
	handle.Resolve(two, errDisk)
	require.ErrorIs(t, j.Wait(ended()), context.Canceled)
	handle.Resolve(one, errEnded)
	require.ErrorIs(t, j.Wait(ended()), errDisk)
	require.ErrorIs(t, handle.Join([]*handle.Handle{one, two}).Wait(ended()), errEnded)
}
