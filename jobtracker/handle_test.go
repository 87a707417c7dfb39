package jobtracker

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestHandle(t *testing.T) {
	h := newHandle()
	require.NoError(t, h.Err())
	require.ErrorIs(t, h.Wait(ended()), context.Canceled)
	select {
	case <-h.Done():
		t.Fatal("it has not ended")
	default:
	}
	h.resolve(errDisk)
	h.resolve(nil) // only the first counts
	require.ErrorIs(t, h.Err(), errDisk)
	require.ErrorIs(t, h.Wait(ended()), errDisk, "the end comes before the context's")
	<-h.Done()

	require.NoError(t, resolvedHandle(nil).Wait(t.Context()))
	require.ErrorIs(t, resolvedHandle(errDisk).Err(), errDisk)
	(*Handle)(nil).resolve(nil) // nobody waits
}

func TestHandleWaitGivesTheCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDisk)
	require.ErrorIs(t, newHandle().Wait(ctx), errDisk)
}

func TestHandleManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandle()
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
		h.resolve(ErrEnded)
		wg.Wait()
		close(errs)
		got := map[error]int{}
		for err := range errs {
			got[err]++
		}
		require.Equal(t, map[error]int{errDisk: 10, ErrEnded: 10}, got)
	})
}
