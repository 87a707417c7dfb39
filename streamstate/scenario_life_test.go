package streamstate

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/S11-fresh.patch.
func TestS11_WhatSurvivesRecoveryAndADrop(t *testing.T) {
	worn := func(t *testing.T) *ledger { // a session with a past
		l := newLedger(t, false, "Begun")
		require.NoError(t, l.s.Update(func(tx Tx[int]) error { return tx.SetPayload(7) }))
		require.NoError(t, l.s.Flush(ends(), stored))
		require.NoError(t, l.a.Advance(Position{Next: 15, Branch: 3}))
		require.NoError(t, l.s.Unwant(2).Err())
		require.NoError(t, l.begin(1, Begin{Owner: "Y", Term: 9}).Fence(nil))
		take[*ShutDownTicket](l)
		o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
		require.NoError(t, err)
		_, err = o.Hold(l.s)
		require.NoError(t, err)
		_, err = l.s.Hold(o)
		require.NoError(t, err)
		return l
	}
	fresh := func(l *ledger) {
		d := l.s.Dump()
		require.Zero(t, d.Holds+d.Taken+len(d.Tickets))
		for p := range 2 {
			require.Equal(t, Idle, l.at(p).State)
			require.Equal(t, RungRestart, l.at(p).Rung)
			require.Empty(t, l.at(p).Claims)
		}
		l.begin(1, Begin{Owner: "X", Term: 1}) // terms begin anew, and nobody is to be shut down
		l.begin(0, Begin{Owner: "A", From: l.at(0).Received})
		f := l.flushes() // nobody holds it
		require.NoError(t, f.Abort())
	}
	carry := func(old int) (int, error) { return old + 1, nil }
	t.Run("recovered", func(t *testing.T) {
		l := worn(t)
		require.NoError(t, l.s.Stop(errAsked).Err())
		s, err := l.book.Reopen(l.s, ReopenOptions[int]{Carry: carry})
		require.NoError(t, err)
		l.s = s
		require.Equal(t, 8, l.payload(), "what carry keeps")
		require.Equal(t, next(10), l.at(0).Received, "it starts from what is flushed")
		require.Equal(t, next(10), l.at(0).Flushed)
		require.Equal(t, PartitionView{}, l.at(2), "what is not wanted stays so, and has no position")
		fresh(l)
		l.calm()
	})
	t.Run("recovered without carry", func(t *testing.T) {
		l := worn(t)
		l.reopen()
		require.Zero(t, l.payload())
		fresh(l)
		l.calm()
	})
	t.Run("recovered from elsewhere", func(t *testing.T) {
		l := worn(t)
		require.NoError(t, l.s.Stop(errAsked).Err())
		at := vector1(t, 3, map[int]Position{0: next(4)})
		s, err := l.book.Reopen(l.s, ReopenOptions[int]{Carry: carry, Restart: at})
		require.NoError(t, err)
		l.s = s
		require.Equal(t, next(4), l.at(0).Received)
		require.Equal(t, next(4), l.at(0).Flushed)
		require.False(t, l.at(1).HasReceived)
		fresh(l)
		l.calm()
	})
	t.Run("carry fails", func(t *testing.T) {
		l := worn(t)
		require.NoError(t, l.s.Stop(errAsked).Err())
		no := errors.New("no")
		l.unchanged(no, func() error {
			_, err := l.book.Reopen(l.s, ReopenOptions[int]{Carry: func(int) (int, error) { return 99, no }})
			return err
		})
		was := l.s.Fingerprint()
		require.Panics(t, func() {
			_, _ = l.book.Reopen(l.s, ReopenOptions[int]{Carry: func(int) (int, error) { panic("foreign") }})
		})
		require.Equal(t, was, l.s.Fingerprint())
		require.Equal(t, 7, l.payload())
		l.calm()
	})
	t.Run("dropped and opened again", func(t *testing.T) {
		l := worn(t)
		l.openAgain()
		require.Zero(t, l.payload())
		for p := range 3 {
			require.Equal(t, PartitionView{State: Idle}, l.at(p))
		}
		fresh(l)
		l.calm()
	})
}

// Seen red with mutants/S12-mark-stays.patch.
func TestS12_RepairThatLeavesEarly(t *testing.T) {
	passes := ledgerCalls["deadline"]
	for name, tc := range map[string]struct {
		kind  string
		leave func(*ledger, Work) error
		next  Work
	}{
		"restart refused":       {"restart", func(_ *ledger, w Work) error { return w.(*RestartTicket).Refused() }, &ShutDownTicket{}},
		"restart timed out":     {"restart", func(l *ledger, _ Work) error { return passes(l) }, &ShutDownTicket{}},
		"shut down failed":      {"shut down", func(_ *ledger, w Work) error { return w.(*ShutDownTicket).Failed() }, &ResubscribeTicket{}},
		"shut down timed out":   {"shut down", func(l *ledger, _ Work) error { return passes(l) }, &ResubscribeTicket{}},
		"resubscribe failed":    {"resubscribe", func(_ *ledger, w Work) error { return w.(*ResubscribeTicket).Failed() }, &RecoverTicket{}},
		"resubscribe timed out": {"resubscribe", func(l *ledger, _ Work) error { return passes(l) }, &RecoverTicket{}},
		"recover failed":        {"recover", func(_ *ledger, w Work) error { return w.(*RecoverTicket).Failed() }, &RecoverTicket{}},
		"recover timed out":     {"recover", func(l *ledger, _ Work) error { return passes(l) }, &RecoverTicket{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			w := ticketed[tc.kind](l)
			require.Len(t, l.s.Dump().Tickets, 1)
			l.idle()
			require.NoError(t, tc.leave(l, w))
			require.Empty(t, l.s.Dump().Tickets, "its mark goes with it")
			require.ErrorIs(t, context.Cause(w.Context()), ErrEnded)
			if tc.kind == "recover" {
				l.idle() // not before RetryAfter
				require.NoError(t, passes(l))
			}
			work, err := l.s.NextDue(ends())
			require.NoError(t, err)
			require.Len(t, work, 1)
			require.IsType(t, tc.next, work[0])
			require.Greater(t, work[0].Ticket(), w.Ticket())
			l.answer(work[0])
			l.calm()
		})
	}
}

