package streamstate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// begunWith is the ledger "Begun" of a book with options.
func begunWith(t *testing.T, o Options) *ledger {
	l := &ledger{world: &world{t: t, book: NewBook[int](o)}}
	t.Cleanup(func() { require.NoError(t, l.book.Close().Wait(t.Context())) })
	l.open()
	l.begin(1, Begin{Owner: "X", Term: 5})
	l.begin(2, Begin{Owner: "X"})
	l.a = l.begin(0, Begin{Owner: "A", Term: 5, From: next(10)})
	return l
}

// flushEnds are the ways in which a flush ends.
var flushEnds = map[string]func(*FlushTicket) error{
	"done":  func(f *FlushTicket) error { _, err := f.Done(); return err },
	"fail":  func(f *FlushTicket) error { return f.Fail(errors.New("disk full")) },
	"abort": (*FlushTicket).Abort,
}

// Seen red with mutants/S14-erase-early.patch.
func TestS14_DropsThatWaitForAFlush(t *testing.T) {
	for name, end := range flushEnds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var rec recorder
				l := begunWith(t, Options{OnEvent: rec.add})
				o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
				require.NoError(t, err)
				_, err = l.s.Hold(o)
				require.NoError(t, err)
				f := l.flushes()
				merge := l.book.Merge(o, l.s, nil, takePayload)
				claim, session := l.a.Context(), l.s.Context()
				got := make(chan error, 3)
				go func() { got <- l.s.When(t.Context(), func(View) bool { return false }, nothing) }()
				go func() { got <- l.s.Flush(t.Context(), stored) }()
				go func() { _, err := l.s.NextDue(t.Context()); got <- err }()
				synctest.Wait()
				require.Empty(t, got)

				first := l.s.Drop()
				for range 3 { // waiters are told before the erasure, not after it
					require.ErrorIs(t, <-got, ErrStaleSession)
				}
				for _, ctx := range []context.Context{claim, session, f.Context()} {
					require.ErrorIs(t, context.Cause(ctx), ErrDropped)
				}
				require.ErrorIs(t, merge.Err(), ErrDropped)
				require.NoError(t, o.Flush(ends(), stored), "nobody holds it")
				drops := []*Handle{first, l.s.Drop(), l.book.Drop(key("a")), l.book.DropStream("maint"), l.book.Drop(key("a"))}
				for _, h := range drops {
					require.True(t, open(h), "the flush runs")
					require.ErrorIs(t, h.Wait(ends()), context.Canceled)
				}
				l.phase(Closing)
				_, err = l.book.Open(key("a"), OpenOptions[int]{Partitions: 1})
				require.ErrorIs(t, err, ErrExists)

				require.NoError(t, end(f))
				for _, h := range drops {
					require.False(t, open(h))
					require.NoError(t, h.Wait(ends()))
				}
				l.phase(Gone)
				require.Equal(t, uint64(2), l.book.Stats().Dropped, "o, and a once")
				require.Equal(t, 1, rec.count(func(e Event) bool { return e.Key == key("a") && e.To == Gone }))
				require.Less(t, rec.index(func(e Event) bool { return e.Kind == FlushEnded && e.Key == key("a") }),
					rec.index(func(e Event) bool { return e.Key == key("a") && e.To == Gone }))
				l.calm()
			})
		})
	}
}

// count is how many events there are of that kind, and index which one is the first.
func (r *recorder) count(is func(Event) bool) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.got {
		if is(e) {
			n++
		}
	}
	return n
}

func (r *recorder) index(is func(Event) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, e := range r.got {
		if is(e) {
			return i
		}
	}
	return -1
}

// Seen red with mutants/S15-empty-name.patch.
func TestS15_OneEventForEachPartition(t *testing.T) {
	l := newLedger(t, false, "Begun")
	other, err := l.book.Open(Key{"other", "a"}, OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)

	// An empty name means nothing, never all.
	for name, call := range map[string]func() error{
		"drop of a stream":   func() error { return l.book.DropStream("").Err() },
		"drop of no key":     func() error { return l.book.Drop(Key{}).Err() },
		"drop of no stream":  func() error { return l.book.Drop(Key{Keyspace: "a"}).Err() },
		"drop of a keyspace": func() error { return l.book.Drop(Key{Stream: "maint"}).Err() },
		"open":               func() error { _, err := l.book.Open(Key{Stream: "maint"}, OpenOptions[int]{Partitions: 1}); return err },
		"owner gone":         func() error { _, err := l.s.OwnerGone(""); return err },
		"begin":              func() error { return l.tryBegin(Begin{}) },
		"begin failed":       func() error { return l.s.BeginFailed(0, "") },
	} {
		l.deny(ErrArgument, call)
		require.Len(t, keysOf(l.book), 2, name)
	}

	// Each event once per partition: the first does it.
	require.NoError(t, l.a.End(HandOver))
	for range 3 {
		l.deny(ErrStaleClaim, func() error { return l.a.End(HandOver) })
	}
	ended, err := l.s.OwnerGone("X")
	require.NoError(t, err)
	require.Equal(t, 2, ended)
	for range 3 {
		l.unchanged(nil, func() error { n, err := l.s.OwnerGone("X"); require.Zero(t, n); return err })
	}
	require.NoError(t, l.s.Unwant(1).Err())
	for range 3 {
		l.unchanged(nil, func() error { return l.s.Unwant(1).Err() })
		l.unchanged(nil, func() error { return l.s.Want(0) })
	}
	stopped := l.s.Stop(errAsked)
	for range 3 {
		l.unchanged(nil, func() error { require.Same(t, stopped, l.s.Stop(nil)); return nil })
		l.unchanged(nil, func() error { require.Same(t, stopped, l.s.Drain()); return nil })
	}
	dropped := l.s.Drop()
	for range 3 {
		l.unchanged(nil, func() error { require.Same(t, dropped, l.s.Drop()); return dropped.Err() })
		l.unchanged(nil, func() error { return l.book.Drop(key("a")).Err() })
		l.unchanged(nil, func() error { return l.book.DropStream("maint").Err() })
	}
	require.Equal(t, uint64(1), l.book.Stats().Dropped)
	require.Equal(t, "active", other.Dump().Phase)
	l.calm()
}

