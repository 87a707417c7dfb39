package streamstate

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// glance is what of a key is compared before and after an event.
type glance struct {
	session  uint64
	phase    Phase
	states   []PartitionState
	received []Position
	flushed  []Position
	live     []liveClaim
	due      bool // repair has something to do
	flush    bool // a flush may begin
	healthy  bool
	running  *flush
}

type liveClaim struct {
	facts *claimFacts
	next  uint64
}

func (x *stage) glance(i int, g *glance) {
	k := x.h[i]
	*g = glance{
		session: k.session, phase: k.phase, states: g.states[:0], received: g.received[:0], flushed: g.flushed[:0], live: g.live[:0],
		flush: k.phase == Active && k.flush == nil && len(k.holds) == 0 && k.merging == 0,
	}
	g.healthy, g.running = true, k.flush
	for j := range k.parts {
		p := &k.parts[j]
		g.states, g.received = append(g.states, p.state), append(g.received, p.received)
		g.flushed = append(g.flushed, k.flushed.at(j))
		back := false
		for l := range p.live {
			g.live = append(g.live, liveClaim{l.facts, l.next})
			back = back || l.facts.rollTo != nil
		}
		g.healthy = g.healthy && (p.state == Unwanted || p.state == Begun && !back)
	}
	g.due = x.hasDue(k)
}

// hasDue tells whether repair has something to do, as the documents say it.
func (x *stage) hasDue(k *held) bool {
	if k.phase != Active || k.ticket != nil {
		return false
	}
	work, session, begun, back := false, false, true, false
	recover := false
	for j := range k.parts {
		p := &k.parts[j]
		if p.state == Unwanted {
			continue
		}
		broken := p.state == Due || p.state == Fenced
		recover = recover || broken && p.rung == RungRecover
		session = session || broken && p.rung == RungResubscribe
		work = work || broken && p.rung <= RungShutDown && p.ticket() == nil
		begun = begun && (p.state == Begun || p.state == Contested)
		for l := range p.live {
			if to := l.facts.rollTo; to != nil {
				back, recover = true, recover || to.Next == 0
			}
		}
	}
	if recover || begun && back {
		return k.retryAt == noAlarm
	}
	return session || work
}

// followed says what is wrong with a change, if anything: within a session nothing goes back, what has ended stays so,
// and who waits is told.
func (x *stage) followed(i int, was, is *glance) error {
	k := x.h[i]
	if is.due && !was.due || is.flush && !was.flush || is.healthy && !was.healthy || is.phase != was.phase {
		if k.slow.n != 0 && is.phase != Gone {
			return errors.New("nobody was woken")
		}
	}
	if is.running != nil && is.running != was.running && !was.flush {
		return errors.New("a flush begins where none may")
	}
	if is.session != was.session {
		return nil
	}
	for j := range min(len(is.states), len(was.states)) {
		if was.states[j] == Unwanted || is.states[j] == Unwanted {
			continue
		}
		if back(was.received[j], is.received[j]) || back(was.flushed[j], is.flushed[j]) {
			return fmt.Errorf("partition %d: received %v, then %v; flushed %v, then %v", j, was.received[j], is.received[j], was.flushed[j], is.flushed[j])
		}
	}
	for _, l := range is.live {
		at := slices.IndexFunc(was.live, func(o liveClaim) bool { return o.facts == l.facts })
		switch {
		case l.facts.life.error() != nil:
			return fmt.Errorf("claim %d is live and has ended", l.facts.id())
		case at >= 0 && was.live[at].next > l.next:
			return fmt.Errorf("claim %d goes back from %d to %d", l.facts.id(), was.live[at].next, l.next)
		case at < 0 && x.knew(l.facts):
			return fmt.Errorf("claim %d lives again", l.facts.id())
		}
	}
	for _, l := range was.live {
		if l.facts.life.error() == nil && !slices.ContainsFunc(is.live, func(o liveClaim) bool { return o.facts == l.facts }) {
			return fmt.Errorf("claim %d has ended, and does not say why", l.facts.id())
		}
	}
	return nil
}

