package jobtracker

import "math/bits"

// agreement is a reconciliation that goes on: these replicas are being made equal before the activation begins.
type agreement struct {
	ticket  uint64 // 0: none goes on
	members uint8
}

// Participant is a replica that takes part in a reconciliation, and what its hello said.
type Participant struct {
	Replica    int
	Generation uint64
	Flush      uint64
	Dirty      bool
	Blank      bool // it has nothing, or was replaced: all of it is copied, and it does not count
}

// startAgreement begins a reconciliation of the replicas that are here. A former one is ended.
func (c *core) startAgreement() (ticket uint64, ps []Participant, err error) {
	if c.phase != Activating || c.mode.Create {
		return 0, nil, &PhaseError{Call: "reconcile", Phase: c.phase, Cause: c.cause}
	}
	if c.mode.ReadOnly {
		return 0, nil, ErrReadOnly
	}
	counted := 0
	for r := range c.lim.n {
		rep := &c.reps[r]
		if rep.state.Phase != Fresh {
			continue
		}
		p := Participant{
			Replica: r, Generation: rep.hello.generation, Flush: rep.hello.flush, Dirty: rep.dirty,
			Blank: rep.blank || rep.state.Home == HomeReplaced,
		}
		if !p.Blank {
			counted++
		}
		ps = append(ps, p)
	}
	if need := c.lim.n - c.lim.quorum + 1; counted < need || len(ps) < c.lim.quorum {
		return 0, nil, &TooFewError{Counted: counted, Need: need, Here: len(ps), Quorum: c.lim.quorum}
	}
	c.endAgreement(ErrSuperseded)
	c.ticket++
	c.flushes++ // what they will remember is unlike anything that another reconciliation may have left somewhere
	c.agree.ticket = c.ticket
	for _, p := range ps {
		c.agree.members |= 1 << p.Replica
	}
	return c.ticket, ps, nil
}

// agreed begins the activation with the participants, which hold the same by now, durably, and say so (R16).
func (c *core) agreed(ticket uint64) error {
	if c.agree.ticket != ticket {
		return ErrSuperseded
	}
	members := c.agree.members
	c.top = version{c.generation, c.flushes}
	for r := range replicas(members) {
		rep := &c.reps[r]
		rep.hello, rep.blank, rep.dirty = c.top, false, false
		rep.flushed, rep.told, rep.noted = c.flushes, c.flushes, c.flushes
	}
	c.endAgreement(nil)
	c.begin(members)
	c.settle()
	return nil
}

// abortAgreement ends a reconciliation without success.
func (c *core) abortAgreement(ticket uint64, cause error) error {
	if c.agree.ticket != ticket {
		return ErrSuperseded
	}
	c.endAgreement(cause)
	c.settle()
	return nil
}

// endAgreement ends the reconciliation that goes on, if one does; the activation is looked at again.
func (c *core) endAgreement(cause error) {
	if c.agree.ticket == 0 {
		return
	}
	end := agreementEnd{ticket: c.agree.ticket}
	if cause != nil {
		end.err = &EndedError{What: "reconciliation", Cause: cause}
	}
	c.fx.agreement(end)
	c.agree = agreement{}
	c.todo |= todoPhase
}

// departed looks at a replica whose state has changed: a participant that goes ends the reconciliation, which starts again
// as a whole.
func (c *core) departed(r int, cause error) {
	if c.agree.members>>r&1 == 0 || c.reps[r].state.Phase == Fresh {
		return
	}
	if cause == nil {
		cause = ErrPeerClosed
	}
	c.endAgreement(cause)
}

// checkAgreement verifies that all who take part are here.
func (c *core) checkAgreement() bool {
	for r := range replicas(c.agree.members) {
		if c.reps[r].state.Phase != Fresh {
			return false
		}
	}
	return (c.agree.ticket == 0) == (bits.OnesCount8(c.agree.members) == 0)
}
