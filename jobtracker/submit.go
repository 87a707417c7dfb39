package jobtracker

import (
	"sort"
)

// Op is what a job is to do.
//
// FUA is no flush: the number that a replica remembers does not move, so a front end that crashes cannot tell from the
// hellos which replicas have the write. A device that promises more submits a flush behind it, as examples/mirror does.
type Op struct {
	Kind     Kind   // Read, Write, Zero, Trim, Flush or Barrier
	Start    uint64 // the first block; 0 for Flush and Barrier
	Blocks   uint64 // how many blocks, at least 1; 0 for Flush and Barrier
	FUA      bool   // Write, Zero, Trim: durable where it was done when it is acknowledged; never acknowledged early. See below
	Snapshot bool   // Flush: takes a snapshot, which all replicas must do
}

// applicant is a job that waits for admission.
type applicant struct {
	seq    uint64
	op     Op
	handle any
	gone   bool // taken back; removed with others
}

// submit admits the job, or queues it: id is then 0 and seq names the application.
func (c *core) submit(op Op, handle any) (id JobID, seq uint64, err error) {
	if err := c.checkOp(op); err != nil {
		return 0, 0, err
	}
	if c.phase != Active {
		return 0, 0, &PhaseError{Call: "submit", Phase: c.phase, Cause: c.cause}
	}
	if c.mode.ReadOnly && op.Kind.writes() {
		return 0, 0, ErrReadOnly
	}
	if c.waiting.Len() > 0 || !c.fits(op) {
		c.applied++
		c.waiting.Push(applicant{seq: c.applied, op: op, handle: handle})
		return 0, c.applied, nil
	}
	id = c.admit(op, handle)
	if c.todo != 0 {
		c.settle()
	}
	return id, 0, nil
}

// withdraw takes back an application; false means that it was decided already. Nothing of it stays: applications that
// come and go behind one that cannot be admitted yet are no more than those that wait.
func (c *core) withdraw(seq uint64) (found bool) {
	at := sort.Search(c.waiting.Len(), func(i int) bool { return c.waiting.At(i).seq >= seq })
	if at == c.waiting.Len() {
		return false
	}
	a := c.waiting.At(at)
	if a.seq != seq || a.gone {
		return false
	}
	*a = applicant{seq: seq, gone: true}
	c.left++
	c.sweepWaiting()
	c.todo |= todoAdmit // the next one may fit
	c.settle()
	return true
}

// sweepWaiting removes the applications that were taken back from the front, and all of them once they are the most.
func (c *core) sweepWaiting() {
	for a := c.waiting.Peek(); a != nil && a.gone; a = c.waiting.Peek() {
		c.waiting.Pop()
		c.left--
	}
	if 2*c.left <= c.waiting.Len() {
		return
	}
	for range c.waiting.Len() { // once around: the order stays
		if a, _ := c.waiting.Pop(); !a.gone {
			c.waiting.Push(a)
		}
	}
	c.left = 0
}

// admitWaiting admits applicants in their order as far as the limits allow.
func (c *core) admitWaiting() {
	for a := c.waiting.Peek(); a != nil && c.fits(a.op); a = c.waiting.Peek() {
		id := c.admit(a.op, a.handle)
		c.fx.admit(admission{handle: a.handle, id: id})
		c.waiting.Pop()
		c.sweepWaiting()
	}
}

// refuseWaiting ends all applications.
func (c *core) refuseWaiting(cause error) {
	for a, ok := c.waiting.Pop(); ok; a, ok = c.waiting.Pop() {
		if !a.gone {
			c.fx.admit(admission{handle: a.handle, err: &EndedError{What: "admission", Cause: cause}})
		}
	}
	c.left = 0
}

