package streamstate

import (
	"slices"
	"sync"
	"time"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/internal/callbacks"
)

// record is one key with its lock. It is built whole and dropped whole.
type record struct {
	book   *common
	parts  int           // how many partitions there are
	owner  any           // the *entry[P] that the record is part of
	serial uint64        // the order in which two records are locked
	gap    func()        // Options.Gap
	tx     atomic.Uint64 // changes when a transaction ends; written under mu

	mu sync.Mutex
	// +checklocks:mu
	core core
	// life is the present session's, which its handle points at too.
	// +checklocks:mu
	life **ending
	// +checklocks:mu
	calls callbacks.Queue[Event]
	// +checklocks:mu
	seq uint64 // of the last event
	// any are woken by every change, slow by all but moves of positions. See await.
	// +checklocks:mu
	any listeners
	// +checklocks:mu
	slow listeners
	// +checklocks:mu
	merges []*merge
	// timer is set while core.ticks: it has not fired, or what it does is on its way.
	// +checklocks:mu
	timer *time.Timer
	// +checklocks:mu
	rested bool
	// foreign tells that the error of this hold is the caller's own.
	// +checklocks:mu
	foreign bool
}

// listeners are who waits for a change of a record.
type listeners struct {
	n  int32
	ch chan struct{} // closed by the change
}

// after is what is done when a hold is over, in this order.
type after struct {
	cancels []cancel
	holds   []*hold
	drain   bool
	merges  []*merge
}

// cancel is a context that ends.
type cancel struct {
	f   func(cause error)
	err error
}

// do is the gate for the library's own functions: it acquires the record's lock, checks the caller's token in the same
// hold in which fn gets the state, and does afterwards what the change asks for. Only it, run, pairUp and the drainer
// acquire a record's lock.
func (r *record) do(t token, fn func(*core) error) error {
	if r.gap != nil {
		r.gap()
	}
	r.mu.Lock()
	k := &r.core
	var err error
	if k.admits(&t) {
		err = fn(k)
	} else {
		err = k.refuse(&t)
	}
	if k.fx.due == 0 {
		r.mu.Unlock()
		if err != nil {
			r.book.refused(err)
		}
		return err
	}
	var a after
	r.takeLocked(&a)
	r.mu.Unlock()
	r.finish(&a)
	if err != nil {
		r.book.refused(err)
	}
	return err
}

// run is the gate for functions that call the caller's: should one panic, the lock is released with nothing changed.
func (r *record) run(t token, fn func(*core) error) error {
	if r.gap != nil {
		r.gap()
	}
	a, err := r.guarded(&t, fn)
	if a != nil {
		r.finish(a)
	}
	return err
}

// guarded is the hold of run.
func (r *record) guarded(t *token, fn func(*core) error) (a *after, err error) {
	r.mu.Lock()
	defer r.endTx()
	k := &r.core
	if k.admits(t) {
		err = fn(k)
	} else {
		err = k.refuse(t)
	}
	if err != nil {
		r.countLocked(err)
	}
	if k.fx.due != 0 {
		a = new(after)
		r.takeLocked(a)
	}
	return a, err
}

// endTx ends the transaction of a hold, and the hold. What leaked of the transaction answers ErrTxDone from here on.
//
// +checklocksrelease:r.mu
func (r *record) endTx() {
	r.tx.Store(r.tx.Load() + 1)
	r.mu.Unlock()
}

// countLocked counts a refusal, unless the error is the caller's own.
//
// +checklocks:r.mu
func (r *record) countLocked(err error) {
	if !r.foreign {
		r.book.refused(err)
	}
	r.foreign = false
}

// pairUp is the gate's only entry that acquires two locks: that of the record made first is acquired first. After an error
// of the gate nothing of fn has run.
//
// +checklocksignore: two locks, in an order that is decided at run time
func pairUp(x, y *record, tx, ty token, fn func(kx, ky *core) error) error {
	if x == y {
		err := &plainError{ReasonSameSession}
		x.book.refused(err)
		return err
	}
	if x.gap != nil {
		x.gap()
	}
	var ax, ay after
	err := guardedPair(x, y, &tx, &ty, fn, &ax, &ay)
	x.finish(&ax)
	y.finish(&ay)
	return err
}

// guardedPair is the hold of pairUp.
//
// +checklocksignore: two locks, in an order that is decided at run time
func guardedPair(x, y *record, tx, ty *token, fn func(kx, ky *core) error, ax, ay *after) error {
	first, second := x, y
	if y.serial < x.serial {
		first, second = y, x
	}
	first.mu.Lock()
	defer first.endTx()
	second.mu.Lock()
	defer second.endTx()
	var err error
	switch {
	case !x.core.admits(tx):
		err = x.core.refuse(tx)
	case !y.core.admits(ty):
		err = y.core.refuse(ty)
	default:
		err = fn(&x.core, &y.core)
	}
	if err != nil {
		x.countLocked(err)
	}
	if x.core.fx.due != 0 {
		x.takeLocked(ax)
	}
	if y.core.fx.due != 0 {
		y.takeLocked(ay)
	}
	return err
}

// takeLocked does what the core asks for: it wakes who waits, ends what has ended, and notes the rest for after the hold.
//
// +checklocks:r.mu
func (r *record) takeLocked(a *after) {
	k := &r.core
	fx := &k.fx
	for i := range fx.claims {
		e := &fx.claims[i]
		if f := endLife(&e.claim.life, e.why); f != nil {
			a.cancels = append(a.cancels, cancel{f, &EndedError{What: "claim", Cause: e.why.err}})
		}
	}
	if fx.due&dueRare != 0 {
		r.takeRareLocked(a)
	}
	if fx.due&(dueChanged|dueMoved) != 0 {
		r.wakeLocked(a)
	}
	if fx.due&dueTime != 0 && !k.ticks {
		r.lookLocked()
	}
	fx.reset()
	a.drain = r.calls.Start()
	r.restLocked()
}

