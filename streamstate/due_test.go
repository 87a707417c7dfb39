package streamstate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// take takes the one ticket that is due.
func take[W Work](l *ledger) W {
	l.t.Helper()
	work, err := l.s.NextDue(ends())
	require.NoError(l.t, err)
	require.Len(l.t, work, 1)
	w, ok := work[0].(W)
	require.True(l.t, ok, "%T", work[0])
	return w
}

func (l *ledger) idle() {
	l.t.Helper()
	_, err := l.s.NextDue(ends())
	require.ErrorIs(l.t, err, context.Canceled)
}

// TestLadder climbs from a restart that is refused to recovery.
func TestLadder(t *testing.T) {
	l := newLedger(t, false, "Begun")
	require.NoError(t, l.a.End(Failed))
	restart := take[*RestartTicket](l)
	require.Equal(t, 0, restart.Partition())
	from, ok := restart.From()
	require.True(t, ok)
	require.Equal(t, next(10), from)
	l.idle()
	ctx := restart.Context()
	require.NoError(t, restart.Refused())
	require.ErrorIs(t, context.Cause(ctx), ErrResolved)
	l.deny(ErrSuperseded, restart.Refused)
	l.deny(ErrNotShutDown, func() error { return l.tryBegin(Begin{Owner: "C"}) })

	shut := take[*ShutDownTicket](l)
	require.Equal(t, 0, shut.Partition())
	require.Equal(t, "A", shut.Claims()[0].Owner)
	require.NoError(t, shut.Done(shut.Claims()[0].ID))
	require.Equal(t, "Due", l.state(0))
	restart = take[*RestartTicket](l)
	require.NoError(t, restart.Accepted())
	l.deny(ErrSuperseded, restart.Accepted)
	require.NoError(t, restart.Refused())

	other := l.begin(0, Begin{Owner: "C"})
	again := take1(l)
	require.Empty(t, again, "it began by itself")
	require.NoError(t, other.End(Failed))
	resub := take[*ResubscribeTicket](l)
	for p := range 3 {
		require.Equal(t, "Idle", l.state(p))
	}
	l.begin(1, Begin{Owner: "X", Term: 6})
	l.begin(2, Begin{Owner: "X"})
	require.NoError(t, resub.Done())
	require.NoError(t, l.s.BeginFailed(0, "A"))
	rec := take[*RecoverTicket](l)
	l.idle() // it is out
	require.NoError(t, rec.Failed())
	l.idle()
	require.NoError(t, l.core(func(k *core) error { k.stamp(1); k.tick(1 + instant(time.Hour)); return nil }))
	rec = take[*RecoverTicket](l)
	cause := errors.New("rolling back")
	require.NoError(t, l.s.Stop(cause).Err())
	require.ErrorIs(t, context.Cause(rec.Context()), cause)
	l.deny(ErrPhase, rec.Failed)
}

func take1(l *ledger) []Work {
	work, _ := l.s.NextDue(ends())
	return work
}

// TestLadderOfABeginThatDoesNotLast is a source that begins and ends at once (S42).
func TestLadderOfABeginThatDoesNotLast(t *testing.T) {
	l := newLedger(t, false, "Begun")
	require.NoError(t, l.a.End(Failed))
	for i, rung := range []Rung{RungShutDown, RungResubscribe} {
		require.NoError(t, take[*RestartTicket](l).Accepted(), i)
		require.NoError(t, l.begin(0, Begin{Owner: "A"}).End(Failed))
		require.Equal(t, rung, l.at(0).Rung)
	}
	require.NoError(t, take[*ResubscribeTicket](l).Done())
	require.NoError(t, l.begin(0, Begin{Owner: "A"}).End(Failed))
	take[*RecoverTicket](l)
}

// TestLadderEnds where a claim accepts data.
func TestLadderEnds(t *testing.T) {
	l := newLedger(t, false, "Begun")
	require.NoError(t, l.a.Fence(errors.New("it sends nonsense")))
	shut := take[*ShutDownTicket](l)
	l.deny(ErrSuperseded, func() error { return shut.Done(77) })
	require.NoError(t, l.a.End(HandOver), "the end of a listed claim is its shutdown")
	l.deny(ErrSuperseded, func() error { return shut.Done(l.a.ID()) })
	require.NoError(t, take[*RestartTicket](l).Pending())
	a := l.begin(0, Begin{Owner: "A", From: next(10)})
	require.Equal(t, RungShutDown, l.at(0).Rung)
	require.NoError(t, a.Advance(next(11)))
	require.Equal(t, RungRestart, l.at(0).Rung)
	l.idle()
}

