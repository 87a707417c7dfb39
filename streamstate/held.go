package streamstate

import (
	"slices"
	"time"

	"github.com/staleproof/staleproof/internal/callbacks"
)

// held is what a record's lock guards. To have a pointer to it is to be in the hold that it was handed out for.
type held struct {
	core
	life **ending // the present session's, which its handle points at too
	*aside
}

// aside is to the gate what cold is to the core.
type aside struct {
	r      *record
	calls  callbacks.Queue[Event]
	seq    uint64      // of the last event
	any    listeners   // woken by every change; see await
	slow   listeners   // woken by all but moves of positions
	merges []*merge    // that are to be looked at after every change
	timer  *time.Timer // set to look while core.ticks
	rested bool
	// foreign tells that the error of this hold is the caller's own.
	foreign bool
}

// listeners are who waits for a change of a record.
type listeners struct {
	n  int32
	ch chan struct{} // closed by the change
}

// count counts a refusal, unless the error is the caller's own.
func (k *held) count(err error) {
	if !k.foreign {
		k.r.book.refused(err)
	}
	k.foreign = false
}

// take does what the core asks for: it wakes who waits, ends what has ended, and notes the rest for after the hold.
func (k *held) take(a *after) {
	for i := range k.fx.claims {
		e := &k.fx.claims[i]
		if f := endLife(&e.claim.life, e.why); f != nil {
			a.cancels = append(a.cancels, cancel{f, &EndedError{What: "claim", Cause: e.why.err}})
		}
	}
	if k.due&dueRare != 0 {
		k.takeRare(a)
	}
	if k.due&(dueChanged|dueMoved) != 0 {
		k.wake(a)
	}
	if k.due&dueTime != 0 && !k.ticks {
		k.lookAtClock()
	}
	k.effected()
	if k.calls.Start() {
		a.drains = append(a.drains, k.r)
	}
	k.settle()
}

// takeRare is the part of take for sessions, tickets, handles and events.
func (k *held) takeRare(a *after) {
	fx := k.fx.rare
	end := func(life **ending, what string, why *ending) {
		if f := endLife(life, why); f != nil {
			a.cancels = append(a.cancels, cancel{f, &EndedError{What: what, Cause: why.err}})
		}
	}
	if fx.session != nil {
		end(k.life, "session", fx.session)
		for _, m := range k.merges {
			resolve(m.handle, &EndedError{What: "merge", Cause: fx.session.err})
		}
	}
	for _, t := range fx.tickets {
		end(&t.ticket.life, "ticket", t.why)
	}
	if f := fx.flush; f != nil {
		end(&f.flush.life, "flush", f.why)
	}
	for _, h := range fx.handles {
		resolve(h.handle, h.err)
	}
	a.holds = append(a.holds, fx.holds...)
	if fx.gone {
		a.merges = append(a.merges, k.merges...)
		k.leaveBook()
	}
	for _, e := range fx.events {
		k.seq++
		if k.calls.Len() < k.r.book.lim.events {
			e.Seq, e.Time = k.seq, time.Now()
			k.calls.Push(e)
		}
	}
	k.seq += fx.lost
}

// leaveBook takes the record out of the book.
func (k *held) leaveBook() {
	k.r.book.reg.forget(k.key, k.r)
	k.r.owner.empty()
	k.merges = nil
	if k.timer != nil && k.timer.Stop() {
		k.ticks = false
	}
}

// wake wakes who waits, and notes the merges that are to be looked at.
func (k *held) wake(a *after) {
	k.any.wake()
	if k.due&dueChanged != 0 {
		k.slow.wake()
	}
	a.merges = append(a.merges, k.merges...)
	k.tally()
}

func (l *listeners) wake() {
	if l.n > 0 {
		close(l.ch)
		*l = listeners{}
	}
}

// tally tells the core whether anybody waits.
func (k *held) tally() {
	k.ears = 0
	if k.any.n > 0 || len(k.merges) > 0 {
		k.ears = earsMoves
	}
	if k.slow.n > 0 {
		k.ears |= earsRest
	}
}

// join has a merge looked at after every change of the record; leave ends that.
func (k *held) join(m *merge) {
	k.merges = append(k.merges, m)
	k.tally()
}

func (k *held) leave(m *merge) {
	k.merges = slices.DeleteFunc(slices.Clone(k.merges), func(o *merge) bool { return o == m })
	k.tally()
}

// listeners are who is woken by every change, or by all but moves of positions.
func (k *held) listeners(all bool) *listeners {
	if all {
		return &k.any
	}
	return &k.slow
}

// listen has the caller wait for the next change.
func (l *listeners) listen(k *held) chan struct{} {
	if l.n == 0 {
		l.ch = make(chan struct{})
	}
	l.n++
	k.tally()
	return l.ch
}

// unlisten takes a caller back who waits no longer.
func (l *listeners) unlisten(k *held, ch chan struct{}) {
	if l.ch == ch {
		l.n--
		k.tally()
	}
}

// lookAtClock gives the deadlines that wait for it their time, and has the timer look again while any is armed.
func (k *held) lookAtClock() {
	now := k.r.book.now()
	at := k.stamp(now)
	k.ticks = at != 0 && k.phase != Gone
	if !k.ticks {
		return
	}
	d := min(time.Duration(at-now), k.r.book.lim.look)
	if k.timer == nil {
		k.timer = time.AfterFunc(d, k.r.tick)
	} else {
		k.timer.Reset(d)
	}
}

// settle tells the book when nothing of a dropped record runs any more.
func (k *held) settle() {
	if k.phase == Gone && !k.rested && !k.ticks && k.calls.Len() == 0 {
		k.rested = true
		k.r.book.reg.rested()
	}
}

// show completes a dump with what the core does not know.
func (k *held) show(d *Dump) {
	d.Merges, d.Waiting, d.Events = len(k.merges), int(k.any.n+k.slow.n), k.calls.Len()
}
