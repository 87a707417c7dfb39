package streamstate

import (
	"sync"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/internal/callbacks"
)

// record is one key with its lock. It is built whole and dropped whole.
type record struct {
	tx atomic.Uint64 // changes when a transaction ends; written under mu

	// What every call looks at is in one line, the payload included: see TestLines.
	gap func() // Options.Gap
	mu  sync.Mutex
	// +checklocks:mu
	held held

	book   *common
	parts  int   // how many partitions there are
	owner  owner // the *entry[P] that the record is part of
	key    *Key
	serial uint64 // the order in which two records are locked
}

// owner lets go of what only a record that is not gone needs. Under the lock.
type owner interface{ empty() }

// do is the gate for the library's own functions: it acquires the record's lock, checks the caller's token in the same
// hold in which fn gets the state, and does afterwards what the change asks for. Only it, doInto, run, pairUp and the
// drainer acquire a record's lock.
func (r *record) do(t token, fn func(*held) error) error {
	if r.gap != nil {
		r.gap()
	}
	r.mu.Lock()
	k := &r.held
	var err error
	if k.leads(t.claim) || k.invites(&t) || k.admits(&t) {
		err = fn(k)
	} else {
		err = k.refuse(&t)
	}
	if k.due == 0 {
		r.mu.Unlock()
		if err != nil {
			r.book.refused(err)
		}
		return err
	}
	var a after
	k.take(&a)
	r.mu.Unlock()
	a.finish()
	if err != nil {
		r.book.refused(err)
	}
	return err
}

// doInto is do, in whatever phase, for what follows another hold: what follows this one is left to that.
func (r *record) doInto(a *after, fn func(*held)) {
	if r.gap != nil {
		r.gap()
	}
	r.mu.Lock()
	fn(&r.held)
	r.held.take(a)
	r.mu.Unlock()
}

// run is the gate for functions that call the caller's: should one panic, the lock is released with nothing changed.
func (r *record) run(t token, fn func(*held) error) (err error) {
	if r.gap != nil {
		r.gap()
	}
	var a *after
	r.mu.Lock()
	defer r.endRun(&a)
	k := &r.held
	if k.leads(t.claim) || k.invites(&t) || k.admits(&t) {
		err = fn(k)
	} else {
		err = k.refuse(&t)
	}
	if err != nil {
		k.count(err)
	}
	if k.due != 0 {
		a = new(after)
		k.take(a)
	}
	return err
}

// endRun ends a hold of run and its transaction, and does what follows.
//
// +checklocksrelease:r.mu
func (r *record) endRun(a **after) {
	r.tx.Store(r.tx.Load() + 1)
	r.mu.Unlock()
	if *a != nil {
		(*a).finish()
	}
}

// endTx ends the transaction of a hold, and the hold. What leaked of the transaction answers ErrTxDone from here on.
//
// +checklocksrelease:r.mu
func (r *record) endTx() {
	r.tx.Store(r.tx.Load() + 1)
	r.mu.Unlock()
}

// pairUp is the gate's entry that acquires two locks: that of the record made first is acquired first. Where it is
// refused nothing of fn has run.
func pairUp(x, y *record, tx, ty token, fn func(kx, ky *held) error) error {
	if err := pairable(x, y); err != nil {
		x.book.refused(err)
		return err
	}
	var a after
	err := pairInto(&a, x, y, tx, ty, fn)
	a.finish()
	return err
}

// pairable refuses what has no order: a record with itself, or those of two books.
func pairable(x, y *record) error {
	switch {
	case x == y:
		return &plainError{ReasonSameSession}
	case x.book != y.book:
		return badArgument("session", "of another book", "a session of this book")
	}
	return nil
}

// pairInto is the hold of pairUp; what follows it is left to the caller.
//
// +checklocksignore: two locks, in an order that is decided at run time
func pairInto(a *after, x, y *record, tx, ty token, fn func(kx, ky *held) error) error {
	first, second := x, y
	if y.serial < x.serial {
		first, second = y, x
	}
	if x.gap != nil {
		x.gap()
	}
	first.mu.Lock()
	defer first.endTx()
	second.mu.Lock()
	defer second.endTx()
	var err error
	switch {
	case !x.held.admits(&tx):
		err = x.held.refuse(&tx)
	case !y.held.admits(&ty):
		err = y.held.refuse(&ty)
	default:
		err = fn(&x.held, &y.held)
	}
	if err != nil {
		x.held.count(err)
	}
	x.held.take(a)
	y.held.take(a)
	return err
}

// tick is the timer: it carries nothing, it has the core look at the time.
func (r *record) tick() {
	_ = r.do(token{op: opLook}, func(k *held) error { // no error is possible
		k.tick(r.book.now())
		k.ticks = false
		k.due |= dueTime
		return nil
	})
}

// drain tells events until there are none. If a callback panics, what is left is told all the same: nobody else may come.
func (r *record) drain() {
	done := false
	defer func() {
		if !done && r.abandon() {
			r.drain()
		}
	}()
	for r.queue().Run(r.book.tell) {
		r.mu.Lock()
		r.held.calls.Take()
		r.mu.Unlock()
	}
	done = true
	r.mu.Lock()
	r.held.settle()
	r.mu.Unlock()
}

// abandon ends the draining because a callback panicked; again tells that the caller is to drain what is left.
func (r *record) abandon() (again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held.calls.Abandon()
	again = r.held.calls.Start()
	r.held.settle()
	return again
}

// view is the state, for a transaction that lasts as long as the hold it was made in.
//
// +checklocksignore: the transaction has been checked to be in its hold
func (r *record) view() *core { return &r.held.core }

// queue is the callbacks, for the drainer.
//
// +checklocksignore: what of it needs the lock is said there
func (r *record) queue() *callbacks.Queue[Event] { return &r.held.calls }