func TestTicketsDie(t *testing.T) {
	for name, kill := range map[string]func(*ledger) error{
		"begin":  func(l *ledger) error { return l.tryBegin(Begin{Owner: "C"}) },
		"unwant": func(l *ledger) error { return l.s.Unwant(0).Err() },
		"stop":   func(l *ledger) error { return l.s.Stop(nil).Err() },
		"drop":   func(l *ledger) error { return l.s.Drop().Err() },
		"resubscribe": func(l *ledger) error {
			return l.core(func(k *core) error { k.takeResubscribe(); return nil })
		},
		"recover": func(l *ledger) error { return l.core(func(k *core) error { k.takeRecover(); return nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Due")
			ctx := l.rest.Context()
			require.NoError(t, kill(l))
			require.ErrorIs(t, context.Cause(ctx), ErrEnded)
			kind := map[string]error{"stop": ErrPhase, "drop": ErrStaleSession}[name]
			if kind == nil {
				kind = ErrSuperseded
			}
			l.deny(kind, l.rest.Refused)
		})
	}
}

// TestRecoverTicketDiesWithWhatItNames has a partition given up and taken back while a recovery is asked for: its Restart
// names a position that nobody has any more.
func TestRecoverTicketDiesWithWhatItNames(t *testing.T) {
	for name, giveUp := range map[string]func(l *ledger, c *Claim[int]) *Handle{
		"unwant":  func(l *ledger, _ *Claim[int]) *Handle { return l.s.Unwant(0) },
		"release": func(_ *ledger, c *Claim[int]) *Handle { return c.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Idle")
			c := l.begin(0, Begin{Owner: "C", MustRollBack: true})
			w := take[*RecoverTicket](l)
			require.NoError(t, l.s.Unwant(1).Err())
			require.NoError(t, w.Context().Err(), "it does not name that one")
			require.NoError(t, giveUp(l, c).Err())
			require.ErrorIs(t, context.Cause(w.Context()), ErrGivenUp)
			l.deny(ErrSuperseded, w.Failed)
			l.idle()
		})
	}
}

// TestRecoverWaitsForResubscribe has a claim that must roll back to zero begin while a resubscribe is out: the recovery is due
// when that is answered, however it is.
func TestRecoverWaitsForResubscribe(t *testing.T) {
	for name, answer := range map[string]func(*ResubscribeTicket) error{
		"done": (*ResubscribeTicket).Done, "failed": (*ResubscribeTicket).Failed, "abandoned": (*ResubscribeTicket).Abandon,
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Due")
			require.NoError(t, l.rest.Refused())
			require.NoError(t, take[*ShutDownTicket](l).Failed())
			resub := take[*ResubscribeTicket](l)
			l.begin(0, Begin{Owner: "C", MustRollBack: true})
			l.idle()
			require.NoError(t, answer(resub))
			take[*RecoverTicket](l)
		})
	}
}

