package streamstate

import (
	"context"
	"errors"
)

// ending is how something ended, and the context that ends with it. While something lives, it has none, or one without
// an error that was made because somebody asked for the context. Those that end for the same reason share one, so that
// an end allocates nothing. The record's lock guards all but the shared contexts, which are made with it.
type ending struct {
	err    error
	ctx    context.Context //nolint:containedctx // it is the context of what ends, not of a call
	cancel context.CancelCauseFunc
}

// ended makes an ending, with a context that has ended.
func ended(what string, cause error) *ending {
	e := &ending{err: cause}
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	e.cancel(&EndedError{What: what, Cause: cause})
	return e
}

// The endings that have no facts of their own.
var (
	causeHandedOver   = ended("claim", ErrHandedOver)
	causeFailed       = ended("claim", ErrFailed)
	causeReleased     = ended("claim", ErrReleased)
	causeGivenUp      = ended("claim", ErrGivenUp)
	causeFenced       = ended("claim", ErrFencedOff)
	causeReplaced     = ended("claim", ErrReplaced)
	causeResubscribed = ended("claim", ErrResubscribed)
	causeRecovering   = ended("ticket", ErrRecovering)
	causeMoved        = ended("ticket", ErrMoved)
	causeResolved     = ended("ticket", ErrResolved)
	causeTimeout      = ended("ticket", ErrTimeout)
	causeOwnerGone    = ended("claim", ErrOwnerGone)
	causeAborted      = ended("flush", ErrAborted)
	causeHolderEnded  = ended("hold", ErrEnded)
	causeMerged       = ended("session", ErrMerged)
	causeUnwanted     = ended("ticket", ErrGivenUp)
	causeAbandoned    = ended("ticket", ErrAborted)
	causeBegun        = ended("ticket", ErrBegun)
)

// causeOf is why a partition's ticket ends with an event.
func causeOf(e event) *ending {
	if why := ticketCauses[e]; why != nil {
		return why
	}
	return causeMoved
}

// ticketCauses are the causes of events other than that the partition has moved on.
var ticketCauses = [numEvents]*ending{
	evDeadline: causeTimeout, evRestartRefused: causeResolved, evShutDown: causeResolved, evShutDownFailed: causeResolved,
	evUnwant: causeUnwanted, evResubscribeTaken: causeResubscribed, evAbandoned: causeAbandoned, evBegin: causeBegun,
}

// error is why it ended, nil if it has not.
func (e *ending) error() error {
	if e == nil {
		return nil
	}
	return e.err
}

// context is the context of what lives in *e, made when it is first asked for.
func contextOf(e **ending) context.Context {
	if *e == nil {
		*e = new(ending)
	}
	if (*e).ctx == nil {
		(*e).ctx, (*e).cancel = context.WithCancelCause(context.Background())
	}
	return (*e).ctx
}

// endLife ends what lives in *e, unless it has ended. It returns what is to be called after the hold, if anything.
func endLife(e **ending, why *ending) context.CancelCauseFunc {
	switch {
	case *e == nil:
		*e = why
	case (*e).err == nil:
		(*e).err = why.err
		return (*e).cancel
	}
	return nil
}

// orElse is a caller's cause, joined with ours so that it matches both.
func orElse(ours, cause error) error {
	if cause == nil {
		return ours
	}
	return both(ours, cause)
}

// both is err, and matches ended as well if there is such a thing.
func both(ended, err error) error {
	if ended == nil || errors.Is(err, ended) {
		return err
	}
	return &causeError{ended, err}
}

// causeError is one of our errors with the caller's own.
type causeError struct{ ours, cause error }

func (e *causeError) Error() string   { return because(e.ours.Error(), e.cause) }
func (e *causeError) Unwrap() []error { return []error{e.ours, e.cause} }
