package jobtracker

// Result is how a replica answered a job.
type Result struct {
	Err    error  // nil: it did the job
	Kind   Kind   // what the reply says the job was; zero: it does not say
	Digest Digest // of a read's data; zero: none, it is not compared
	Same   bool   // of a [HalfCompare]: the replica holds what the source does
}

// Digest is a hash of a read's data, for comparing what replicas answer. Zero is none.
type Digest uint64

// connToken is what a connection's caller is checked against.
type connToken struct {
	replica int
	conn    ConnID
}

// current tells whether the token is that of the replica's live connection.
func (c *core) current(tok connToken) bool {
	rep := &c.reps[tok.replica]
	return rep.conn == tok.conn && rep.state.Connected()
}

// complete applies a replica's answer to job id, or says why it cannot be applied. The gate has checked the token.
func (c *core) complete(tok connToken, id JobID, res *Result) error {
	s := c.slot(id) // find, written out: it is too large to be inlined
	if !c.inRing(id) {
		s = c.aside(id)
	}
	bit := uint8(1) << tok.replica
	if s == nil || s.sent&bit == 0 || res.Kind != 0 && res.Kind != s.kind {
		return c.orphan(tok, id, s, res.Kind)
	}
	rep := &c.reps[tok.replica]
	rep.sent--
	rep.answered = true
	if rep.answers++; rep.answers >= publishEvery {
		c.publish(tok.replica)
	}
	s.sent &^= bit
	if res.Err == nil && (res.Digest == 0 || s.kind != Read || c.agrees(id, s, tok.replica, res.Digest)) {
		c.succeed(id, s, tok.replica, res)
	} else {
		c.fail(id, s, tok.replica, res.Err)
	}
	if c.todo != 0 {
		c.settle()
	}
	return nil
}

// publishEvery is how many answers of a replica may not be in the counters yet while jobs are in the table.
const publishEvery = 16

// publish adds the replica's dispatches and answers to the counters. An atomic operation for each would be a tenth of
// its cost.
func (c *core) publish(r int) {
	rep, to := &c.reps[r], &c.stats.replicas[r]
	to.dispatched.Add(uint64(rep.dispatches))
	to.answered.Add(uint64(rep.answers))
	rep.dispatches, rep.answers = 0, 0
}

// stale is the refusal of a call on a connection that has ended.
func (c *core) stale(tok connToken, cause error) error {
	return &ConnError{Replica: tok.replica, Conn: tok.conn, Current: c.liveConn(tok.replica), Cause: cause}
}

// late is the refusal of a completion on a connection that has ended, whatever job it names.
func (c *core) late(tok connToken, id JobID, cause error) error {
	c.stats.orphans[OrphanStaleConn].Inc()
	e := c.newOrphan()
	e.Job, e.Conn, e.Current, e.Cause, e.Replica = id, tok.conn, c.liveConn(tok.replica), cause, uint8(tok.replica)
	return e
}

func (c *core) liveConn(r int) ConnID {
	if rep := &c.reps[r]; rep.state.Connected() {
		return rep.conn
	}
	return 0
}

// orphan is the typed refusal of a completion; only its count changes.
func (c *core) orphan(tok connToken, id JobID, s *slot, kind Kind) error {
	e := c.newOrphan()
	e.Job, e.Conn, e.Current, e.Replica, e.Reason = id, tok.conn, tok.conn, uint8(tok.replica), c.classify(tok, id, s)
	if e.Reason == OrphanKindMismatch {
		e.Kind, e.GotKind = s.kind, kind
	}
	c.stats.orphans[e.Reason].Inc()
	return e
}

// orphanSlab is how many orphan errors are made at a time: one by one they take twice as long. None is used again.
const orphanSlab = 8

func (c *core) newOrphan() *OrphanError {
	if len(c.orphans) == 0 {
		c.orphans = make([]OrphanError, orphanSlab)
	}
	e := &c.orphans[0]
	c.orphans = c.orphans[1:]
	return e
}

