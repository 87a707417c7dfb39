package jobtracker

import "math/bits"

// need is how many voters must have done a job.
type need uint8

const (
	needOne    need = iota
	needQuorum      // the write quorum W
	needAll         // all n replicas
)

// ackRule says when a job of a kind is acknowledged. With n replicas and k needed it fails when more than n-k are bad: a
// voter that failed or skipped it, or a replica that has no vote for it. So once every replica is terminal, exactly one
// of the two holds.
type ackRule struct {
	need  need
	every bool // and every voter that is not bad must have done it
}

var (
	ackRules = [numKinds]ackRule{
		Read:    {need: needOne},
		Write:   {need: needQuorum},
		Zero:    {need: needQuorum},
		Trim:    {need: needQuorum},
		Flush:   {need: needQuorum},
		Barrier: {need: needQuorum, every: true},
		Copy:    {need: needOne}, // its only voter is its target
	}
	snapshotRule = ackRule{need: needAll}
)

// verdict is what an ack rule says of a job.
type verdict uint8

const (
	pending verdict = iota
	acked
	failed
)

// judge applies a rule: data in, verdict out (J09: a skip counts like a failure).
func judge(rule ackRule, n, quorum int, voters, done, bad uint8) verdict {
	want := [...]int{needOne: 1, needQuorum: quorum, needAll: n}[rule.need]
	good := voters &^ bad
	if bits.OnesCount8(done&voters) >= want && (!rule.every || good&^done == 0) {
		return acked
	}
	if n-bits.OnesCount8(good) > n-want {
		return failed
	}
	return pending
}

// decide looks whether the job is acknowledged or has failed. It is called after every change of the job's masks.
func (c *core) decide(id JobID, s *slot) {
	if s.flags&flagDecided != 0 {
		return
	}
	rule := ackRules[s.kind]
	if s.flags&flagSnapshot != 0 {
		rule = snapshotRule
	}
	v := judge(rule, c.lim.n, c.lim.quorum, s.voters, s.done, s.failed|s.skipped)
	if v == pending {
		return
	}
	s.flags |= flagDecided
	if v == failed {
		s.flags |= flagBad
		c.decideBad(id, s)
	} else if s.flags&flagDoomed != 0 {
		c.failFlush(id, s)
	} else {
		c.resolve(id, s, nil)
	}
	if !s.kind.fences() {
		c.work(s)
	}
	if s.spare|s.held != 0 && s.kind == Read {
		c.writeOff(id, s, s.spare|s.held)
	}
	if s.open() == 0 {
		c.closed(id, s)
	}
}

// work counts towards the next automatic sync.
func (c *core) work(s *slot) {
	c.workJobs++
	c.workBytes += c.bytes(s)
	if c.workJobs >= c.lim.autoSyncJobs || c.workBytes >= c.lim.autoSyncBytes {
		c.todo |= todoSync
	}
}

// decideBad ends a job for which too many replicas are bad.
func (c *core) decideBad(id JobID, s *slot) {
	if s.flags&flagDoomed != 0 {
		c.failFlush(id, s) // the lost write's own failure is ErrQuorum as well
		return
	}
	err := c.failure(id, s, ErrQuorum, c.why(id, s))
	if s.flags&flagResolved == 0 {
		c.resolve(id, s, err)
		return
	}
	// It was acknowledged early. Flushes behind it fail, and so do those that are admitted until one has (J18).
	known := c.lostFrom == c.next && id > c.lostLow // what is behind it was told by an earlier one
	if c.lostFrom != c.next || id < c.lostLow {
		c.lostLow = id
	}
	c.lost, c.lostFrom = err, c.next
	c.stats.lost.Inc()
	c.fx.event(Event{Kind: WriteLost, Job: id, Cause: err})
	if known {
		return
	}
	c.each(func(f JobID, s *slot) {
		if f > id && s.kind == Flush && s.flags&flagResolved == 0 {
			s.flags |= flagDoomed
		}
	})
}

