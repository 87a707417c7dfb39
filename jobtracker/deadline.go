package jobtracker

import "time"

// noTime is a deadline that is not armed.
var noTime time.Time

// arm gives the deadlines that wait for the time theirs. A deadline exists only after an event armed it.
func (c *core) arm(now time.Time) {
	for r := range c.lim.n {
		rep := &c.reps[r]
		if rep.armReply {
			rep.armReply = false
			rep.replyAt, rep.looks = now.Add(c.lim.replyLook), 0
		}
		if rep.armOffline {
			rep.armOffline = false
			rep.offlineAt = now.Add(c.lim.offlineFor)
		}
	}
}

// deadline is the earliest armed deadline, zero if there is none.
func (c *core) deadline() time.Time {
	var at time.Time
	for r := range c.lim.n {
		for _, t := range [...]time.Time{c.reps[r].replyAt, c.reps[r].offlineAt} {
			if !t.IsZero() && (at.IsZero() || t.Before(at)) {
				at = t
			}
		}
	}
	return at
}

// tick looks at the deadlines that have passed. It may be called at any time.
func (c *core) tick(now time.Time) {
	for r := range c.lim.n {
		rep := &c.reps[r]
		if passed(rep.offlineAt, now) {
			rep.offlineAt = noTime
			c.fault(r, &FaultError{Replica: r, Err: ErrOfflineLimit})
		}
		if passed(rep.replyAt, now) {
			c.lookForReply(r, now)
		}
	}
	c.settle()
}

func passed(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// lookForReply ends the connection of a replica that owed answers at replyLooks looks running and gave none. Looking
// now and then instead of noting the time of each answer keeps the clock off the path of a completion.
func (c *core) lookForReply(r int, now time.Time) {
	rep := &c.reps[r]
	rep.replyAt = noTime
	switch {
	case rep.sent == 0:
		return // armed again by the next job sent
	case rep.answered:
		rep.answered, rep.looks = false, 0
	default:
		rep.looks++
	}
	if rep.looks >= replyLooks {
		_ = c.step(r, EventLost, ErrReplyTimeout) // total on connected states
		return
	}
	rep.replyAt = now.Add(c.lim.replyLook)
}
