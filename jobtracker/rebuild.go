package jobtracker

// repairToken is what a repair's driver is checked against.
type repairToken struct {
	replica int
	ticket  uint64
}

// repairing tells whether the token is that of a repair that goes on.
func (c *core) repairing(tok repairToken) bool {
	rep := &c.reps[tok.replica]
	return rep.ticket == tok.ticket && rep.repair != repairNone
}

// startRepair begins the repair of a replica: from here on it gets every changing job, but no read and no vote.
func (c *core) startRepair(r int) (repairToken, error) {
	if r < 0 || r >= c.lim.n {
		return repairToken{}, &ReplicaError{Replica: r, Replicas: c.lim.n}
	}
	if c.phase != Active {
		return repairToken{}, &PhaseError{Call: "repair", Phase: c.phase, Cause: c.cause}
	}
	if err := c.step(r, EventRepairStart, nil); err != nil {
		return repairToken{}, err
	}
	c.ticket++
	c.reps[r].ticket = c.ticket
	c.settle()
	return repairToken{replica: r, ticket: c.ticket}, nil
}

// addCopy admits the copy of some blocks from a voter to the repair's target: one job, ordered as a write of the blocks.
// It never waits for admission, since jobs wait for it (J22).
func (c *core) addCopy(tok repairToken, source int, start, blocks uint64, handle any) (JobID, error) {
	if err := c.mayCopy(tok, source); err != nil {
		return 0, err
	}
	if err := c.checkOp(Op{Kind: Read, Start: start, Blocks: blocks}); err != nil {
		return 0, err
	}
	return c.admitCopy(tok, source, start, blocks, 0, handle), nil
}

// addCompare admits the comparison of an extent of the repair's target with a voter's. It is a copy in all but what its
// halves do: nothing that the guest writes comes between them.
func (c *core) addCompare(tok repairToken, source, extent int, handle any) (JobID, error) {
	if err := c.mayCopy(tok, source); err != nil {
		return 0, err
	}
	t := &c.reps[tok.replica].extents
	if extent < 0 || extent >= t.total() {
		return 0, &OpError{Field: "extent", Got: uint64(extent), Max: uint64(t.total() - 1)}
	}
	e := t.extent(extent)
	return c.admitCopy(tok, source, e.Start, e.Blocks, auxCompares, handle), nil
}

// mayCopy tells whether the repair may copy from a source.
func (c *core) mayCopy(tok repairToken, source int) error {
	switch {
	case !c.repairing(tok):
		return ErrSuperseded
	case source < 0 || source >= c.lim.n:
		return &ReplicaError{Replica: source, Replicas: c.lim.n}
	case c.reps[source].state.Phase != Voting:
		return &LifecycleError{Replica: source, State: c.reps[source].state, Event: EventRepairStart, Conn: c.reps[source].conn}
	case c.reps[tok.replica].repair != repairCopying:
		return ErrSuperseded
	}
	return nil
}

func (c *core) admitCopy(tok repairToken, source int, start, blocks, compares uint64, handle any) JobID {
	id, s := c.add(Op{Kind: Copy, Start: start, Blocks: blocks}, handle)
	s.queued, s.spare = 1<<source, 1<<tok.replica
	s.skipped = c.lim.all &^ s.open()
	s.voters = s.spare
	s.aux = tok.ticket<<16 | compares | uint64(source)<<8 | uint64(tok.replica)
	c.copyEnded(s, extentAsked)
	c.charge(s)
	c.consider(id, s, source)
	c.settle()
	return id
}

// auxCompares marks a copy that is a comparison.
const auxCompares = 1 << 15

func targetOf(s *slot) int { return int(s.aux & 0xff) }
func sourceOf(s *slot) int { return int(s.aux >> 8 & 0x7f) }

// compares tells whether the job is a comparison.
func (s *slot) compares() bool { return s.kind == Copy && s.aux&auxCompares != 0 }

// changes tells whether the job may change what a replica holds.
func (s *slot) changes() bool { return s.kind.writes() || s.kind == Copy && s.aux&auxCompares == 0 }

// copied goes on with a copy whose half is done: after the source the target is asked. What a comparison finds to differ
// is dirty, whatever was known of it.
func (c *core) copied(id JobID, s *slot, r int, same bool) {
	if r == targetOf(s) {
		e := extentFilled
		if s.compares() && !same {
			e = extentMissed
		}
		c.copyEnded(s, e)
		return
	}
	if bit := s.spare; bit != 0 {
		s.spare &^= bit
		s.queued |= bit
		c.consider(id, s, first(bit))
	}
}

// finishRepair admits the repair's final flush; when the target has done it, it votes (R07).
func (c *core) finishRepair(tok repairToken) error {
	if !c.repairing(tok) {
		return ErrSuperseded
	}
	rep := &c.reps[tok.replica]
	if left := rep.extents.left(); left > 0 && rep.repair == repairCopying {
		return &UnrepairedError{Replica: tok.replica, Left: left}
	}
	if err := c.step(tok.replica, EventRepairFinish, nil); err != nil {
		return err
	}
	rep.final = c.admit(Op{Kind: Flush}, nil)
	c.settle()
	return nil
}

// numbered tells whether the replica is to remember the number of a flush: it is active, or will be with it (R21).
func (r *replica) numbered(flush JobID) bool {
	return r.state.Phase == Voting || r.final != 0 && r.final <= flush
}

// finishRepairs makes voters of the targets whose final flush is done.
func (c *core) finishRepairs() {
	for r := range c.lim.n {
		rep := &c.reps[r]
		if rep.repair == repairFinishing && rep.flushed > 0 && rep.vouched >= rep.final {
			_ = c.step(r, EventRepairDone, nil) // allowed while finishing in an active activation
		}
	}
}

// abortRepair ends a repair without success.
func (c *core) abortRepair(tok repairToken, cause error) error {
	if !c.repairing(tok) {
		return ErrSuperseded
	}
	return c.apply(tok.replica, EventRepairAbort, cause)
}

// endRepair ends the ticket. Of copies that go on, the halves that were not sent are written off on either side, which
// faults nobody; what was sent stays outstanding until it is answered or its connection ends (R20).
func (c *core) endRepair(r int, cause error) {
	rep := &c.reps[r]
	rep.repair, rep.final = repairNone, 0
	end := repairEnd{replica: r, ticket: rep.ticket}
	if rep.state.Phase != Voting {
		end.err = &EndedError{What: "repair", Cause: cause}
	}
	c.fx.repair(end)
	c.each(func(id JobID, s *slot) {
		if s.kind == Copy && targetOf(s) == r {
			c.writeOff(id, s, s.open()&^s.sent)
		}
	})
	if end.err == nil {
		rep.extents.reset(ExtentClean)
		return
	}
	for i, cell := range rep.extents.cells {
		if cell.state() == ExtentCopying {
			rep.extents.apply(i, i+1, extentDropped, 0)
		}
	}
}

// sameExtent takes the caller's word that an extent of the target holds what the voters hold.
func (c *core) sameExtent(tok repairToken, i int) error {
	if !c.repairing(tok) || c.reps[tok.replica].repair != repairCopying {
		return ErrSuperseded
	}
	t := &c.reps[tok.replica].extents
	if i < 0 || i >= t.total() {
		return &OpError{Field: "extent", Got: uint64(i), Max: uint64(t.total() - 1)}
	}
	if _, ok := nextExtent(t.at(i), extentSame); !ok {
		return &UnrepairedError{Replica: tok.replica, Left: 1}
	}
	t.apply(i, i+1, extentSame, c.flushes)
	return nil
}
