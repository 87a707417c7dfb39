package streamstate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/S29-no-wake.patch.
func TestS29_LastBeginWakesWhoWaits(t *testing.T) {
	for name, wait := range map[string]func(*ledger) error{
		"a condition": func(l *ledger) error {
			return l.s.When(l.t.Context(), View.Healthy, nothing)
		},
		"a merge": func(l *ledger) error {
			o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
			if err != nil {
				return err
			}
			return l.book.Merge(o, l.s, nil, takePayload).Wait(l.t.Context())
		},
		"the recovery that a roll-back made due": func(l *ledger) error {
			work, err := l.s.NextDue(l.t.Context())
			if err == nil {
				require.IsType(l.t, &RecoverTicket{}, work[0])
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, false, "Due") // a restart of 0 is out
				require.NoError(t, l.begin(1, Begin{Owner: "X", Term: 6}).End(Failed))
				second := take[*RestartTicket](l)
				recovers := name == "the recovery that a roll-back made due"
				if recovers {
					l.begin(2, Begin{Owner: "R", MustRollBack: true, RollBackTo: next(1)})
				}
				got := make(chan error, 1)
				go func() { got <- wait(l) }()
				synctest.Wait()
				at := time.Now()
				require.NoError(t, l.rest.Accepted())
				require.NoError(t, second.Pending())
				l.begin(0, Begin{Owner: "A"})
				synctest.Wait()
				require.Empty(t, got, "one is missing")
				l.begin(1, Begin{Owner: "X", Term: 6})
				synctest.Wait()
				require.Len(t, got, 1)
				require.NoError(t, <-got)
				require.Zero(t, time.Since(at), "at once, not at the next tick")
				if recovers {
					l.reopen()
				}
				l.calm()
			})
		})
	}
}

// Seen red with mutants/S34-sleeper.patch.
func TestS34_RepairSleeperOfAnEarlierSession(t *testing.T) {
	for how, follow := range succeed {
		t.Run(how, func(t *testing.T) {
			l := newLedger(t, false, "Due")
			old, sleeps := l.s, l.rest
			ctx := sleeps.Context()
			follow(l)
			require.NoError(t, l.s.BeginFailed(0, "A"))
			require.ErrorIs(t, context.Cause(ctx), ErrEnded, "what it sleeps under has ended")
			for range 3 { // it wakes, and looks for work
				l.deny(ErrStaleSession, func() error {
					work, err := old.NextDue(t.Context())
					require.Empty(t, work)
					return err
				})
			}
			l.late(sleeps, ErrStaleSession, map[string]error{"reopened": ErrReopened, "opened again": ErrDropped}[how])
			mine := take[*RestartTicket](l) // it is there for the session's own loop
			require.NoError(t, mine.Context().Err())
			l.idle()
			l.calm()
		})
		t.Run(how+", while it waits", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				got := make(chan error, 2)
				for range 2 {
					go func() { _, err := l.s.NextDue(t.Context()); got <- err }()
				}
				synctest.Wait()
				follow(l)
				require.NoError(t, l.s.BeginFailed(0, "A"))
				synctest.Wait()
				require.Len(t, got, 2)
				for range 2 {
					if err := <-got; !errors.Is(err, ErrPhase) {
						require.ErrorIs(t, err, ErrStaleSession)
					}
				}
				take[*RestartTicket](l)
				l.calm()
			})
		})
	}
}

// Two loops of one session never get the same work.
func TestS34_TwoLoopsOfOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		var mu sync.Mutex
		seen := make(map[uint64]bool)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for {
					work, err := l.s.NextDue(t.Context())
					if err != nil {
						return
					}
					mu.Lock()
					for _, w := range work {
						if seen[w.Ticket()] {
							t.Error("handed out twice: ", w.Ticket())
						}
						seen[w.Ticket()] = true
					}
					mu.Unlock()
					for _, w := range work {
						_ = w.(*RestartTicket).Accepted()
					}
				}
			})
		}
		for range 50 {
			for p := range 3 {
				require.NoError(t, l.s.Unwant(p).Err()) // ends the ticket of the last round
				require.NoError(t, l.s.Want(p))
				require.NoError(t, l.s.BeginFailed(p, "A"))
			}
			synctest.Wait()
		}
		l.s.Stop(nil)
		all.Wait()
		require.Len(t, seen, 150)
		l.calm()
	})
}

