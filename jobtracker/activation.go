package jobtracker

import (
	"fmt"
	"math/bits"
)

// ID identifies a device or a replica. The zero ID says nothing and is not compared.
type ID [16]byte

// Hello is what a replica says of itself when it connects, as its driver read it after nothing that an earlier
// connection sent can still be executed (R27).
type Hello struct {
	Device     ID     // pinned by the first hello that names one; any other is refused
	Replica    ID     // pinned when the replica becomes active; free again when it is replaced
	Blocks     uint64 // 0: not said; else it must be the configured size
	BlockSize  uint32 // 0: not said; else it must be the configured size
	Generation uint64 // of the activation that it was active in last; 0: it is blank
	// Flush is the number of the last flush of that generation that it remembers; see [Dispatch]. Of a replica that is to
	// replay it vouches like an answer, so it must be one that was dispatched to it. (One that needs a repair anyway may
	// have it from another's place: it is believed in nothing.)
	Flush uint64
	Dirty bool // it has extents that may hold writes no flush vouches for
}

// ActivateOptions say what kind of activation is wanted.
type ActivateOptions struct {
	// Generation orders activations, also across processes: greater than that of every activation before. Where the
	// caller has no counter: the larger of the wall clock in nanoseconds and the highest seen plus one.
	Generation uint64
	// Create makes a new device: all replicas must connect, and all must be blank.
	Create bool
	// ReadOnly refuses jobs that change blocks.
	ReadOnly bool
}

// activate opens an activation. It begins by itself when enough replicas have connected.
func (c *core) activate(o ActivateOptions) error {
	if c.phase != Inactive {
		return &PhaseError{Call: "activate", Phase: c.phase, Cause: c.cause}
	}
	if o.Generation <= c.generation {
		return &GenerationError{Given: o.Generation, Seen: c.generation}
	}
	c.generation, c.mode, c.wrote, c.flushes = o.Generation, o, false, 0
	c.setPhase(Activating, nil)
	return nil
}

func (c *core) setPhase(to Activation, cause error) {
	if to != Activating {
		c.endAgreement(cause)
	}
	c.phase = to
	c.stats.phase.Store(uint32(to))
	c.fx.event(Event{Kind: ActivationChanged, Phase: to, Cause: cause})
}

// connect opens a connection for a replica, if what it says of itself can be true.
func (c *core) connect(r int, h Hello) (ConnID, Plan, error) {
	if r < 0 || r >= c.lim.n {
		return 0, 0, &ReplicaError{Replica: r, Replicas: c.lim.n}
	}
	if c.phase != Activating && c.phase != Active {
		return 0, 0, &PhaseError{Call: "connect", Phase: c.phase, Cause: c.cause}
	}
	rep := &c.reps[r]
	if rep.state.Phase != Down {
		return 0, 0, &LifecycleError{Replica: r, State: rep.state, Event: EventConnect, Conn: rep.conn}
	}
	if err := c.checkHello(r, h); err != nil {
		return 0, 0, err
	}
	e := EventConnect
	var cause error
	if c.isBehind(rep, h) {
		e, cause = EventConnectBehind, &FaultError{Replica: r, Err: ErrBehind}
	}
	if c.phase == Active {
		c.distrust(rep, h)
	}
	c.conns++
	rep.conn = c.conns
	rep.hello, rep.blank, rep.dirty = version{h.Generation, h.Flush}, h.Generation == 0, h.Dirty
	if c.device == (ID{}) {
		c.device = h.Device
	}
	rep.said = h.Replica
	err := c.apply(r, e, cause)
	return rep.conn, c.plan(r), err
}

// plan is what replica r, which has just connected, goes through.
func (c *core) plan(r int) Plan {
	if c.reps[r].state.Phase == RepairReady {
		return PlanRepair
	}
	plan := PlanFresh
	c.each(func(_ JobID, s *slot) {
		if s.queued>>r&1 != 0 {
			plan = PlanReplay
		}
	})
	return plan
}

// isBehind tells whether a replica that connects to a running activation needs a repair.
func (c *core) isBehind(rep *replica, h Hello) bool {
	said := version{h.Generation, h.Flush}
	switch {
	case c.phase != Active:
		return false // the activation compares
	case rep.state.Home == HomeOffline && h.Generation == c.generation:
		return h.Flush < rep.flushed // it has lost what it vouched for
	case rep.state.Home == HomeOffline:
		return rep.flushed > 0 || said != rep.hello // it went before it could note the new generation
	case rep.state.Home == HomeNew:
		return c.wrote || c.mode.Create || said != c.top || h.Dirty // late, but nothing has been written yet
	}
	return true
}

