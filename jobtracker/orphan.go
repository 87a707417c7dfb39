package jobtracker

import (
	"errors"
	"fmt"
)

// OrphanReason says why a completion cannot be applied. The first that holds, in this order, is given.
type OrphanReason uint8

// The reasons, in the order in which they are looked at.
const (
	OrphanStaleConn    OrphanReason = iota // the connection has ended; Cause says why
	OrphanNeverIssued                      // no job has had this id
	OrphanRetired                          // the job has been retired
	OrphanSkipped                          // the job was written off on this replica
	OrphanNotSent                          // the job was not dispatched on this connection, whatever its state
	OrphanDuplicate                        // the job was already completed on this connection
	OrphanKindMismatch                     // the result names a kind and it is not the job's

	numReasons = iota
)

var reasonNames = [numReasons]string{"stale connection", "never issued", "retired", "skipped", "not sent", "duplicate", "kind mismatch"}

// String is the reason in words.
func (r OrphanReason) String() string { return nameOf(reasonNames[:], int(r), "reason") }

// A sentinel per reason, for [errors.Is] on an *[OrphanError]. ErrStaleConn is also the error of every other call on a
// connection that has ended.
var (
	ErrStaleConn    = errors.New("jobtracker: stale connection")
	ErrNeverIssued  = errors.New("jobtracker: job never issued")
	ErrRetired      = errors.New("jobtracker: job retired")
	ErrSkipped      = errors.New("jobtracker: job skipped on this replica")
	ErrNotSent      = errors.New("jobtracker: job not sent on this connection")
	ErrDuplicate    = errors.New("jobtracker: job already completed on this connection")
	ErrKindMismatch = errors.New("jobtracker: kind is not the job's")
)

var reasonErrors = [numReasons]error{ErrStaleConn, ErrNeverIssued, ErrRetired, ErrSkipped, ErrNotSent, ErrDuplicate, ErrKindMismatch}

// OrphanError is a completion that could not be applied. Nothing has changed but the count of its reason. It matches
// [ErrOrphan] and the sentinel of its reason. The reason is exact for ever, whatever the age of the reply, in no memory
// at all: ids only grow (CR 1121, CR 1290). It is the caller's for ever. Eight share an allocation of 384 bytes, which one
// that is kept keeps.
type OrphanError struct {
	Job     JobID
	Conn    ConnID // the connection the completion came in on
	Current ConnID // the replica's live connection, 0 if it has none
	Cause   error  // why the connection ended; nil for other reasons
	Replica uint8
	Reason  OrphanReason
	Kind    Kind // the job's, for OrphanKindMismatch
	GotKind Kind // the result's, for OrphanKindMismatch
}

func (e *OrphanError) Error() string {
	s := fmt.Sprintf("%v: %v: replica %d, job %d, connection %d, current %d", ErrOrphan, e.Reason, e.Replica, e.Job, e.Conn, e.Current)
	if e.Reason == OrphanKindMismatch {
		s += fmt.Sprintf(", job is a %v, result a %v", e.Kind, e.GotKind)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Is matches [ErrOrphan] and the sentinel of the reason.
func (e *OrphanError) Is(target error) bool {
	return target == ErrOrphan || int(e.Reason) < len(reasonErrors) && target == reasonErrors[e.Reason]
}

// Unwrap is why the connection ended, if it has.
func (e *OrphanError) Unwrap() error { return e.Cause }