// Seen red with mutants/S38-revoked.patch.
func TestS38_RevokedWhileRecoveryRuns(t *testing.T) {
	for name, m := range map[string]func(*ledger) (reopen func()){
		"asked, a flush runs": func(l *ledger) func() {
			f := l.flushes()
			l.s.Stop(errAsked)
			return func() { require.NoError(l.t, f.Abort()); l.present() }
		},
		"draining": func(l *ledger) func() {
			f := l.flushes()
			l.s.Drain()
			return func() { _, err := f.Done(); require.NoError(l.t, err); l.present() }
		},
		"stopped": func(l *ledger) func() { l.s.Stop(errAsked); return l.present },
		"handed out": func(l *ledger) func() {
			ticketed["recover"](l)
			return l.reopen
		},
		"reopened, and the open is not answered": func(l *ledger) func() {
			l.s.Stop(errAsked)
			s, err := l.book.Reopen(l.s, ReopenOptions[int]{Pending: true})
			require.NoError(l.t, err)
			l.s = s
			return l.present
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, l.s.Flush(ends(), stored))
			reopen := m(l)
			h := l.s.Unwant(0)
			reopen()
			require.NoError(t, h.Err())
			require.Equal(t, PartitionView{}, l.at(0), "not wanted, and nothing is known of it")
			l.deny(ErrUnwanted, func() error { return l.tryBegin(Begin{Owner: "A"}) })
			require.Equal(t, Idle, l.at(2).State, "the others are")
			require.NoError(t, l.s.Want(0))
			require.False(t, l.at(0).HasReceived)
			l.calm()
		})
	}
}

// Seen red with mutants/S42-no-climb.patch.
func TestS42_LadderClimbs(t *testing.T) {
	recovers := func(l *ledger) {
		take[*RecoverTicket](l)
		l.reopen()
		require.Equal(t, RungRestart, l.at(0).Rung)
		l.calm()
	}
	t.Run("a restart fails, with nobody to shut down", func(t *testing.T) {
		l := newLedger(t, false, "Idle")
		require.NoError(t, l.s.BeginFailed(0, "A"))
		require.NoError(t, take[*RestartTicket](l).Refused())
		require.Equal(t, RungResubscribe, l.at(0).Rung)
		require.NoError(t, take[*ResubscribeTicket](l).Failed())
		recovers(l)
	})
	t.Run("a restart fails, and whom to shut down has left", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		l.leaves("A")
		require.NoError(t, take[*RestartTicket](l).Refused())
		require.NoError(t, take[*ResubscribeTicket](l).Done())
		require.NoError(t, l.s.BeginFailed(0, "A"))
		recovers(l)
	})
	t.Run("a shutdown fails", func(t *testing.T) {
		l := newLedger(t, false, "Contested")
		require.NoError(t, l.a.Fence(nil))
		shut := take[*ShutDownTicket](l)
		require.NoError(t, shut.Done(l.a.ID()))
		require.NoError(t, shut.Failed()) // the other one
		require.Equal(t, RungResubscribe, l.at(0).Rung)
		require.NoError(t, take[*ResubscribeTicket](l).Failed())
		recovers(l)
	})
	t.Run("a source that begins and ends at once", func(t *testing.T) {
		for _, end := range []func(*ledger, *Claim[int]) error{
			func(_ *ledger, c *Claim[int]) error { return c.End(Failed) },
			func(l *ledger, c *Claim[int]) error { l.leaves(c.Owner()); return nil },
		} {
			l := newLedger(t, false, "Idle")
			require.NoError(t, end(l, l.begin(0, Begin{Owner: "A"})))
			for i, rung := range []Rung{RungShutDown, RungResubscribe} {
				w := take[*RestartTicket](l)
				require.Equal(t, i, w.Tries(), "what a driver backs off by")
				require.NoError(t, w.Accepted())
				require.NoError(t, end(l, l.begin(0, Begin{Owner: "A"})))
				require.Equal(t, rung, l.at(0).Rung)
			}
			require.NoError(t, take[*ResubscribeTicket](l).Done())
			for p := range 3 {
				c := l.begin(p, Begin{Owner: "A"})
				if p == 0 {
					require.NoError(t, end(l, c))
				}
			}
			recovers(l)
		}
	})
	t.Run("nobody answers anything", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, l.a.End(Failed))
			at := time.Now()
			for _, want := range []Work{&RestartTicket{}, &ShutDownTicket{}, &ResubscribeTicket{}, &RecoverTicket{}, &RecoverTicket{}} {
				work, err := l.s.NextDue(t.Context())
				require.NoError(t, err)
				require.Len(t, work, 1)
				require.IsType(t, want, work[0])
				<-work[0].Context().Done() // each rung has its minute
				require.ErrorIs(t, context.Cause(work[0].Context()), ErrTimeout)
				require.GreaterOrEqual(t, time.Since(at), time.Minute)
				if want, ok := want.(*RecoverTicket); ok {
					require.NotNil(t, want)
					before := time.Now()
					l.idle()
					work, err = l.s.NextDue(t.Context())
					require.NoError(t, err)
					require.GreaterOrEqual(t, time.Since(before), 10*time.Second, "and a recovery is not asked for at once again")
					require.NoError(t, work[0].(*RecoverTicket).Abandon())
				}
				at = time.Now()
			}
			recovers(l)
		})
	})
}
