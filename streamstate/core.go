package streamstate

import (
	"slices"
	"time"
)

// core is the state of one key: plain data that each event changes by a pure rule. A method that stands for an outside
// event checks first and changes then, so after an error nothing has changed. What it wants done outside it leaves in fx.
type core struct {
	// What every call looks at comes first: it shares a line with the lock.
	session  uint64 // the present session; never reused within a book
	phase    Phase
	due      due  // what is to be done outside
	draining bool // Stopping, and the flush is left to run on
	lists    bool // events are wanted by somebody
	ticks    bool // the record's timer runs; the gate's
	ears     ears // who looks at changes; the gate's
	set      bool // the transaction that runs has set the payload; the gate's

	// What begins, ends and data look at.
	parts []partition
	// dirty has a bit for each chunk whose received positions have changed since the last Timestamp. Its memory is of
	// whole cache lines: it is written on the hot path.
	dirty     []uint64
	lim       *limits
	ticket    *ticket      // the session ticket that is out
	claims    ClaimID      // the last one issued; never reused within a record
	maxTerm   uint64       // the highest term seen in this session
	claimants [4]*claimant // the latest ones, each at its turn; nil if there were none
	turn      uint8        // of the next claimant that is not known
	received  Timestamp    // as of the last look; dirty says what has changed

	*cold
}

// cold is what only the rarer calls look at. It lies apart, so that what is often looked at of many keys lies together.
type cold struct {
	fx   effects
	home home // where the claims of the session belong; the gate's

	key   *Key
	id    SessionID
	cause *ending // why the session ended, if it has

	flushed  Timestamp // what is flushed
	restart  Timestamp // where a partition that is not wanted yet will start
	rollback Timestamp // what live claims said when the session ended

	tickets uint64 // the last one issued
	// ticketAt and retryAt are deadlines of the session: of the ticket, and of the next recovery after a failed one.
	ticketAt alarm
	retryAt  alarm

	flush    *flush
	releases []release // who waits until no running flush covers a partition
	holds    []*hold   // that keep this session's flush closed
	taken    []*hold   // that this session has on others
	merging  uint64    // the engaged merge, 0 if none

	stopped *Handle
	dropped *Handle
}

// partition is the ledger of one partition. Its size decides how much memory a key takes.
type partition struct {
	received Position
	// claim is a live claim if state is Begun or Contested; else the last one that ended, if it can still be listed.
	claim claim
	x     *extra
	at    alarm
	state PartitionState
	rung  Rung
	flags flags
	tries uint8 // tickets since a claim was stable, at most maxTries
}

// maxTries is where the count of a partition's tickets ends: a pause that doubles with each is long by then.
const maxTries = 31

type flags uint8

const (
	flagCovered  flags = 1 << iota // the running flush covers it
	flagBroken                     // covered, but given up since the target was taken
	flagTried                      // this rung's repair was tried since the last claim that was stable
	flagAccepted                   // the restart of the ticket that is out was accepted
	flagBatch                      // named by the batch that is being checked
	flagForget                     // given up after the session's end: the next one starts it anew
	flagFirst                      // flagTried was set by the ticket that is out
)

// extra is what few partitions have.
type extra struct {
	more   []claim       // live claims beside the first
	listed []*claimFacts // Fenced, or Unwanted after it: what may still run at the source
	last   []*claimFacts // what ended together with the last claim
	ticket *ticket
}

// claim is a claim as its partition keeps it.
type claim struct {
	facts *claimFacts // also its identity
	next  uint64      // the next number that it may hand in
}

// claimFacts are what a claim is; all but life does not change.
type claimFacts struct {
	*claimant
	life *ending // the gate's
	name claimName
}

// claimName is a claim's id and its partition in one word.
type claimName uint64

const partitionBits = 20 // so that MaxPartitions can be told apart

func nameClaim(id ClaimID, part int) claimName { return claimName(id)<<partitionBits | claimName(part) }

func (n claimName) id() ClaimID { return ClaimID(n >> partitionBits) }
func (n claimName) part() int32 { return int32(n & (1<<partitionBits - 1)) }

func (c *claimFacts) id() ClaimID { return c.name.id() }
func (c *claimFacts) part() int32 { return c.name.part() }

// claimant is who claims. It does not change, and claims that follow each other share it.
type claimant struct {
	owner  string
	term   uint64
	rollTo *Position // where the claim's source said to roll back to, nil if it did not
	home   home
}

// home is where a session's claims belong. It is the gate's.
type home struct {
	r       *record
	session uint64
	handle  any // the *Session[P]
}

// ClaimID names one claim of one partition in one session. Ids only grow; a record has 2^44 of
// them, and uses none twice.
type ClaimID uint64

// release is a caller that waits until no running flush covers its partition.
type release struct {
	part   int32
	handle *Handle
}

// newCore makes the core of a key whose options have been checked.
func newCore(lim *limits, key *Key, partitions int) core {
	words := (partitions>>chunkShift)/64 + 1
	return core{
		phase: Gone, lim: lim, lists: lim.lists, cold: &cold{key: key},
		parts: make([]partition, (partitions+chunkLen-1)&^(chunkLen-1))[:partitions],
		dirty: make([]uint64, (words+7)&^7)[:words],
	}
}

