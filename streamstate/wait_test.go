package streamstate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, false, "Idle")
		got := make(chan error, 2)
		go func() {
			got <- l.s.When(t.Context(), View.Healthy, func(tx Tx[int]) error { return tx.SetPayload(3) })
		}()
		go func() {
			got <- l.s.When(t.Context(), func(v View) bool {
				p, _ := v.Received().At(0)
				return p.Next >= 20
			}, func(Tx[int]) error { return nil })
		}()
		synctest.Wait()
		c := l.begin(0, Begin{Owner: "A", From: next(10)})
		require.NoError(t, <-got)
		require.NoError(t, c.Advance(next(19)))
		synctest.Wait()
		require.Empty(t, got)
		require.NoError(t, c.Advance(next(20)))
		require.NoError(t, <-got)
		require.Zero(t, l.s.e.view().ears)

		ctx, cancel := context.WithCancel(t.Context())
		go func() { got <- l.s.When(ctx, func(View) bool { return false }, func(Tx[int]) error { return nil }) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-got, context.Canceled)
		require.Zero(t, l.s.e.view().ears)
		go func() {
			got <- l.s.When(t.Context(), func(View) bool { return false }, func(Tx[int]) error { return nil })
		}()
		synctest.Wait()
		require.NoError(t, l.s.Drop().Err())
		require.ErrorIs(t, <-got, ErrStaleSession)
	})
}

// TestExchange is the shape of MB-37227: lock, slow work, lock; in between the key is dropped, and opened again.
func TestExchange(t *testing.T) {
	for name, gap := range map[string]func(*ledger) error{
		"dropped": func(l *ledger) error { return l.s.Drop().Err() },
		"dropped and opened again": func(l *ledger) error {
			err := l.s.Drop().Err()
			if err == nil {
				_, err = l.book.Open(key("a"), OpenOptions[int]{Partitions: 3})
			}
			return err
		},
		"reopened": func(l *ledger) error {
			err := l.s.Stop(nil).Err()
			if err == nil {
				_, err = l.book.Reopen(l.s, ReopenOptions[int]{})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			err := Exchange(t.Context(), l.s, ReadTx[int].Payload, func(ctx context.Context, _ int) (int, error) {
				if err := gap(l); err != nil {
					return 0, err
				}
				<-ctx.Done()
				return 1, nil
			}, func(tx Tx[int], a int) error { return tx.SetPayload(a) })
			require.ErrorIs(t, err, ErrStaleSession)
			now, err := l.book.Session(key("a"), l.s.ID())
			require.Nil(t, now)
			require.ErrorIs(t, err, ErrStaleSession)
		})
	}
	l := newLedger(t, false, "Begun")
	err := Exchange(t.Context(), l.s, ReadTx[int].Payload, func(ctx context.Context, _ int) (int, error) {
		l.s.Drop()
		<-ctx.Done()
		return 0, ctx.Err()
	}, func(Tx[int], int) error { return nil })
	require.ErrorIs(t, err, ErrStaleSession, "that the call says so in its own words does not hide it")
	require.ErrorIs(t, err, context.Canceled)
	l = newLedger(t, false, "Begun")
	no := errors.New("no")
	set := func(tx Tx[int], a int) error { return tx.SetPayload(a) }
	ask := func(context.Context, int) (int, error) { return 5, nil }
	require.ErrorIs(t, Exchange(t.Context(), l.s, func(ReadTx[int]) (int, error) { return 0, no }, ask, set), no)
	fails := func(context.Context, int) (int, error) { return 0, no }
	require.ErrorIs(t, Exchange(t.Context(), l.s, ReadTx[int].Payload, fails, set), no)
	require.NoError(t, Exchange(t.Context(), l.s, ReadTx[int].Payload, ask, set))
	require.NoError(t, l.s.Read(func(tx ReadTx[int]) error {
		p, err := tx.Payload()
		require.Equal(t, 5, p)
		return err
	}))
}

