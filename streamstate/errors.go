package streamstate

import (
	"errors"
	"fmt"
)

// The kinds of refusal and of ending. Each error of this package matches one of them with [errors.Is], or [ErrClosed] if
// it refuses an open; the struct that carries the facts, where there are any, is found with [errors.As]. After a refusal
// the state is as it was, and the refusal is counted, but for [ErrTxDone].
var (
	// ErrStaleSession matches a *[StaleError]: the record is gone or the session superseded.
	ErrStaleSession = errors.New("streamstate: stale session")
	// ErrPhase matches a *[PhaseError]: the session is in a phase that does not allow the call.
	ErrPhase = errors.New("streamstate: not allowed in this phase")
	// ErrStaleClaim matches a *[PartitionError]: the claim has ended.
	ErrStaleClaim = errors.New("streamstate: stale claim")
	// ErrSuperseded matches a *[TicketError]: the ticket has ended.
	ErrSuperseded = errors.New("streamstate: superseded")
	// ErrStaleHold matches a *[TicketError]: the hold has ended.
	ErrStaleHold = errors.New("streamstate: stale hold")
	// ErrArgument matches an *[ArgumentError].
	ErrArgument = errors.New("streamstate: bad argument")
	// ErrStaleTerm matches a *[PartitionError]: the term is lower than the highest seen in the session.
	ErrStaleTerm = errors.New("streamstate: stale term")
	// ErrDuplicate matches a *[PartitionError]: the owner has a live claim that the term does not replace.
	ErrDuplicate = errors.New("streamstate: duplicate claim")
	// ErrUnwanted matches a *[PartitionError]: the partition is not ours to follow.
	ErrUnwanted = errors.New("streamstate: unwanted partition")
	// ErrReleasing matches a *[PartitionError]: a running flush covers the partition that was given up.
	ErrReleasing = errors.New("streamstate: partition is being released")
	// ErrNotShutDown matches a *[PartitionError]: listed claims may still run at the source.
	ErrNotShutDown = errors.New("streamstate: former claims are not shut down")
	// ErrMustRollBack matches a *[PartitionError]: the claim accepts no data, since its source said roll back.
	ErrMustRollBack = errors.New("streamstate: claim must roll back")
	// ErrPosition matches a *[PartitionError]: the claim has been at the position already.
	ErrPosition = errors.New("streamstate: position below the claim's")
	// ErrFlushRunning matches a *[BusyError]: one flush at a time.
	ErrFlushRunning = errors.New("streamstate: a flush is running")
	// ErrHeld matches a *[BusyError]: the session's flush is held, or a merge is engaged.
	ErrHeld = errors.New("streamstate: flush is held")
	// ErrUnexpected matches a *[PartitionError]: a failed begin of a partition that waits for none.
	ErrUnexpected = errors.New("streamstate: unexpected")

	// ErrExists matches an *[ExistsError].
	ErrExists = errors.New("streamstate: exists")
	// ErrSameSession refuses to pair, merge or hold a session with itself.
	ErrSameSession = errors.New("streamstate: same session")
	// ErrTxDone refuses the use of a transaction or a view whose function has returned.
	ErrTxDone = errors.New("streamstate: transaction is done")
	// ErrEnded matches an *[EndedError]: what a context, a handle or a wait ended with.
	ErrEnded = errors.New("streamstate: ended")
)

