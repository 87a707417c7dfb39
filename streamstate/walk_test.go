package streamstate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// walk calls everything, in any order, with tokens old and new, on two keys. It knows of no result: it demands that
// nothing panics, that a refused call changes nothing, that the invariants hold, and that all ends once callers answer
// what they hold.
type walk struct {
	t       *rapid.T
	book    *Book[int]
	now     [2]*Session[int]
	ss      []*Session[int]
	claims  []*Claim[int]
	work    []Work
	flushes []*FlushTicket
	holds   []*Hold
	handles []*Handle
}

var walkKeys = [2]Key{key("a"), key("b")}

// one draws one of the last few, and does with it what is to be done; nothing if there are none.
func one[E any](w *walk, from []E, do func(E)) {
	if len(from) > 0 {
		do(from[rapid.IntRange(max(0, len(from)-5), len(from)-1).Draw(w.t, "token")])
	}
}

func (w *walk) prints() (p [2]uint64) {
	for i, s := range w.now {
		p[i] = s.Fingerprint()
	}
	return p
}

// try makes a call; a refusal changes nothing.
func (w *walk) try(call func() error) {
	before := w.prints()
	err := call()
	if _, ok := errors.AsType[refusal](err); ok {
		require.Equal(w.t, before, w.prints(), "%v", err)
	} else {
		require.NoError(w.t, err)
	}
}

func (w *walk) open(i int) {
	s, err := w.book.Open(walkKeys[i], OpenOptions[int]{
		Partitions: 2, Pending: rapid.Bool().Draw(w.t, "pending"), Wanted: rapid.SampledFrom([]Wanted{All, None, Some(1)}).Draw(w.t, "wanted"),
	})
	if err == nil {
		w.now[i] = s
		w.ss = append(w.ss, s)
	}
}

// seldom does what ends much.
func (w *walk) seldom(n int, do func()) {
	if rapid.IntRange(0, n).Draw(w.t, "seldom") == 0 {
		do()
	}
}

func (w *walk) s() *Session[int] {
	if rapid.IntRange(0, 9).Draw(w.t, "any") == 0 {
		return w.ss[rapid.IntRange(max(0, len(w.ss)-5), len(w.ss)-1).Draw(w.t, "session")]
	}
	return w.now[w.n(1)]
}

func (w *walk) n(most int) int { return rapid.IntRange(0, most).Draw(w.t, "n") }

func (w *walk) owner() string { return rapid.SampledFrom([]string{"A", "B", "C"}).Draw(w.t, "owner") }

func (w *walk) pos() Position { return Position{Next: uint64(w.n(30))} }