func TestPair(t *testing.T) {
	w := newWorld(t, Active)
	require.NoError(t, w.book.Pair(w.o, w.s, func(o, s Tx[int]) error {
		p, err := s.Payload()
		if err == nil {
			err = o.SetPayload(p + 1)
		}
		return err
	}))
	no := errors.New("no")
	before := w.o.Fingerprint()
	require.ErrorIs(t, w.book.Pair(w.s, w.o, func(_, o Tx[int]) error {
		_ = o.SetPayload(99)
		return no
	}), no)
	require.Panics(t, func() { _ = w.book.Pair(w.s, w.o, func(_, _ Tx[int]) error { panic("foreign") }) })
	require.Equal(t, before, w.o.Fingerprint())
	require.NoError(t, w.o.Read(func(tx ReadTx[int]) error {
		p, err := tx.Payload()
		require.Equal(t, 8, p)
		return err
	}))
	w.deny(ErrSameSession, func() error { return w.book.Pair(w.s, w.s, nil) })
	w.deny(ErrSameSession, func() error { _, err := w.s.Hold(w.s); return err })
	other, err := newWorld(t, Active).book.Open(key("c"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	w.deny(ErrArgument, func() error { return w.book.Pair(w.s, other, nil) })
	w.deny(ErrArgument, func() error { _, err := w.s.Hold(other); return err })
	w.deny(ErrArgument, func() error { return w.book.Merge(w.s, other, nil, nil).Err() })
	w.deny(ErrArgument, func() error { _, err := w.book.Reopen(other, ReopenOptions[int]{}); return err })
	w.deny(ErrSameSession, func() error { return w.book.Merge(w.s, w.s, nil, nil).Err() })
}

// TestPairOfTheDead pairs what has no order: a session that has ended is refused for its end, which counts before that it is
// the other's key, or of another book. It is red if the pair is looked at first.
func TestPairOfTheDead(t *testing.T) {
	w := newWorld(t, Active)
	other := newWorld(t, Active).s
	for _, end := range []struct {
		how  func() error
		want error
	}{
		{func() error { return w.s.Stop(nil).Err() }, ErrPhase},
		{func() error { return w.s.Drop().Err() }, ErrStaleSession},
	} {
		require.NoError(t, end.how())
		w.deny(end.want, func() error { return w.book.Pair(w.s, w.s, nil) })
		w.deny(end.want, func() error { return w.book.Merge(w.s, w.s, nil, nil).Err() })
		for _, target := range []*Session[int]{w.s, other} {
			w.deny(end.want, func() error { _, err := w.s.Hold(target); return err })
		}
		_, err := other.Hold(w.s)
		require.ErrorIs(t, err, end.want)
	}
}

// mergers are two healthy sessions.
func mergers(t *testing.T) (l *ledger, from *Session[int]) {
	l = newLedger(t, false, "Begun")
	from, err := l.book.Open(key("from"), OpenOptions[int]{Partitions: 1, Payload: 4})
	require.NoError(t, err)
	_, err = from.Begin(0, Begin{Owner: "A"})
	require.NoError(t, err)
	return l, from
}

func takePayload(from, into Tx[int]) error {
	p, err := from.Payload()
	if err == nil {
		err = into.SetPayload(p)
	}
	return err
}

func open(h *Handle) bool {
	select {
	case <-h.Done():
		return false
	default:
		return true
	}
}

func TestMerge(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		l, from := mergers(t)
		require.NoError(t, l.book.Merge(from, l.s, nil, takePayload).Wait(ends()))
		require.Equal(t, "gone", from.Dump().Phase)
		require.ErrorIs(t, context.Cause(from.Context()), ErrMerged)
		require.Equal(t, uint64(1), l.book.Stats().Merged)
		require.NoError(t, l.s.Check())
		require.Zero(t, l.s.e.view().ears)
	})
	t.Run("it waits for whatever is in the way", func(t *testing.T) {
		l, from := mergers(t)
		yes := false
		require.NoError(t, l.a.End(HandOver))
		ff, err := from.StartFlush()
		require.NoError(t, err)
		hold, err := l.s.Hold(from)
		require.NoError(t, err)
		h := l.book.Merge(from, l.s, func(View, View) bool { return yes }, takePayload)
		require.True(t, open(h))
		l.begin(0, Begin{Owner: "A", From: next(10)})
		require.True(t, open(h))
		require.NoError(t, hold.Release())
		require.True(t, open(h))
		other, err := l.s.StartFlush()
		require.NoError(t, err, "it holds nothing while it waits")
		yes = true
		require.NoError(t, l.s.Update(func(Tx[int]) error { return nil }))
		require.True(t, open(h), "flushes run")
		require.NoError(t, other.Abort())
		l.deny(ErrHeld, func() error { _, err := l.s.StartFlush(); return err })
		require.NoError(t, ff.Abort())
		require.NoError(t, h.Wait(ends()), "the last change was one of from")
	})
	t.Run("crosswise, and two into one (S39)", func(t *testing.T) {
		l, from := mergers(t)
		f, err := l.s.StartFlush()
		require.NoError(t, err)
		one := l.book.Merge(from, l.s, nil, takePayload)
		two := l.book.Merge(l.s, from, nil, takePayload)
		three, err := l.book.Open(key("three"), OpenOptions[int]{Partitions: 1, Wanted: None})
		require.NoError(t, err)
		third := l.book.Merge(three, l.s, nil, takePayload)
		require.True(t, open(one) && open(two) && open(third))
		require.NoError(t, f.Abort())
		require.NoError(t, one.Wait(ends()))
		require.ErrorIs(t, two.Wait(ends()), ErrMerged)
		require.NoError(t, third.Wait(ends()))
		require.NoError(t, l.s.Check())
	})
	t.Run("the target goes away (S20)", func(t *testing.T) {
		l, from := mergers(t)
		f, err := l.s.StartFlush()
		require.NoError(t, err)
		h := l.book.Merge(from, l.s, nil, takePayload)
		l.s.Drop()
		require.ErrorIs(t, h.Wait(ends()), ErrDropped)
		require.NoError(t, f.Abort())
		_, err = from.StartFlush()
		require.NoError(t, err, "the source stays whole")
		require.NoError(t, from.Check())
		require.NoError(t, from.Drop().Wait(abort(from)))
	})
	t.Run("fn fails, or panics", func(t *testing.T) {
		l, from := mergers(t)
		no, before := errors.New("no"), from.Fingerprint()
		require.ErrorIs(t, l.book.Merge(from, l.s, nil, func(_, _ Tx[int]) error { return no }).Wait(ends()), no)
		require.Equal(t, before, from.Fingerprint())
		require.Panics(t, func() { l.book.Merge(from, l.s, nil, func(_, _ Tx[int]) error { panic("foreign") }) })
		require.Equal(t, before, from.Fingerprint())
		require.Zero(t, l.s.e.view().ears)
	})
}

