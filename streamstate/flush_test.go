package streamstate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestFlush(t *testing.T) {
	l := newLedger(t, false, "Begun")
	require.NoError(t, l.a.Advance(next(12)))
	f, err := l.s.StartFlush()
	require.NoError(t, err)
	require.Equal(t, "[0:12 1:0 2:0]", f.Target().String())
	l.deny(ErrFlushRunning, func() error { _, err := l.s.StartFlush(); return err })
	require.NoError(t, l.a.Advance(next(15)))
	require.NoError(t, l.a.End(HandOver), "that the claim ended does not matter")
	h := l.s.Unwant(1)
	require.ErrorIs(t, h.Wait(ends()), context.Canceled, "its payload must stay")
	l.deny(ErrReleasing, func() error { return l.s.Want(1) })
	require.NoError(t, l.s.Unwant(2).Wait(ends2(l, f)))
	l.deny(ErrSuperseded, f.Abort)
	require.NoError(t, h.Wait(ends()))
	require.Equal(t, next(12), l.at(0).Flushed)
	require.NoError(t, l.s.Want(1))
	require.False(t, l.at(1).HasFlushed, "the flush does not vouch for what was given up (S41)")
}

// ends2 ends the flush, whose returned partitions it checks.
func ends2(l *ledger, f *FlushTicket) context.Context {
	returned, err := f.Done()
	require.NoError(l.t, err)
	require.Equal(l.t, []int{1, 2}, returned)
	return ends()
}

func TestFlushTargetWhereAClaimMustRollBack(t *testing.T) {
	l := newLedger(t, false, "Begun")
	f, err := l.s.StartFlush()
	require.NoError(t, err)
	_, err = f.Done()
	require.NoError(t, err)
	require.NoError(t, l.a.Advance(next(20)))
	l.begin(0, Begin{Owner: "C", MustRollBack: true, RollBackTo: next(4)})
	f, err = l.s.StartFlush()
	require.NoError(t, err)
	require.Equal(t, "[0:10 1:0 2:0]", f.Target().String())
	require.NoError(t, f.Fail(errors.New("disk full")))
	require.NoError(t, l.s.Stop(nil).Err())
	s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
	require.NoError(t, err)
	l.s = s
	require.Equal(t, next(4), l.at(0).Received, "what is flushed, lowered where a live claim said roll back")
	require.NoError(t, s.Check())
}

func TestFlushWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		o, err := l.book.Open(key("b"), OpenOptions[int]{Partitions: 1})
		require.NoError(t, err)
		first, err := l.s.StartFlush()
		require.NoError(t, err)
		one, err := o.Hold(l.s)
		require.NoError(t, err)
		_, err = o.Hold(l.s)
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			done <- l.s.Flush(t.Context(), func(ctx context.Context, target Timestamp) error {
				if target.String() != "[0:10 1:0 2:0]" {
					return errors.New(target.String())
				}
				return ctx.Err()
			})
		}()
		synctest.Wait()
		_, err = first.Done()
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, done, "held")
		l.deny(ErrHeld, func() error { _, err := l.s.StartFlush(); return err })
		require.NoError(t, one.Release())
		l.deny(ErrStaleHold, one.Release)
		synctest.Wait()
		require.Empty(t, done, "two holds of one session are two")
		require.NoError(t, o.Drop().Err(), "who dies without releasing releases (S19)")
		require.NoError(t, <-done)
		require.NoError(t, l.s.Check())
	})
}

func TestFlushResolvesOnEveryPath(t *testing.T) {
	l := newLedger(t, false, "Begun")
	no := errors.New("no")
	require.ErrorIs(t, l.s.Flush(t.Context(), func(context.Context, Timestamp) error { return no }), no)
	require.Panics(t, func() { _ = l.s.Flush(t.Context(), func(context.Context, Timestamp) error { panic("foreign") }) })
	require.False(t, l.at(0).HasFlushed)
	err := l.s.Flush(t.Context(), func(ctx context.Context, _ Timestamp) error {
		l.s.Stop(no)
		<-ctx.Done()
		return ctx.Err()
	})
	require.ErrorIs(t, err, no)
	require.ErrorIs(t, err, ErrEnded)
	l.phase(Stopped)
	l.deny(ErrPhase, func() error {
		return l.s.Flush(t.Context(), func(context.Context, Timestamp) error { return nil })
	})
}

func TestDrainLetsTheFlushVouch(t *testing.T) {
	l := newLedger(t, false, "Begun")
	f, err := l.s.StartFlush()
	require.NoError(t, err)
	h := l.s.Drain()
	require.NoError(t, l.s.Unwant(2).Wait(done(f)))
	require.NoError(t, h.Err())
	s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
	require.NoError(t, err)
	l.s = s
	require.Equal(t, next(10), l.at(0).Flushed)
	require.Equal(t, Unwanted, l.at(2).State)
}

func done(f *FlushTicket) context.Context {
	_, err := f.Done()
	if err != nil {
		panic(err)
	}
	return ends()
}