// Seen red with mutants/S17-intent.patch.
func TestS17_IntentWhileTheSessionHasEnded(t *testing.T) {
	for _, ph := range []Phase{Stopping, Stopped} {
		t.Run(ph.String(), func(t *testing.T) {
			l := newLedger(t, false, "Unwanted")
			f := l.flushes()
			h := l.s.Drain()
			if ph == Stopped {
				require.NoError(t, f.Abort())
			}
			l.phase(ph)
			require.NoError(t, l.s.Want(0)) // nothing of it comes again
			given := l.s.Unwant(1)
			require.NoError(t, l.s.Want(2))
			require.NoError(t, l.s.Unwant(0).Err())
			require.NoError(t, l.s.Want(0)) // the last word counts
			require.Equal(t, ph == Stopping, open(given), "a flush that covers it runs")
			if ph == Stopping {
				require.NoError(t, f.Abort())
			}
			require.NoError(t, given.Err())
			require.NoError(t, h.Err())
			s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
			require.NoError(t, err)
			l.s = s
			require.Equal(t, Idle, l.at(0).State)
			require.Equal(t, Unwanted, l.at(1).State)
			require.Equal(t, Idle, l.at(2).State)
			l.calm()
		})
	}
}

// What an open request has not answered yet is kept, and acted on when it is answered: nothing else comes after it.
func TestS17_EventsBeforeTheOpenIsAnswered(t *testing.T) {
	for name, tc := range map[string]struct {
		event func(*ledger) error
		next  Work
	}{
		"a begin that failed": {func(l *ledger) error { return l.s.BeginFailed(0, "A") }, &RestartTicket{}},
		"a claim that failed": {func(l *ledger) error { return l.begin(0, Begin{Owner: "A"}).End(Failed) }, &RestartTicket{}},
		"a claim not trusted": {func(l *ledger) error { return l.begin(0, Begin{Owner: "A"}).Fence(nil) }, &ShutDownTicket{}},
		"a roll-back to zero": {func(l *ledger) error { return l.tryBegin(Begin{Owner: "A", MustRollBack: true}) }, &RecoverTicket{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, true, "Idle")
				got := make(chan []Work, 1)
				go func() { work, _ := l.s.NextDue(t.Context()); got <- work }()
				require.NoError(t, tc.event(l))
				synctest.Wait()
				require.Empty(t, got, "not yet")
				time.Sleep(time.Hour)
				require.NoError(t, l.s.Opened())
				synctest.Wait()
				require.Len(t, got, 1)
				work := <-got
				require.Len(t, work, 1)
				require.IsType(t, tc.next, work[0])
				l.answer(work[0])
				l.calm()
			})
		})
	}
	t.Run("a roll-back, and then the stop", func(t *testing.T) {
		l := newLedger(t, true, "Begun")
		require.NoError(t, l.s.Opened())
		require.NoError(t, l.s.Flush(ends(), stored))
		l.begin(0, Begin{Owner: "C", Term: 9, MustRollBack: true, RollBackTo: next(3)})
		l.reopen()
		require.Equal(t, next(3), l.at(0).Received)
		l.calm()
	})
}

// Seen red with mutants/S18-recovery-asked.patch.
func TestS18_TimerWhileRecoveryIsAsked(t *testing.T) {
	for name, ask := range map[string]func(l *ledger){
		"stopped":            func(l *ledger) { l.s.Stop(errAsked) },
		"stopping":           func(l *ledger) { l.flushes(); l.s.Stop(errAsked) },
		"draining":           func(l *ledger) { l.flushes(); l.s.Drain() },
		"the open was asked": func(l *ledger) { l.reopen(); l.s.Stop(errAsked) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, o := mergers(t)
				waiting := []*Handle{
					l.book.Merge(l.s, o, func(View, View) bool { return false }, takePayload),
					l.book.Merge(o, l.s, func(View, View) bool { return false }, takePayload),
				}
				ask(l)
				for _, h := range waiting {
					require.ErrorIs(t, h.Err(), ErrEnded, "what waited has ended")
				}
				was, other := l.s.Fingerprint(), o.Fingerprint()
				fires := func() {
					l.deny(ErrPhase, func() error { _, err := l.s.StartFlush(); return err })
					l.deny(ErrPhase, func() error { return l.s.Flush(ends(), stored) })
					l.deny(ErrPhase, func() error { return l.book.Merge(l.s, o, nil, takePayload).Err() })
					l.deny(ErrPhase, func() error { return l.book.Merge(o, l.s, nil, takePayload).Err() })
					l.deny(ErrPhase, func() error { _, err := l.s.Hold(o); return err })
					l.deny(ErrPhase, func() error { _, err := o.Hold(l.s); return err })
					l.deny(ErrPhase, func() error { _, err := l.s.NextDue(ends()); return err })
				}
				fires()
				time.Sleep(time.Hour) // no deadline of it passes
				fires()
				require.Equal(t, was, l.s.Fingerprint())
				require.Equal(t, other, o.Fingerprint())
				l.calm()
			})
		})
	}
}
