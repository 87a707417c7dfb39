package streamstate

import (
	"slices"
	"strconv"
	"unsafe"
)

func itoa(i int) string { return strconv.Itoa(i) }

// maxName is the most bytes that a name of a key or an owner may have.
const maxName = 1024

// Begin says who claims a partition, and from where.
type Begin struct {
	// Owner names one life of who claims, 1 to 1,024 bytes. It has at most one claim of a partition.
	Owner string
	// Term orders claims, if the source has such a number; zero is none. One lower than the highest seen in the session
	// is [ErrStaleTerm], a higher one ends every claim that has a lower one.
	Term uint64
	// From is where the claim's data begins. Above what is received it is a gap that the caller vouches for; below it,
	// what the claim delivers again is skipped.
	From Position
	// MustRollBack says that the source demanded a roll-back to RollBackTo instead of delivering from where it was asked.
	// The claim counts as begun and accepts no data; From is ignored.
	MustRollBack bool
	RollBackTo   Position
}

// good tells whether check finds nothing.
func (b *Begin) good() bool {
	return b.Owner != "" && len(b.Owner) <= maxName && b.From.valid() && (!b.MustRollBack || b.RollBackTo.valid())
}

// check looks at what does not depend on the state.
func (b *Begin) check() error {
	switch {
	case b.Owner == "" || len(b.Owner) > maxName:
		return badArgument("Begin.Owner", strconv.Quote(b.Owner), "1 to 1024 bytes")
	case !b.From.valid():
		return badArgument("Begin.From", b.From, "Next below 2^64-1, SnapStart <= SnapEnd")
	case b.MustRollBack && !b.RollBackTo.valid():
		return badArgument("Begin.RollBackTo", b.RollBackTo, "Next below 2^64-1, SnapStart <= SnapEnd")
	}
	return nil
}

// replacedBy tells whether a claim of that term ends this one.
func (c *claimFacts) replacedBy(term uint64) bool { return c.term != 0 && term > c.term }

// begin lists a new claim, whose facts it fills in. The usual one, of an idle partition by a claimant that is known, is done
// here, without a further call.
func (k *core) begin(i int, b *Begin, c *claimFacts) error {
	if uint(i) >= uint(len(k.parts)) || !b.good() {
		return k.badBegin(i, b)
	}
	p := &k.parts[i]
	who := k.claimants[0]
	if p.state != Idle || who == nil || !who.says(b) || b.Term != 0 && b.Term != k.maxTerm || !k.quiet(p) {
		return k.beginAny(i, p, b, c)
	}
	k.claims++
	c.claimant, c.name = who, nameClaim(k.claims, i)
	k.lift(i, p, &b.From)
	p.claim.facts, p.claim.next = c, b.From.Next
	p.forgetLast()
	p.state, p.at = Begun, noAlarm
	k.changed()
	return nil
}

// says tells whether a begin is by this claimant, by its owner's being the same string, not one with the same bytes: that needs
// no call, and one that it misses is found by known.
func (c *claimant) says(b *Begin) bool {
	return c.term == b.Term && len(c.owner) == len(b.Owner) && unsafe.StringData(c.owner) == unsafe.StringData(b.Owner) && !b.MustRollBack
}

// beginAny is begin of whatever partition, by whomever.
func (k *core) beginAny(i int, p *partition, b *Begin, c *claimFacts) error {
	to, usual := k.usualBegin(p, b)
	if !usual {
		var err error
		if to, err = k.mayBegin(i, p, b); err != nil {
			return err
		}
	}
	who := k.known(b)
	if who == nil {
		who = k.newClaimant(b)
	}
	k.claims++
	c.claimant, c.name = who, nameClaim(k.claims, i)
	if !b.MustRollBack {
		k.lift(i, p, &b.From)
	}
	if to == Begun {
		p.claim.facts, p.claim.next = c, b.From.Next
		p.forgetLast()
	} else {
		x := p.extra()
		x.more = append(x.more, claim{c, b.From.Next})
	}
	if k.quiet(p) {
		k.pass(p, to)
	} else {
		k.step(i, evBegin, facts{rung: p.rung}, to)
	}
	return nil
}

