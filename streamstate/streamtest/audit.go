package streamtest

import (
	"fmt"

	"github.com/staleproof/staleproof/streamstate"
)

// audit is what is checked all the time. It is guarded by the feed's mutex.
type audit struct {
	records map[streamstate.Key][]*chain // that are not gone
	bad     []string
	more    int
}

// chain is what the events of one record have told.
type chain struct {
	session streamstate.SessionID
	seq     uint64
	phase   streamstate.Phase
	parts   map[int]streamstate.PartitionState // known only once a change was told
	inside  bool
}

func (a *audit) violate(format string, args ...any) {
	if len(a.bad) == 8 {
		a.more++
		return
	}
	a.bad = append(a.bad, fmt.Sprintf(format, args...))
}

// callback takes note that a callback begins, and returns what takes note that it ends. The events of a record come in
// order, one at a time, none is lost, and each goes on where the last one led.
func (f *Feed) callback(e streamstate.Event) func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.audit.chain(e)
	if c == nil {
		f.audit.violate("%v: event %d (%v) goes on after none", e.Key, e.Seq, e.Kind)
		return func() {}
	}
	if c.inside {
		f.audit.violate("%v: event %d began before another has ended", e.Key, e.Seq)
	}
	if c.seq+1 != e.Seq {
		f.audit.violate("%v: event %d came after event %d", e.Key, e.Seq, c.seq)
	}
	c.seq, c.session, c.inside = e.Seq, e.Session, true
	switch e.Kind {
	case streamstate.PhaseChanged:
		if e.From != c.phase {
			f.audit.violate("%v: event %d goes from %v to %v, but the last phase was %v", e.Key, e.Seq, e.From, e.To, c.phase)
		}
		c.phase = e.To
		if e.From == streamstate.Stopped {
			clear(c.parts) // the next session begins them anew
		}
	case streamstate.PartitionChanged:
		if was, ok := c.parts[e.Partition]; ok && was != e.Was {
			f.audit.violate("%v: event %d: partition %d goes from %v to %v, but it was %v", e.Key, e.Seq, e.Partition, e.Was, e.Is, was)
		}
		c.parts[e.Partition] = e.Is
	case streamstate.TicketIssued, streamstate.TicketEnded, streamstate.FlushStarted, streamstate.FlushEnded:
	}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		c.inside = false
	}
}

// chain is that of the record which an event is of: the one that is in the event's session, or whose next session it
// begins. The key may have been opened again before all of a dropped record was told.
func (a *audit) chain(e streamstate.Event) *chain {
	for _, c := range a.records[e.Key] {
		if c.session == e.Session {
			return c
		}
	}
	for _, c := range a.records[e.Key] {
		if c.seq == e.Seq-1 && c.phase == streamstate.Stopped {
			return c
		}
	}
	if e.Seq != 1 {
		return nil
	}
	c := &chain{phase: streamstate.Gone, parts: map[int]streamstate.PartitionState{}}
	a.records[e.Key] = append(a.records[e.Key], c)
	return c
}

// checkAudit reports what was noted; at the end also what is missing.
func (f *Feed) checkAudit(end bool) {
	f.t.Helper()
	f.mu.Lock()
	bad := f.audit.bad
	if f.audit.more > 0 {
		bad = append(bad, fmt.Sprintf("and %d more", f.audit.more))
	}
	f.audit.bad, f.audit.more = nil, 0
	for key, chains := range f.audit.records {
		for _, c := range chains {
			if end && c.phase != streamstate.Gone {
				bad = append(bad, fmt.Sprintf("%v: the last event left it %v", key, c.phase))
			}
		}
	}
	f.mu.Unlock()
	for _, b := range bad {
		f.errorf("%s", b)
	}
}

// checkHandles reports handles that have not ended, or not by a type.
func (f *Feed) checkHandles() {
	f.t.Helper()
	f.mu.Lock()
	handles := f.handles
	f.handles = nil
	f.mu.Unlock()
	for _, h := range handles {
		select {
		case <-h.h.Done():
			if err := h.h.Err(); err != nil && !Typed(err) {
				f.errorf("%s has ended with an error of no kind: %v", h.what, err)
			}
		default:
			f.errorf("%s has not ended\n%v", h.what, f)
		}
	}
}
