package streamstate

import "context"

// Claim is one claim of one partition in one session: a token that ends with the claim. A worker keeps the claim it works
// for; what it hands in after the claim's end is refused with [ErrStaleClaim], whoever has the partition by then.
type Claim[P any] struct {
	facts claimFacts
}

// ID names the claim within its key.
func (c *Claim[P]) ID() ClaimID { return c.facts.id() }

// Partition is the partition claimed.
func (c *Claim[P]) Partition() int { return int(c.facts.part()) }

// Owner is who claims.
func (c *Claim[P]) Owner() string { return c.facts.owner }

// Term is the claim's term, 0 if it has none.
func (c *Claim[P]) Term() uint64 { return c.facts.term }

// Session is the session that the claim is of.
func (c *Claim[P]) Session() *Session[P] { return c.facts.home.handle.(*Session[P]) }

// Context ends with the claim; its cause is an *[EndedError] that says why.
func (c *Claim[P]) Context() context.Context { return c.facts.home.r.context(&c.facts.life) }

func (c *claimFacts) token(op Op) token {
	return token{session: c.home.session, claim: c, op: op}
}

// Advance says that the claim's data up to pos is in the payload. It is for payloads that ignore what is not newer than
// what they hold, since a worker that was fenced has applied it already; else see [Claim.Apply]. [ErrStaleSession],
// [ErrPhase], [ErrStaleClaim], [ErrArgument], [ErrMustRollBack], [ErrPosition].
func (c *Claim[P]) Advance(pos Position) error {
	r := c.facts.home.r
	k, err := r.enterBy(&c.facts, OpAdvance)
	if err != nil {
		return err
	}
	return r.leave(k, k.advance(&c.facts, &pos))
}

// Apply checks the claim, applies its data up to pos by fn and advances, in one hold. What the partition has received
// before is skipped: fn is not called, and the claim moves on. fn is to be short. If it fails or panics nothing has
// changed but what it did to what the payload points at; its error is returned.
func (c *Claim[P]) Apply(pos Position, fn func(Tx[P]) error) (err error) {
	r := c.facts.home.r
	k, err := r.enterBy(&c.facts, OpApply)
	if err != nil {
		return err
	}
	defer r.leaveTx(k, &err)
	return c.apply(k, &pos, fn)
}

func (c *Claim[P]) apply(k *held, pos *Position, fn func(Tx[P]) error) error {
	f := &c.facts
	p := &k.parts[f.part()]
	l := k.slot(p, f)
	if pos.Next <= l.next || f.rollTo != nil || !pos.valid() || fn == nil {
		if fn == nil {
			return needs("fn")
		}
		_, err := k.weigh(OpApply, f, pos)
		return err // or it is where it was
	}
	if pos.Next > p.received.Next {
		if err := c.Session().e.call(k, fn); err != nil {
			return err
		}
	}
	k.move(p, l, f, pos)
	return nil
}

// End ends the claim: [HandOver] in good order, [Failed] because it cannot go on. What was received stays. The end of a
// claim that is listed for shutdown is its shutdown.
func (c *Claim[P]) End(kind EndKind) error {
	r := c.facts.home.r
	k, err := r.enterBy(&c.facts, OpEnd)
	if err != nil {
		return err
	}
	return r.leave(k, k.end(&c.facts, kind))
}

// Release ends the claim and, if it is the partition's last one, gives the partition up. The handle is that of
// [Session.Unwant]; a refusal resolves it.
func (c *Claim[P]) Release() *Handle {
	h := newHandle()
	err := c.facts.home.r.do(c.facts.token(OpRelease), func(k *held) error {
		k.release(&c.facts, h)
		return nil
	})
	if err != nil {
		return resolvedHandle(err)
	}
	return h
}

// Fence says that the claim is not trusted any more: every claim of the partition ends and is listed for shutdown, and
// nobody may begin before that. Nil is [ErrFencedOff].
func (c *Claim[P]) Fence(cause error) error {
	why := causeFenced
	if cause != nil {
		why = ended("claim", orElse(ErrFencedOff, cause)) // outside the hold: it asks the cause
	}
	return c.facts.home.r.do(c.facts.token(OpFence), func(k *held) error {
		k.fence(&c.facts, why)
		return nil
	})
}