func (k *core) badBegin(i int, b *Begin) error {
	if err := k.inRange(i); err != nil {
		return err
	}
	return b.check()
}

// usualBegin is where a begin leads that is the first, or the second by another owner, and of no new term.
func (k *core) usualBegin(p *partition, b *Begin) (to PartitionState, usual bool) {
	switch {
	case b.Term != 0 && b.Term != k.maxTerm:
		return 0, false
	case p.state == Idle:
		return Begun, true
	case p.state == Begun:
		c := p.claim.facts
		return Contested, c.owner != b.Owner && !c.replacedBy(b.Term)
	default:
		return 0, false
	}
}

// mayBegin looks for what is in the way of a begin. If it is nothing, the claims that it replaces end.
func (k *core) mayBegin(i int, p *partition, b *Begin) (PartitionState, error) {
	stay, other := p.rivals(b)
	f := facts{is: given(b.Term != 0 && b.Term < k.maxTerm, isStale) | given(other != 0, isDuplicate), rung: p.rung, stay: stay}
	to, why := nextPartition(p.state, evBegin, f)
	if why != 0 {
		return to, &PartitionError{
			Key: k.key, Partition: int32(i), Op: OpBegin, Reason: why, State: p.state, Claim: other, Given: b.Term, Want: k.maxTerm,
		}
	}
	if b.Term != 0 {
		k.maxTerm = b.Term
		if p.countLive() > int(stay) {
			k.dropReplaced(p, b.Term)
		}
	}
	return to, nil
}

// known is who claims, nil if it is none of those that are remembered.
func (k *core) known(b *Begin) *claimant {
	if b.MustRollBack {
		return nil
	}
	for i := range k.claimants {
		if c := k.claimants[i]; c != nil && c.term == b.Term && c.owner == b.Owner {
			return c
		}
	}
	return nil
}

func (k *core) newClaimant(b *Begin) *claimant {
	c := &claimant{owner: b.Owner, term: b.Term, home: k.home}
	if b.MustRollBack {
		to := b.RollBackTo
		c.rollTo = &to
		return c
	}
	k.claimants[k.turn%uint8(len(k.claimants))] = c
	k.turn++
	return c
}

// rivals are, of the live claims that a begin does not replace, those that stay beside it, and the one that it duplicates.
func (p *partition) rivals(b *Begin) (stay int32, duplicated ClaimID) {
	if p.state.live() {
		stay, duplicated = p.claim.facts.rival(b)
	}
	if p.state == Contested {
		for i := range p.x.more {
			more, same := p.x.more[i].facts.rival(b)
			stay, duplicated = stay+more, max(duplicated, same)
		}
	}
	return stay, duplicated
}

func (c *claimFacts) rival(b *Begin) (stay int32, duplicated ClaimID) {
	switch {
	case c.replacedBy(b.Term):
		return 0, 0
	case c.owner == b.Owner:
		return 0, c.id()
	default:
		return 1, 0
	}
}

// dropReplaced ends the claims that a higher term replaces.
func (k *core) dropReplaced(p *partition, term uint64) {
	var kept []claim
	for l := range p.live {
		if l.facts.replacedBy(term) {
			k.endClaim(l.facts, causeReplaced)
		} else {
			kept = append(kept, *l)
		}
	}
	if p.state == Contested {
		clear(p.x.more)
		p.x.more = p.x.more[:0]
	}
	if len(kept) > 0 {
		p.claim = kept[0]
		if len(kept) > 1 {
			p.x.more = append(p.x.more, kept[1:]...)
		}
	}
}

// forgetLast forgets who could be listed beside the claim.
func (p *partition) forgetLast() {
	if p.x != nil && p.x.last != nil {
		p.x.last = nil
	}
}

// lift moves what is received to where a claim begins, if that is above it.
func (k *core) lift(i int, p *partition, from *Position) {
	if !p.received.present() || from.Next > p.received.Next {
		k.receive(i, p, *from)
	}
}

// receive moves what is received.
func (k *core) receive(i int, p *partition, pos Position) {
	p.received = pos
	k.dirty[i>>(chunkShift+6)] |= 1 << (i >> chunkShift & 63)
}

