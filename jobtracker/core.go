package jobtracker

import (
	"math/bits"
	"time"

	"github.com/staleproof/staleproof/internal/fifo"
)

// core is a tracker without its lock, goroutines, clock and payloads: plain data that each event changes by a pure rule.
// A method that an outside event calls checks first and changes then, so that an error means that nothing has changed,
// and ends with settle, which looks at everything the change may have unblocked.
type core struct {
	lim   limits
	stats *counters // shared with whoever reads them without the lock

	// The activation. See activation.go.
	phase      Activation
	cause      error  // why the last activation ended
	generation uint64 // of the present activation, or the last one. Invariant: it strictly increases
	mode       ActivateOptions
	top        version // what the replicas that joined at activation had
	wrote      bool    // a changing job has been admitted in this activation
	syncErr    error   // how the final flush of a deactivation failed
	device     ID      // pinned by the first hello that names one

	// The replicas. See lifecycle.go. The masks have a bit for each replica and follow from the states.
	reps   [MaxReplicas]replica
	voters uint8 // may vote for a job admitted now
	takers uint8 // get changing jobs admitted now
	live   uint8 // have a live connection
	conns  ConnID
	ticket uint64 // the last repair ticket issued

	// The job table: a power-of-two ring of slots for the ids base <= id < next, beside it n links each.
	// Invariant: 1 <= base <= next; next only grows.
	base, next JobID
	ring       []slot
	links      []link
	side       []straggler // retirement passed them; ascending
	sideGone   int         // of these, how many have retired
	sideAt     [256]uint32 // where in side an id may be, by its last byte; a guess that is checked
	ord        order
	deps       []JobID // a power-of-two ring of dependencies; a slot names its part
	depTail    uint32  // before masking
	scratch    []JobID
	waiters    []waiter
	marks      uint32  // searches so far; see slot.mark
	way        []visit // the way back of the present search

	// Acks, retirement and sync. See ack.go, retire.go.
	flushes      uint64 // the number of the last flush admitted in this activation
	lostFrom     JobID  // a flush admitted from here on reports the lost writes and ends them; 0: none is lost
	lost         *JobError
	lostLow      JobID // of those that were lost since lostFrom was the next: every flush behind it was told
	retireTo     JobID // the highest fence that is terminal everywhere and not yet passed
	retiredWrite JobID // the highest changing job that retirement passed
	workJobs     uint64
	workBytes    int64 // resolved since the last fence was admitted

	// Admission. See submit.go.
	agree   agreement
	waiting fifo.Queue[applicant]
	left    int // of those waiting, how many were taken back
	applied uint64
	behind  bool // too many callbacks wait to be run; set by the gate

	orphans []OrphanError // blank; the next ones

	todo todo
	fx   effects
}

// replica is what the core knows of one replica.
type replica struct {
	// What every job touches comes first, so that it shares cache lines.
	state      ReplicaState
	repair     repairStep
	answered   bool              // since the reply deadline was last looked at
	sent       uint32            // jobs that are Sent here
	jobs       uint32            // charges: jobs that are not terminal here for the first time
	answers    uint32            // accepted and not yet in the counters
	dispatches uint32            // likewise
	bytes      int64             // of the charges
	conn       ConnID            // the present connection, or the last one
	ready      fifo.Queue[JobID] // Queued jobs that nothing blocks; some may have been written off since
	senders    int               // senders that wait for a job to be ready

	held      uint32 // jobs that are Held here
	heldBytes int64
	vouched   JobID  // the last flush done here: what changes before it is durable
	flushed   uint64 // and its number
	told      uint64 // the highest number that a dispatch gave it to remember in this activation

	ticket  uint64 // of the present or last repair
	final   JobID  // the final flush of a repair that finishes
	noted   uint64 // the number of the last flush done here that it was told to remember
	extents extentTable
	cause   error // why it is not active
	failure error // of the last job that it failed
	hello   version
	blank   bool // its hello named no generation
	dirty   bool // its hello named dirty extents
	said    ID   // the identity in the last hello that names one
	named   ID   // the identity that is relied on since the replica was active

	armReply   bool // to be armed by the next call that has the time
	armOffline bool
	looks      int // of the reply deadline, without an answer
	replyAt    time.Time
	offlineAt  time.Time
}

