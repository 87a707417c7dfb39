package jobtest

import (
	"errors"
	"slices"

	"github.com/staleproof/staleproof/jobtracker"
)

// kinds are the errors of which every one that the tracker returns is one.
var kinds = []error{
	jobtracker.ErrConfig, jobtracker.ErrOp, jobtracker.ErrReplica, jobtracker.ErrHello, jobtracker.ErrPhase,
	jobtracker.ErrLifecycle, jobtracker.ErrNotQuiesced, jobtracker.ErrGeneration, jobtracker.ErrReadOnly,
	jobtracker.ErrSuperseded, jobtracker.ErrOrphan, jobtracker.ErrStaleConn, jobtracker.ErrQuorum,
	jobtracker.ErrLostWrite, jobtracker.ErrEnded, jobtracker.ErrUnrepaired, jobtracker.ErrTooFew,
}

// Typed tells whether the error is one of those by which package jobtracker refuses or ends things.
func Typed(err error) bool {
	return slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) })
}
