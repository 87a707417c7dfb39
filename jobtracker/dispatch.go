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
			if b := c.blockerBelow(d, ds, bit); b != 0 {
				return b
			}
		}
	}
	return 0
}

// visit is a job that a search through dependencies has come to. The way back is a list and not the stack: a chain of
// jobs on one block is as long as the table.
type visit struct {
	id      JobID
	at, end uint32 // which of its dependencies are still to be looked at
	found   bool   // those looked at led to something
}

func visitOf(id JobID, s *slot) visit { return visit{id: id, at: s.depAt, end: s.depAt + s.depN} }

// blockerBelow is blocker for what job id, which is terminal there and in the ring, depends on.
func (c *core) blockerBelow(id JobID, s *slot, bit uint8) JobID {
	way, here := c.way[:0], visitOf(id, s)
	for {
		for here.at != here.end {
			d := c.dep(here.at)
			here.at++
			if d < c.base {
				continue
			}
			ds := c.slot(d)
			if c.blocking(ds)&bit != 0 {
				return d
			}
			if ds.clear&bit == 0 {
				way, here = append(way, here), visitOf(d, ds)
			}
		}
		c.slot(here.id).clear |= bit
		if len(way) == 0 {
			return 0
		}
		c.way = way
		way, here = way[:len(way)-1], way[len(way)-1]
	}
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

// remaining appends what job id still depends on at the replica with this bit: what travels with its dispatch.
func (c *core) remaining(id JobID, s *slot, bit uint8, deps []JobID) []JobID {
	if c.lim.order == TrackerOrders || s.depN == 0 {
		return deps
	}
	return c.outstanding(id, s, bit, deps)
}

// outstanding appends the outstanding jobs that the search from job id comes to first, ascending. Mostly these are its
// own dependencies, and there is nothing to search.
func (c *core) outstanding(id JobID, s *slot, bit uint8, deps []JobID) []JobID {
	had := len(deps)
	for at, end := s.depAt, s.depAt+s.depN; at != end; at++ {
		d := c.dep(at)
		if d < c.base {
			continue
		}
		if ds := c.slot(d); ds.sent&bit != 0 {
			deps = append(deps, d)
		} else if ds.dry&bit == 0 {
			deps = c.search(id, s, bit, deps[:had])
			slices.Sort(deps[had:])
			break
		}
	}
	return deps
}

// search is outstanding where a dependency that is terminal there is in between.
func (c *core) search(id JobID, s *slot, bit uint8, deps []JobID) []JobID {
	if c.marks++; c.marks == 0 { // wrapped: an old mark could look like this search's
		c.each(func(_ JobID, s *slot) { s.mark = 0 })
		c.marks = 1
	}
	base, marks := c.base, c.marks
	way, here := c.way[:0], visitOf(id, s)
	for {
		for here.at != here.end {
			d := c.dep(here.at)
			here.at++
			if d < base {
				continue
			}
			ds := c.slot(d)
			switch {
			case ds.mark == marks:
				here.found = true // it led to something
			case ds.sent&bit != 0: // all that is outstanding below something dispatched was dispatched
				ds.mark, here.found = marks, true
				deps = append(deps, d)
			case ds.dry&bit != 0:
			default:
				way, here = append(way, here), visitOf(d, ds)
			}
		}
		if len(way) == 0 {
			return deps
		}
		if done := c.slot(here.id); here.found {
			done.mark = marks
			way[len(way)-1].found = true
		} else {
			done.dry |= bit
		}
		c.way = way
		way, here = way[:len(way)-1], way[len(way)-1]
	}
}