// slot is a job in the table, 64 bytes. Each mask has a bit for each replica; a replica's bit is in exactly one of the
// first seven. Nothing is counted by hand: counts are population counts.
type slot struct {
	handle any    // the caller's *Job, opaque here; nil for a job the tracker made
	start  uint64 // in blocks
	aux    uint64 // a read's digest, a flush's number, a copy's source and target
	blocks uint32
	depAt  uint32 // where its dependencies start in core.deps, before masking; of a straggler: its index in core.side
	depN   uint32
	mark   uint32 // the last search that came by
	kind   Kind
	flags  flags

	queued, spare, held, sent, done, failed, skipped uint8

	voters  uint8 // whose vote counts for this job
	charged uint8 // who is charged for it
	here    uint8 // dispatched on the present connection
	clear   uint8 // nothing it depends on can block a dispatch
	dry     uint8 // nothing it depends on is outstanding
	linked  uint8 // where its link is in use; elsewhere it counts as zero
}

// flags are facts of a job.
type flags uint8

const (
	flagResolved flags = 1 << iota // its outcome was given to the caller
	flagDecided                    // the ack rule has decided
	flagBad                        // it was decided against
	flagFUA
	flagSnapshot
	flagDoomed // a flush that must report a lost write
	flagDigest // aux holds a digest
	flagAgain  // a read that was asked again: its answer is not compared
)

// link is a job's place in the lists of who waits for whom on one replica. Ids are relative to the job whose list it is.
type link struct {
	head uint32 // the last one that waits for this job, 0: nobody
	next uint32 // the next one in the list this job is in, relative to whom it waits for
	pos  uint32 // its dependencies before this one can not block it
}

// straggler is a job that was in flight or undecided when retirement passed it.
type straggler struct {
	id   JobID
	gone bool // it has retired since; removed with others
	slot
}

// version orders what replicas hold: by generation, then by flush number.
type version struct{ generation, flush uint64 }

func (v version) less(o version) bool {
	return v.generation < o.generation || v.generation == o.generation && v.flush < o.flush
}

// todo says what settle has to look at.
type todo uint8

const (
	todoRetire   todo = 1 << iota
	todoAdmit         // charges have returned
	todoSync          // enough work for an automatic flush
	todoPhase         // the activation may begin or end
	todoLimits        // an offline replica may be beyond its limits
	todoFinished      // a repair's final flush is done
)

func newCore(lim limits, stats *counters) core {
	c := core{lim: lim, stats: stats, base: 1, next: 1}
	c.resize(64)
	c.deps = make([]JobID, 256)
	// Small slices that nearly every job writes to have whole cache lines, which no other tracker shares.
	c.fx.resolved, c.scratch = make([]resolution, 0, 8), make([]JobID, 0, 16)
	for r := range lim.n {
		t := &c.reps[r].extents
		t.size, t.blocks = lim.extent, lim.blocks
		t.reset(ExtentUnknown)
	}
	return c
}

// slot is the job id in the ring. base <= id < next.
func (c *core) slot(id JobID) *slot { return &c.ring[uint64(id)&uint64(len(c.ring)-1)] }

// link is the job's place in the lists of replica r. base <= id < next. Most jobs wait for nobody and nobody for them:
// they have none, and pay for none.
func (c *core) link(id JobID, s *slot, r int) *link {
	at := &c.links[(int(id)&(len(c.ring)-1))*c.lim.n+r]
	if s.linked>>r&1 == 0 {
		s.linked |= 1 << r
		*at = link{}
	}
	return at
}

// find is an active job, or nil.
func (c *core) find(id JobID) *slot {
	if c.inRing(id) {
		return c.slot(id)
	}
	return c.aside(id)
}

// inRing tells whether the job is active and no straggler.
func (c *core) inRing(id JobID) bool { return id-c.base < c.next-c.base }

// aside is the straggler id, or nil.
func (c *core) aside(id JobID) *slot {
	if i := c.straggler(id); i >= 0 {
		return &c.side[i].slot
	}
	return nil
}

