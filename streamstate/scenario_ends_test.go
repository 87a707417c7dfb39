package streamstate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/S30-stop-once.patch.
func TestS30_StopMeetsItself(t *testing.T) {
	stops := map[string]func(*ledger) *Handle{
		"stop":  func(l *ledger) *Handle { return l.s.Stop(errAsked) },
		"drain": func(l *ledger) *Handle { return l.s.Drain() },
	}
	for first, one := range stops {
		for second, two := range stops {
			t.Run(first+", "+second, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				f := l.flushes()
				h := one(l)
				cause := context.Cause(l.s.Context())
				require.Same(t, h, two(l), "while it stops")
				require.ErrorIs(t, h.Wait(ends()), context.Canceled)
				require.Equal(t, second == "drain" && first == "drain", f.Context().Err() == nil)
				_, err := f.Done()
				require.NoError(t, err)
				require.NoError(t, h.Wait(ends()), "what has ended is told even to an ended context")
				flushed := context.Cause(f.Context())
				for range 3 {
					l.unchanged(nil, func() error { require.Same(t, h, two(l)); return h.Err() })
					l.unchanged(nil, func() error { require.Same(t, h, one(l)); return h.Wait(ends()) })
				}
				require.Equal(t, cause, context.Cause(l.s.Context()), "the first cause is the cause")
				require.Equal(t, flushed, context.Cause(f.Context()))
				require.Equal(t, next(10), l.at(0).Flushed, "a finished flush cannot be cancelled")
				l.calm()
			})
		}
	}
}

// What has ended keeps its end, whatever comes later.
func TestS30_FinishedCannotBeCancelled(t *testing.T) {
	l, from := mergers(t)
	merge := l.book.Merge(from, l.s, nil, takePayload)
	require.NoError(t, merge.Err())
	hc := l.a.Context()
	require.NoError(t, l.a.End(HandOver))
	f := l.flushes()
	_, err := f.Done()
	require.NoError(t, err)
	fc := f.Context()
	given := l.s.Unwant(2)
	a := l.begin(0, Begin{Owner: "A"})
	require.NoError(t, a.End(Failed))
	w := take[*RestartTicket](l)
	require.NoError(t, w.Refused())
	wc := w.Context()
	stop := l.s.Stop(errAsked)
	drop := l.s.Drop()
	require.NoError(t, l.book.Close().Wait(ends()))
	require.NoError(t, merge.Err())
	require.NoError(t, given.Err())
	require.NoError(t, stop.Err())
	require.NoError(t, drop.Err())
	for want, ctx := range map[error]context.Context{ErrHandedOver: hc, ErrResolved: wc, ErrMerged: from.Context(), errAsked: l.s.Context()} {
		require.ErrorIs(t, context.Cause(ctx), want)
		require.NotErrorIs(t, context.Cause(ctx), ErrDropped)
	}
	require.ErrorIs(t, context.Cause(fc), ErrResolved)
}

// All at once, with contexts that end meanwhile: each handle is closed once, and everything has ended.
func TestS30_StopRacesWithEverything(t *testing.T) {
	for range 200 {
		l := newLedger(t, false, "Begun")
		f := l.flushes()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, fn := range []func(){
			func() { _ = l.s.Stop(errAsked).Wait(ctx) },
			func() { _ = l.s.Stop(nil).Wait(ctx) },
			func() { _ = l.s.Drain().Wait(ctx) },
			func() { _, _ = f.Done() },
			func() { _ = f.Abort() },
			func() { _ = l.s.Drop().Wait(ctx) },
			func() { _ = l.book.DropStream("maint").Wait(ctx) },
			func() { _ = l.s.Unwant(0).Wait(ctx) },
			func() { _ = l.s.When(ctx, func(View) bool { return false }, nothing) },
			func() { _ = l.s.Flush(ctx, stored) },
			func() { _ = l.a.End(HandOver) },
			cancel,
		} {
			all.Go(fn)
		}
		all.Wait()
		l.phase(Gone)
		require.False(t, open(l.s.Drop()))
		require.ErrorIs(t, context.Cause(l.s.Context()), ErrEnded)
		require.ErrorIs(t, context.Cause(f.Context()), ErrEnded)
		require.Zero(t, l.s.Dump().Waiting)
		require.NoError(t, l.book.Close().Wait(ends()))
	}
}

