package streamstate

import "fmt"

// MaxPartitions is the largest number of partitions of one key.
const MaxPartitions = 1 << 20

// Phase is where a key is in its life. There is one authority for it: the record's core.
type Phase uint8

// The phases, in the order a key usually meets them.
const (
	Opening  Phase = iota // opened as pending; the open request has not been answered
	Active                // in use
	Stopping              // stopped or draining; its last flush still runs
	Stopped               // ended for its users; Reopen begins the next session
	Closing               // dropped; its last flush still runs
	Gone                  // dropped; terminal

	numPhases = iota
)

var phaseNames = [numPhases]string{"opening", "active", "stopping", "stopped", "closing", "gone"}

// String is the phase's name in lower case.
func (p Phase) String() string { return nameOf(phaseNames[:], int(p), "phase") }

// PartitionState is where one partition of a session is.
type PartitionState uint8

// The states of a partition.
const (
	Unwanted  PartitionState = iota // not ours to follow
	Idle                            // wanted, no claim, nothing wrong yet
	Begun                           // one live claim
	Contested                       // two or more live claims
	Due                             // wanted, to be repaired
	Fenced                          // the listed claims may still run at the source

	numStates = iota
)

var stateNames = [numStates]string{"unwanted", "idle", "begun", "contested", "due", "fenced"}

// String is the state's name in lower case.
func (s PartitionState) String() string { return nameOf(stateNames[:], int(s), "state") }

// live tells whether a partition in this state has live claims.
func (s PartitionState) live() bool { return s == Begun || s == Contested }

// Rung is how far the repair of a partition has climbed.
type Rung uint8

// The rungs.
const (
	RungRestart     Rung = iota // restart it from what is received
	RungShutDown                // shut the last claimants down, then restart
	RungResubscribe             // close all streams of the session and open them anew
	RungRecover                 // stop the session, roll back, reopen

	numRungs = iota
)

var rungNames = [numRungs]string{"restart", "shut-down", "resubscribe", "recover"}

// String is the rung's name in lower case.
func (r Rung) String() string { return nameOf(rungNames[:], int(r), "rung") }

// event is what can happen to a partition.
type event uint8

const (
	evBegin             event = iota // a claim begins
	evBeginFailed                    // an owner says that its begin failed
	evEndHandOver                    // a claim ends in good order: a successor is expected
	evEndFailed                      // a claim ends because it cannot go on
	evRelease                        // a claim ends because the partition is given up
	evFence                          // a claim is not trusted any more
	evOwnerGone                      // an owner has left for good
	evWant                           // the partition is ours to follow
	evUnwant                         // it is not
	evDeadline                       // the armed deadline has passed
	evResubscribeTaken               // a resubscribe ticket is handed out
	evRecoverTaken                   // a recover ticket is handed out
	evRestartAccepted                // the source has accepted a restart
	evRestartRefused                 // the source has refused it
	evShutDown                       // a listed claim is shut down
	evShutDownFailed                 // it cannot be
	evResubscribed                   // a resubscribe has been done
	evResubscribeFailed              // a resubscribe has failed
	evRecoverFailed                  // a recovery has failed
	evAbandoned                      // a ticket was given back
	evSessionEnd                     // the session ends

	numEvents = iota
)

var eventNames = [numEvents]string{
	"begin", "begin-failed", "end-hand-over", "end-failed", "release", "fence", "owner-gone", "want", "unwant", "deadline",
	"resubscribe-taken", "recover-taken", "restart-accepted", "restart-refused", "shut-down", "shut-down-failed",
	"resubscribed", "resubscribe-failed", "recover-failed", "abandoned", "session-end",
}

func (e event) String() string { return nameOf(eventNames[:], int(e), "event") }

// facts are what the partition relation depends on beside the state and the event. They fit into registers.
type facts struct {
	is   known
	rung Rung
	stay int32 // live claims that stay, the new one not counted
	left int32 // listed claims that are left
}

// known are facts that are so or not.
type known uint8

const (
	isStale     known = 1 << iota // begin: the term is lower than the highest seen in the session
	isDuplicate                   // begin: the owner has a live claim that the term does not replace
	isLive                        // the event is of a live claim
	isListed                      // the event is of a listed claim
	isCovered                     // want: a running flush covers the partition
	hasLast                       // there are last claimants that could be listed
	wasTried                      // this rung's repair was tried since the last claim that was stable
)

func (f facts) has(k known) bool { return f.is&k != 0 }

// given is k if on.
func given(on bool, k known) known {
	if on {
		return k
	}
	return 0
}

// nextPartition is the whole relation of a partition's states: pure, and total over states and events. A refused event
// changes nothing.
func nextPartition(s PartitionState, e event, f facts) (PartitionState, Reason) {
	switch e {
	case evBegin:
		return nextBegin(s, f)
	case evBeginFailed:
		if s == Idle {
			return Due, 0
		}
		return s, ReasonUnexpected
	case evEndHandOver:
		return nextEnd(s, Idle, f)
	case evEndFailed:
		return nextEnd(s, Due, f)
	case evRelease:
		f.is &^= isListed // a fenced claim cannot give up what others may hold
		return nextEnd(s, Unwanted, f)
	case evFence:
		if f.has(isLive) {
			return Fenced, 0
		}
		return s, ReasonStaleClaim
	case evOwnerGone:
		if to, refusal := nextEnd(s, Due, f); refusal == 0 {
			return to, 0
		}
		return s, 0
	case evWant:
		return nextWant(s, f)
	case evUnwant:
		return Unwanted, 0
	case evDeadline:
		return nextDeadline(s, f), 0
	case evResubscribeTaken, evSessionEnd:
		if s == Unwanted {
			return s, 0
		}
		return Idle, 0
	case evRestartAccepted, evRestartRefused, evShutDown, evShutDownFailed:
		return nextReply(s, e, f)
	case evResubscribeFailed, evAbandoned:
		if s == Idle { // nobody will ask for its begin
			return Due, 0
		}
		return s, 0
	case evRecoverTaken, evResubscribed, evRecoverFailed:
		return s, 0
	}
	panic(fmt.Sprintf("streamstate: bug: no such event: %v", e))
}

