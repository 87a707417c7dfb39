package streamstate

import (
	"encoding/binary"
	"fmt"
)

// appendState appends all that the core's further answers depend on, and nothing else: not the counts of refusals, not
// how memory is laid out.
func (k *core) appendState(b []byte) []byte { return appendCause(k.appendFacts(b), k.cause.error()) }

// appendCause appends why the session ended. The text may be the caller's: it is not to be asked for in a hold.
func appendCause(b []byte, cause error) []byte {
	if cause == nil {
		return append(b, 0)
	}
	return append(append(b, 1), cause.Error()...)
}

// appendFacts is appendState without the cause.
func (k *core) appendFacts(b []byte) []byte {
	u := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
	}
	s := func(text string) {
		u(uint64(len(text)))
		b = append(b, text...)
	}
	position := func(p Position) {
		if !p.present() {
			u(0)
			return
		}
		u(1, p.Next, p.Branch, p.SnapStart, p.SnapEnd)
	}
	facts := func(c *claimFacts) {
		if c == nil {
			u(0)
			return
		}
		u(uint64(c.id()), c.term)
		s(c.owner)
		if c.rollTo != nil {
			position(*c.rollTo)
		} else {
			u(9)
		}
	}
	listing := func(cs []*claimFacts) {
		u(uint64(len(cs)))
		for _, c := range cs {
			facts(c)
		}
	}
	clock := func(a alarm) { u(uint64(a)) }
	out := func(t *ticket) {
		if t == nil {
			u(0)
			return
		}
		u(t.id, uint64(t.kind), uint64(t.tries))
	}

	u(uint64(k.phase), oneIf(k.draining), k.session, uint64(k.claims), k.maxTerm, k.tickets, k.merging, uint64(len(k.parts)))
	out(k.ticket)
	clock(k.ticketAt)
	clock(k.retryAt)
	if k.flush != nil {
		u(1, k.flush.id)
	}
	u(0, uint64(len(k.releases)))
	for _, r := range k.releases {
		u(uint64(r.part))
	}
	for _, hs := range [...][]*hold{k.holds, k.taken} {
		u(uint64(len(hs)))
		for _, h := range hs {
			u(h.id)
		}
	}
	for i := range k.parts {
		p := &k.parts[i]
		u(uint64(p.state), uint64(p.rung), uint64(p.flags&^flagBatch), uint64(p.tries))
		clock(p.at)
		position(p.received)
		position(k.flushed.at(i))
		position(k.restart.at(i))
		position(k.rollback.at(i))
		if k.flush != nil {
			position(k.flush.target.at(i))
		}
		u(uint64(p.countLive()))
		for l := range p.live {
			facts(l.facts)
			u(l.next)
		}
		listing(p.listed())
		listing(p.lastClaimants())
		out(p.ticket())
	}
	return b
}

func oneIf(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// check verifies the invariants.
func (k *core) check() error {
	for i := range k.parts {
		if err := k.checkPartition(i, &k.parts[i]); err != nil {
			return fmt.Errorf("bug: partition %d (%v): %w", i, k.parts[i].state, err)
		}
	}
	session := k.phase == Opening || k.phase == Active
	switch {
	case k.phase == Gone && k.parts != nil:
		return fmt.Errorf("bug: gone, with a ledger")
	case k.phase != Gone && k.phase != Closing && session == (k.cause != nil):
		return fmt.Errorf("bug: %v, has a cause: %v", k.phase, k.cause != nil)
	case !session && (k.ticket != nil || len(k.taken)+len(k.holds) > 0 || k.merging != 0):
		return fmt.Errorf("bug: %v with a ticket, hold or merge", k.phase)
	case k.ticket != nil && k.phase != Active:
		return fmt.Errorf("bug: %v with a session ticket", k.phase)
	case (k.phase == Stopping || k.phase == Closing) != (!session && k.flush != nil):
		return fmt.Errorf("bug: %v, flush running is %v", k.phase, k.flush != nil)
	case len(k.releases) > 0 && k.flush == nil:
		return fmt.Errorf("bug: releases wait for no flush")
	}
	return nil
}

// checkPartition verifies what holds for one partition; see the invariants in docs/DESIGN.md.
func (k *core) checkPartition(i int, p *partition) error {
	if err := k.checkClaims(p); err != nil {
		return err
	}
	active := k.phase == Active
	t := p.ticket()
	resubscribing := k.ticket != nil && k.ticket.kind == workResubscribe
	switch {
	case p.state == Fenced && len(p.listed()) == 0:
		return fmt.Errorf("nobody is listed")
	case p.state != Fenced && p.state != Unwanted && len(p.listed()) > 0:
		return fmt.Errorf("%d are listed", len(p.listed()))
	case t != nil && k.ticket != nil:
		return fmt.Errorf("ticket %d beside ticket %d of the session", t.id, k.ticket.id)
	case t != nil && p.state != Due && p.state != Fenced:
		return fmt.Errorf("ticket %d", t.id)
	case active && p.state == Idle && p.at == noAlarm && !resubscribing && k.arms(alarmBegin, alarmHandOver):
		return fmt.Errorf("no deadline")
	case active && p.state == Contested && p.at.what() != alarmHandOver && k.arms(alarmHandOver):
		return fmt.Errorf("no deadline")
	case t != nil && p.at == noAlarm && k.arms(alarmTicket, alarmBegin, alarmPending):
		return fmt.Errorf("ticket %d without a deadline", t.id)
	case !active && p.at != noAlarm:
		return fmt.Errorf("a deadline for %v while %v", p.at.what(), k.phase)
	case p.flags&flagCovered != 0 && k.flush == nil:
		return fmt.Errorf("covered by no flush")
	case p.flags&flagBatch != 0:
		return fmt.Errorf("named by a batch")
	}
	flushed := k.flushed.at(i)
	if flushed.present() && (!p.received.present() || flushed.Next > p.received.Next) {
		return fmt.Errorf("flushed %v, received %v", flushed, p.received)
	}
	return nil
}

func (k *core) checkClaims(p *partition) error {
	live := 0
	owners := make(map[string]bool)
	for l := range p.live {
		live++
		switch {
		case l.facts == nil:
			return fmt.Errorf("a claim of nobody")
		case owners[l.facts.owner]:
			return fmt.Errorf("two claims of %q", l.facts.owner)
		case l.facts.rollTo == nil && (!p.received.present() || l.next > p.received.Next):
			return fmt.Errorf("claim %d is at %d, received %v", l.facts.id(), l.next, p.received)
		}
		owners[l.facts.owner] = true
	}
	if p.state == Contested && live < 2 || p.x != nil && p.state != Contested && len(p.x.more) > 0 {
		return fmt.Errorf("%d live claims", live)
	}
	return nil
}

// arms tells whether deadlines of these kinds are armed at all.
func (k *core) arms(kinds ...alarmKind) bool {
	for _, a := range kinds {
		if k.lim.lengths[a] < 0 {
			return false
		}
	}
	return true
}