// Seen red with mutants/S31-callbacks-first.patch.
func TestS31_CallbackSeesWhatItsChangeHasDone(t *testing.T) {
	var l *ledger
	var merge *Handle
	var freed *Session[int]
	told := 0
	l = begunWith(t, Options{OnEvent: func(e Event) {
		switch {
		case e.Kind == FlushEnded && merge != nil:
			told++
			require.NoError(t, merge.Wait(ends()), "what waited for it has been woken before")
		case e.Kind == PhaseChanged && e.To == Gone && e.Key == key("holder"):
			told++
			require.NoError(t, freed.Flush(ends(), stored))
		}
	}})
	from, err := l.book.Open(key("from"), OpenOptions[int]{Partitions: 1, Wanted: None})
	require.NoError(t, err)
	f, err := from.StartFlush()
	require.NoError(t, err)
	merge = l.book.Merge(from, l.s, nil, takePayload)
	require.NoError(t, f.Abort())
	require.Equal(t, 1, told)
	merge = nil

	holder, err := l.book.Open(key("holder"), OpenOptions[int]{Partitions: 1, Wanted: None})
	require.NoError(t, err)
	freed = l.s
	_, err = holder.Hold(l.s)
	require.NoError(t, err)
	require.NoError(t, holder.Drop().Err())
	require.Equal(t, 2, told)
	l.calm()
}

// Every call, on the very key that a callback tells of.
func TestS31_CallbackCallsEverything(t *testing.T) {
	for op, call := range calls {
		t.Run(op.String(), func(t *testing.T) {
			for _, ph := range []Phase{Opening, Active, Stopping, Stopped, Closing, Gone} {
				var w *world
				called := false
				book := NewBook[int](Options{OnEvent: func(e Event) {
					if w != nil && !called && e.Key == key("a") {
						called = true
						_ = call(w)
					}
				}})
				w = newWorldIn(t, book, ph)
				if ph < Closing {
					w.s.Drop() // tells an event, in which the call is made
				} else {
					if w.flush != nil {
						_ = w.flush.Abort()
					}
					_, _ = book.Open(key("a"), OpenOptions[int]{Partitions: 3})
				}
				require.True(t, called, "%v", ph)
				require.NoError(t, w.s.Check())
			}
		})
	}
}

// A callback that blocks keeps up its own key's callbacks, and nothing else.
func TestS31_CallbackBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		first := true
		var rec recorder
		l := begunWith(t, Options{OnEvent: func(e Event) {
			if e.Kind == FlushStarted && first {
				first = false
				<-release
			}
			rec.add(e)
		}})
		got := make(chan *FlushTicket, 1)
		go func() { f, _ := l.s.StartFlush(); got <- f }()
		synctest.Wait()
		require.Empty(t, got, "it runs the callback")
		told := len(rec.seqs())

		require.NoError(t, l.a.Advance(next(12))) // the same key goes on
		b := l.begin(0, Begin{Owner: "B"})
		require.NoError(t, l.a.End(HandOver))
		require.NoError(t, b.Apply(next(13), nothing))
		o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1}) // and so do others
		require.NoError(t, err)
		require.NoError(t, o.Drop().Wait(ends()))
		h := l.s.Drop()
		require.True(t, open(h), "the flush runs")
		require.Len(t, rec.seqs(), told+2, "only the other key's were told")

		close(release)
		f := <-got
		require.NotNil(t, f)
		require.NoError(t, f.Abort())
		require.NoError(t, h.Err())
		synctest.Wait()
		require.Equal(t, 1, rec.count(func(e Event) bool { return e.Key == key("a") && e.To == Gone }))
		last := uint64(0)
		rec.count(func(e Event) bool {
			if e.Key == key("a") {
				require.Equal(t, last+1, e.Seq, "in order, none lost")
				last = e.Seq
			}
			return false
		})
		l.calm()
	})
}