// Causes: why a session, a claim, a ticket or a wait ended.
var (
	// ErrHandedOver is the cause of a claim's end by [HandOver].
	ErrHandedOver = errors.New("streamstate: handed over")
	// ErrFailed is the cause of a claim's end by [Failed].
	ErrFailed = errors.New("streamstate: failed")
	// ErrReleased is the cause of a claim's end by [Claim.Release].
	ErrReleased = errors.New("streamstate: released")
	// ErrGivenUp is the cause of what [Session.Unwant] ended.
	ErrGivenUp = errors.New("streamstate: partition given up")
	// ErrFencedOff is the cause of a claim's end by [Claim.Fence] or by a hand-over that took too long.
	ErrFencedOff = errors.New("streamstate: fenced")
	// ErrOwnerGone is the cause of what [Session.OwnerGone] ended.
	ErrOwnerGone = errors.New("streamstate: owner gone")
	// ErrReplaced is the cause of a claim's end by a claim of a higher term.
	ErrReplaced = errors.New("streamstate: replaced by a higher term")
	// ErrResubscribed is the cause of what a resubscribe ticket ended.
	ErrResubscribed = errors.New("streamstate: resubscribed")
	// ErrRecovering is the cause of what a recover ticket ended.
	ErrRecovering = errors.New("streamstate: recovery is due")
	// ErrMoved is the cause of a ticket's end by another event of its partition.
	ErrMoved = errors.New("streamstate: the partition has moved on")
	// ErrResolved is the cause of the end of a ticket or hold that was answered.
	ErrResolved = errors.New("streamstate: resolved")
	// ErrBegun is the cause of a ticket's end by a begin of its partition.
	ErrBegun = errors.New("streamstate: the partition has begun")
	// ErrAborted is the cause of the end of a flush or a ticket that was given up.
	ErrAborted = errors.New("streamstate: aborted")
	// ErrTimeout is the cause of a ticket's end by its deadline.
	ErrTimeout = errors.New("streamstate: timed out")
	// ErrStopped is the cause of a session's end by [Session.Stop] when the caller gave none.
	ErrStopped = errors.New("streamstate: stopped")
	// ErrDrained is the cause of a session's end by [Session.Drain].
	ErrDrained = errors.New("streamstate: drained")
	// ErrDropped is the cause of a session's end by a drop.
	ErrDropped = errors.New("streamstate: dropped")
	// ErrMerged is the cause of the end of the session that was merged into another.
	ErrMerged = errors.New("streamstate: merged")
	// ErrReopened is the cause of a superseded session's end.
	ErrReopened = errors.New("streamstate: reopened")
	// ErrOpenFailed is the cause of a session's end by [Session.OpenFailed] when the caller gave none.
	ErrOpenFailed = errors.New("streamstate: open failed")
	// ErrClosed is the cause of what [Book.Close] ended, and refuses opens after it.
	ErrClosed = errors.New("streamstate: closed")
	// ErrPanicked is the cause of the end of a merge or flush whose function panicked.
	ErrPanicked = errors.New("streamstate: function panicked")
)

// Reason is why a call was refused. Up to [ReasonHeld] they stand in the order in which they are looked for: the first one
// counts.
type Reason uint8

// The reasons, each that of the error of its name. Zero is none.
const (
	ReasonStaleSession Reason = iota + 1 // [ErrStaleSession]
	ReasonPhase                          // [ErrPhase]
	ReasonStaleClaim                     // [ErrStaleClaim]
	ReasonSuperseded                     // [ErrSuperseded]
	ReasonStaleHold                      // [ErrStaleHold]
	ReasonArgument                       // [ErrArgument]
	ReasonStaleTerm                      // [ErrStaleTerm]
	ReasonDuplicate                      // [ErrDuplicate]
	ReasonUnwanted                       // [ErrUnwanted]
	ReasonReleasing                      // [ErrReleasing]
	ReasonNotShutDown                    // [ErrNotShutDown]
	ReasonMustRollBack                   // [ErrMustRollBack]
	ReasonPosition                       // [ErrPosition]
	ReasonFlushRunning                   // [ErrFlushRunning]
	ReasonHeld                           // [ErrHeld]
	ReasonUnexpected                     // [ErrUnexpected]
	ReasonExists                         // [ErrExists]
	ReasonSameSession                    // [ErrSameSession]
	ReasonClosed                         // [ErrClosed]

	numReasons = iota + 1
)

var reasonErrors = [numReasons]error{
	nil, ErrStaleSession, ErrPhase, ErrStaleClaim, ErrSuperseded, ErrStaleHold, ErrArgument, ErrStaleTerm, ErrDuplicate,
	ErrUnwanted, ErrReleasing, ErrNotShutDown, ErrMustRollBack, ErrPosition, ErrFlushRunning, ErrHeld, ErrUnexpected,
	ErrExists, ErrSameSession, ErrClosed,
}

var reasonNames = [numReasons]string{
	"none", "stale-session", "phase", "stale-claim", "superseded", "stale-hold", "argument", "stale-term", "duplicate",
	"unwanted", "releasing", "not-shut-down", "must-roll-back", "position", "flush-running", "held", "unexpected", "exists",
	"same-session", "closed",
}

// String is the reason's name in lower case.
func (r Reason) String() string { return nameOf(reasonNames[:], int(r), "reason") }

// refusal is an error of this package that refuses a call.
type refusal interface {
	error
	reason() Reason
}

// StaleError refuses a call on a session that is not the key's present one.
type StaleError struct {
	Key     *Key      // not to be changed
	Session SessionID // the caller's
	Current SessionID // the record's present one; zero if the record is gone or being dropped, also if its key was opened again
	Cause   error     // why the caller's session ended
}

func (e *StaleError) Error() string {
	s := fmt.Sprintf("%v: %v: %v", ErrStaleSession, e.Key, e.Session)
	if e.Current != (SessionID{}) {
		s += fmt.Sprintf(", now %v", e.Current)
	}
	return because(s, e.Cause)
}

// Unwrap is [ErrStaleSession] and the cause.
func (e *StaleError) Unwrap() []error { return pair(ErrStaleSession, e.Cause) }
func (e *StaleError) reason() Reason  { return ReasonStaleSession }

