package streamstate

import (
	"slices"
	"time"
)

// flush is a running flush. Its facts do not change; it is its own identity.
type flush struct {
	id     uint64
	target Timestamp
	life   *ending // the gate's
	since  time.Time
}

// flushTarget is what a flush begun now would vouch for: what is received where the partition is wanted and no claim
// must roll back, else what is flushed.
func (k *core) flushTarget() Timestamp {
	e := k.timestamp().edit(len(k.parts))
	for i, p := range k.wantedParts {
		if p.mustRollBack() {
			e.set(i, k.flushed.at(i))
		}
	}
	return e.done()
}

// startFlush begins a flush, if none runs and nothing holds it.
func (k *core) startFlush() (*flush, error) {
	switch {
	case k.flush != nil:
		return nil, &BusyError{Key: k.key, Reason: ReasonFlushRunning, By: k.flush.id}
	case k.merging != 0:
		return nil, &BusyError{Key: k.key, Reason: ReasonHeld, By: k.merging}
	case len(k.holds) > 0:
		return nil, &BusyError{Key: k.key, Reason: ReasonHeld, By: k.holds[0].id}
	}
	k.tickets++
	k.flush = &flush{id: k.tickets, target: k.flushTarget()}
	for _, p := range k.wantedParts {
		p.flags |= flagCovered
	}
	k.event(Event{Kind: FlushStarted, Ticket: k.flush.id, Partition: -1})
	k.changed()
	return k.flush, nil
}

// flushDone moves what is flushed to the target, for the partitions that were wanted without a break since it was taken,
// and returns the others.
func (k *core) flushDone(f *flush) (returned []int, err error) {
	if f != k.flush {
		return nil, k.lateFlush(f)
	}
	e := f.target.edit(len(k.parts))
	for i := range k.parts {
		on := k.parts[i].flags
		if on&flagBroken != 0 {
			returned = append(returned, i)
		}
		if on&flagCovered == 0 || on&flagBroken != 0 {
			e.set(i, k.flushed.at(i))
		}
	}
	k.flushed = e.done()
	k.endFlush(causeResolved)
	return returned, nil
}

// flushFailed ends a flush that vouches for nothing.
func (k *core) flushFailed(f *flush, why *ending) error {
	if f != k.flush {
		return k.lateFlush(f)
	}
	k.endFlush(why)
	return nil
}

func (k *core) lateFlush(f *flush) error {
	return &TicketError{Key: k.key, Reason: ReasonSuperseded, Op: OpFlushReply, Ticket: f.id, Cause: f.life.error()}
}

// endFlush ends the running flush, and with it whatever waited for that.
func (k *core) endFlush(why *ending) {
	f := k.flush
	k.flush = nil
	k.more().flush = &flushEnd{f, why}
	for i := range k.parts {
		k.parts[i].flags &^= flagCovered | flagBroken
	}
	for _, r := range k.releases {
		k.resolve(r.handle, nil)
	}
	k.releases = nil
	cause := why.error()
	if why == causeResolved {
		cause = nil
	}
	k.event(Event{Kind: FlushEnded, Ticket: f.id, Partition: -1, Cause: cause})
	switch k.phase {
	case Stopping:
		k.rest()
	case Closing:
		k.vanish()
	case Opening, Active, Stopped, Gone:
	}
	k.changed()
}

// cancelFlush ends the context of the running flush. The flush itself is waited for.
func (k *core) cancelFlush() {
	k.more().flush = &flushEnd{k.flush, k.cause}
}

// hold notes that another session keeps this one's flush closed.
func (k *core) hold(h *hold) {
	k.holds = append(k.holds, h)
	k.changed()
}

// unhold forgets a hold on this session, and untake one that it has on another. A hold that is not there has ended.
func (k *core) unhold(h *hold, why *ending) {
	if at := slices.Index(k.holds, h); at >= 0 {
		k.holds = slices.Delete(k.holds, at, at+1)
		h.cause = why
		k.changed()
	}
}

func (k *core) untake(h *hold) {
	if at := slices.Index(k.taken, h); at >= 0 {
		k.taken = slices.Delete(k.taken, at, at+1)
	}
}

// engage closes the flush gate for a merge; 0 opens it again.
func (k *core) engage(merge uint64) {
	if k.merging != merge {
		k.merging = merge
		k.changed()
	}
}