// The same of flushes and merges: whichever way the caller's function ends, the next one can start.
func TestS12_FunctionThatLeavesEarly(t *testing.T) {
	no := errors.New("no")
	for name, leave := range map[string]func(){
		"panics":               func() { panic("foreign") },
		"ends its goroutine":   runtime.Goexit,
		"returns an error":     func() {},
		"panics with an error": func() { panic(no) },
	} {
		t.Run(name, func(t *testing.T) {
			l, from := mergers(t)
			l.aside(func() {
				_ = l.s.Flush(ends(), func(context.Context, Timestamp) error { leave(); return no })
			})
			require.False(t, l.at(0).HasFlushed)
			require.NoError(t, l.flushes().Abort())
			was := from.Fingerprint()
			l.aside(func() {
				l.book.Merge(from, l.s, nil, func(_, _ Tx[int]) error { leave(); return no })
			})
			require.Equal(t, was, from.Fingerprint())
			require.Zero(t, l.s.Dump().Merges)
			require.NoError(t, l.flushes().Abort())
			require.NoError(t, l.book.Merge(from, l.s, nil, takePayload).Err())
			require.Equal(t, 4, l.payload())
			l.calm()
		})
	}
}

// aside runs fn on a goroutine of its own, which it may end or take down with a panic.
func (l *ledger) aside(fn func()) {
	l.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // what is foreign is let through
		fn()
	}()
	<-done
	require.NoError(l.t, l.s.Check())
}

// Seen red with mutants/S13-merge-lives-on.patch.
func TestS13_MergeOfAnEndedSession(t *testing.T) {
	for how, follow := range succeed {
		for _, role := range []string{"from", "into"} {
			t.Run(how+"/"+role, func(t *testing.T) {
				l, o := mergers(t)
				require.NoError(t, l.a.End(HandOver)) // the merge is deferred
				fired := func(_, _ Tx[int]) error { t.Error("fired"); return nil }
				was := o.Fingerprint()
				from, into := o, l.s
				if role == "from" {
					from, into = l.s, o
				}
				h := l.book.Merge(from, into, nil, fired)
				require.True(t, open(h))
				follow(l)
				require.False(t, open(h))
				require.ErrorIs(t, h.Err(), ErrEnded)
				require.ErrorIs(t, h.Err(), map[string]error{"reopened": errAsked, "opened again": ErrDropped}[how])
				for p := range 3 { // now everything is as the merge wanted it
					l.begin(p, Begin{Owner: "A"})
				}
				require.True(t, l.s.Dump().Healthy)
				require.Zero(t, l.s.Dump().Merges+o.Dump().Merges)
				require.Equal(t, was, o.Fingerprint())
				l.calm()
			})
		}
	}
}

// What waits for a condition, a flush or due work ends with its session, however late it wakes.
func TestS13_WaiterOfAnEndedSession(t *testing.T) {
	for how, follow := range succeed {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, false, "Idle")
				o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
				require.NoError(t, err)
				_, err = o.Hold(l.s)
				require.NoError(t, err)
				got := make(chan error, 3)
				s := l.s
				go func() {
					got <- s.When(t.Context(), View.Healthy, func(Tx[int]) error { t.Error("fired"); return nil })
				}()
				go func() {
					got <- s.Flush(t.Context(), func(context.Context, Timestamp) error { t.Error("flushed"); return nil })
				}()
				go func() { _, err := s.NextDue(t.Context()); got <- err }()
				synctest.Wait()
				require.Equal(t, 3, s.Dump().Waiting)
				follow(l)
				for p := range 3 {
					l.begin(p, Begin{Owner: "A"})
				}
				synctest.Wait()
				require.Len(t, got, 3)
				for range 3 {
					err := <-got
					if !errors.Is(err, ErrPhase) { // it woke between the two sessions
						require.ErrorIs(t, err, ErrStaleSession)
					}
				}
				l.calm()
			})
		})
	}
}

// A deadline that was armed in one session is none of the next one's.
func TestS13_DeadlineOfAnEndedSession(t *testing.T) {
	for how, follow := range succeed {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				require.NoError(t, l.a.End(HandOver))
				time.Sleep(29 * time.Second)
				follow(l)
				time.Sleep(29 * time.Second)
				l.idle()
				time.Sleep(5 * time.Second) // 30 s, and at most an eighth more
				work, err := l.s.NextDue(ends())
				require.NoError(t, err)
				require.Len(t, work, 3)
				l.calm()
			})
		})
	}
}
