package streamstate

import "slices"

// setup is what a session begins with.
type setup struct {
	session uint64
	pending bool
	restart Timestamp
	wanted  func(int) bool
}

// open begins the first session of a record that nobody has seen yet.
func (k *core) open(s setup) {
	k.beginSession(s)
}

// beginSession makes everything that is of a session anew.
func (k *core) beginSession(s setup) {
	k.session, k.id, k.cause = s.session, k.lim.id(s.session), nil
	k.maxTerm, k.draining = 0, false
	clear(k.claimants[:])
	k.received, k.rollback = Timestamp{}, Timestamp{}
	k.stopped = nil
	k.retryAt = noAlarm
	seeded := s.restart.v != nil // else both vectors stay zero, which costs nothing
	flushed, rest := editor{from: s.restart.v}, editor{from: s.restart.v}
	to := Active
	if s.pending {
		to = Opening
	}
	clear(k.dirty)
	k.enterPhase(to)
	for i := range k.parts {
		p := &k.parts[i]
		*p = partition{received: absent}
		if !s.wanted(i) {
			if seeded {
				flushed.set(i, absent)
			}
			continue
		}
		p.state = Idle
		if pos := s.restart.at(i); pos.present() {
			k.receive(i, p, pos)
			rest.set(i, absent)
		}
		k.arm(&p.at, alarmBegin)
	}
	k.flushed, k.restart = Timestamp{}, Timestamp{}
	if seeded {
		k.flushed, k.restart = flushed.done(), rest.done()
	}
}

// opened makes the session active: begins are expected from now on.
func (k *core) opened() {
	k.enterPhase(Active)
	for _, p := range k.wantedParts {
		switch {
		case p.state == Idle:
			k.arm(&p.at, alarmBegin)
		case p.state == Contested:
			k.arm(&p.at, alarmHandOver)
		case p.state == Begun && p.repaired():
			k.arm(&p.at, alarmStable)
		}
	}
}

// stop ends the session for its users. Its handle resolves when its last flush has ended.
func (k *core) stop(why *ending, drain bool) *Handle {
	switch k.phase {
	case Opening, Active:
		k.stopped = newHandle()
		k.endSession(why)
		k.draining = drain
		if k.flush == nil {
			k.rest()
			break
		}
		k.enterPhase(Stopping)
		if !drain {
			k.cancelFlush()
		}
	case Stopping:
		if k.draining && !drain {
			k.draining = false
			k.cancelFlush()
			k.changed()
		}
	case Stopped, Closing, Gone:
	}
	return k.stopped
}

// rest is the end of stopping.
func (k *core) rest() {
	k.enterPhase(Stopped)
	k.resolve(k.stopped, nil)
}

// drop ends the record, whichever session it is in.
func (k *core) drop(why *ending) *Handle {
	if k.dropped == nil {
		k.dropped = newHandle()
	}
	switch k.phase {
	case Opening, Active:
		k.endSession(why)
	case Stopping:
		k.cause = why
		k.resolve(k.stopped, &EndedError{What: "stop", Cause: why.err})
	case Stopped:
		k.cause = why
	case Closing, Gone:
		return k.dropped
	}
	k.more().session = why
	k.draining = false
	if k.flush == nil {
		k.vanish()
	} else {
		k.enterPhase(Closing)
		k.cancelFlush()
	}
	return k.dropped
}

// vanish erases the record. A handle to it costs a few words from here on.
func (k *core) vanish() {
	k.enterPhase(Gone)
	k.parts, k.dirty = nil, nil
	k.received, k.flushed, k.restart, k.rollback = Timestamp{}, Timestamp{}, Timestamp{}, Timestamp{}
	k.more().gone = true
	k.resolve(k.dropped, nil)
}

// endSession ends all that hangs on the session but a running flush: claims, tickets, holds, waiters.
func (k *core) endSession(why *ending) {
	k.cause = why
	k.rollback = k.rollbacks()
	for i, p := range k.wantedParts {
		for l := range p.live {
			k.endClaim(l.facts, why)
		}
		if t := p.ticket(); t != nil {
			k.endTicket(t, why)
		}
		from := p.state
		p.state, p.rung, p.at, p.tries = Idle, RungRestart, noAlarm, 0
		if from != Idle {
			k.report(i, from, Idle)
		}
	}
	for i := range k.parts {
		p := &k.parts[i]
		p.claim, p.x = claim{}, nil
		p.flags &= flagCovered | flagBroken
	}
	if k.ticket != nil {
		k.endTicket(k.ticket, why)
	}
	k.retryAt = noAlarm
	k.merging = 0
	for _, h := range k.holds {
		h.cause = why
	}
	k.more().holds = append(slices.Clone(k.taken), k.holds...)
	k.holds, k.taken = nil, nil
	k.more().session = why
	k.changed()
}

// reopenRestart is where the next session starts if its opener says nothing: what is flushed, lowered where a live claim
// said roll back.
func (k *core) reopenRestart() Timestamp {
	e := lower(k.flushed, k.rollback, len(k.parts)).edit(len(k.parts))
	for i := range k.parts {
		if k.parts[i].state == Unwanted || k.parts[i].flags&flagForget != 0 {
			e.set(i, absent)
		}
	}
	return e.done()
}

// reopen begins the next session of a stopped one. What is wanted stays so.
func (k *core) reopen(session uint64, pending bool, restart Timestamp) {
	wanted := make([]bool, len(k.parts))
	for i := range wanted {
		wanted[i] = k.parts[i].state != Unwanted
	}
	k.beginSession(setup{session: session, pending: pending, restart: restart, wanted: func(i int) bool { return wanted[i] }})
}
