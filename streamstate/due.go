package streamstate

import "time"

// workKind is what a ticket of repair is for.
type workKind uint8

const (
	workRestart workKind = iota
	workShutDown
	workResubscribe
	workRecover

	numWorkKinds = iota
)

var workNames = [numWorkKinds]string{"restart", "shut-down", "resubscribe", "recover"}

func (w workKind) String() string { return nameOf(workNames[:], int(w), "work") }

// ticket is repair that was handed out. It does not change while it is out; its identity is its address.
type ticket struct {
	id      uint64
	kind    workKind
	part    int           // -1: of the session
	from    Position      // restart
	claims  []*claimFacts // shut down
	restart Timestamp     // recover
	life    *ending       // the gate's
	since   time.Time
	tries   uint8         // of the partition, before this one
	within  time.Duration // how long it may be unanswered
}

// dueWork hands out what repair must do now: at most one ticket of the session, else one for each partition that has none.
// While one of the session is out nothing else is due, the recovery of a claim that must roll back to zero included: the
// source is closing all streams to open them anew, and two answers about the session would contradict each other. The ticket's
// end, which its deadline sees to, has who waits look again.
func (k *core) dueWork() []*ticket {
	switch {
	case k.phase != Active || k.ticket != nil:
		return nil
	case k.recoverDue():
		if k.retryAt != noAlarm {
			return nil
		}
		return []*ticket{k.takeRecover()}
	case k.resubscribeDue():
		return []*ticket{k.takeResubscribe()}
	}
	var out []*ticket
	for i, p := range k.wantedParts {
		if p.ticket() != nil || p.rung > RungShutDown {
			continue
		}
		switch p.state {
		case Due:
			p.try()
			out = append(out, k.takePartition(i, p, &ticket{kind: workRestart, from: p.received}))
		case Fenced:
			claims := append([]*claimFacts(nil), p.x.listed...)
			out = append(out, k.takePartition(i, p, &ticket{kind: workShutDown, claims: claims}))
		case Unwanted, Idle, Begun, Contested:
		}
	}
	return out
}

func (k *core) takePartition(i int, p *partition, t *ticket) *ticket {
	t.part, t.tries = i, p.tries
	p.tries = min(p.tries+1, maxTries)
	p.flags &^= flagAccepted
	k.issue(t)
	p.extra().ticket = t
	k.arm(&p.at, alarmTicket)
	return t
}

func (k *core) issue(t *ticket) {
	k.tickets++
	t.id, t.within = k.tickets, time.Duration(k.lim.lengths[alarmTicket])
	k.event(Event{Kind: TicketIssued, Ticket: t.id, Partition: t.part, Work: t.kind.String()})
	k.changed()
}

// recoverDue: a live claim must roll back to zero; all wanted have begun and one must roll back; or by rung.
func (k *core) recoverDue() bool {
	begun, back := true, false
	for _, p := range k.wantedParts {
		if p.rung == RungRecover && (p.state == Due || p.state == Fenced) {
			return true
		}
		begun = begun && p.state.live()
		for l := range p.live {
			if to := l.facts.rollTo; to != nil {
				if back = true; to.Next == 0 {
					return true
				}
			}
		}
	}
	return begun && back
}

func (k *core) resubscribeDue() bool {
	for _, p := range k.wantedParts {
		if p.rung == RungResubscribe && (p.state == Due || p.state == Fenced) {
			return true
		}
	}
	return false
}

func (k *core) takeRecover() *ticket {
	t := &ticket{kind: workRecover, part: -1, restart: lower(k.flushed, k.rollbacks(), len(k.parts))}
	for _, p := range k.wantedParts {
		if old := p.ticket(); old != nil {
			k.endTicket(old, causeRecovering)
			p.at = noAlarm
		}
	}
	return k.takeSession(t)
}

func (k *core) takeResubscribe() *ticket {
	t := k.takeSession(&ticket{kind: workResubscribe, part: -1})
	for i, p := range k.wantedParts {
		f := facts{rung: p.rung}
		to, _ := nextPartition(p.state, evResubscribeTaken, f)
		k.removeAll(p, causeResubscribed)
		k.step(i, evResubscribeTaken, f, to)
		p.forgetClaims()
		p.try()
	}
	return t
}

// try notes that this rung's repair is tried, and untry that the ticket that is out was given back before it was: it does
// not count, so a claim that fails after it is no reason to climb.
func (p *partition) try() {
	if p.flags&flagTried == 0 {
		p.flags |= flagTried | flagFirst
	}
}

func (p *partition) untry() {
	if p.flags&flagFirst != 0 {
		p.flags &^= flagTried | flagFirst
	}
}

func (k *core) takeSession(t *ticket) *ticket {
	k.ticket = t
	k.issue(t)
	k.arm(&k.ticketAt, alarmTicket)
	return t
}

// rollbacks is where live claims said to roll back to.
func (k *core) rollbacks() Timestamp {
	var e editor
	for i, p := range k.wantedParts {
		least := absent
		for l := range p.live {
			if to := l.facts.rollTo; to != nil && (!least.present() || to.Next < least.Next) {
				least = *to
			}
		}
		if least.present() {
			if e.from == nil {
				e = Timestamp{}.edit(len(k.parts))
			}
			e.set(i, least)
		}
	}
	return e.done()
}

