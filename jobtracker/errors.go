package jobtracker

import (
	"errors"
	"fmt"
)

// The kinds of refusal and of ending. Each error of this package matches one of them, or an orphan reason, with
// [errors.Is]; the struct that carries the facts is found with [errors.As].
var (
	// ErrTooFew matches a *[TooFewError].
	ErrTooFew = errors.New("jobtracker: too few replicas to reconcile")
	// ErrUnrepaired matches an *[UnrepairedError].
	ErrUnrepaired = errors.New("jobtracker: not repaired yet")
	// ErrConfig matches a *[ConfigError].
	ErrConfig = errors.New("jobtracker: bad configuration")
	// ErrOp matches an *[OpError].
	ErrOp = errors.New("jobtracker: bad operation")
	// ErrReplica matches a *[ReplicaError]: there is no replica of that number.
	ErrReplica = errors.New("jobtracker: no such replica")
	// ErrHello matches a *[HelloError]: what a replica says of itself cannot be true of this device.
	ErrHello = errors.New("jobtracker: bad hello")
	// ErrPhase matches a *[PhaseError]: the activation is in a phase that does not allow the call.
	ErrPhase = errors.New("jobtracker: not allowed in this phase")
	// ErrLifecycle matches a *[LifecycleError]: the replica is in a state that does not allow the call.
	ErrLifecycle = errors.New("jobtracker: not allowed in this replica state")
	// ErrNotQuiesced matches a *[LifecycleError]: the replica's former connection may still have jobs executed.
	ErrNotQuiesced = errors.New("jobtracker: the former connection is not quiesced")
	// ErrGeneration matches a *[GenerationError].
	ErrGeneration = errors.New("jobtracker: generation not newer")
	// ErrReadOnly refuses a changing job in an activation that is read-only.
	ErrReadOnly = errors.New("jobtracker: read-only activation")
	// ErrSuperseded refuses a [Repair] ticket that has ended.
	ErrSuperseded = errors.New("jobtracker: superseded")
	// ErrOrphan matches every *[OrphanError]: a completion that cannot be applied.
	ErrOrphan = errors.New("jobtracker: orphaned completion")

	// ErrQuorum ends a job for which too many replicas are bad.
	ErrQuorum = errors.New("jobtracker: too many replicas failed or skipped the job")
	// ErrLostWrite ends a flush behind a write that was acknowledged early and failed later (J18).
	ErrLostWrite = errors.New("jobtracker: a write acknowledged early has failed")
	// ErrEnded ends whatever an activation, a connection or the tracker leaves behind; the cause is wrapped.
	ErrEnded = errors.New("jobtracker: ended")
)

// Causes: why a connection, a repair or an activation ended.
var (
	// ErrDeactivated is the cause of what [Tracker.Deactivate] ended.
	ErrDeactivated = errors.New("jobtracker: deactivated")
	// ErrDisabled is the cause of what [Tracker.Disable] ended, beside the caller's own.
	ErrDisabled = errors.New("jobtracker: disabled")
	// ErrClosed is the cause of what [Tracker.Close] ended.
	ErrClosed = errors.New("jobtracker: closed")
	// ErrReplaced is the cause of what [Tracker.Replace] ended.
	ErrReplaced = errors.New("jobtracker: replica replaced")
	// ErrAllFaulted is the cause of an activation's end when no voter is left.
	ErrAllFaulted = errors.New("jobtracker: all replicas faulted")
	// ErrReplyTimeout is the cause of a connection's end when the replica owed an answer too long.
	ErrReplyTimeout = errors.New("jobtracker: reply timeout")
	// ErrOfflineLimit is the cause of a replica's fault when it was away too long or missed too much.
	ErrOfflineLimit = errors.New("jobtracker: offline limit exceeded")
	// ErrJobFailed is the cause of a replica's fault when it failed a job that all replicas must do alike.
	ErrJobFailed = errors.New("jobtracker: replica failed a job")
	// ErrFaulted is the cause of a replica's fault by [Tracker.Fault] when the caller gave none.
	ErrFaulted = errors.New("jobtracker: replica faulted by the caller")
	// ErrMismatch is the cause of a replica's fault when its answer differed from another's.
	ErrMismatch = errors.New("jobtracker: replica answered differently")
	// ErrBehind is the cause of a replica's fault when it came back without what it had vouched for.
	ErrBehind = errors.New("jobtracker: replica came back behind")
	// ErrPeerClosed is the cause of a connection's end when its driver gave none.
	ErrPeerClosed = errors.New("jobtracker: connection closed")
	// ErrRepaired is the cause with which the context of a repair ends that went well.
	ErrRepaired = errors.New("jobtracker: repaired") // +checklocksignore: used under a lock only, but it never changes
	// ErrAborted is the cause of a repair's end when its driver gave none.
	ErrAborted = errors.New("jobtracker: repair aborted")
)

// ConfigError names a field of [Config] that cannot work.
type ConfigError struct {
	Field string // the field's name
	Got   int64  // what was given
	Min   int64  // the least that is allowed
	Max   int64  // the most that is allowed
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%v: %s is %d, want %d to %d", ErrConfig, e.Field, e.Got, e.Min, e.Max)
}

// Unwrap is [ErrConfig].
func (e *ConfigError) Unwrap() error { return ErrConfig }

// OpError names a field of an [Op] or [Result] that cannot be.
type OpError struct {
	Field string // the field's name
	Got   uint64 // what was given
	Min   uint64 // the least that is allowed
	Max   uint64 // the most that is allowed
}

func (e *OpError) Error() string {
	return fmt.Sprintf("%v: %s is %d, want %d to %d", ErrOp, e.Field, e.Got, e.Min, e.Max)
}