// drain takes what is due, and notes the tickets.
func (w *walk) nextDue() {
	s := w.s()
	w.try(func() error {
		work, err := s.NextDue(ends())
		w.work = append(w.work, work...)
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
}

// answer answers a ticket, in any way that its kind has.
func (w *walk) answer(t Work, how int) error {
	if how > 5 {
		return t.Abandon()
	}
	switch t := t.(type) {
	case *RestartTicket:
		return [...]func() error{t.Accepted, t.Pending, t.Refused}[how%3]()
	case *ShutDownTicket:
		if how%3 == 0 {
			return t.Failed()
		}
		claims := t.Claims()
		return t.Done(claims[how%len(claims)].ID)
	case *ResubscribeTicket:
		return [...]func() error{t.Done, t.Failed}[how%2]()
	case *RecoverTicket:
		return t.Failed()
	}
	return nil
}

// later has all deadlines of both keys pass.
func (w *walk) later() {
	for _, s := range w.now {
		_ = s.e.do(token{op: opLook}, func(k *held) error {
			k.stamp(1)
			k.tick(1 + instant(time.Hour))
			return nil
		})
	}
}

func (w *walk) actions() map[string]func(*rapid.T) {
	out := map[string]func(*rapid.T){}
	add := func(name string, f func()) {
		out[name] = func(t *rapid.T) {
			w.t = t
			f()
		}
	}
	begin := func() {
		s, b := w.s(), Begin{Owner: w.owner(), Term: uint64(w.n(3)), From: w.pos(), MustRollBack: w.n(9) == 0}
		w.try(func() error {
			c, err := s.Begin(w.n(1), b)
			if err == nil {
				w.claims = append(w.claims, c)
			}
			return err
		})
	}
	add("begin", begin)
	add("begin again", begin)
	add("end", func() {
		one(w, w.claims, func(c *Claim[int]) { w.try(func() error { return c.End(EndKind(w.n(1))) }) })
	})
	add("release", func() { one(w, w.claims, func(c *Claim[int]) { w.try(func() error { return w.handle(c.Release()) }) }) })
	add("fence", func() { one(w, w.claims, func(c *Claim[int]) { w.try(func() error { return c.Fence(nil) }) }) })
	add("advance", func() { one(w, w.claims, func(c *Claim[int]) { w.try(func() error { return c.Advance(w.pos()) }) }) })
	add("gone", func() { s := w.s(); w.try(func() error { _, err := s.OwnerGone(w.owner()); return err }) })
	add("begin failed", func() { s := w.s(); w.try(func() error { return s.BeginFailed(w.n(1), w.owner()) }) })
	add("want", func() { s := w.s(); w.try(func() error { return s.Want(w.n(1)) }) })
	add("unwant", func() { s := w.s(); w.try(func() error { return w.handle(s.Unwant(w.n(1))) }) })
	add("due", w.nextDue)
	add("due again", w.nextDue)
	add("answer", func() { one(w, w.work, func(t Work) { w.try(func() error { return w.answer(t, w.n(6)) }) }) })
	add("later", w.later)
	add("start flush", func() {
		s := w.s()
		w.try(func() error {
			f, err := s.StartFlush()
			if err == nil {
				w.flushes = append(w.flushes, f)
			}
			return err
		})
	})
	add("flush done", func() {
		one(w, w.flushes, func(f *FlushTicket) { w.try(func() error { _, err := f.Done(); return err }) })
	})
	add("flush failed", func() { one(w, w.flushes, func(f *FlushTicket) { w.try(func() error { return f.Fail(nil) }) }) })
	add("hold", func() {
		s, o := w.s(), w.s()
		w.try(func() error {
			h, err := s.Hold(o)
			if err == nil {
				w.holds = append(w.holds, h)
			}
			return err
		})
	})
	add("release hold", func() { one(w, w.holds, func(h *Hold) { w.try(h.Release) }) })
	add("merge", func() {
		from, into := w.s(), w.s()
		w.try(func() error { return w.handle(w.book.Merge(from, into, nil, func(_, _ Tx[int]) error { return nil })) })
	})
	add("opened", func() { w.try(w.s().Opened) })
	add("stop", func() {
		w.seldom(3, func() { s := w.s(); w.try(func() error { return w.handle(s.Stop(nil)) }) })
	})
	add("drain", func() {
		w.seldom(3, func() { s := w.s(); w.try(func() error { return w.handle(s.Drain()) }) })
	})
	add("reopen", func() {
		for i, s := range w.now {
			w.try(func() error {
				next, err := w.book.Reopen(s, ReopenOptions[int]{})
				if err == nil {
					w.now[i] = next
					w.ss = append(w.ss, next)
				}
				return err
			})
		}
	})
	add("drop", func() { w.seldom(9, func() { w.handles = append(w.handles, w.s().Drop()) }) })
	add("open", func() { w.open(0); w.open(1) })
	out[""] = func(t *rapid.T) {
		for _, s := range w.now {
			require.NoError(t, s.Check())
		}
	}
	return out
}

// handle keeps a handle that is not a refusal.
func (w *walk) handle(h *Handle) error {
	err := h.Err()
	if _, ok := errors.AsType[refusal](err); ok {
		return err
	}
	w.handles = append(w.handles, h)
	return nil
}

// settle answers everything, until all wanted partitions of whatever is Active have begun.
func (w *walk) settle() {
	for _, f := range w.flushes {
		_ = f.Abort()
	}
	for _, h := range w.holds {
		_ = h.Release()
	}
	for i, s := range w.now {
		_ = s.Opened()
		rest := false
		for n := 0; n < 40 && !rest; n++ {
			rest = s.Read(func(ReadTx[int]) error { return nil }) != nil || w.settled(i)
			s = w.now[i]
		}
		require.True(w.t, rest, "%v", s.Dump())
		require.NoError(w.t, s.Check())
	}
	for _, s := range w.now {
		s.Drop()
	}
	for _, f := range w.flushes {
		_ = f.Abort()
	}
	for _, h := range w.handles {
		require.False(w.t, open(h), "a handle that never resolves")
	}
}

// settled takes one step towards health.
func (w *walk) settled(i int) bool {
	s := w.now[i]
	if s.Dump().Phase == Stopped.String() {
		next, err := w.book.Reopen(s, ReopenOptions[int]{})
		require.NoError(w.t, err)
		w.now[i] = next
		return false
	}
	if s.Dump().Healthy {
		return true
	}
	work, _ := s.NextDue(ends())
	for _, t := range append(work, w.work...) {
		switch t := t.(type) {
		case *RestartTicket:
			if t.Accepted() == nil {
				_, _ = s.Begin(t.Partition(), Begin{Owner: "Z"})
			}
		case *ShutDownTicket:
			for _, c := range t.Claims() {
				_ = t.Done(c.ID)
			}
		case *ResubscribeTicket:
			_ = t.Done()
		case *RecoverTicket:
			if t.Context().Err() == nil {
				s.Stop(nil)
			}
		}
	}
	w.later()
	return false
}

func checkWalk(t *rapid.T) {
	w := &walk{t: t, book: NewBook[int](Options{})}
	w.open(0)
	w.open(1)
	t.Repeat(w.actions())
	w.t = t
	w.settle()
	require.NoError(t, w.book.Close().Wait(t.Context()))
}

func TestWalk(t *testing.T) { rapid.Check(t, checkWalk) }
