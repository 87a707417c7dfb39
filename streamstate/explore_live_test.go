package streamstate

import (
	"errors"
	"fmt"
	"slices"
)

// source is how a source behaves once nobody starts anything else and callers answer what they hold.
type source bool

const (
	works   source = true  // tickets are answered with success, and begins come
	refuses source = false // everything is refused and nothing begins, until recovery is asked for
)

// calm is the next event with that source. ok is false when nothing is left to be done.
func (x *stage) calm(how source) (m move, ok bool) {
	for i := range x.keys {
		if m, ok = x.calmKey(i, how); ok {
			m.key = uint8(i)
			return m, true
		}
	}
	return move{}, false
}

func (x *stage) calmKey(i int, how source) (m move, ok bool) {
	k := x.h[i]
	switch {
	case k.flush != nil:
		return move{what: mvFlushDone}, true
	case len(k.taken) > 0:
		return move{what: mvReleaseHold}, true
	case k.phase == Opening:
		return move{what: mvOpened}, true
	case k.phase == Stopped:
		return move{what: mvReopen}, true
	case k.phase == Gone:
		return move{}, false
	case k.ticket != nil && k.ticket.kind == workResubscribe && how == refuses:
		return move{what: mvSessionFailed}, true
	case k.ticket != nil && k.ticket.kind == workResubscribe:
		return move{what: mvResubscribed}, true
	case k.ticket != nil && how == refuses:
		return move{}, false // recovery has been asked for
	case k.ticket != nil:
		return move{what: mvStop}, true
	}
	for j := range k.parts {
		if m, ok = calmTicket(&k.parts[j], how); ok {
			m.a = uint8(j)
			return m, true
		}
	}
	if x.hasDue(k) {
		return move{what: mvNextDue}, true
	}
	for j := range k.parts {
		switch p := &k.parts[j]; {
		case p.state == Idle && how == works:
			return move{what: mvBegin, a: uint8(j)}, true
		case p.state == Idle, p.state == Contested:
			return move{what: mvDeadline, a: uint8(j)}, true
		}
	}
	if k.retryAt != noAlarm {
		return move{what: mvRetryDeadline}, true
	}
	return move{}, false
}

// calmTicket answers the ticket of a partition.
func calmTicket(p *partition, how source) (m move, ok bool) {
	t := p.ticket()
	switch {
	case t == nil:
		return move{}, false
	case how == refuses && t.kind == workRestart:
		return move{what: mvRefused}, true
	case how == refuses:
		return move{what: mvShutDownFailed}, true
	case t.kind == workRestart && p.flags&flagAccepted == 0:
		return move{what: mvAccepted}, true
	case t.kind == workRestart:
		return move{what: mvBegin}, true
	}
	for n, c := range t.claims {
		if c == p.x.listed[0] {
			return move{what: mvShutDown, b: uint8(n)}, true
		}
	}
	return move{what: mvShutDownFailed}, true
}

// calmAfter is how many events it takes at most; a state that needs more is not live.
const calmAfter = 60

// settle lets the state on the stage come to rest, and returns how many events that took. far knows it for states that
// have been met before.
func (x *stage) settle(how source, far map[uint64]uint8) (int, error) {
	var path []uint64
	for {
		id := x.hash()
		if n, ok := far[id]; ok {
			for i := range path {
				far[path[len(path)-1-i]] = n + uint8(i+1)
			}
			return int(n) + len(path), nil
		}
		m, ok := x.calm(how)
		if !ok {
			if err := x.rested(how); err != nil {
				return 0, err
			}
			far[id] = 0
			continue
		}
		if path = append(path, id); len(path) > calmAfter {
			return 0, fmt.Errorf("not at rest after %d events; %v is next", calmAfter, m)
		}
		if can, err := x.play(m); !can || err != nil {
			return 0, fmt.Errorf("%v, when nothing is wrong: %w", m, errors.Join(err))
		}
		x.normalise()
		x.put(x.take())
	}
}

// rested demands of a state where nothing is left to be done that it is well, or that recovery has been asked for.
func (x *stage) rested(how source) error {
	for i := range x.keys {
		k := x.h[i]
		if how == refuses && k.ticket != nil && k.ticket.kind == workRecover {
			return nil
		}
		if k.phase != Gone && (k.phase != Active || !k.healthy()) {
			return fmt.Errorf("at rest, but %v, healthy: %v", k.phase, k.healthy())
		}
	}
	if len(x.merges) > 0 {
		return errors.New("at rest, but a merge waits")
	}
	return nil
}

// dropAll drops everything: it ends as soon as the running flushes have ended, and so does all that waits for it.
func (x *stage) dropAll() error {
	var handles []*Handle
	for i := range x.keys {
		k := x.h[i]
		for _, r := range k.releases {
			handles = append(handles, r.handle)
		}
		if k.stopped != nil {
			handles = append(handles, k.stopped)
		}
		handles = append(handles, x.s[i].Drop())
	}
	for _, m := range x.merges {
		handles = append(handles, m.handle)
	}
	for i := range x.keys {
		if k := x.h[i]; k.flush != nil {
			if err := (&FlushTicket{k.r, k.flush}).Fail(nil); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(handles, open) {
		return errors.New("dropped, but a handle has not resolved")
	}
	for i := range x.keys {
		if k := x.h[i]; k.phase != Gone || len(k.holds)+len(k.taken)+len(k.merges) > 0 {
			return fmt.Errorf("dropped, but %v with %d holds, %d taken, %d merges", k.phase, len(k.holds), len(k.taken), len(k.merges))
		}
	}
	return nil
}