// Seen red with mutants/S32-waiter-stays.patch.
func TestS32_ContextEndsInTheMiddle(t *testing.T) {
	quit := errors.New("the caller has lost patience")
	waits := map[string]func(*ledger, context.Context) error{
		"a condition": func(l *ledger, ctx context.Context) error { return l.s.When(ctx, View.Healthy, nothing) },
		"due work":    func(l *ledger, ctx context.Context) error { _, err := l.s.NextDue(ctx); return err },
		"a flush":     func(l *ledger, ctx context.Context) error { return l.s.Flush(ctx, stored) },
		"a merge":     func(l *ledger, ctx context.Context) error { return l.book.Merge(l.o, l.s, nil, takePayload).Wait(ctx) },
		"a release":   func(l *ledger, ctx context.Context) error { return l.s.Unwant(1).Wait(ctx) },
		"an answer": func(l *ledger, ctx context.Context) error {
			return Exchange(ctx, l.s, ReadTx[int].Payload, func(ctx context.Context, _ int) (int, error) {
				<-ctx.Done()
				return 0, context.Cause(ctx)
			}, func(tx Tx[int], _ int) error { return tx.SetPayload(99) })
		},
	}
	for name, wait := range waits {
		for _, when := range []string{"in the middle", "before"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, false, "Idle")
					var err error
					l.o, err = l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
					require.NoError(t, err)
					f := l.flushes()
					ctx, cancel := context.WithCancelCause(t.Context())
					if when == "before" {
						cancel(quit)
					}
					got := make(chan error, 1)
					var was uint64
					if name == "a release" { // it has given the partition up, whether or not it waits
						require.True(t, open(l.s.Unwant(1)))
					}
					was = l.s.Fingerprint()
					go func() { got <- wait(l, ctx) }()
					synctest.Wait()
					if name != "a release" {
						require.Equal(t, was, l.s.Fingerprint())
					} else {
						was = l.s.Fingerprint() // one more waits for the release
					}
					cancel(quit)
					synctest.Wait()
					require.Len(t, got, 1)
					require.ErrorIs(t, <-got, quit)
					require.Equal(t, was, l.s.Fingerprint(), "the state is as it was")
					require.Zero(t, l.s.Dump().Waiting, "nor does anybody wait any more")
					require.Zero(t, l.payload())
					require.NoError(t, l.s.e.view().check())
					require.NoError(t, f.Abort())
					l.calm() // a merge that nobody waits for is done nevertheless
				})
			})
		}
	}
	t.Run("a flush that runs", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := l.s.Flush(ctx, func(ctx context.Context, _ Timestamp) error {
			cancel(quit)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, quit)
		require.False(t, l.at(0).HasFlushed)
		require.Empty(t, l.s.Dump().Tickets, "it has ended")
		l.calm()
	})
}

// Seen red with mutants/S37-by-key.patch.
func TestS37_LateDropAfterTheKeyWasOpenedAgain(t *testing.T) {
	l := newLedger(t, false, "Begun")
	old := l.s
	f := l.flushes()
	h := old.Drop()
	require.NoError(t, f.Abort())
	require.NoError(t, h.Wait(ends()))
	var lives []*Session[int]
	for range 3 {
		l.open()
		c := l.begin(0, Begin{Owner: "A", From: next(1)})
		for _, s := range append(lives, old) {
			for range 2 {
				l.unchanged(nil, func() error { return s.Drop().Wait(ends()) })
			}
			l.deny(ErrStaleSession, func() error { return s.Stop(nil).Err() })
			l.deny(ErrStaleSession, func() error { return s.Drain().Err() })
		}
		require.NoError(t, l.s.Context().Err(), "the successor is untouched")
		require.NoError(t, c.Advance(next(2)))
		require.Len(t, keysOf(l.book), 1)
		found, err := l.book.Session(key("a"), l.s.ID())
		require.NoError(t, err)
		require.Same(t, l.s, found)
		lives = append(lives, l.s)
		require.NoError(t, l.s.Drop().Wait(ends()))
	}
	require.Equal(t, uint64(4), l.book.Stats().Dropped)
	l.calm()
}

// But a session that was superseded and not dropped names its record: the drop is of that.
func TestS37_DropOfASupersededSession(t *testing.T) {
	l := newLedger(t, false, "Begun")
	old := l.s
	l.reopen()
	require.NoError(t, old.Drop().Wait(ends()))
	l.phase(Gone)
	l.open()
	l.unchanged(nil, func() error { return old.Drop().Wait(ends()) })
	l.calm()
}