func back(was, is Position) bool {
	return was.present() && (!is.present() || is.Next < was.Next)
}

// knew tells whether a claim was there when the scene was put on the stage.
func (x *stage) knew(f *claimFacts) bool {
	return slices.ContainsFunc(x.copies.claims, func(c *Claim[int]) bool { return &c.facts == f })
}

// sound verifies the invariants of the state on the stage.
func (x *stage) sound() error {
	for i := range x.keys {
		k := x.h[i]
		if err := k.check(); err != nil {
			return err
		}
		for j := range k.parts { // what is shared with the last Timestamp has not changed
			if k.dirty[0]>>(j>>chunkShift)&1 == 0 && k.received.at(j) != k.parts[j].received {
				return fmt.Errorf("partition %d: received %v, in the vector %v", j, k.parts[j].received, k.received.at(j))
			}
		}
		for _, h := range k.taken {
			if o := x.h[1-i]; h.target != o.r || !slices.Contains(o.holds, h) {
				return errors.New("a hold that its target does not know")
			}
		}
		if n := len(k.holds); n > 0 && n != len(x.h[1-i].taken) {
			return errors.New("a hold that its holder does not know")
		}
		if h := k.dropped; h != nil && open(h) != (k.phase != Gone) {
			return fmt.Errorf("the drop's handle, while %v", k.phase)
		}
		if h := k.stopped; h != nil && open(h) != (k.phase == Stopping) && k.phase != Gone {
			return fmt.Errorf("the stop's handle, while %v", k.phase)
		}
	}
	return x.soundMerges()
}

// soundMerges verifies that every merge has been looked at: it holds nothing while anything but a running flush is in its
// way, has both gates closed while only that is, and is done when nothing is.
func (x *stage) soundMerges() error {
	for i := range x.keys {
		for _, m := range x.h[i].merges {
			if !slices.Contains(x.merges, m) || !open(m.handle) {
				return fmt.Errorf("merge %d has ended and is still looked at", m.id)
			}
		}
	}
	for _, m := range x.merges {
		switch {
		case !open(m.handle):
			continue
		case !slices.Contains(x.h[0].merges, m) || !slices.Contains(x.h[1].merges, m):
			return fmt.Errorf("merge %d is not looked at", m.id)
		}
		free, flush, engaged := true, false, 0
		for i := range x.keys {
			k := x.h[i]
			busy := k.ticket != nil
			for j := range k.parts {
				busy = busy || k.parts[j].ticket() != nil
			}
			var g glance
			x.glance(i, &g)
			free = free && k.phase == Active && g.healthy && !busy && len(k.holds) == 0 && (k.merging == 0 || k.merging == m.id)
			flush = flush || k.flush != nil
			if k.merging == m.id {
				engaged++
			}
		}
		switch {
		case free && !flush:
			return fmt.Errorf("merge %d waits for nothing", m.id)
		case free != (engaged == 2), engaged == 1:
			return fmt.Errorf("merge %d is free: %v, engaged with %d", m.id, free, engaged)
		}
	}
	return nil
}

// late is a call with a token that is dead, whatever the state, and what it may be refused with.
type late struct {
	what string
	call func() error
	want []error
}

// answered says what is wrong with the answer to an event that is never refused for something else, if anything.
func (x *stage) answered(m move, was *glance, err error) error {
	switch {
	case m.what == mvStartFlush && was.flush && err != nil:
		return fmt.Errorf("a flush may begin, and is refused: %w", err)
	case m.what == mvDrop && err != nil, m.what == mvStop && was.phase < Closing && err != nil:
		return fmt.Errorf("refused while %v: %w", was.phase, err)
	}
	return nil
}