func (c *core) checkHello(r int, h Hello) error {
	bad := func(field string, got, want any) error {
		return &HelloError{Replica: r, Field: field, Got: fmt.Sprint(got), Want: fmt.Sprint(want)}
	}
	rep := &c.reps[r]
	switch {
	case h.Device != (ID{}) && c.device != (ID{}) && h.Device != c.device:
		return bad("Device", fmt.Sprintf("%x", h.Device), fmt.Sprintf("%x", c.device))
	case h.Replica != (ID{}) && rep.named != (ID{}) && h.Replica != rep.named:
		return bad("Replica", fmt.Sprintf("%x", h.Replica), fmt.Sprintf("%x", rep.named))
	case h.Blocks != 0 && h.Blocks != c.lim.blocks:
		return bad("Blocks", h.Blocks, c.lim.blocks)
	case h.BlockSize != 0 && uint64(h.BlockSize) != c.lim.blockSize:
		return bad("BlockSize", h.BlockSize, c.lim.blockSize)
	case h.Generation > c.generation:
		return bad("Generation", h.Generation, fmt.Sprintf("at most %d", c.generation))
	case c.phase == Activating && h.Generation == c.generation && c.flushes == 0:
		return bad("Generation", h.Generation, fmt.Sprintf("less than %d", c.generation)) // no reconciliation has left it
	case h.Generation == c.generation && h.Flush > c.flushes:
		return bad("Flush", h.Flush, fmt.Sprintf("at most %d", c.flushes))
	case h.Generation == c.generation && h.Flush > rep.told && rep.state.Home == HomeOffline:
		return bad("Flush", h.Flush, fmt.Sprintf("at most %d", rep.told)) // it would vouch for what it was never asked
	}
	for other := range c.lim.n {
		o := &c.reps[other]
		if other != r && h.Replica != (ID{}) && (h.Replica == o.named || h.Replica == o.said && o.state.Connected()) {
			return bad("Replica", fmt.Sprintf("%x, which is replica %d", h.Replica, other), "another")
		}
	}
	return nil
}

// look begins or ends the activation if it is time.
func (c *core) look() {
	switch c.phase {
	case Activating:
		c.compare()
	case Active, Deactivating:
		switch {
		case c.voters == 0:
			c.end(ErrAllFaulted, cutShort(ErrAllFaulted), Inactive)
		case c.phase == Deactivating && c.active() == 0:
			c.end(ErrDeactivated, c.syncResult(), Inactive)
		}
	case Inactive, Closed:
	}
}

// syncResult is how a deactivation went.
func (c *core) syncResult() error {
	if c.syncErr != nil {
		return c.syncErr
	}
	return nil
}

// compare begins the activation when enough replicas are here that one of them has everything flushed: n-W+1, not
// counting those that never had anything or were replaced (R26). Those that begin are a quorum with equal contents: the
// newest version there is, and no dirty extents. The others wait for a repair; without such a quorum, all of them for a
// reconcile. The order in which they connect does not matter.
func (c *core) compare() {
	if c.agree.ticket != 0 {
		return // they are being made equal
	}
	var fresh, counted, blank uint8
	for r := range c.lim.n {
		if rep := &c.reps[r]; rep.state.Phase == Fresh {
			fresh |= 1 << r
			if rep.blank {
				blank |= 1 << r
			} else if rep.state.Home != HomeReplaced {
				counted |= 1 << r
			}
		}
	}
	if c.mode.Create {
		if blank == c.lim.all {
			c.begin(blank)
		}
		return
	}
	if bits.OnesCount8(counted) < c.lim.n-c.lim.quorum+1 {
		return
	}
	c.top = version{}
	for r := range replicas(counted) {
		if c.top.less(c.reps[r].hello) {
			c.top = c.reps[r].hello
		}
	}
	var equal uint8
	for r := range replicas(counted) {
		if c.reps[r].hello == c.top && !c.reps[r].dirty {
			equal |= 1 << r
		}
	}
	need := c.lim.quorum
	if c.mode.ReadOnly {
		need = 1
	}
	if bits.OnesCount8(equal) < need {
		if equal != fresh { // else it only waits for more to come
			c.fx.event(Event{Kind: ReconcileNeeded})
		}
		return
	}
	c.begin(equal)
}