// active is how many jobs are in the table.
func (c *core) active() int { return int(c.next-c.base) + len(c.side) - c.sideGone }

// straggler is the index of id in side, or -1.
func (c *core) straggler(id JobID) int {
	if at := int(c.sideAt[id&0xff]); at < len(c.side) && c.side[at].id == id && !c.side[at].gone {
		return at
	}
	low, high := 0, len(c.side)
	for low < high {
		mid := (low + high) / 2
		if c.side[mid].id < id {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low < len(c.side) && c.side[low].id == id && !c.side[low].gone {
		return low
	}
	return -1
}

// resize makes a ring of n slots, a power of two that holds the table.
func (c *core) resize(n int) {
	ring, links := make([]slot, n), make([]link, n*c.lim.n)
	for id := c.base; id < c.next; id++ {
		at := int(uint64(id) & uint64(n-1))
		ring[at] = *c.slot(id)
		copy(links[at*c.lim.n:(at+1)*c.lim.n], c.links[(int(id)&(len(c.ring)-1))*c.lim.n:])
	}
	c.ring, c.links = ring, links
}

// keepDeps stores a new job's dependencies.
func (c *core) keepDeps(s *slot, deps []JobID) {
	head := c.depTail
	if c.base < c.next {
		head = c.slot(c.base).depAt
	}
	if n := uint32(len(deps)); c.depTail-head+n > uint32(len(c.deps)) {
		size := uint32(len(c.deps))
		for size < c.depTail-head+n {
			size *= 2
		}
		ring := make([]JobID, size)
		for at := head; at != c.depTail; at++ {
			ring[at&(size-1)] = c.dep(at)
		}
		c.deps = ring
	}
	s.depAt, s.depN = c.depTail, uint32(len(deps))
	mask := uint32(len(c.deps) - 1)
	for i, d := range deps {
		c.deps[(s.depAt+uint32(i))&mask] = d
	}
	c.depTail += s.depN
}

func (c *core) dep(at uint32) JobID { return c.deps[at&uint32(len(c.deps)-1)] }

// each calls f for every active job in the order of ids. f must not admit or retire.
func (c *core) each(f func(id JobID, s *slot)) {
	for i := range c.side {
		if g := &c.side[i]; !g.gone {
			f(g.id, &g.slot)
		}
	}
	for id := c.base; id < c.next; id++ {
		f(id, c.slot(id))
	}
}

// settle looks again at all that a change may have unblocked, until nothing moves: level-triggered.
func (c *core) settle() {
	for c.todo != 0 {
		do := c.todo
		c.todo = 0
		if do&todoLimits != 0 {
			c.enforceOffline()
		}
		if do&todoFinished != 0 {
			c.finishRepairs()
		}
		if do&todoRetire != 0 {
			c.retire()
		}
		if do&todoPhase != 0 {
			c.look()
		}
		if do&todoSync != 0 {
			c.autoSync()
		}
		if do&todoAdmit != 0 {
			c.admitWaiting()
		}
	}
}

// open is on which replicas the job is not terminal.
func (s *slot) open() uint8 { return s.queued | s.spare | s.held | s.sent }

// on is the job's state on the replica with this bit.
func (s *slot) on(bit uint8) State {
	switch {
	case s.queued&bit != 0:
		return StateQueued
	case s.spare&bit != 0:
		return StateSpare
	case s.held&bit != 0:
		return StateHeld
	case s.sent&bit != 0:
		return StateSent
	case s.done&bit != 0:
		return StateDone
	case s.failed&bit != 0:
		return StateFailed
	}
	return StateSkipped
}

// bytes is what the job counts against limits in bytes: what its payload needs.
func (c *core) bytes(s *slot) int64 { return int64(s.blocks) * c.lim.payload[s.kind%numKinds] }

// first is the lowest replica of a mask that is not empty.
func first(mask uint8) int { return bits.TrailingZeros8(mask) }

// replicas ranges over the replicas of a mask.
func replicas(mask uint8) func(func(int) bool) {
	return func(yield func(int) bool) {
		for ; mask != 0; mask &= mask - 1 {
			if !yield(first(mask)) {
				return
			}
		}
	}
}