// PhaseError refuses a call in a phase of the session.
type PhaseError struct {
	Key     *Key // not to be changed
	Session SessionID
	Op      Op
	Phase   Phase
	Cause   error // why the session ended, if it has
}

func (e *PhaseError) Error() string {
	return because(fmt.Sprintf("%v: %v: %v while %v", ErrPhase, e.Key, e.Op, e.Phase), e.Cause)
}

// Unwrap is [ErrPhase] and the cause.
func (e *PhaseError) Unwrap() []error { return pair(ErrPhase, e.Cause) }
func (e *PhaseError) reason() Reason  { return ReasonPhase }

// PartitionError refuses a call for what is known of one partition.
type PartitionError struct {
	Key       *Key // not to be changed
	Partition int32
	Op        Op
	Reason    Reason
	State     PartitionState
	Claim     ClaimID // the caller's, or the one in the way
	Given     uint64  // the term or the number given
	Want      uint64  // the least that would do
	Cause     error   // why the claim ended, if it has
}

func (e *PartitionError) Error() string {
	s := fmt.Sprintf("%v: %v partition %d (%v): %v", reasonErrors[e.Reason], e.Key, e.Partition, e.State, e.Op)
	if e.Claim != 0 {
		s += fmt.Sprintf(", claim %d", e.Claim)
	}
	if e.Reason == ReasonStaleTerm || e.Reason == ReasonPosition {
		s += fmt.Sprintf(", given %d, want %d", e.Given, e.Want)
	}
	return because(s, e.Cause)
}

// Unwrap is the sentinel of the reason, and the cause.
func (e *PartitionError) Unwrap() []error { return pair(reasonErrors[e.Reason], e.Cause) }
func (e *PartitionError) reason() Reason  { return e.Reason }

// TicketError refuses the use of a ticket or hold that has ended.
type TicketError struct {
	Key    *Key // not to be changed
	Reason Reason
	Op     Op
	Ticket uint64
	Cause  error // why it ended
}

func (e *TicketError) Error() string {
	return because(fmt.Sprintf("%v: %v ticket %d: %v", reasonErrors[e.Reason], e.Key, e.Ticket, e.Op), e.Cause)
}

// Unwrap is [ErrSuperseded] or [ErrStaleHold], and the cause.
func (e *TicketError) Unwrap() []error { return pair(reasonErrors[e.Reason], e.Cause) }
func (e *TicketError) reason() Reason  { return e.Reason }

// BusyError refuses a flush that may be started later.
type BusyError struct {
	Key    *Key // not to be changed
	Reason Reason
	By     uint64 // the ticket of the running flush, or the number of a hold
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%v: %v: by %d", reasonErrors[e.Reason], e.Key, e.By)
}

// Unwrap is [ErrFlushRunning] or [ErrHeld].
func (e *BusyError) Unwrap() error  { return reasonErrors[e.Reason] }
func (e *BusyError) reason() Reason { return e.Reason }

// ArgumentError names an argument that cannot be.
type ArgumentError struct {
	Field string // what it is
	Got   string // what was given
	Want  string // what would do
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%v: %s is %s, want %s", ErrArgument, e.Field, e.Got, e.Want)
}

// Unwrap is [ErrArgument].
func (e *ArgumentError) Unwrap() error  { return ErrArgument }
func (e *ArgumentError) reason() Reason { return ReasonArgument }

func badArgument(field string, got any, want string) *ArgumentError {
	return &ArgumentError{Field: field, Got: fmt.Sprint(got), Want: want}
}

// needs refuses the lack of a function.
func needs(name string) error { return badArgument(name, "nil", "a function") }

// ExistsError refuses to open a key that is open.
type ExistsError struct {
	Key Key
}

func (e *ExistsError) Error() string { return fmt.Sprintf("%v: %v", ErrExists, e.Key) }

// Unwrap is [ErrExists].
func (e *ExistsError) Unwrap() error  { return ErrExists }
func (e *ExistsError) reason() Reason { return ReasonExists }

// plainError is a refusal that has no facts beside its reason.
type plainError struct{ why Reason }

func (e *plainError) Error() string  { return reasonErrors[e.why].Error() }
func (e *plainError) Unwrap() error  { return reasonErrors[e.why] }
func (e *plainError) reason() Reason { return e.why }

// EndedError is the typed end of a context, a handle or a wait.
type EndedError struct {
	What  string // "session", "claim", "ticket", "flush", "merge", "stop"
	Cause error
}

func (e *EndedError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrEnded, e.What, e.Cause) }

// Unwrap is [ErrEnded] and the cause.
func (e *EndedError) Unwrap() []error { return pair(ErrEnded, e.Cause) }

func because(s string, cause error) string {
	if cause != nil {
		s += ": " + cause.Error()
	}
	return s
}

func pair(kind, cause error) []error {
	if cause == nil {
		return []error{kind}
	}
	return []error{kind, cause}
}