// Unwrap is [ErrOp].
func (e *OpError) Unwrap() error { return ErrOp }

// ReplicaError names a replica that does not exist.
type ReplicaError struct {
	Replica  int // what was given
	Replicas int // how many there are, numbered from 0
}

func (e *ReplicaError) Error() string {
	return fmt.Sprintf("%v: %d of %d", ErrReplica, e.Replica, e.Replicas)
}

// Unwrap is [ErrReplica].
func (e *ReplicaError) Unwrap() error { return ErrReplica }

// HelloError names what in a [Hello] does not fit. The replica's state is unchanged.
type HelloError struct {
	Replica int
	Field   string // the field's name
	Got     string // what the replica said
	Want    string // what was expected
}

func (e *HelloError) Error() string {
	return fmt.Sprintf("%v: replica %d: %s is %s, want %s", ErrHello, e.Replica, e.Field, e.Got, e.Want)
}

// Unwrap is [ErrHello].
func (e *HelloError) Unwrap() error { return ErrHello }

// PhaseError refuses a call in a phase of the activation.
type PhaseError struct {
	Call  string
	Phase Activation
	Cause error // why the last activation ended, if one has
}

func (e *PhaseError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%v: %s while %v (%v)", ErrPhase, e.Call, e.Phase, e.Cause)
	}
	return fmt.Sprintf("%v: %s while %v", ErrPhase, e.Call, e.Phase)
}

// Unwrap is [ErrPhase] and the cause.
func (e *PhaseError) Unwrap() []error { return pair(ErrPhase, e.Cause) }

// UnrepairedError refuses to take for repaired what is not.
type UnrepairedError struct {
	Replica int
	Left    int // extents
}

func (e *UnrepairedError) Error() string {
	return fmt.Sprintf("%v: replica %d: %d extents", ErrUnrepaired, e.Replica, e.Left)
}

// Unwrap is [ErrUnrepaired].
func (e *UnrepairedError) Unwrap() error { return ErrUnrepaired }

// TooFewError refuses a reconciliation for want of replicas.
type TooFewError struct {
	Counted int // replicas that are here and have been active before
	Need    int // of these, so that one of them has everything flushed
	Here    int // with those that are blank or replaced
	Quorum  int // that are needed in all
}

func (e *TooFewError) Error() string {
	return fmt.Sprintf("%v: %d of %d, and with blanks %d of %d", ErrTooFew, e.Counted, e.Need, e.Here, e.Quorum)
}

// Unwrap is [ErrTooFew].
func (e *TooFewError) Unwrap() error { return ErrTooFew }

// LifecycleError refuses an event in a state of a replica's lifecycle.
type LifecycleError struct {
	Replica int
	State   ReplicaState
	Event   ReplicaEvent
	Conn    ConnID // the present or last connection, 0 if there was none
}

func (e *LifecycleError) Error() string {
	return fmt.Sprintf("%v: replica %d: %v while %v", e.kind(), e.Replica, e.Event, e.State)
}

func (e *LifecycleError) kind() error {
	if e.State.Phase == Stopping && (e.Event == EventConnect || e.Event == EventConnectBehind) {
		return ErrNotQuiesced
	}
	return ErrLifecycle
}

// Unwrap is [ErrNotQuiesced] for a connect while stopping, else [ErrLifecycle].
func (e *LifecycleError) Unwrap() error { return e.kind() }

// GenerationError refuses an activation whose generation is not newer than one seen before.
type GenerationError struct {
	Given, Seen uint64
}

func (e *GenerationError) Error() string {
	return fmt.Sprintf("%v: %d, seen %d", ErrGeneration, e.Given, e.Seen)
}

// Unwrap is [ErrGeneration].
func (e *GenerationError) Unwrap() error { return ErrGeneration }

// JobError is how a job failed. A job that failed may have been executed on some replicas.
type JobError struct {
	Job     JobID
	Kind    Kind
	Done    int   // voters that did it, when it was decided
	Failed  int   // replicas that failed it
	Skipped int   // replicas that it was written off on, when it was decided
	Err     error // ErrQuorum, ErrLostWrite or ErrEnded
	Cause   error // the first replica's error, the lost write's, or why it ended
}

func (e *JobError) Error() string {
	s := fmt.Sprintf("%v: job %d (%v): %d done, %d failed, %d skipped", e.Err, e.Job, e.Kind, e.Done, e.Failed, e.Skipped)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is Err and Cause.
func (e *JobError) Unwrap() []error { return pair(e.Err, e.Cause) }

// EndedError is the typed end of a connection, a repair or a wait for admission.
type EndedError struct {
	What  string // "connection", "repair", "reconciliation", "admission", "activation"
	Cause error
}

func (e *EndedError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrEnded, e.What, e.Cause) }

// Unwrap is [ErrEnded] and the cause.
func (e *EndedError) Unwrap() []error { return pair(ErrEnded, e.Cause) }

// FaultError says why a replica was faulted.
type FaultError struct {
	Replica int
	Job     JobID // the job that did it, 0 if none
	Err     error // ErrJobFailed, ErrMismatch, ErrOfflineLimit, ErrBehind, or the caller's
	Cause   error // the replica's own error, if there was one
}

func (e *FaultError) Error() string {
	s := fmt.Sprintf("%v: replica %d", e.Err, e.Replica)
	if e.Job != 0 {
		s += fmt.Sprintf(", job %d", e.Job)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap is Err and Cause.
func (e *FaultError) Unwrap() []error { return pair(e.Err, e.Cause) }

func pair(kind, cause error) []error {
	if cause == nil {
		return []error{kind}
	}
	return []error{kind, cause}
}