// failFlush ends a flush that is itself well but has a lost write before it.
func (c *core) failFlush(id JobID, s *slot) {
	c.resolve(id, s, c.failure(id, s, ErrLostWrite, c.lost))
	c.reported(id, s)
}

// reported forgets a lost write once the caller's flush, admitted after it was known, has failed for it.
func (c *core) reported(id JobID, s *slot) {
	if s.handle != nil && c.lostFrom != 0 && id >= c.lostFrom {
		c.lostFrom = 0
	}
}

func (c *core) failure(id JobID, s *slot, kind, cause error) *JobError {
	return &JobError{
		Job: id, Kind: s.kind, Err: kind, Cause: cause,
		Done:   bits.OnesCount8(s.done & s.voters),
		Failed: bits.OnesCount8(s.failed), Skipped: bits.OnesCount8(s.skipped),
	}
}

// why is the reason of the first replica that failed the job, else of the first that skipped it.
func (c *core) why(id JobID, s *slot) error {
	for r := range replicas(s.failed) {
		return c.reps[r].failure
	}
	for r := range replicas(s.skipped) {
		if c.reps[r].cause != nil {
			return c.reps[r].cause
		}
	}
	return nil
}

// resolve gives the outcome to the caller, once.
func (c *core) resolve(id JobID, s *slot, err *JobError) {
	if s.flags&flagResolved != 0 {
		return
	}
	s.flags |= flagResolved
	if err == nil {
		c.stats.acked.Inc()
	} else {
		c.stats.failed.Inc()
	}
	if s.handle != nil {
		c.fx.resolve(resolution{handle: s.handle, err: err})
	} else if err != nil && c.phase == Deactivating && s.kind.fences() {
		c.syncErr = err
	}
}

// writeOff skips the job on the replicas of the mask, where it is not terminal. The job may be decided by it.
func (c *core) writeOff(id JobID, s *slot, mask uint8) {
	mask &= s.open()
	switch {
	case s.kind.writes():
		c.missed(s, mask)
	case s.kind == Copy && mask>>targetOf(s)&1 != 0:
		c.copyEnded(s, extentFailed)
		if s.changes() {
			c.missed(s, mask&s.sent&(1<<targetOf(s)))
		}
	}
	c.leaveOut(id, s, mask)
}

// leaveOut is writeOff of a job that is done nowhere, or that changes nothing.
func (c *core) leaveOut(id JobID, s *slot, mask uint8) {
	if mask == 0 {
		return
	}
	blocked := mask & c.blocking(s)
	if held := mask & s.held; held != 0 {
		c.countHeld(s, 0, held)
	}
	for m := mask & s.sent; m != 0; m &= m - 1 {
		c.reps[first(m)].sent--
	}
	s.queued &^= mask
	s.spare &^= mask
	s.held &^= mask
	s.sent &^= mask
	s.skipped |= mask
	c.stats.skipped.Add(uint64(bits.OnesCount8(mask)))
	c.uncharge(s, mask)
	for m := blocked & c.live; m != 0; m &= m - 1 {
		c.release(id, s, first(m))
	}
	c.ended(id, s)
}

// ended looks at a job that has become terminal on a replica.
func (c *core) ended(id JobID, s *slot) {
	if id <= c.retireTo && c.base <= c.retireTo { // retirement had to stop before it
		c.todo |= todoRetire
	}
	if s.flags&flagDecided == 0 {
		c.decide(id, s) // looks for the end itself when it decides
		return
	}
	if s.open() == 0 {
		c.closed(id, s)
	}
}

// closed takes note of a decided job that is terminal everywhere.
func (c *core) closed(id JobID, s *slot) {
	switch {
	case id < c.base:
		c.retireStraggler(id, s)
	case s.kind.fences():
		if s.done == 0 {
			return // nobody has done it: it vouches for nothing
		}
		c.retireTo = max(c.retireTo, id)
		c.todo |= todoRetire
	}
}
