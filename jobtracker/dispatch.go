package jobtracker

import "slices"

// blocking is on which replicas the job keeps what depends on it from being dispatched: where it is outstanding if the
// tracker orders, where it has not been dispatched if the replica does.
func (c *core) blocking(s *slot) uint8 {
	if c.lim.order == TrackerOrders {
		return s.open()
	}
	return s.queued | s.spare | s.held
}

// consider makes a queued job ready for replica r, or has it wait for one job that blocks it there.
func (c *core) consider(id JobID, s *slot, r int) {
	bit := uint8(1) << r
	if id < c.base { // a straggler: nothing it depended on is ordered any more
		c.makeReady(id, r)
		return
	}
	at := c.link(id, s, r)
	b := c.blocker(s, bit, &at.pos)
	if b == 0 {
		s.clear |= bit
		c.makeReady(id, r)
		return
	}
	on := c.link(b, c.slot(b), r)
	at.next, on.head = on.head, uint32(id-b)
}

// considerAll considers a new job wherever it is queued: one look at its dependencies tells on which replicas none of
// them blocks and nothing below them can.
func (c *core) considerAll(id JobID, s *slot) {
	var look uint8
	for at, end := s.depAt, s.depAt+s.depN; at != end; at++ {
		if d := c.dep(at); d >= c.base {
			ds := c.slot(d)
			look |= c.blocking(ds) | ^ds.clear
		}
	}
	free := s.queued &^ look
	s.clear |= free
	for m := free; m != 0; m &= m - 1 {
		c.makeReady(id, first(m))
	}
	for m := s.queued & look; m != 0; m &= m - 1 {
		c.consider(id, s, first(m))
	}
}

func (c *core) makeReady(id JobID, r int) {
	rep := &c.reps[r]
	rep.ready.Push(id)
	if rep.senders > 0 {
		c.fx.rouse(1 << r)
	}
}

// blocker is a job that keeps s from being dispatched to the replica with this bit, or 0. A dependency that is terminal
// there is replaced by its own dependencies, transitively: a skip lets no later write overtake an earlier one (J31).
// The search goes on at *pos, for what was found clear stays clear until the connection ends.
func (c *core) blocker(s *slot, bit uint8, pos *uint32) JobID {
	for ; *pos < s.depN; *pos++ {
		d := c.dep(s.depAt + *pos)
		if d < c.base {
			continue
		}
		ds := c.slot(d)
		if c.blocking(ds)&bit != 0 {
			return d
		}
		if ds.clear&bit == 0 {
			var from uint32
			if b := c.blocker(ds, bit, &from); b != 0 {
				return b
			}
			ds.clear |= bit
		}
	}
	return 0
}

// release looks again at who waits for the job on replica r, which it does not block any more.
func (c *core) release(id JobID, s *slot, r int) {
	if s.linked>>r&1 != 0 && id >= c.base {
		c.reconsider(id, s, r)
	}
}

// reconsider empties the job's list and considers who was in it, oldest first.
func (c *core) reconsider(id JobID, s *slot, r int) {
	on := c.link(id, s, r)
	head, oldest := on.head, uint32(0)
	on.head = 0
	for head != 0 { // the list is newest first: turn it round
		w := id + JobID(head)
		at := c.link(w, c.slot(w), r)
		head, oldest, at.next = at.next, head, oldest
	}
	for oldest != 0 {
		w := id + JobID(oldest)
		ws := c.slot(w)
		at := c.link(w, ws, r)
		oldest, at.next = at.next, 0
		if ws.queued>>r&1 != 0 {
			c.consider(w, ws, r)
		}
	}
}

// pop takes the next job for replica r and marks it Sent; nil when none is ready.
func (c *core) pop(r int) (JobID, *slot) {
	rep, bit := &c.reps[r], uint8(1)<<r
	for {
		id, ok := rep.ready.Pop()
		if !ok {
			return 0, nil
		}
		s := c.slot(id) // find, written out
		if !c.inRing(id) {
			s = c.aside(id)
		}
		if s == nil || s.queued&bit == 0 {
			continue // written off since
		}
		s.queued &^= bit
		s.sent |= bit
		s.here |= bit
		if rep.sent++; rep.sent == 1 {
			rep.answered = true // the deadline counts from here
			if rep.replyAt.IsZero() && c.lim.replyLook > 0 {
				rep.armReply = true
				c.fx.time()
			}
		}
		if c.lim.order == ReplicaOrders {
			c.release(id, s, r)
		}
		return id, s
	}
}

// remaining appends what job s still depends on at the replica with this bit: what travels with its dispatch.
func (c *core) remaining(s *slot, bit uint8, deps []JobID) []JobID {
	if c.lim.order == TrackerOrders || s.depN == 0 {
		return deps
	}
	return c.outstanding(s, bit, deps)
}

// outstanding appends the outstanding jobs that are reached from s, by id.
func (c *core) outstanding(s *slot, bit uint8, deps []JobID) []JobID {
	c.marks++
	if c.marks == 0 { // wrapped: an old mark could look like this search's
		c.each(func(_ JobID, s *slot) { s.mark = 0 })
		c.marks = 1
	}
	n := len(deps)
	deps, _ = c.collect(s, bit, deps)
	slices.Sort(deps[n:])
	return deps
}

// collect appends the outstanding jobs reached from s; found tells whether there was any, seen before or not.
func (c *core) collect(s *slot, bit uint8, deps []JobID) (_ []JobID, found bool) {
	base, marks := c.base, c.marks
	for at, end := s.depAt, s.depAt+s.depN; at != end; at++ {
		d := c.dep(at)
		if d < base {
			continue
		}
		ds := c.slot(d)
		switch {
		case ds.mark == marks:
			found = true // it led to something
		case ds.sent&bit != 0: // all that is outstanding below something dispatched was dispatched
			ds.mark, found = marks, true
			deps = append(deps, d)
		case ds.dry&bit != 0:
		default:
			var more bool
			if deps, more = c.collect(ds, bit, deps); more {
				ds.mark, found = marks, true
			} else {
				ds.dry |= bit
			}
		}
	}
	return deps, found
}