// begin makes these replicas the voters of the activation; the others that are here need a repair.
func (c *core) begin(joining uint8) {
	for r := range c.lim.n {
		if c.reps[r].state.Phase == Fresh {
			if c.reps[r].blank {
				c.reps[r].extents.reset(ExtentDirty)
			}
			e := EventJoinBehind
			if joining>>r&1 != 0 {
				e = EventJoin
			}
			_ = c.step(r, e, nil) // total on Fresh while activating
		}
	}
	c.setPhase(Active, nil)
	c.fx.phase(phaseEnd{begun: true})
}

// deactivate lets what was admitted run to its end, makes it durable, and ends the activation.
func (c *core) deactivate() error {
	switch c.phase {
	case Inactive, Closed:
		return &PhaseError{Call: "deactivate", Phase: c.phase, Cause: c.cause}
	case Deactivating:
		return nil
	case Activating:
		c.end(ErrDeactivated, nil, Inactive)
	case Active:
		c.syncErr = nil
		c.setPhase(Deactivating, nil)
		c.refuseWaiting(ErrDeactivated)
		for r := range c.lim.n {
			_ = c.step(r, EventDeactivate, ErrDeactivated) // total
		}
		if c.base < c.next || !c.durable() || c.lostFrom != 0 { // the final flush reports a lost write, too
			kind := Flush
			if c.mode.ReadOnly {
				kind = Barrier
			}
			c.admit(Op{Kind: kind}, nil)
		}
		c.todo |= todoPhase
	}
	c.settle()
	return nil
}

// end ends the activation: every job, applicant, repair and connection of it is resolved with the cause, and the table is
// empty. Ids go on growing, so what comes late is refused for ever.
func (c *core) end(cause, result error, to Activation) {
	c.refuseWaiting(cause)
	c.each(func(id JobID, s *slot) {
		if s.flags&flagResolved == 0 {
			c.resolve(id, s, c.failure(id, s, ErrEnded, cause))
		}
		c.gone(id, s)
	})
	c.stats.retired.Add(uint64(c.active()))
	c.base, c.side, c.sideGone, c.ord = c.next, nil, 0, order{}
	clear(c.ring)
	c.lost, c.lostFrom, c.retireTo, c.retiredWrite = nil, 0, 0, 0
	c.workJobs, c.workBytes = 0, 0
	for r := range c.lim.n {
		rep := &c.reps[r]
		_ = c.step(r, EventEnd, cause) // total
		rep.jobs, rep.bytes, rep.held, rep.heldBytes, rep.sent = 0, 0, 0, 0, 0
		rep.vouched, rep.flushed, rep.told, rep.noted, rep.final = 0, 0, 0, 0, 0
		if rep.extents.reset(ExtentUnknown); rep.state.Home == HomeReplaced {
			rep.extents.reset(ExtentDirty)
		}
	}
	c.cause = cause
	c.setPhase(to, cause)
	c.fx.phase(phaseEnd{cause: cause, err: result})
	c.todo = 0
}

// cutShort is the end of a deactivation by something else.
func cutShort(cause error) error { return &EndedError{What: "activation", Cause: cause} }

// disable ends the activation at once.
func (c *core) disable(cause error) error {
	if c.phase == Inactive || c.phase == Closed {
		return &PhaseError{Call: "disable", Phase: c.phase, Cause: c.cause}
	}
	c.end(cause, cutShort(cause), Inactive)
	return nil
}

// close ends everything for good.
func (c *core) close() {
	if c.phase != Closed {
		c.end(ErrClosed, cutShort(ErrClosed), Closed)
	}
}

// replaceReplica puts another device in a replica's place.
func (c *core) replaceReplica(r int) error {
	if r < 0 || r >= c.lim.n {
		return &ReplicaError{Replica: r, Replicas: c.lim.n}
	}
	if c.phase == Closed {
		return &PhaseError{Call: "replace", Phase: c.phase, Cause: c.cause}
	}
	if err := c.apply(r, EventReplace, ErrReplaced); err != nil {
		return err
	}
	c.reps[r].said, c.reps[r].named = ID{}, ID{}
	c.reps[r].extents.reset(ExtentDirty)
	return nil
}

// faultReplica faults a replica because the caller says so.
func (c *core) faultReplica(r int, cause error) error {
	if r < 0 || r >= c.lim.n {
		return &ReplicaError{Replica: r, Replicas: c.lim.n}
	}
	if c.phase == Inactive || c.phase == Closed {
		return &PhaseError{Call: "fault", Phase: c.phase, Cause: c.cause}
	}
	return c.apply(r, EventFault, cause)
}