// EndKind is how a claim ends.
type EndKind uint8

// The ways of ending.
const (
	HandOver EndKind = iota // in good order: a successor is expected
	Failed                  // it cannot go on: the partition is to be repaired

	numEndKinds = iota
)

var endNames = [numEndKinds]string{"hand-over", "failed"}

// String is the name in lower case.
func (e EndKind) String() string { return nameOf(endNames[:], int(e), "end") }

// end ends a claim; the end of one that is listed for shutdown is its shutdown.
func (k *core) end(c *claimFacts, kind EndKind) error {
	p := &k.parts[c.part()]
	switch {
	case kind != HandOver || !k.quiet(p):
		return k.endAny(p, c, kind)
	case p.state == Begun && p.claim.facts == c:
		k.endClaim(c, causeHandedOver)
		k.pass(p, Idle)
		return nil
	case p.leave(c):
		k.endClaim(c, causeHandedOver)
		k.pass(p, Begun)
		return nil
	default:
		return k.endAny(p, c, kind)
	}
}

// endAny is end of whatever claim, in whatever way.
func (k *core) endAny(p *partition, c *claimFacts, kind EndKind) error {
	e, why := evEndHandOver, causeHandedOver
	switch kind {
	case HandOver:
	case Failed:
		e, why = evEndFailed, causeFailed
	default:
		if k.lives(c) || slices.Contains(p.listed(), c) {
			return badArgument("kind", kind, "HandOver or Failed")
		}
	}
	f := k.claimEvent(p, c)
	to, refusal := nextPartition(p.state, e, f)
	if refusal != 0 {
		return k.staleClaim(OpEnd, c)
	}
	if f.has(isLive) {
		k.remove(p, c, why)
	} else {
		p.strike(c)
	}
	k.step(int(c.part()), e, f, to)
	return nil
}

// leave takes a live claim out that is one of two.
func (p *partition) leave(c *claimFacts) bool {
	if p.state != Contested || len(p.x.more) != 1 {
		return false
	}
	other := &p.x.more[0]
	if p.claim.facts == c {
		p.claim = *other
	} else if other.facts != c {
		return false
	}
	*other = claim{}
	p.x.more = p.x.more[:0]
	return true
}

// claimEvent are the facts of an event of one claim.
func (k *core) claimEvent(p *partition, c *claimFacts) facts {
	f := facts{rung: p.rung, is: given(p.flags&flagTried != 0, wasTried)}
	switch {
	case p.state == Begun && p.claim.facts == c:
		f.is |= isLive
	case p.state.live():
		if k.lives(c) {
			f.is |= isLive
			f.stay = int32(p.countLive() - 1)
		}
	case slices.Contains(p.listed(), c):
		f.is |= isListed
		f.left = int32(len(p.x.listed) - 1)
	}
	return f
}

// remove ends one live claim. The last one stays noted, as what could be listed.
func (k *core) remove(p *partition, c *claimFacts, why *ending) {
	k.endClaim(c, why)
	if p.state == Begun {
		return
	}
	x := p.x
	more := x.more
	at := 0
	if p.claim.facts == c {
		p.claim = more[0]
	} else {
		at = slices.IndexFunc(more, func(l claim) bool { return l.facts == c })
	}
	copy(more[at:], more[at+1:])
	x.more[len(more)-1] = claim{}
	x.more = x.more[:len(x.more)-1]
}

// removeAll ends every live claim of a partition, noted as the last claimants.
func (k *core) removeAll(p *partition, why *ending) {
	for l := range p.live {
		k.endClaim(l.facts, why)
	}
	if p.state == Contested {
		for _, l := range p.x.more {
			p.x.last = append(p.x.last, l.facts)
		}
		clear(p.x.more)
		p.x.more = p.x.more[:0]
	}
}

// strike takes a claim off the list.
func (p *partition) strike(c *claimFacts) {
	p.x.listed = slices.DeleteFunc(p.x.listed, func(l *claimFacts) bool { return l == c })
}

