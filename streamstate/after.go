package streamstate

import "context"

// after is what is done when a hold is over, with no lock held: contexts end first, then holds on other records are let
// go and merges are looked at, which may leave more to do; callbacks come last, so that one that blocks keeps up nobody.
type after struct {
	cancels []cancel
	holds   []*hold
	merges  []*merge
	drains  []*record // whose callbacks are this goroutine's to run
}

// cancel is a context that ends.
type cancel struct {
	f   context.CancelCauseFunc
	err error
}

// finish does all of it, even if a caller's function or callback panics: others wait for the rest.
func (a *after) finish() {
	defer a.drainAll()
	a.changes()
}

func (a *after) changes() {
	done := false
	defer func() {
		if !done {
			a.changes()
		}
	}()
	for {
		switch {
		case len(a.cancels) > 0:
			c := a.cancels[0]
			a.cancels = a.cancels[1:]
			c.f(c.err)
		case len(a.holds) > 0:
			h := a.holds[0]
			a.holds = a.holds[1:]
			h.letGo(a)
		case len(a.merges) > 0:
			m := a.merges[0]
			a.merges = a.merges[1:]
			m.look(a)
		default:
			done = true
			return
		}
	}
}

func (a *after) drainAll() {
	if len(a.drains) == 0 {
		return
	}
	r := a.drains[0]
	a.drains = a.drains[1:]
	defer a.drainAll()
	r.drain()
}