// at leaves room for an eighth of the shortest deadline.
func within(t *testing.T, from time.Time, d, look time.Duration) {
	t.Helper()
	took := time.Since(from)
	require.GreaterOrEqual(t, took, d, "never early")
	require.LessOrEqual(t, took, d+look, "at most an eighth late")
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook[int](Options{
			BeginWithin: 8 * time.Second, HandOverWithin: 16 * time.Second, TicketWithin: 24 * time.Second,
			PendingWithin: time.Minute, StableAfter: 32 * time.Second, RetryAfter: 40 * time.Second,
		})
		s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 2, Wanted: Some(0), Pending: true})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.NoError(t, s.Opened())
		at := time.Now()
		work, err := s.NextDue(t.Context())
		require.NoError(t, err)
		within(t, at, 8*time.Second, time.Second) // from when it was armed, not from the open (S28)

		at = time.Now()
		<-work[0].Context().Done()
		within(t, at, 24*time.Second, time.Second)
		require.ErrorIs(t, context.Cause(work[0].Context()), ErrTimeout)
		work, err = s.NextDue(t.Context())
		require.NoError(t, err)
		require.IsType(t, &ResubscribeTicket{}, work[0], "nobody to shut down")
		require.NoError(t, work[0].(*ResubscribeTicket).Done())
		a, err := s.Begin(0, Begin{Owner: "A"})
		require.NoError(t, err)
		at = time.Now()
		b, err := s.Begin(0, Begin{Owner: "B"})
		require.NoError(t, err)
		<-a.Context().Done()
		within(t, at, 16*time.Second, time.Second)
		<-b.Context().Done()
		require.ErrorIs(t, context.Cause(b.Context()), ErrFencedOff)
		work, err = s.NextDue(ends())
		require.NoError(t, err)
		require.IsType(t, &ResubscribeTicket{}, work[0])
		require.NoError(t, work[0].(*ResubscribeTicket).Done())
		a, err = s.Begin(0, Begin{Owner: "A"})
		require.NoError(t, err)
		time.Sleep(34 * time.Second)
		require.NoError(t, s.Read(func(tx ReadTx[int]) error {
			v, err := tx.Partition(0)
			require.Equal(t, RungRestart, v.Rung, "it has lived long enough")
			return err
		}))
		require.NoError(t, a.End(HandOver))
		at = time.Now()
		_, err = s.NextDue(t.Context())
		require.NoError(t, err)
		within(t, at, 16*time.Second, time.Second)
		require.NoError(t, book.Close().Wait(t.Context()))
	})
}

func TestNextDueWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		got := make(chan error, 1)
		var work []Work
		wait := func() {
			var err error
			work, err = l.s.NextDue(t.Context())
			got <- err
		}
		go wait()
		synctest.Wait()
		require.NoError(t, l.a.Advance(next(12)))
		synctest.Wait()
		require.Empty(t, got)
		require.NoError(t, l.a.End(Failed))
		require.NoError(t, <-got)
		require.Len(t, work, 1)
		go wait()
		synctest.Wait()
		require.NoError(t, l.s.Stop(nil).Err())
		require.ErrorIs(t, <-got, ErrPhase)
	})
}

// TestCloneSharesNothingThatChanges is what an exploration of the core stands on.
func TestCloneSharesNothingThatChanges(t *testing.T) {
	l := newLedger(t, false, "Contested")
	require.NoError(t, l.begin(2, Begin{Owner: "Y"}).Fence(nil))
	shut := take[*ShutDownTicket](l)
	_, err := l.s.StartFlush()
	require.NoError(t, err)
	k := l.s.e.view()
	c := k.clone()
	was := k.appendState(nil)
	require.Equal(t, was, c.appendState(nil))
	require.NoError(t, l.b.End(Failed))
	l.begin(0, Begin{Owner: "C"})
	require.NoError(t, l.a.Advance(next(99)))
	require.NoError(t, shut.Done(shut.Claims()[0].ID))
	require.NoError(t, l.s.Unwant(1).Wait(abort(l.s)))
	require.NoError(t, l.s.Stop(nil).Err())
	require.Equal(t, was, c.appendState(nil))
	require.NoError(t, c.check())
}

// TestTries counts the tickets of a partition until a claim has lived long enough: data alone does not end it, since a
// source may begin, send a little and end for ever.
func TestTries(t *testing.T) {
	l := newLedger(t, false, "Begun")
	for n := range 40 {
		require.NoError(t, l.a.End(Failed))
		restart := take[*RestartTicket](l)
		require.Equal(t, min(n, maxTries), restart.Tries())
		require.Equal(t, time.Minute, restart.Within())
		require.NoError(t, restart.Abandon(), "what was not asked does not count")
		restart = take[*RestartTicket](l)
		require.Equal(t, min(n, maxTries), restart.Tries())
		ctx := restart.Context()
		l.a = l.begin(0, Begin{Owner: "A", Term: 5})
		require.ErrorIs(t, context.Cause(ctx), ErrBegun)
		require.NoError(t, l.a.Advance(next(uint64(11+n))))
	}
	later := func(k *core) error { k.stamp(1); k.tick(1 + instant(time.Hour)); return nil }
	require.NoError(t, l.core(later))
	require.NoError(t, l.a.End(Failed))
	require.Equal(t, 0, take[*RestartTicket](l).Tries())
}

