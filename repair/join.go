package repair

import (
	"context"
	"time"
)

// joined is a ticket's context with the deadline and the values of the caller's.
type joined struct {
	context.Context //nolint:containedctx // it is one itself
	caller          context.Context
}

func (j joined) Deadline() (time.Time, bool) { return j.caller.Deadline() }

func (j joined) Value(key any) any {
	if v := j.Context.Value(key); v != nil {
		return v // the ticket's has no values, but this is how an end is passed on without a goroutine
	}
	return j.caller.Value(key)
}

// join is the context of what is done under a ticket. It ends with the ticket's before the call that ended that returns, so
// that nothing is begun in a repair that another has followed; and with the caller's.
func join(caller, ticket context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(joined{ticket, caller})
	end := func() { cancel(context.Cause(caller)) }
	if caller.Err() != nil {
		end() // AfterFunc would, but on a goroutine
	}
	stop := context.AfterFunc(caller, end)
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