func nextBegin(s PartitionState, f facts) (PartitionState, Reason) {
	switch {
	case f.has(isStale):
		return s, ReasonStaleTerm
	case f.has(isDuplicate):
		return s, ReasonDuplicate
	case s == Unwanted:
		return s, ReasonUnwanted
	case s == Fenced:
		return s, ReasonNotShutDown
	case f.stay > 0:
		return Contested, 0
	default:
		return Begun, 0
	}
}

// nextEnd is where the end of one claim leads; empty is the state without any.
func nextEnd(s, empty PartitionState, f facts) (PartitionState, Reason) {
	switch {
	case f.has(isLive) && f.stay == 0:
		return empty, 0
	case f.has(isLive) && f.stay == 1:
		return Begun, 0
	case f.has(isLive):
		return Contested, 0
	case f.has(isListed) && s == Fenced && f.left == 0:
		return Due, 0
	case f.has(isListed) && s == Fenced:
		return Fenced, 0
	default:
		return s, ReasonStaleClaim
	}
}

func nextWant(s PartitionState, f facts) (PartitionState, Reason) {
	switch {
	case s != Unwanted:
		return s, 0
	case f.has(isCovered):
		return s, ReasonReleasing
	case f.left > 0:
		return Fenced, 0
	default:
		return Idle, 0
	}
}

func nextDeadline(s PartitionState, f facts) PartitionState {
	switch s {
	case Idle:
		return Due
	case Contested:
		return Fenced
	case Due:
		to, _ := nextReply(s, evRestartRefused, f)
		return to
	case Unwanted, Begun, Fenced:
	}
	return s
}

func nextReply(s PartitionState, e event, f facts) (PartitionState, Reason) {
	switch {
	case e == evRestartAccepted && s == Due:
		return Due, 0
	case e == evRestartRefused && s == Due:
		if f.rung == RungRestart && f.has(hasLast) {
			return Fenced, 0
		}
		return Due, 0
	case e == evShutDown && s == Fenced && f.has(isListed):
		if f.left == 0 {
			return Due, 0
		}
		return Fenced, 0
	case e == evShutDownFailed && s == Fenced:
		return Fenced, 0
	default:
		return s, ReasonSuperseded
	}
}

// nextRung is the repair ladder: the rung after an event that was not refused.
func nextRung(s PartitionState, e event, f facts) Rung {
	switch e {
	case evRestartRefused:
		return refusedRung(f)
	case evShutDownFailed:
		return max(f.rung, RungResubscribe)
	case evDeadline:
		switch s {
		case Idle:
			return failedBegin(f.rung)
		case Begun:
			return RungRestart // it has been stable
		case Contested:
			return max(f.rung, RungShutDown)
		case Due:
			return refusedRung(f)
		case Fenced:
			return max(f.rung, RungResubscribe)
		case Unwanted:
		}
	case evBeginFailed:
		return failedBegin(f.rung)
	case evFence:
		return max(f.rung, RungShutDown)
	case evEndFailed, evOwnerGone:
		if f.has(isLive) && f.stay == 0 && f.has(wasTried) { // what was repaired did not last (S42)
			return min(f.rung+1, RungRecover)
		}
	case evRelease:
		if f.stay == 0 {
			return RungRestart
		}
	case evWant:
		if s == Unwanted && f.left > 0 {
			return RungShutDown
		}
	case evUnwant, evSessionEnd:
		return RungRestart
	case evResubscribeTaken:
		if s != Unwanted {
			return max(f.rung, RungResubscribe)
		}
	case evResubscribeFailed:
		if s == Idle || s == Due || s == Fenced {
			return RungRecover
		}
	case evBegin, evEndHandOver, evRecoverTaken, evRestartAccepted, evShutDown, evResubscribed, evRecoverFailed, evAbandoned:
	}
	return f.rung
}

func refusedRung(f facts) Rung {
	if f.rung == RungRestart && f.has(hasLast) {
		return RungShutDown
	}
	return max(f.rung, RungResubscribe)
}

// failedBegin is the rung after a begin that was waited for did not come: after a resubscribe there is only recovery.
func failedBegin(r Rung) Rung {
	if r >= RungResubscribe {
		return RungRecover
	}
	return r
}

// verdict is what becomes of data that a claim hands in.
type verdict uint8

const (
	dataApplied  verdict = iota // new to the partition
	dataSkipped                 // known already: only the claim moves on
	dataSame                    // where the claim is
	dataBelow                   // ErrPosition: the claim has been there
	dataRollBack                // ErrMustRollBack
)

// judge decides what becomes of data up to pos from a live claim.
func judge(pos, next, received uint64, rollBack bool) verdict {
	switch {
	case rollBack:
		return dataRollBack
	case pos < next:
		return dataBelow
	case pos == next:
		return dataSame
	case pos <= received:
		return dataSkipped
	default:
		return dataApplied
	}
}

// nameOf is the name at i, or a name that shows the stray value.
func nameOf(names []string, i int, what string) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", what, i)
	}
	return names[i]
}
