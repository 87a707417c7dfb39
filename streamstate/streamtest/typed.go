package streamtest

import (
	"errors"
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// kinds are the errors of which every one that a book returns is one, and those of this package.
var kinds = []error{
	streamstate.ErrStaleSession, streamstate.ErrPhase, streamstate.ErrStaleClaim, streamstate.ErrSuperseded,
	streamstate.ErrStaleHold, streamstate.ErrArgument, streamstate.ErrStaleTerm, streamstate.ErrDuplicate,
	streamstate.ErrUnwanted, streamstate.ErrReleasing, streamstate.ErrNotShutDown, streamstate.ErrMustRollBack,
	streamstate.ErrPosition, streamstate.ErrFlushRunning, streamstate.ErrHeld, streamstate.ErrUnexpected,
	streamstate.ErrExists, streamstate.ErrSameSession, streamstate.ErrTxDone, streamstate.ErrEnded, streamstate.ErrClosed,
	ErrNoSession, ErrNoClaim, ErrNothing,
}

// Typed tells whether the error is one of those by which package streamstate, or this one, refuses or ends things.
func Typed(err error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}
