package repair

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/staleproof/staleproof/streamstate"
)

// What a [Source] answers beside nil.
var (
	// ErrPending says of a restart that the source will begin when it can: the session waits longer for the begin
	// ([streamstate.Options].PendingWithin). Of anything else it is an error as any other.
	ErrPending = errors.New("repair: pending at the source")
	// ErrRefused says that there is no point in asking again: the partition, or the session, climbs at once.
	ErrRefused = errors.New("repair: refused by the source")
)

// ErrRecoveryDue matches a *[RecoveryDueError].
var ErrRecoveryDue = errors.New("repair: recovery is due")

// PartitionErrors are the answers of a [Source] where they are not all the same: those that are not in it are nil.
type PartitionErrors map[int]error

func (e PartitionErrors) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "repair: %d partitions failed", len(e))
	for _, p := range slices.Sorted(maps.Keys(e)) {
		if b.Len() > 200 {
			b.WriteString(", …")
			break
		}
		fmt.Fprintf(&b, ", %d: %v", p, e[p])
	}
	return b.String()
}

// RecoveryDueError says that the session is to be stopped, reopened, and its data rolled back to where the next session
// begins: see the package documentation. [streamstate.Session.Stop] ends the ticket.
type RecoveryDueError struct {
	Key     streamstate.Key
	Session streamstate.SessionID
	// Restart is what was flushed when recovery came due, lowered where the source said roll back.
	Restart streamstate.Timestamp
	// Ticket is out until the session is stopped. A caller that cannot begin the recovery says so by its Failed, and calls
	// [Stream] again: the recovery is due again after [streamstate.Options].RetryAfter.
	Ticket *streamstate.RecoverTicket
}

func (e *RecoveryDueError) Error() string {
	return fmt.Sprintf("%v: %v: session %v: restart from %v", ErrRecoveryDue, e.Key, e.Session, e.Restart)
}

// Unwrap is [ErrRecoveryDue].
func (e *RecoveryDueError) Unwrap() error { return ErrRecoveryDue }
