package jobtracker

// retire passes everything up to the last fence that is terminal on all replicas. What is not decided or still in
// flight moves to the side as a straggler and retires on its own completion (J11): the fence was answered on the connection
// on which the straggler was sent, so the straggler has been executed. It stops before a job that is outstanding in any
// other way, because what comes later must still wait for that: out on a replica where the fence was skipped, or to be
// replayed since a connection ended after the fence was done, which vouches for nothing if it is a barrier.
func (c *core) retire() {
	c.sweepStragglers()
	if c.retireTo < c.base {
		return
	}
	from, to := c.base, c.retireTo
	fence := c.slot(to)
	moved := len(c.side)
	loose := false // some replica has not flushed what is retired now
	for r := range c.lim.n {
		loose = loose || c.reps[r].vouched < to
	}
	c.waiters = c.waiters[:0]
	for id := from; id <= to; id++ {
		s := c.slot(id)
		if s.flags&flagDecided != 0 && s.open() == 0 {
			if loose && s.kind.writes() {
				c.unflushed(id, s)
			}
			c.gone(id, s)
			continue
		}
		if s.open()&^(s.sent&fence.done&fence.here) != 0 {
			to = id - 1
			break
		}
		s.depN = 0 // it waits for nothing any more, and the room is used again
		c.side = append(c.side, straggler{id: id, slot: *s})
		c.noteStraggler(c.side)
		c.takeWaiters(id, s)
		c.ord.retire(id)
		if s.changes() {
			c.retiredWrite = id
		}
	}
	c.base = to + 1
	for r := range c.lim.n {
		c.publish(r)
	}
	c.stats.retired.Add(uint64(to-from) + 1 - uint64(len(c.side)-moved))
	for _, w := range c.waiters {
		if s := c.find(w.id); s != nil && s.queued>>w.replica&1 != 0 {
			c.consider(w.id, s, w.replica)
		}
	}
	c.todo |= todoPhase
}

// waiter is a job that waited for one that is not ordered any more.
type waiter struct {
	id      JobID
	replica int
}

// takeWaiters empties the lists of who waits for the job.
func (c *core) takeWaiters(id JobID, s *slot) {
	for r := range replicas(s.linked) {
		on := c.link(id, s, r)
		for head := on.head; head != 0; {
			w := id + JobID(head)
			at := c.link(w, c.slot(w), r)
			head, at.next = at.next, 0
			c.waiters = append(c.waiters, waiter{id: w, replica: r})
		}
		on.head = 0
	}
}

// retireStraggler lets go of a straggler that is decided and terminal everywhere. Its place is given up with others', so
// that it costs no walk.
func (c *core) retireStraggler(id JobID, s *slot) {
	at := &c.side[s.depAt]
	if at.gone {
		return
	}
	if s.kind.writes() {
		c.unflushed(id, s)
	}
	c.gone(id, s)
	at.gone = true
	c.sideGone++
	c.stats.retired.Inc()
	c.todo |= todoRetire | todoPhase
}

// noteStraggler takes note of where the last of side is.
func (c *core) noteStraggler(side []straggler) {
	at := len(side) - 1
	side[at].depAt = uint32(at)
	c.sideAt[side[at].id&0xff] = uint32(at)
}

// sweepStragglers removes those that have retired once they are the most.
func (c *core) sweepStragglers() {
	if 2*c.sideGone <= len(c.side) {
		return
	}
	keep := c.side[:0]
	for i := range c.side {
		if !c.side[i].gone {
			keep = append(keep, c.side[i])
			c.noteStraggler(keep)
		}
	}
	clear(c.side[len(keep):])
	c.side, c.sideGone = keep, 0
}

// gone takes leave of a job.
func (c *core) gone(id JobID, s *slot) {
	c.ord.retire(id)
	if s.changes() {
		c.retiredWrite = max(c.retiredWrite, id)
	}
	if s.handle != nil {
		c.fx.retire(s.handle)
	}
	s.handle = nil
}

// replayable tells whether everything that the replica may have lost with its connection is still in the table: a
// barrier retires without making durable (J12).
func (c *core) replayable(r int) bool { return c.reps[r].vouched >= c.retiredWrite }

// durable tells whether every voter has flushed what retirement passed.
func (c *core) durable() bool {
	for r := range replicas(c.voters) {
		if !c.replayable(r) {
			return false
		}
	}
	return true
}

// autoSync admits the flush or barrier without which the table would only grow (J26). It never waits (J22).
func (c *core) autoSync() {
	if c.phase != Active || c.workJobs < c.lim.autoSyncJobs && c.workBytes < c.lim.autoSyncBytes {
		return
	}
	switch {
	case c.lim.autoSync == SyncOff:
	case c.lim.autoSync == SyncBarrier || c.mode.ReadOnly:
		c.admit(Op{Kind: Barrier}, nil)
	default:
		c.admit(Op{Kind: Flush}, nil)
	}
}