// lower is flushed, lowered where a roll-back goes further down. Rolled back to zero is said even of what was never
// flushed: the two are not the same (S33).
func lower(flushed, rollback Timestamp, n int) Timestamp {
	e := flushed.edit(n)
	for i, to := range rollback.All() {
		if pos := flushed.at(i); to.Next == 0 || pos.present() && to.Next < pos.Next {
			e.set(i, to)
		}
	}
	return e.done()
}

// live tells whether a ticket is still out.
func (k *core) out(t *ticket) bool {
	if t.part < 0 {
		return k.ticket == t
	}
	return t.part < len(k.parts) && k.parts[t.part].ticket() == t
}

// checkTicket refuses a reply of a ticket that has ended.
func (k *core) checkTicket(t *ticket) error {
	if !k.out(t) {
		return &TicketError{Key: k.key, Reason: ReasonSuperseded, Op: OpReply, Ticket: t.id, Cause: t.life.error()}
	}
	return nil
}

// endTicket ends a ticket that is out. Its deadline is the caller's affair.
func (k *core) endTicket(t *ticket, why *ending) {
	if t.part < 0 {
		k.ticket, k.ticketAt = nil, noAlarm
		for i := range k.parts {
			k.parts[i].flags &^= flagFirst
		}
	} else {
		p := &k.parts[t.part]
		p.x.ticket = nil
		p.flags &^= flagFirst
	}
	k.more().tickets = append(k.more().tickets, ticketEnd{t, why})
	k.event(Event{Kind: TicketEnded, Ticket: t.id, Partition: t.part, Work: t.kind.String(), Cause: why.error()})
	k.changed()
}

// acceptRestart re-arms a restart's deadline for the begin that is to follow.
func (k *core) acceptRestart(t *ticket, pending bool) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	p := &k.parts[t.part]
	if p.flags&flagAccepted != 0 {
		return &TicketError{Key: k.key, Reason: ReasonSuperseded, Op: OpReply, Ticket: t.id, Cause: ErrResolved}
	}
	p.flags |= flagAccepted
	what := alarmBegin
	if pending {
		what = alarmPending
	}
	k.step(t.part, evRestartAccepted, facts{rung: p.rung}, Due)
	k.arm(&p.at, what)
	return nil
}

// refuseRestart climbs the ladder.
func (k *core) refuseRestart(t *ticket) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	p := &k.parts[t.part]
	f := facts{rung: p.rung, is: given(p.hasLast(), hasLast)}
	to, _ := nextPartition(p.state, evRestartRefused, f) // a live ticket of this kind is of a partition that is due
	if to == Fenced {
		k.list(p)
	}
	k.step(t.part, evRestartRefused, f, to)
	return nil
}

// shutDown strikes a claim off the list.
func (k *core) shutDown(t *ticket, id ClaimID) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	p := &k.parts[t.part]
	for _, c := range p.x.listed {
		if c.id() == id {
			f := facts{rung: p.rung, is: isListed, left: int32(len(p.x.listed) - 1)}
			to, _ := nextPartition(p.state, evShutDown, f)
			p.strike(c)
			k.step(t.part, evShutDown, f, to)
			return nil
		}
	}
	return &TicketError{Key: k.key, Reason: ReasonSuperseded, Op: OpReply, Ticket: t.id, Cause: ErrResolved}
}

func (k *core) shutDownFailed(t *ticket) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	k.step(t.part, evShutDownFailed, facts{rung: k.parts[t.part].rung}, Fenced)
	return nil
}

// resubscribed arms the deadlines of the begins that are to follow.
func (k *core) resubscribed(t *ticket) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	k.endTicket(t, causeResolved)
	for i, p := range k.wantedParts {
		if p.state == Idle {
			k.step(i, evResubscribed, facts{rung: p.rung}, Idle)
		}
	}
	return nil
}

// abandon ends a ticket without an answer: what it asked for is due again.
func (k *core) abandon(t *ticket) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	if t.part >= 0 {
		p := &k.parts[t.part]
		p.tries = t.tries
		if p.flags&flagAccepted == 0 { // else the source will begin
			p.untry()
		}
		k.step(t.part, evAbandoned, facts{rung: p.rung}, p.state)
		return nil
	}
	if t.kind == workResubscribe {
		for _, p := range k.wantedParts {
			p.untry()
		}
	}
	k.endTicket(t, causeAbandoned)
	if t.kind == workRecover {
		return nil
	}
	for i, p := range k.wantedParts {
		f := facts{rung: p.rung}
		to, _ := nextPartition(p.state, evAbandoned, f)
		if to != p.state {
			k.step(i, evAbandoned, f, to)
		}
	}
	return nil
}

// failed ends a ticket of the session that could not be done.
func (k *core) failed(t *ticket) error {
	if err := k.checkTicket(t); err != nil {
		return err
	}
	k.failTicket(t, causeResolved)
	return nil
}

// failTicket has a resubscribe climb, and a recovery due again later.
func (k *core) failTicket(t *ticket, why *ending) {
	k.endTicket(t, why)
	if t.kind == workRecover {
		k.arm(&k.retryAt, alarmRetry)
		return
	}
	for i, p := range k.wantedParts {
		if p.state.live() {
			continue
		}
		f := facts{rung: p.rung}
		to, _ := nextPartition(p.state, evResubscribeFailed, f)
		k.step(i, evResubscribeFailed, f, to)
	}
}