// TestStableEndsTheLadder on its lowest rung too: a claim that began after a restart and lived long enough without data
// was well, and its end is no reason to climb.
func TestStableEndsTheLadder(t *testing.T) {
	l := newLedger(t, false, "Due")
	a := l.begin(0, Begin{Owner: "A", Term: 5})
	require.NoError(t, l.core(func(k *core) error { k.stamp(1); k.tick(1 + instant(time.Hour)); return nil }))
	require.NoError(t, a.End(Failed))
	require.Equal(t, RungRestart, l.at(0).Rung)
}

// TestTriesWithoutStable end with data where nothing else could end them.
func TestTriesWithoutStable(t *testing.T) {
	l := &ledger{world: &world{t: t, book: NewBook[int](Options{StableAfter: -1, TicketWithin: -1})}}
	var err error
	l.s, err = l.book.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, l.begin(0, Begin{Owner: "A"}).End(Failed))
		restart := take[*RestartTicket](l)
		require.Zero(t, restart.Tries())
		require.Negative(t, restart.Within())
		a := l.begin(0, Begin{Owner: "A"})
		require.NoError(t, a.Advance(next(l.at(0).Received.Next+1)))
		require.NoError(t, a.End(HandOver))
	}
}

// TestAbandonDoesNotCount begins by itself what a ticket that was given back asked for, and fails: nothing was repaired, so that
// is no reason to climb. What the source had accepted is one. It is red if an abandoned ticket leaves the partition tried.
func TestAbandonDoesNotCount(t *testing.T) {
	failed := func(l *ledger) Rung {
		require.NoError(l.t, l.begin(0, Begin{Owner: "A", Term: 5}).End(Failed))
		return l.at(0).Rung
	}
	t.Run("restart", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		require.NoError(t, l.a.End(Failed))
		require.NoError(t, take[*RestartTicket](l).Abandon())
		require.Equal(t, RungRestart, failed(l))
		take[*RestartTicket](l)
		require.Equal(t, RungShutDown, failed(l))
	})
	t.Run("restart, after one that counts", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		require.NoError(t, l.a.End(Failed))
		take[*RestartTicket](l)
		l.a = l.begin(0, Begin{Owner: "A", Term: 5})
		require.NoError(t, l.a.Fence(nil))
		shut := take[*ShutDownTicket](l)
		require.NoError(t, shut.Done(l.a.ID()))
		take[*RestartTicket](l)
		require.NoError(t, l.begin(0, Begin{Owner: "A", Term: 5}).End(Failed))
		require.Equal(t, RungResubscribe, l.at(0).Rung)
	})
	t.Run("restart accepted", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		require.NoError(t, l.a.End(Failed))
		restart := take[*RestartTicket](l)
		require.NoError(t, restart.Accepted())
		require.NoError(t, restart.Abandon())
		require.Equal(t, RungShutDown, failed(l))
	})
	t.Run("resubscribe", func(t *testing.T) {
		l := newLedger(t, false, "Due")
		require.NoError(t, l.rest.Refused())
		require.NoError(t, take[*ShutDownTicket](l).Failed())
		require.NoError(t, take[*ResubscribeTicket](l).Abandon())
		require.Equal(t, RungResubscribe, failed(l))
		take[*ResubscribeTicket](l)
		require.Equal(t, RungRecover, failed(l))
	})
}

// TestAbandonResubscribe has a resubscribe that nobody carries out due again, not a recovery.
func TestAbandonResubscribe(t *testing.T) {
	l := newLedger(t, false, "Due")
	require.NoError(t, l.rest.Refused())
	require.NoError(t, take[*ShutDownTicket](l).Failed())
	resub := take[*ResubscribeTicket](l)
	require.Zero(t, resub.Tries())
	require.NoError(t, resub.Abandon())
	require.ErrorIs(t, context.Cause(resub.Context()), ErrAborted)
	resub = take[*ResubscribeTicket](l)
	for p := range 3 {
		l.begin(p, Begin{Owner: "A", Term: 5})
	}
	require.NoError(t, resub.Abandon())
	l.idle() // all have begun: nobody is waited for
}