func (c *core) checkOp(op Op) error {
	switch op.Kind {
	case Read, Write, Zero, Trim:
		switch limit := c.lim.maxBlocks[op.Kind]; {
		case op.Blocks == 0 || op.Blocks > limit:
			return &OpError{Field: "Blocks", Got: op.Blocks, Min: 1, Max: limit}
		case op.Blocks > c.lim.blocks:
			return &OpError{Field: "Blocks", Got: op.Blocks, Min: 1, Max: c.lim.blocks}
		case op.Start > c.lim.blocks-op.Blocks:
			return &OpError{Field: "Start", Got: op.Start, Max: c.lim.blocks - op.Blocks}
		}
	case Flush, Barrier:
		if op.Start != 0 {
			return &OpError{Field: "Start", Got: op.Start}
		}
		if op.Blocks != 0 {
			return &OpError{Field: "Blocks", Got: op.Blocks}
		}
	case Copy: // made by a repair only
		return &OpError{Field: "Kind", Got: uint64(op.Kind), Min: uint64(Read), Max: uint64(Barrier)}
	default:
		return &OpError{Field: "Kind", Got: uint64(op.Kind), Min: uint64(Read), Max: uint64(Barrier)}
	}
	if op.FUA && !op.Kind.writes() {
		return &OpError{Field: "FUA", Got: 1}
	}
	if op.Snapshot && op.Kind != Flush {
		return &OpError{Field: "Snapshot", Got: 1}
	}
	return nil
}

// who is on which replicas a job admitted now would be outstanding.
func (c *core) who(k Kind) uint8 {
	to := c.takers
	if k == Read {
		to = c.voters
	}
	return to
}

// fits tells whether a job can be admitted within the limits of every replica it would be outstanding on.
func (c *core) fits(op Op) bool {
	if c.behind {
		return false
	}
	size := int64(op.Blocks) * c.lim.payload[op.Kind%numKinds]
	for m := c.who(op.Kind) & c.live; m != 0; m &= m - 1 { // who is away delays nobody: it is faulted with what is too much
		rep := &c.reps[first(m)]
		if rep.jobs >= c.lim.maxJobs || rep.bytes+size > c.lim.maxBytes {
			return false
		}
	}
	return true
}

// admit puts a job into the table. It resolves in here if it has nowhere to go (J10). The caller settles.
func (c *core) admit(op Op, handle any) JobID {
	id, s := c.add(op, handle)
	c.spread(s)
	switch {
	case op.Kind.writes():
		c.wrote = true
		if op.FUA {
			s.flags |= flagFUA
		}
	case op.Kind.fences():
		c.admitFence(id, s, op.Snapshot)
	}
	c.charge(s)
	if s.voters != c.lim.all { // else nothing can be bad yet
		if c.decide(id, s); s.flags&flagBad != 0 && (s.kind.writes() || op.Snapshot) {
			if s.kind.fences() {
				c.work(s) // it is done by nobody and retires nothing, not even itself
			}
			c.leaveOut(id, s, s.open()) // nobody has seen it: leave it nowhere
			return id
		}
		// A flush or barrier goes to whom it can all the same: what it makes durable there can be retired, and a repair
		// waits for its last flush.
	}
	if s.skipped != 0 && s.kind.writes() {
		c.missed(s, s.skipped)
	}
	if s.kind.fences() {
		c.workJobs, c.workBytes = 0, 0
	}
	if c.lim.writeBack && op.Kind.writes() && !op.FUA {
		c.resolve(id, s, nil)
	}
	c.considerAll(id, s)
	return id
}

// add makes a job and its place in the order; it is nowhere yet.
func (c *core) add(op Op, handle any) (JobID, *slot) {
	if uint64(c.next-c.base) == uint64(len(c.ring)) {
		c.resize(2 * len(c.ring))
	}
	id := c.next
	s := c.slot(id)
	*s = slot{}
	s.handle, s.start, s.blocks, s.kind, s.voters = handle, op.Start, uint32(op.Blocks), op.Kind, c.voters
	c.scratch = c.ord.add(id, orderOf[op.Kind], op.Start, op.Blocks, c.scratch[:0])
	c.keepDeps(s, c.scratch)
	c.next++
	c.stats.submitted.Inc()
	return id, s
}