// token is what a call must be about for the gate to let it in.
type token struct {
	session uint64      // 0: whichever session it is
	claim   *claimFacts // nil: no claim
	op      Op
}

// invites tells whether the call is about the present session, and the phase has a place for it. It is inlined.
func (k *core) invites(session uint64, op Op) bool {
	return session == k.session && phaseTable[op][k.phase].lets()
}

// admits tells whether the call reaches the state.
func (k *core) admits(t token) bool {
	if t.claim == nil || t.op == OpEnd { // the end of a claim that is listed is its shutdown
		return (t.session == k.session || t.session == 0) && phaseTable[t.op][k.phase].lets()
	}
	return k.lives(t.claim)
}

// leads tells whether a claim is live and its partition's first: nearly every call is about such a one. It is inlined.
func (k *core) leads(c *claimFacts) bool {
	if int(c.part()) >= len(k.parts) {
		return false
	}
	p := &k.parts[c.part()]
	return p.claim.facts == c && p.state.live()
}

// lives tells whether a claim is live. That its session is the present one, and in a phase that has claims, follows.
func (k *core) lives(c *claimFacts) bool {
	if int(c.part()) >= len(k.parts) {
		return false
	}
	p := &k.parts[c.part()]
	return p.claim.facts == c && p.state.live() || k.among(p, c) != nil
}

// among finds a live claim beside the first.
func (k *core) among(p *partition, c *claimFacts) *claim {
	if p.state != Contested {
		return nil
	}
	for i := range p.x.more {
		if p.x.more[i].facts == c {
			return &p.x.more[i]
		}
	}
	return nil
}

// refuse says why the gate did not let a call in.
func (k *core) refuse(t token) error {
	if t.session != 0 && t.session != k.session {
		return &StaleError{Key: k.key, Session: k.lim.id(t.session), Current: k.current(), Cause: ErrReopened}
	}
	switch phaseTable[t.op][k.phase] {
	case stale:
		return &StaleError{Key: k.key, Session: k.id, Cause: k.cause.error()} // there is none that could be used
	case badPhase:
		return k.badPhase(t.op)
	case superseded:
		return &TicketError{Key: k.key, Reason: ReasonSuperseded, Op: t.op, Cause: ErrResolved}
	case deadHold:
		return &TicketError{Key: k.key, Reason: ReasonStaleHold, Op: t.op, Cause: k.cause.error()}
	case exists:
		return &ExistsError{Key: *k.key}
	case allow, wait, idempot, resolved:
	}
	return k.staleClaim(t.op, t.claim)
}

func (k *core) badPhase(op Op) error {
	return &PhaseError{Key: k.key, Session: k.id, Op: op, Phase: k.phase, Cause: k.cause.error()}
}

func (k *core) staleClaim(op Op, c *claimFacts) error {
	e := &PartitionError{Key: k.key, Partition: c.part(), Op: op, Reason: ReasonStaleClaim, Claim: c.id(), Cause: c.life.error()}
	if int(c.part()) < len(k.parts) {
		e.State = k.parts[c.part()].state
	}
	return e
}

// current is the id of the present session, zero if there is none that can be used.
func (k *core) current() SessionID {
	if k.phase >= Closing {
		return SessionID{}
	}
	return k.id
}

// inRange checks a partition's number.
func (k *core) inRange(p int) error {
	if p < 0 || p >= len(k.parts) {
		return badArgument("partition", p, "0 to "+itoa(len(k.parts)-1))
	}
	return nil
}

// ears are who looks at changes. They are zero if nobody does.
type ears uint8

const (
	earsMoves ears = 1 << iota // somebody looks at every change, of positions as well
	earsRest                   // somebody looks at the other ones
)

// changed has everybody who waits look again.
func (k *core) changed() {
	if k.ears != 0 {
		k.due |= dueChanged
	}
}

// extra is the partition's rare part, made if there is none.
func (p *partition) extra() *extra {
	if p.x == nil {
		p.x = new(extra)
	}
	return p.x
}

// ticket is the live ticket of the partition, nil if there is none.
func (p *partition) ticket() *ticket {
	if p.x == nil {
		return nil
	}
	return p.x.ticket
}

func (p *partition) listed() []*claimFacts {
	if p.x == nil {
		return nil
	}
	return p.x.listed
}

// live ranges over the live claims.
func (p *partition) live(yield func(*claim) bool) {
	if !p.state.live() || !yield(&p.claim) || p.state != Contested {
		return
	}
	for i := range p.x.more {
		if !yield(&p.x.more[i]) {
			return
		}
	}
}

func (p *partition) countLive() int {
	switch p.state {
	case Begun:
		return 1
	case Contested:
		return 1 + len(p.x.more)
	case Unwanted, Idle, Due, Fenced:
	}
	return 0
}

