package jobtracker

// step applies an event to a replica by the lifecycle's relation, with the actions of the transition. A refused event
// changes nothing; one that leads nowhere else is no error and tells no one.
func (c *core) step(r int, e ReplicaEvent, cause error) error {
	rep := &c.reps[r]
	from := rep.state
	to, ok := nextReplica(from, e, situation{activation: c.phase, repair: rep.repair, replayable: c.replayable(r)})
	if !ok {
		return &LifecycleError{Replica: r, State: from, Event: e, Conn: rep.conn}
	}
	if e == EventRepairFinish {
		rep.repair = repairFinishing
	}
	if to == from {
		return nil
	}
	rep.state = to
	rep.cause = cause
	if to.Phase == Voting && rep.said != (ID{}) {
		rep.named = rep.said
	}
	c.mask(r)
	c.fx.time() // deadlines may come or go
	a := actionsOf(from, to)
	c.fx.event(Event{Kind: ReplicaChanged, Replica: r, From: from, To: to, Conn: rep.conn, Cause: cause})
	switch {
	case a.endConn:
		c.cut(r, a.hold, cause)
	case a.skip:
		if !to.Connected() {
			defer rep.extents.leave(rep.flushed)
		}
		c.each(func(id JobID, s *slot) { c.abandon(id, s, s.open()&^s.sent&(1<<r)) })
	case a.replay:
		c.requeue(r)
	}
	switch away := to.Home == HomeOffline && !to.Connected(); {
	case !away:
		rep.armOffline, rep.offlineAt = false, noTime
	case from.Connected(): // that it is quiesced arms nothing anew
		rep.armOffline = c.lim.offlineFor > 0
	}
	if to.Phase == Voting && (from.Phase == Fresh || from.Home == HomeNew) {
		rep.extents.reset(ExtentClean) // it is one of those that the others are compared with
	}
	if a.endRepair {
		c.endRepair(r, cause)
	} else if to.Phase == Repairing {
		rep.repair = repairCopying
	}
	c.departed(r, cause)
	c.todo |= todoPhase | todoAdmit // who is outstanding where has changed
	return nil
}

// mask derives the replica's bits from its state.
func (c *core) mask(r int) {
	bit := uint8(1) << r
	set := func(mask *uint8, on bool) {
		if *mask &^= bit; on {
			*mask |= bit
		}
	}
	state := c.reps[r].state
	set(&c.voters, state.voter())
	set(&c.takers, state.taker())
	set(&c.live, state.Connected())
	c.stats.replicas[r].state.Store(packState(state))
}

// cut ends the connection of replica r: what it sent is not outstanding on it any more. With hold, what is not vouched
// for is kept for replay; else everything that is not terminal is written off.
func (c *core) cut(r int, hold bool, cause error) {
	rep, bit := &c.reps[r], uint8(1)<<r
	c.fx.end(connEnd{replica: r, conn: rep.conn, cause: cause})
	rep.ready.Clear()
	rep.senders = 0
	rep.armReply, rep.replyAt = false, noTime
	c.publish(r)
	c.each(func(id JobID, s *slot) {
		s.here &^= bit
		s.clear &^= bit
		s.dry &^= bit
		s.linked &^= bit
		switch {
		case hold:
			c.hold(id, s, r)
		case s.kind == Copy && s.open()&bit != 0 && r != targetOf(s):
			c.writeOff(id, s, s.open()&^s.sent|bit) // its source has gone: the halves that were not sent (R02)
		default:
			c.abandon(id, s, bit)
		}
	})
	if !hold {
		c.leaveExtents(r)
	}
}

// abandon writes a job off on replicas that are not coming back to it; a read goes to another.
func (c *core) abandon(id JobID, s *slot, mask uint8) {
	c.writeOff(id, s, mask)
	if s.kind == Read && s.flags&flagDecided == 0 && c.lim.reads == ReadOne {
		c.replace(id, s)
	}
}

