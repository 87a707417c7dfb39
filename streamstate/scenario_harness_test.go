package streamstate

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"
)

// The scenario tests script sessions by hand. Where nothing else is said they begin with a ledger (ledger_test.go), which
// is the session n; what follows it takes its place in the ledger, so that deny looks at the session that must be spared.

// errAsked is why a scenario stops a session.
var errAsked = errors.New("recovery asked")

// nothing is a transaction that changes nothing, and stored a flush that succeeds.
func nothing(Tx[int]) error                   { return nil }
func stored(context.Context, Timestamp) error { return nil }

// succeed are the ways in which a session is followed by another one of its key.
var succeed = map[string]func(*ledger){
	"reopened":     (*ledger).reopen,
	"opened again": (*ledger).openAgain,
}

// reopen stops the session, and begins the next one.
func (l *ledger) reopen() {
	l.t.Helper()
	require.NoError(l.t, l.s.Stop(errAsked).Err())
	s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
	require.NoError(l.t, err)
	l.s = s
}

// openAgain drops the key, and opens it again.
func (l *ledger) openAgain() {
	l.t.Helper()
	require.NoError(l.t, l.s.Drop().Wait(ends()))
	l.open()
}

// open opens the key.
func (l *ledger) open() {
	l.t.Helper()
	s, err := l.book.Open(key("a"), OpenOptions[int]{Partitions: 3})
	require.NoError(l.t, err)
	l.s = s
}

// flushes starts a flush, which calm ends.
func (l *ledger) flushes() *FlushTicket {
	l.t.Helper()
	f, err := l.s.StartFlush()
	require.NoError(l.t, err)
	l.flush = f
	return f
}

// unchanged demands an error that is no refusal, and that nothing has changed by it.
func (l *ledger) unchanged(kind error, call func() error) {
	l.t.Helper()
	was, counted := l.s.Fingerprint(), l.book.Stats()
	require.ErrorIs(l.t, call(), kind)
	require.Equal(l.t, was, l.s.Fingerprint())
	require.Equal(l.t, counted, l.book.Stats())
}

// payload is the session's payload.
func (l *ledger) payload() (p int) {
	l.t.Helper()
	require.NoError(l.t, l.s.Read(func(tx ReadTx[int]) (err error) {
		p, err = tx.Payload()
		return err
	}))
	return p
}

// ticketed are ledgers of which a ticket of repair of one kind is out.
var ticketed = map[string]func(*ledger) Work{
	"restart": func(l *ledger) Work {
		require.NoError(l.t, l.a.End(Failed))
		return take[*RestartTicket](l)
	},
	"shut down": func(l *ledger) Work {
		require.NoError(l.t, l.a.Fence(nil))
		return take[*ShutDownTicket](l)
	},
	"resubscribe": func(l *ledger) Work {
		require.NoError(l.t, l.a.Fence(nil))
		require.NoError(l.t, take[*ShutDownTicket](l).Failed())
		return take[*ResubscribeTicket](l)
	},
	"recover": func(l *ledger) Work {
		l.begin(1, Begin{Owner: "R", Term: 6, MustRollBack: true})
		return take[*RecoverTicket](l)
	},
}

// replies are all answers to a ticket.
func replies(w Work) map[string]func() error {
	switch w := w.(type) {
	case *RestartTicket:
		return map[string]func() error{"accepted": w.Accepted, "pending": w.Pending, "refused": w.Refused}
	case *ShutDownTicket:
		return map[string]func() error{
			"done":   func() error { return w.Done(w.Claims()[0].ID) },
			"failed": w.Failed,
		}
	case *ResubscribeTicket:
		return map[string]func() error{"done": w.Done, "failed": w.Failed}
	case *RecoverTicket:
		return map[string]func() error{"failed": w.Failed}
	}
	return nil
}

// calm is the liveness half of a scenario: faults have stopped, and whoever is asked answers. Then the key has a session,
// every wanted partition begins, a flush goes through, nobody waits for anything, and the key can be dropped.
func (l *ledger) calm() {
	l.t.Helper()
	if l.flush != nil {
		_ = l.flush.Abort() // it may have ended
	}
	l.present()
	for range 8 {
		if l.s.Dump().Healthy {
			break
		}
		l.answerAll()
		l.beginAll()
	}
	d := l.s.Dump()
	require.True(l.t, d.Healthy, "%v", d)
	require.NoError(l.t, l.s.Flush(ends(), stored))
	d = l.s.Dump()
	require.Zero(l.t, d.Waiting+d.Merges+len(d.Tickets)+d.Holds, "%v", d)
	require.NoError(l.t, l.s.Read(func(tx ReadTx[int]) error {
		require.True(l.t, tx.Flushed().Equal(tx.Received()), "flushed %v, received %v", tx.Flushed(), tx.Received())
		return nil
	}))
	require.NoError(l.t, l.s.Check())
	require.NoError(l.t, l.s.Drop().Wait(ends()))
	l.phase(Gone)
	require.NotContains(l.t, keysOf(l.book), key("a"))
}

// present sees to it that the key has a session that is active.
func (l *ledger) present() {
	l.t.Helper()
	switch l.s.Dump().Phase {
	case Opening.String():
		require.NoError(l.t, l.s.Opened())
	case Stopped.String():
		s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
		require.NoError(l.t, err)
		l.s = s
	case Gone.String():
		l.open()
	}
	l.phase(Active)
}

// answerAll has repair do whatever it is asked.
func (l *ledger) answerAll() {
	l.t.Helper()
	for {
		work, err := l.s.NextDue(ends())
		if err != nil {
			require.ErrorIs(l.t, err, context.Canceled)
			return
		}
		for _, w := range work {
			l.answer(w)
		}
	}
}

func (l *ledger) answer(w Work) {
	l.t.Helper()
	switch w := w.(type) {
	case *RestartTicket:
		require.NoError(l.t, w.Accepted())
	case *ShutDownTicket:
		for _, c := range w.Claims() {
			require.NoError(l.t, w.Done(c.ID))
		}
	case *ResubscribeTicket:
		require.NoError(l.t, w.Done())
	case *RecoverTicket:
		require.NoError(l.t, l.s.Stop(ErrRecovering).Err())
		s, err := l.book.Reopen(l.s, ReopenOptions[int]{Restart: w.Restart()})
		require.NoError(l.t, err)
		l.s = s
	}
}

// beginAll has the source begin whatever it was asked to, and every node but one leave a contested or fenced partition.
func (l *ledger) beginAll() {
	l.t.Helper()
	for p := range l.s.Dump().Partitions {
		v := l.at(p)
		switch v.State {
		case Idle, Due:
			l.begin(p, Begin{Owner: "calm", From: v.Received})
		case Contested:
			for _, c := range v.Claims[1:] {
				l.leaves(c.Owner)
			}
		case Fenced:
			for _, c := range v.Claims {
				l.leaves(c.Owner)
			}
		case Unwanted, Begun:
		}
	}
}

func (l *ledger) leaves(owner string) {
	l.t.Helper()
	_, err := l.s.OwnerGone(owner)
	require.NoError(l.t, err)
}

// keysOf are the keys that a book has records of.
func keysOf(b *Book[int]) (keys []Key) {
	for s := range b.Sessions() {
		keys = append(keys, s.Key())
	}
	return keys
}
