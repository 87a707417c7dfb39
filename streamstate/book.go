package streamstate

import (
	"sync"

	"github.com/staleproof/staleproof/internal/callbacks"
)

// record is one key with its lock. It is built whole and dropped whole.
type record struct {
	tx txCount

	// What every call looks at is in one line, the payload included: see TestLines.
	gap func() // Options.Gap
	mu  sync.Mutex
	// +checklocks:mu
	held held

	book   *common
	owner  owner // the *entry[P] that the record is part of
	key    *Key
	serial uint64 // the order in which two records are locked
}

// owner lets go of what only a record that is not gone needs. Under the lock.
type owner interface{ empty() }

// enter is the gate: it acquires the record's lock, and checks the caller's token in the same hold in which it hands out the
// state; leave ends that hold. A call that is refused has no state, and its hold is over. Only enter, enterBy, doInto, pairUp
// and the drainer acquire a record's lock. The frequent calls use enter and leave as they are, and nothing of the caller's
// runs in between; the others use do, which cannot be left halfway.
//
// +checklocksignore: leave releases what it acquires
func (r *record) enter(session uint64, op Op) (*held, error) {
	if r.gap != nil || !r.mu.TryLock() {
		return r.enterSlowly(token{session: session, op: op})
	}
	if k := &r.held; k.invites(session, op) {
		return k, nil
	}
	return r.check(token{session: session, op: op})
}

// enterBy is enter by a claim.
//
// +checklocksignore: see enter
func (r *record) enterBy(c *claimFacts, op Op) (*held, error) {
	if r.gap != nil || !r.mu.TryLock() {
		return r.enterSlowly(c.token(op))
	}
	if k := &r.held; k.leads(c) {
		return k, nil
	}
	return r.check(c.token(op))
}

// enterSlowly is enter where the gap is to be seen, or the lock is not free.
//
// +checklocksignore: see enter
func (r *record) enterSlowly(t token) (*held, error) {
	if r.gap != nil {
		r.gap()
	}
	r.mu.Lock()
	if k := &r.held; t.claim != nil && k.leads(t.claim) {
		return k, nil
	}
	return r.check(t)
}

// check is the whole of what enter checks. It ends the hold of a call that is refused.
//
// +checklocksignore: see enter
func (r *record) check(t token) (*held, error) {
	k := &r.held
	if k.admits(t) {
		return k, nil
	}
	err := k.refuse(t)
	r.mu.Unlock()
	r.book.refused(err)
	return nil, err
}

// leave ends the hold, does what the change asks for, and returns the call's error.
//
// +checklocksignore: see enter
func (r *record) leave(k *held, err error) error {
	if k.due != 0 || err != nil {
		return r.leaveBusy(k, err)
	}
	r.mu.Unlock()
	return nil
}

// leaveBusy is leave where there is something to be done.
//
// +checklocksignore: see enter
func (r *record) leaveBusy(k *held, err error) error {
	var a after
	if k.due != 0 {
		k.take(&a)
	}
	r.mu.Unlock()
	a.finish()
	if err != nil {
		r.book.refused(err)
	}
	return err
}

// enterAny is enter by whatever token.
func (r *record) enterAny(t token) (*held, error) {
	if t.claim != nil {
		return r.enterBy(t.claim, t.op)
	}
	return r.enter(t.session, t.op)
}

// do is the gate for the library's own functions.
func (r *record) do(t token, fn func(*held) error) error {
	k, err := r.enterAny(t)
	if err != nil {
		return err
	}
	return r.leave(k, fn(k))
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
	k, err := r.enterAny(t)
	if err != nil {
		return err
	}
	defer r.leaveTx(k, &err)
	return fn(k)
}

// leaveTx is leave, deferred, where the caller's function may panic: then nothing has changed yet. The transaction ends
// with the hold.
//
// +checklocksignore: see enter
func (r *record) leaveTx(k *held, err *error) {
	r.tx.end()
	if *err == nil && k.due == 0 {
		r.mu.Unlock()
		return
	}
	if *err != nil {
		k.count(*err)
	}
	var a after
	k.take(&a)
	r.mu.Unlock()
	a.finish()
}

// endTx ends the transaction of a hold, and the hold. What leaked of the transaction answers ErrTxDone from here on.
//
// +checklocksrelease:r.mu
func (r *record) endTx() {
	r.tx.end()
	r.mu.Unlock()
}

// pairUp is the gate's entry that acquires two locks: that of the record made first is acquired first. Where it is
// refused nothing of fn has run.
func pairUp(x, y *record, tx, ty token, fn func(kx, ky *held) error) error {
	if why := pairable(x, y); why != nil {
		return apart(x, y, tx, ty, why)
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

// apart refuses what cannot be paired, each token for itself before that: a dead one is refused for its end.
func apart(x, y *record, tx, ty token, why error) error {
	if err := x.do(tx, func(*held) error { return nil }); err != nil {
		return err
	}
	if err := y.do(ty, func(*held) error { return nil }); err != nil {
		return err
	}
	x.book.refused(why)
	return why
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
	case !x.held.admits(tx):
		err = x.held.refuse(tx)
	case !y.held.admits(ty):
		err = y.held.refuse(ty)
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