// Advance is one claim's progress in a batch.
type Advance[P any] struct {
	Claim    *Claim[P]
	Position Position
}

// AdvanceBatch is [Claim.Advance] of several claims in one hold, all or nothing. A claim of another session, or a
// partition named twice, is an *[ArgumentError].
func (s *Session[P]) AdvanceBatch(batch []Advance[P]) error {
	k, err := s.e.enter(s.n, OpAdvance)
	if err != nil {
		return err
	}
	if err = s.checkBatch(&k.core, OpAdvance, batch); err == nil {
		applyBatch(&k.core, batch)
	}
	return s.e.leave(k, err)
}

// applyBatch is the applying pass of a batch that was checked.
func applyBatch[P any](k *core, batch []Advance[P]) {
	for i := range batch {
		b := &batch[i]
		c := &b.Claim.facts
		p := &k.parts[c.part()]
		p.flags &^= flagBatch
		if l := k.slot(p, c); b.Position.Next > l.next {
			k.move(p, l, c, &b.Position)
		}
	}
}

// ApplyBatch is [Claim.Apply] of several claims in one hold, all or nothing. fn is called once, with those of the batch
// that the partitions have not received before, in their order; not at all if there are none. What is committed is the batch
// as it was when it was checked, whatever fn does to it, or to what it is given, which is its own.
func (s *Session[P]) ApplyBatch(batch []Advance[P], fn func(tx Tx[P], fresh []Advance[P]) error) error {
	e := s.e
	return e.run(s.token(OpApply), func(k *held) error {
		if fn == nil {
			return needs("fn")
		}
		if err := s.checkBatch(&k.core, OpApply, batch); err != nil {
			return err
		}
		unmark(&k.core, batch) // fn may fail or panic
		if n := countFresh(&k.core, batch); n > 0 {
			own := make([]Advance[P], len(batch), len(batch)+n) // fn may have the caller's
			copy(own, batch)
			batch = own
			fresh := own[len(own):]
			for i := range batch {
				if b := &batch[i]; isFresh(&k.core, b) {
					fresh = append(fresh, *b)
				}
			}
			err := e.call(k, func(tx Tx[P]) error { return fn(tx, fresh) })
			if err != nil {
				return err
			}
		}
		applyBatch(&k.core, batch)
		return nil
	})
}

// isFresh tells whether the partition has not received what a checked part of a batch brings.
func isFresh[P any](k *core, b *Advance[P]) bool {
	return b.Position.Next > k.parts[b.Claim.facts.part()].received.Next
}

func countFresh[P any](k *core, batch []Advance[P]) (n int) {
	for i := range batch {
		if isFresh(k, &batch[i]) {
			n++
		}
	}
	return n
}

// checkBatch is the checking pass: it refuses a batch for the first of its parts that would be refused alone, or whose
// partition was named before. It leaves the partitions of a good batch marked.
func (s *Session[P]) checkBatch(k *core, op Op, batch []Advance[P]) error {
	for i := range batch {
		b := &batch[i]
		if b.Claim == nil || b.Claim.facts.claimant == nil || b.Claim.facts.home.session != s.n || b.Claim.facts.home.r != &s.e.record {
			unmark(k, batch[:i])
			return badArgument("Claim", "nil or of another session", "a claim of this session")
		}
		c := &b.Claim.facts
		p := &k.parts[c.part()]
		if p.claim.facts == c && p.state == Begun && p.flags&flagBatch == 0 && c.rollTo == nil &&
			b.Position.Next >= p.claim.next && b.Position.valid() {
			p.flags |= flagBatch
			continue
		}
		if err := k.checkPart(op, c, &b.Position); err != nil {
			unmark(k, batch[:i])
			return err
		}
		p.flags |= flagBatch
	}
	return nil
}

func unmark[P any](k *core, batch []Advance[P]) {
	for i := range batch {
		k.parts[batch[i].Claim.facts.part()].flags &^= flagBatch
	}
}