// takeRareLocked is the part of takeLocked for sessions, tickets, handles and events.
//
// +checklocks:r.mu
func (r *record) takeRareLocked(a *after) {
	fx := r.core.fx.rare
	end := func(life **ending, what string, why *ending) {
		if f := endLife(life, why); f != nil {
			a.cancels = append(a.cancels, cancel{f, &EndedError{What: what, Cause: why.err}})
		}
	}
	if fx.session != nil {
		end(r.life, "session", fx.session)
		for _, m := range r.merges {
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
		a.merges = append(a.merges, r.merges...)
		r.goneLocked()
	}
	for _, e := range fx.events {
		r.seq++
		if r.calls.Len() < r.book.maxEvents {
			e.Seq, e.Time = r.seq, time.Now()
			r.calls.Push(e)
		}
	}
}

// goneLocked takes the record out of the book.
//
// +checklocks:r.mu
func (r *record) goneLocked() {
	r.book.reg.forget(r)
	r.merges = nil
	if r.timer != nil && r.timer.Stop() {
		r.core.ticks = false
	}
}

// wakeLocked wakes who waits, and notes the merges that are to be looked at.
//
// +checklocks:r.mu
func (r *record) wakeLocked(a *after) {
	r.any.wake()
	if r.core.fx.due&dueChanged != 0 {
		r.slow.wake()
	}
	a.merges = append(a.merges, r.merges...)
	r.tallyLocked()
}

func (l *listeners) wake() {
	if l.n > 0 {
		close(l.ch)
		*l = listeners{}
	}
}

// tallyLocked tells the core whether anybody waits.
//
// +checklocks:r.mu
func (r *record) tallyLocked() {
	r.core.watch = r.any.n + int32(len(r.merges))
	r.core.waits = r.slow.n
}

// joinLocked has a merge looked at after every change of the record; leaveLocked ends that.
//
// +checklocks:r.mu
func (r *record) joinLocked(m *merge) {
	r.merges = append(r.merges, m)
	r.tallyLocked()
}

// +checklocks:r.mu
func (r *record) leaveLocked(m *merge) {
	r.merges = slices.DeleteFunc(slices.Clone(r.merges), func(o *merge) bool { return o == m })
	r.tallyLocked()
}

// listenLocked has the caller wait for the next change.
//
// +checklocks:r.mu
func (r *record) listenLocked(l *listeners) chan struct{} {
	if l.n == 0 {
		l.ch = make(chan struct{})
	}
	l.n++
	r.tallyLocked()
	return l.ch
}

// unlistenLocked takes a caller back who waits no longer.
//
// +checklocks:r.mu
func (r *record) unlistenLocked(l *listeners, ch chan struct{}) {
	if l.ch == ch {
		l.n--
		r.tallyLocked()
	}
}

// lookLocked gives the deadlines that wait for it their time, and has the timer look again while any is armed.
//
// +checklocks:r.mu
func (r *record) lookLocked() {
	now := r.book.now()
	at := r.core.stamp(now)
	r.core.ticks = at != 0 && r.core.phase != Gone
	if !r.core.ticks {
		return
	}
	d := min(time.Duration(at-now), r.book.lim.look)
	if r.timer == nil {
		r.timer = time.AfterFunc(d, r.tick)
	} else {
		r.timer.Reset(d)
	}
}

// tick is the timer: it carries nothing, it has the core look at the time.
func (r *record) tick() {
	_ = r.do(token{op: opLook}, func(k *core) error { // no error is possible
		k.tick(r.book.now())
		k.ticks = false
		k.fx.due |= dueTime
		return nil
	})
}

// finish does what follows a hold, with no lock held.
func (r *record) finish(a *after) {
	for _, c := range a.cancels {
		c.f(c.err)
	}
	for _, h := range a.holds {
		h.letGo()
	}
	if a.drain {
		r.drain()
	}
	for _, m := range a.merges {
		m.look()
	}
}

// drain tells events until there are none. If a callback panics, what is left is told by the next drainer.
func (r *record) drain() {
	done := false
	defer func() {
		if !done {
			r.mu.Lock()
			r.calls.Abandon()
			r.mu.Unlock()
		}
	}()
	for r.calls.Run(r.book.tell) {
		r.mu.Lock()
		r.calls.Take()
		r.mu.Unlock()
	}
	done = true
	r.mu.Lock()
	r.restLocked()
	r.mu.Unlock()
}

// restLocked tells the book when nothing of a dropped record runs any more.
//
// +checklocks:r.mu
func (r *record) restLocked() {
	if r.core.phase == Gone && !r.rested && !r.core.ticks && r.calls.Len() == 0 {
		r.rested = true
		r.book.reg.rested()
	}
}

// view is the state, for a transaction that lasts as long as the hold it was made in.
//
// +checklocksignore: the transaction has been checked to be in its hold
func (r *record) view() *core { return &r.core }

// countLockedInto completes a dump with what the core does not know.
//
// +checklocks:r.mu
func (r *record) countLockedInto(d *Dump) {
	d.Merges, d.Waiting, d.Events = len(r.merges), int(r.any.n+r.slow.n), r.calls.Len()
}