// lastClaimants are the ended claims that a refused restart would have shut down.
func (p *partition) lastClaimants() []*claimFacts {
	if p.state.live() || p.claim.facts == nil {
		return nil
	}
	last := []*claimFacts{p.claim.facts}
	if p.x != nil {
		last = append(last, p.x.last...)
	}
	return last
}

// hasLast tells whether there are last claimants.
func (p *partition) hasLast() bool { return !p.state.live() && p.claim.facts != nil }

// forgetClaims leaves nobody to be listed.
func (p *partition) forgetClaims() {
	p.claim = claim{}
	if p.x != nil {
		p.x.last, p.x.listed = nil, nil
	}
}

// mustRollBack tells whether a live claim was told to roll back.
func (p *partition) mustRollBack() bool {
	for c := range p.live {
		if c.facts.rollTo != nil {
			return true
		}
	}
	return false
}

// healthy tells whether every wanted partition is Begun and none must roll back.
func (k *core) healthy() bool {
	for i := range k.parts {
		switch p := &k.parts[i]; p.state {
		case Unwanted:
		case Begun:
			if p.claim.facts.rollTo != nil {
				return false
			}
		case Idle, Contested, Due, Fenced:
			return false
		}
	}
	return true
}

// step carries out a transition that was not refused. What else it does follows from the states and the event.
func (k *core) step(i int, e event, f facts, to PartitionState) {
	p := &k.parts[i]
	from := p.state
	if e != evBegin && e != evEndHandOver { // these never climb; they are the frequent ones
		if rung := nextRung(from, e, f); rung != p.rung {
			p.rung = rung
			p.flags &^= flagTried
		}
	}
	p.state = to
	if p.x != nil && p.x.ticket != nil && e != evRestartAccepted && (e != evShutDown || to != Fenced) {
		k.endTicket(p.x.ticket, causeOf(e))
	}
	if to == Begun && p.rung == RungRestart && p.tries == 0 {
		p.at = noAlarm
	} else {
		k.rearm(p, from, e)
	}
	if k.lists && from != to {
		k.report(i, from, to)
	}
	k.changed()
}

// quiet tells whether a begin or an orderly end of a partition changes nothing but its state and deadline: nobody repairs
// it, or is told.
func (k *core) quiet(p *partition) bool {
	return !p.repaired() && (p.x == nil || p.x.ticket == nil) && k.ticket == nil && !k.lists
}

// pass is step for a begin or an orderly end of a live claim while it is quiet: the deadline of a hand-over is all there is to it.
func (k *core) pass(p *partition, to PartitionState) {
	if to == Begun {
		p.at = noAlarm
	} else if p.state != to {
		k.arm(&p.at, alarmHandOver)
	}
	p.state = to
	k.changed()
}

// rearm gives a partition the deadline of its new state. One that was armed on entry is not armed again.
func (k *core) rearm(p *partition, from PartitionState, e event) {
	switch p.state {
	case Begun:
		p.at = noAlarm
		if p.repaired() {
			k.arm(&p.at, alarmStable)
		}
	case Contested:
		if from != Contested {
			k.arm(&p.at, alarmHandOver)
		}
	case Idle:
		switch {
		case k.ticket != nil && k.ticket.kind == workResubscribe: // its answer arms it
			p.at = noAlarm
		case e == evEndHandOver:
			k.arm(&p.at, alarmHandOver)
		case e == evWant || e == evResubscribed:
			k.arm(&p.at, alarmBegin)
		default:
			p.at = noAlarm
		}
	case Due, Fenced:
		if e != evRestartAccepted && e != evShutDown || p.ticket() == nil { // the ticket's goes on
			p.at = noAlarm
		}
	case Unwanted:
		p.at = noAlarm
	}
}

// repaired tells whether the partition is not known to be well yet: its claim is to live for a while.
func (p *partition) repaired() bool { return p.rung > RungRestart || p.tries > 0 }

// wantedParts ranges over the partitions that are wanted.
func (k *core) wantedParts(yield func(int, *partition) bool) {
	for i := range k.parts {
		if p := &k.parts[i]; p.state != Unwanted && !yield(i, p) {
			return
		}
	}
}

// clone is a copy that shares only what does not change.
func (k *core) clone() core {
	c, apart := *k, *k.cold
	c.cold = &apart
	c.parts = slices.Clone(k.parts)
	for i := range c.parts {
		if x := c.parts[i].x; x != nil {
			c.parts[i].x = &extra{slices.Clone(x.more), slices.Clone(x.listed), slices.Clone(x.last), x.ticket}
		}
	}
	c.dirty = slices.Clone(k.dirty)
	c.releases, c.holds, c.taken = slices.Clone(k.releases), slices.Clone(k.holds), slices.Clone(k.taken)
	c.fx = effects{}
	return c
}

// limits are a book's options as cores see them: checked, and without zero values.
type limits struct {
	lengths [numAlarms]instant // of deadlines; negative: never armed
	look    time.Duration      // how often they are looked at
	lists   bool               // somebody wants events
	events  int                // how many of them may be wanted done in one hold
	id      func(session uint64) SessionID
}