// hold keeps a job for the replay of replica r, whose connection has ended. What a flush vouches for is done. What
// answers with data is never vouched for: a read that nobody has answered is asked again, by whoever can (J29).
func (c *core) hold(id JobID, s *slot, r int) {
	rep, bit := &c.reps[r], uint8(1)<<r
	open, sent := s.open()&bit != 0, s.sent&bit != 0
	switch {
	case open && s.kind.writes() && id < rep.vouched:
		c.leave(s, r)
		s.done |= bit
		c.uncharge(s, bit)
		c.ended(id, s)
	case open && s.kind == Read:
		c.holdRead(id, s, r, sent)
	case open && s.kind == Copy:
		c.writeOff(id, s, s.open()&^s.sent|bit)
	case open:
		c.leave(s, r)
		s.held |= bit
		c.countHeld(s, bit, 0)
	case s.done&bit != 0 && s.kind.writes() && id > rep.vouched:
		s.done &^= bit // it may be lost: to be done again, without a charge (J06)
		s.held |= bit
		c.countHeld(s, bit, 0)
	}
}

func (c *core) holdRead(id JobID, s *slot, r int, sent bool) {
	bit := uint8(1) << r
	if s.flags&flagDecided != 0 {
		c.writeOff(id, s, bit)
		return
	}
	if sent {
		s.flags |= flagAgain
	}
	c.leave(s, r)
	if c.lim.reads == ReadOne {
		s.spare |= bit
		c.replace(id, s)
		return
	}
	s.held |= bit
	c.countHeld(s, bit, 0)
}

// leave takes an open job out of its mask on replica r; the caller puts it into another.
func (c *core) leave(s *slot, r int) {
	bit := uint8(1) << r
	if s.held&bit != 0 {
		c.countHeld(s, 0, bit)
	}
	if s.sent&bit != 0 {
		c.reps[r].sent--
	}
	s.queued &^= bit
	s.spare &^= bit
	s.held &^= bit
	s.sent &^= bit
}

// requeue has replica r, which has come back, get what was held for it, in the order of ids. What its hello vouches for
// counts as done: a number there is a flush whose answer was lost.
func (c *core) requeue(r int) {
	rep, bit := &c.reps[r], uint8(1)<<r
	if rep.hello.generation == c.generation {
		c.each(func(id JobID, s *slot) {
			if s.kind == Flush && s.aux <= rep.hello.flush && s.aux > rep.flushed {
				rep.flushed, rep.vouched, rep.noted = s.aux, id, s.aux
			}
		})
	}
	c.each(func(id JobID, s *slot) {
		if s.kind == Read && s.flags&flagDecided == 0 && c.lim.reads == ReadOne && s.open()&bit != 0 {
			if s.queued|s.sent == 0 {
				c.countHeld(s, 0, s.held)
				s.spare |= s.held
				s.held = 0
				c.replace(id, s)
			}
			return
		}
		if s.held&bit == 0 {
			return
		}
		c.leave(s, r)
		if id < rep.vouched && s.kind.writes() || id <= rep.vouched && s.kind == Flush {
			s.done |= bit
			c.uncharge(s, bit)
			c.ended(id, s)
			return
		}
		s.queued |= bit
		c.consider(id, s, r)
	})
}

// enforceOffline faults the replicas that are away and have missed too much (J13).
func (c *core) enforceOffline() {
	for r := range c.lim.n {
		rep := &c.reps[r]
		if rep.state.voter() && !rep.state.Connected() && (rep.held > c.lim.offlineJobs || rep.heldBytes > c.lim.offlineBytes) {
			c.fault(r, &FaultError{Replica: r, Err: ErrOfflineLimit})
		}
	}
}

// fault faults a replica, if there is anything to fault.
func (c *core) fault(r int, cause error) { _ = c.step(r, EventFault, cause) }

// closeConn ends a connection for its driver. A connection that has ended already is left as it is.
func (c *core) closeConn(tok connToken, cause error) {
	if c.current(tok) {
		_ = c.step(tok.replica, EventLost, cause) // total on connected states
		c.settle()
	}
}

// quiesced takes the driver's word that nothing sent on the connection can still be executed.
func (c *core) quiesced(tok connToken) error {
	rep := &c.reps[tok.replica]
	if rep.conn != tok.conn || rep.state.Phase == Down {
		return nil // said before, or the replica was replaced
	}
	return c.apply(tok.replica, EventQuiesced, rep.cause)
}

// apply is a step that comes from outside.
func (c *core) apply(r int, e ReplicaEvent, cause error) error {
	err := c.step(r, e, cause)
	c.settle()
	return err
}