// list puts every live claim on the list, or the last claimants if there is none, and ends the live ones.
func (k *core) list(p *partition) {
	x := p.extra()
	if p.state.live() {
		k.removeAll(p, causeFenced)
	}
	listed := []*claimFacts{p.claim.facts}
	listed = append(listed, x.last...)
	p.forgetClaims()
	x.listed = listed
}

// release gives a partition up from within its claim; handle resolves when no running flush covers the partition.
func (k *core) release(c *claimFacts, h *Handle) {
	p := &k.parts[c.part()]
	f := k.claimEvent(p, c)
	to, _ := nextPartition(p.state, evRelease, f) // the gate has seen that the claim is live
	k.remove(p, c, causeReleased)
	if to == Unwanted {
		k.giveUp(int(c.part()), p)
	}
	k.step(int(c.part()), evRelease, f, to)
	k.awaitRelease(int(c.part()), h)
}

// fence lists every live claim of the partition for shutdown.
func (k *core) fence(c *claimFacts, why *ending) {
	p := &k.parts[c.part()]
	f := k.claimEvent(p, c)
	to, _ := nextPartition(p.state, evFence, f) // the gate has seen that the claim is live
	x := p.extra()
	for l := range p.live {
		k.endClaim(l.facts, why)
		x.last = append(x.last, l.facts)
	}
	listed := x.last
	x.more = nil
	p.forgetClaims()
	x.listed = listed
	k.step(int(c.part()), evFence, f, to)
}

// beginFailed takes an owner's word that its begin failed.
func (k *core) beginFailed(i int, owner string) error {
	if err := k.inRange(i); err != nil {
		return err
	}
	if owner == "" || len(owner) > maxName {
		return badArgument("owner", strconv.Quote(owner), "1 to 1024 bytes")
	}
	p := &k.parts[i]
	f := facts{rung: p.rung}
	to, why := nextPartition(p.state, evBeginFailed, f)
	if why != 0 {
		return &PartitionError{Key: k.key, Partition: int32(i), Op: OpBeginFailed, Reason: why, State: p.state}
	}
	k.step(i, evBeginFailed, f, to)
	return nil
}

// ownerGone ends all claims of an owner, and strikes it off every list. It returns how many live claims ended.
func (k *core) ownerGone(owner string, why *ending) (ended int, err error) {
	if owner == "" || len(owner) > maxName {
		return 0, badArgument("owner", strconv.Quote(owner), "1 to 1024 bytes")
	}
	for i := range k.parts {
		if k.ownerLeft(i, &k.parts[i], owner, why) {
			ended++
		}
	}
	return ended, nil
}

func (k *core) ownerLeft(i int, p *partition, owner string, why *ending) (ended bool) {
	if p.claim.facts == nil && p.x == nil {
		return false
	}
	for l := range p.live {
		if c := l.facts; c.owner == owner {
			f := k.claimEvent(p, c)
			to, _ := nextPartition(p.state, evOwnerGone, f)
			k.remove(p, c, why)
			if f.stay == 0 {
				p.claim = claim{} // it will not be asked to shut down
			}
			k.step(i, evOwnerGone, f, to)
			return true
		}
	}
	if !p.state.live() {
		k.strikeOwner(i, p, owner)
	}
	return false
}

// strikeOwner takes an owner off the list, and out of what could be listed.
func (k *core) strikeOwner(i int, p *partition, owner string) {
	is := func(c *claimFacts) bool { return c.owner == owner }
	if p.x != nil {
		p.x.last = slices.DeleteFunc(p.x.last, is)
	}
	if p.claim.facts != nil && is(p.claim.facts) {
		p.claim = claim{}
		if p.x != nil && len(p.x.last) > 0 {
			p.claim.facts, p.x.last = p.x.last[0], p.x.last[1:]
		}
	}
	at := slices.IndexFunc(p.listed(), is)
	if at < 0 {
		return
	}
	f := facts{rung: p.rung, is: isListed, left: int32(len(p.x.listed) - 1)}
	to, _ := nextPartition(p.state, evOwnerGone, f)
	p.strike(p.x.listed[at])
	if p.state == Fenced {
		k.step(i, evOwnerGone, f, to)
	}
}