// abort ends the running flush of a session from within.
func abort(s *Session[int]) context.Context {
	_ = s.e.do(token{op: opLook}, func(k *held) error {
		if k.flush != nil {
			k.endFlush(causeAborted)
		}
		return nil
	})
	return ends()
}

func TestContexts(t *testing.T) {
	l := newLedger(t, false, "Contested")
	a, b, s := l.a.Context(), l.b.Context(), l.s.Context()
	require.NoError(t, l.a.End(HandOver))
	require.ErrorIs(t, context.Cause(a), ErrHandedOver)
	c := l.begin(0, Begin{Owner: "C", Term: 9})
	require.ErrorIs(t, context.Cause(b), ErrReplaced)
	_, err := l.s.OwnerGone("C")
	require.NoError(t, err)
	require.ErrorIs(t, context.Cause(c.Context()), ErrOwnerGone, "asked for after the end")
	require.NoError(t, s.Err())
	var refused *PartitionError
	require.ErrorAs(t, c.Advance(next(9)), &refused)
	require.ErrorIs(t, refused, ErrOwnerGone)
	require.Equal(t, c.ID(), refused.Claim)
	require.NoError(t, l.s.Drop().Err())
	require.ErrorIs(t, context.Cause(s), ErrDropped)
	require.ErrorIs(t, context.Cause(s), ErrEnded)
}