// classify is why a completion on the live connection is an orphan: the first reason that holds. s is the job, or nil.
func (c *core) classify(tok connToken, id JobID, s *slot) OrphanReason {
	bit := uint8(1) << tok.replica
	if id == 0 || id >= c.next {
		return OrphanNeverIssued
	}
	switch {
	case s == nil:
		return OrphanRetired
	case s.skipped&bit != 0:
		return OrphanSkipped
	case s.here&bit == 0:
		return OrphanNotSent
	case s.sent&bit == 0:
		return OrphanDuplicate
	}
	return OrphanKindMismatch
}

// succeed takes a good answer of replica r, whose bit has left every mask.
func (c *core) succeed(id JobID, s *slot, r int, res *Result) {
	bit := uint8(1) << r
	s.done |= bit
	c.unchargeOn(s, r)
	if s.kind == Flush || s.kind == Copy { // a branch that is foretold: the others take turns at random
		c.succeedRarely(id, s, r, res.Same)
	}
	if c.lim.order == TrackerOrders {
		c.release(id, s, r)
	} else {
		s.dry |= bit // the replica did all that this job depended on before it, answered or not
	}
	if s.flags&flagDecided == 0 || s.open() == 0 || id <= c.retireTo { // else ended has nothing to look at
		c.ended(id, s)
	}
}

// succeedRarely does what only a flush or a copy needs.
func (c *core) succeedRarely(id JobID, s *slot, r int, same bool) {
	if s.kind == Copy {
		c.copied(id, s, r, same)
		return
	}
	rep := &c.reps[r]
	if s.aux > rep.flushed {
		rep.flushed, rep.vouched = s.aux, max(rep.vouched, id)
		if rep.numbered(id) {
			rep.noted = s.aux
		}
	}
	if rep.repair == repairFinishing && rep.final == id {
		c.todo |= todoFinished
	}
}

// fail takes a bad answer of replica r. A failed read leaves it to the others; whoever fails what all must do alike is
// faulted in the same hold (J28). A copy's source may fail: the copy ends, and its driver tries another. Of a comparison
// either may.
func (c *core) fail(id JobID, s *slot, r int, err error) {
	bit := uint8(1) << r
	s.failed |= bit
	c.uncharge(s, bit)
	c.stats.replicas[r].failed.Inc()
	fault := s.kind.writes() || s.kind.fences() || s.kind == Copy && r == targetOf(s) && !s.compares()
	if fault && !s.kind.fences() {
		c.missed(s, bit)
	}
	cause := &FaultError{Replica: r, Job: id, Err: ErrJobFailed, Cause: err}
	if s.kind == Read && err == nil {
		cause.Err = ErrMismatch
		fault = c.lim.mismatch == MismatchFault
	}
	c.reps[r].failure = cause
	if c.lim.order == TrackerOrders {
		c.release(id, s, r)
	}
	switch {
	case s.kind == Copy:
		c.copyEnded(s, extentFailed)
		c.writeOff(id, s, s.spare) // the target is not asked
	case s.kind == Read && s.flags&flagDecided == 0 && c.lim.reads == ReadOne:
		c.replace(id, s)
	}
	c.ended(id, s)
	if fault {
		_ = c.step(r, EventFault, cause) // allowed wherever a job can be sent
	}
}

// agrees compares a read's digest, which is not zero, with that of the first answer. One that differs counts as failed (J17).
func (c *core) agrees(id JobID, s *slot, r int, digest Digest) bool {
	if s.flags&flagAgain != 0 {
		return true
	}
	if s.flags&flagDigest == 0 {
		if s.done != 0 {
			return true // the first answer gave none
		}
		s.flags |= flagDigest
		s.aux = uint64(digest)
		return true
	}
	if s.aux == uint64(digest) || s.done == 0 {
		return true
	}
	c.stats.mismatches.Inc()
	c.fx.event(Event{Kind: ReadMismatch, Replica: r, Other: first(s.done), Job: id})
	return false
}