// lates are the calls with dead tokens of one key: of a claim, of each kind of ticket, of a flush, of a hold, and of a
// session that was superseded.
func (x *stage) lates(i int) []late {
	r, s, old := x.h[i].r, x.s[i], x.stale[i]
	claim := &Claim[int]{claimFacts{&claimant{owner: x.owners[0], home: home{r, s.n, s}}, causeMoved, nameClaim(99, 0)}}
	w := workTicket{r, s.n, &ticket{id: 99, life: causeMoved}}
	restart, shut, resubscribe, recover := &RestartTicket{w}, &ShutDownTicket{w}, &ResubscribeTicket{w}, &RecoverTicket{w}
	f := &FlushTicket{r, &flush{id: 99, life: causeMoved}}
	ended := []error{ErrStaleClaim, ErrPhase, ErrStaleSession}
	past := []error{ErrSuperseded, ErrPhase, ErrStaleSession}
	session := []error{ErrStaleSession}
	out := []late{
		{"end", func() error { return claim.End(Failed) }, ended},
		{"hand over", func() error { return claim.End(HandOver) }, ended},
		{"release", func() error { return refused(claim.Release()) }, ended},
		{"fence", func() error { return claim.Fence(nil) }, ended},
		{"advance", func() error { return claim.Advance(next(1)) }, ended},
		{"apply", func() error { return claim.Apply(next(1), func(Tx[int]) error { panic("it runs") }) }, ended},
		{"accepted", restart.Accepted, past},
		{"pending", restart.Pending, past},
		{"refused", restart.Refused, past},
		{"shut down", func() error { return shut.Done(1) }, past},
		{"shut down failed", shut.Failed, past},
		{"resubscribed", resubscribe.Done, past},
		{"resubscribe failed", resubscribe.Failed, past},
		{"recover failed", recover.Failed, past},
		{"abandon", recover.Abandon, past},
		{"flush done", func() error { _, err := f.Done(); return err }, []error{ErrSuperseded}},
		{"flush aborted", f.Abort, []error{ErrSuperseded}},
		{"old want", func() error { return old.Want(0) }, session},
		{"old unwant", func() error { return refused(old.Unwant(0)) }, session},
		{"old begin", func() error { _, err := old.Begin(0, Begin{Owner: "A"}); return err }, session},
		{"old begin failed", func() error { return old.BeginFailed(0, "A") }, session},
		{"old owner gone", func() error { _, err := old.OwnerGone("A"); return err }, session},
		{"old next due", func() error { _, err := old.NextDue(ended0); return err }, session},
		{"old start flush", func() error { _, err := old.StartFlush(); return err }, session},
		{"old opened", old.Opened, session},
		{"old stop", func() error { return refused(old.Stop(nil)) }, session},
		{"old drain", func() error { return refused(old.Drain()) }, session},
		{"old reopen", func() error { _, err := x.book.Reopen(old, ReopenOptions[int]{}); return err }, session},
		{"old read", func() error { return old.Read(func(ReadTx[int]) error { panic("it runs") }) }, session},
	}
	if x.keys > 1 {
		h := &Hold{&hold{id: 99, holder: r, target: x.h[1-i].r, cause: causeMoved}}
		nothing := func(_, _ Tx[int]) error { panic("it runs") }
		both := []error{ErrStaleSession, ErrPhase} // the other's phase, which is looked at first
		out = append(
			out,
			late{"release hold", h.Release, []error{ErrStaleHold}},
			late{"old hold", func() error { _, err := old.Hold(x.s[1-i]); return err }, session},
			late{"hold on old", func() error { _, err := x.s[1-i].Hold(old); return err }, both},
			late{"merge old", func() error { return refused(x.book.Merge(old, x.s[1-i], nil, nothing)) }, session},
			late{"merge into old", func() error { return refused(x.book.Merge(x.s[1-i], old, nil, nothing)) }, both},
		)
	}
	return out
}

// tooLate makes every call with a dead token: each is refused, and nothing changes.
func (x *stage) tooLate(calls []late, before []byte) error {
	for _, l := range calls {
		err := l.call()
		if !slices.ContainsFunc(l.want, func(want error) bool { return errors.Is(err, want) }) {
			return fmt.Errorf("%s with a dead token: %w", l.what, errors.Join(errors.New("answers"), err))
		}
	}
	if !bytes.Equal(before, x.print(nil)) {
		return errors.New("a call with a dead token has changed something")
	}
	return nil
}