// admitFence does what only a flush or barrier needs.
func (c *core) admitFence(id JobID, s *slot, snapshot bool) {
	if snapshot {
		s.flags |= flagSnapshot
	}
	if s.kind != Flush {
		return
	}
	c.flushes++
	s.aux = c.flushes
	if c.lostFrom != 0 {
		s.flags |= flagDoomed
	}
}

// spread says where a new job is to be done.
func (c *core) spread(s *slot) {
	if c.lim.reads == ReadOne && s.kind == Read {
		s.spare = c.voters
		c.place(s)
	} else {
		to := c.who(s.kind)
		s.queued, s.held = to&c.live, to&^c.live
	}
	s.skipped = c.lim.all &^ s.open()
}

// place has a read that nobody is asked go to the best voter left: the one with the least outstanding that is here, else
// one that is away.
func (c *core) place(s *slot) {
	if s.queued|s.sent != 0 {
		return
	}
	if here := s.spare & c.live; here != 0 {
		best := uint8(1) << c.idlest(here)
		s.spare |= s.held // whoever is away is not asked after all
		s.held = 0
		s.spare &^= best
		s.queued |= best
		return
	}
	if s.held == 0 && s.spare != 0 {
		s.held = s.spare & -s.spare
		s.spare &^= s.held
	}
}

// replace places a read again after the one that was asked failed or went away.
func (c *core) replace(id JobID, s *slot) {
	queued, held := s.queued, s.held
	c.place(s)
	c.countHeld(s, s.held&^held, held&^s.held)
	if now := s.queued &^ queued; now != 0 {
		c.consider(id, s, first(now))
	}
}

// idlest is the replica of the mask with the least outstanding; reads take turns where it is equal.
func (c *core) idlest(mask uint8) int {
	best, least := -1, uint32(0)
	turn := int(c.next) % c.lim.n
	for i := range c.lim.n {
		r := (turn + i) % c.lim.n
		if mask>>r&1 == 0 {
			continue
		}
		// Not the charges: a read is charged wherever it might have to go.
		if busy := c.reps[r].sent + uint32(c.reps[r].ready.Len()); best < 0 || busy < least {
			best, least = r, busy
		}
	}
	return best
}

// charge takes the job's charges: one for each replica it is outstanding on, returned once, when it is terminal there.
func (c *core) charge(s *slot) {
	s.charged = s.open()
	size := c.bytes(s)
	for m := s.charged; m != 0; m &= m - 1 {
		rep := &c.reps[first(m)]
		rep.jobs++
		rep.bytes += size
	}
	if s.held != 0 {
		c.countHeld(s, s.held, 0)
	}
}

// uncharge returns the charges of the job on the replicas of the mask.
func (c *core) uncharge(s *slot, mask uint8) {
	for m := mask & s.charged; m != 0; m &= m - 1 {
		c.unchargeOn(s, first(m))
	}
}

// unchargeOn returns the charge of the job on replica r, once.
func (c *core) unchargeOn(s *slot, r int) {
	bit := uint8(1) << r
	if s.charged&bit == 0 {
		return
	}
	s.charged &^= bit
	rep := &c.reps[r]
	rep.jobs--
	rep.bytes -= c.bytes(s)
	if c.waiting.Len() > 0 {
		c.todo |= todoAdmit
	}
}

// countHeld takes note that the job is now Held on the replicas of gained and no longer on those of lost.
func (c *core) countHeld(s *slot, gained, lost uint8) {
	size := c.bytes(s)
	for m := gained; m != 0; m &= m - 1 {
		rep := &c.reps[first(m)]
		rep.held++
		rep.heldBytes += size
		c.todo |= todoLimits
	}
	for m := lost; m != 0; m &= m - 1 {
		rep := &c.reps[first(m)]
		rep.held--
		rep.heldBytes -= size
	}
}

// orderOf is what the order makes of a kind. A table: which kind comes next is a coin toss for a branch.
var orderOf = [numKinds]orderKind{
	Read: orderRead, Write: orderWrite, Zero: orderWrite, Trim: orderWrite, Copy: orderWrite,
	Flush: orderAll, Barrier: orderAll,
}
