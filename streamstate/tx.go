package streamstate

import (
	"iter"
	"sync/atomic"
)

// txCount counts a record's transactions. It changes when one ends; what was handed to one knows it by its count. It is
// written under the record's lock, and read without: what leaked of a transaction may be used whenever.
type txCount struct{ n uint64 }

func (c *txCount) load() uint64 { return atomic.LoadUint64(&c.n) } // +checklocksignore: see end

// View is a look at a session within a transaction. It is valid until the function it was given to returns; after that
// its methods answer ErrTxDone, or nothing where they return no error.
type View struct {
	r *record
	n uint64
}

// core is the state, nil if the transaction is done.
func (v View) core() *core {
	if v.r == nil || v.r.tx.load() != v.n {
		return nil
	}
	return v.r.view()
}

// Err is [ErrTxDone] if the transaction is done.
func (v View) Err() error {
	if v.core() == nil {
		return ErrTxDone
	}
	return nil
}

// Phase is the session's phase; [Gone] if the transaction is done.
func (v View) Phase() Phase {
	if k := v.core(); k != nil {
		return k.phase
	}
	return Gone
}

// Healthy tells whether every wanted partition is Begun and none must roll back; true when none is wanted.
func (v View) Healthy() bool {
	k := v.core()
	return k != nil && k.healthy()
}

// Len is the number of partitions.
func (v View) Len() int {
	if k := v.core(); k != nil {
		return len(k.parts)
	}
	return 0
}

// Received is the vector of what is received.
func (v View) Received() Timestamp {
	if k := v.core(); k != nil {
		return k.timestamp()
	}
	return Timestamp{}
}

// Flushed is the vector of what is flushed.
func (v View) Flushed() Timestamp {
	if k := v.core(); k != nil {
		e := k.flushed.edit(len(k.parts))
		return e.done()
	}
	return Timestamp{}
}

// FlushRunning tells whether a flush runs.
func (v View) FlushRunning() bool {
	k := v.core()
	return k != nil && k.flush != nil
}

// Partition is the state of one partition. [ErrTxDone], [ErrArgument].
func (v View) Partition(partition int) (PartitionView, error) {
	k := v.core()
	if k == nil {
		return PartitionView{}, ErrTxDone
	}
	if err := k.inRange(partition); err != nil {
		return PartitionView{}, err
	}
	return k.look(partition), nil
}

// Partitions ranges over all partitions, in ascending order, as long as the transaction is not done.
func (v View) Partitions() iter.Seq2[int, PartitionView] {
	return func(yield func(int, PartitionView) bool) {
		for i := range v.Len() {
			k := v.core()
			if k == nil || !yield(i, k.look(i)) {
				return
			}
		}
	}
}

// PartitionView is a copy of what is known of one partition.
type PartitionView struct {
	State    PartitionState
	Rung     Rung
	Claims   []ClaimView // the live ones, or those that are listed for shutdown
	Received Position    // zero if HasReceived is not set
	Flushed  Position    // zero if HasFlushed is not set

	HasReceived, HasFlushed bool
}

// ClaimView is a copy of what is known of one claim.
type ClaimView struct {
	ID           ClaimID
	Owner        string
	Term         uint64
	Next         uint64 // the next number that it may hand in
	MustRollBack bool
	RollBackTo   Position
}

func (c *claimFacts) look(next uint64) ClaimView {
	v := ClaimView{ID: c.id(), Owner: c.owner, Term: c.term, Next: next}
	if c.rollTo != nil {
		v.MustRollBack, v.RollBackTo = true, *c.rollTo
	}
	return v
}

func (k *core) look(i int) PartitionView {
	p := &k.parts[i]
	v := PartitionView{State: p.state, Rung: p.rung}
	for l := range p.live {
		v.Claims = append(v.Claims, l.facts.look(l.next))
	}
	for _, c := range p.listed() {
		v.Claims = append(v.Claims, c.look(0))
	}
	if v.HasReceived = p.received.present(); v.HasReceived {
		v.Received = p.received
	}
	v.Flushed, v.HasFlushed = k.flushed.At(i)
	return v
}

// ReadTx is a [View] with the payload.
type ReadTx[P any] struct {
	View
	e *entry[P]
}

// Payload is the session's payload, as the transaction has set it.
func (t ReadTx[P]) Payload() (P, error) {
	k := t.core()
	if t.e == nil || k == nil { // a view that a user has put into a literal has no payload
		var none P
		return none, ErrTxDone
	}
	if k.set {
		return t.e.pending, nil
	}
	return t.e.payload, nil
}

// Tx is a transaction: it has the methods of [ReadTx] and [View], and SetPayload, the only way to change the session's
// payload. It can be made of nothing outside of this package: were the field exported, a literal would turn a read
// transaction into one that writes.
type Tx[P any] struct{ readTx[P] }

type readTx[P any] = ReadTx[P]

// SetPayload replaces the payload when the function returns without an error.
func (t Tx[P]) SetPayload(p P) error {
	k := t.core()
	if k == nil {
		return ErrTxDone
	}
	t.e.pending, k.set = p, true
	return nil
}

// txOf begins a transaction; the end of the hold ends it. Under the lock.
func (e *entry[P]) txOf() Tx[P] { return Tx[P]{ReadTx[P]{View{&e.record, e.tx.load()}, e}} }

// call runs a caller's function as a transaction. What it set counts if it returns no error. Under the lock.
func (e *entry[P]) call(k *held, fn func(Tx[P]) error) error {
	k.set = false
	if err := fn(e.txOf()); err != nil {
		return e.fail(k, err)
	}
	e.commit(&k.core)
	return nil
}

// fail ends a transaction whose function failed: the error is the caller's own, what it set is forgotten.
func (e *entry[P]) fail(k *held, err error) error {
	k.foreign = true
	e.discard(&k.core)
	return err
}

func (e *entry[P]) commit(k *core) {
	if k.set {
		e.payload = e.pending
		e.discard(k)
	}
}

func (e *entry[P]) discard(k *core) {
	if k.set {
		var none P
		e.pending, k.set = none, false
	}
}

// Read runs fn with a view of the session that cannot change anything. fn is to be short; its error is returned.
func (s *Session[P]) Read(fn func(ReadTx[P]) error) error {
	e := s.e
	return e.run(s.token(OpRead), func(k *held) error {
		if fn == nil {
			return needs("fn")
		}
		k.set = false
		if err := fn(e.txOf().readTx); err != nil {
			k.foreign = true
			return err
		}
		return nil
	})
}

// Update runs fn as a transaction. fn is to be short; its error is returned, and then nothing has changed but what it did
// to what the payload points at.
func (s *Session[P]) Update(fn func(Tx[P]) error) error { return s.update(OpUpdate, fn) }

func (s *Session[P]) update(op Op, fn func(Tx[P]) error) (err error) {
	e := s.e
	k, err := e.enter(s.n, op)
	if err != nil {
		return err
	}
	defer e.leaveTx(k, &err)
	if fn == nil {
		err = needs("fn")
		return err
	}
	k.set = false
	if err = fn(e.txOf()); err != nil {
		return e.fail(k, err)
	}
	e.commit(&k.core)
	k.changed()
	return nil
}

// Pair runs fn as a transaction on two sessions of the book at once. Either's refusal is returned; [ErrSameSession] if
// both belong to one key, [ErrArgument] if either belongs to another book.
func (b *Book[P]) Pair(x, y *Session[P], fn func(x, y Tx[P]) error) error {
	if err := b.owns(x); err != nil {
		return err
	}
	return pairUp(&x.e.record, &y.e.record, x.token(OpPair), y.token(OpPair), func(kx, ky *held) error {
		if fn == nil {
			return needs("fn")
		}
		kx.set, ky.set = false, false
		if err := fn(x.e.txOf(), y.e.txOf()); err != nil {
			kx.foreign = true
			x.e.discard(&kx.core)
			y.e.discard(&ky.core)
			return err
		}
		x.e.commit(&kx.core)
		y.e.commit(&ky.core)
		kx.changed()
		ky.changed()
		return nil
	})
}

// Timestamp is the vector of what is received. It shares what did not change with the last one.
func (s *Session[P]) Timestamp() (Timestamp, error) {
	k, err := s.e.enter(s.n, OpRead)
	if err != nil {
		return Timestamp{}, err
	}
	t, dirty, parts := k.received, k.dirtyChunks(), len(k.parts)
	if err = s.e.leave(k, nil); dirty == 0 && t.v != nil {
		return t, err
	}
	return s.e.draw(s.token(OpRead), t, parts, dirty)
}

// draw is the vector of what is received, where that has changed since last: it allocates outside the hold, and again
// should more have changed meanwhile.
func (r *record) draw(t token, last Timestamp, parts, dirty int) (Timestamp, error) {
	for dirty > 0 || last.v == nil {
		room := newSpare(last.v, parts, dirty)
		k, err := r.enterAny(t)
		if err != nil {
			return Timestamp{}, err
		}
		if k.fits(room) {
			last, dirty = k.snapshot(room), 0
		} else {
			last, dirty = k.received, k.dirtyChunks()
		}
		if err = r.leave(k, nil); err != nil {
			return Timestamp{}, err
		}
	}
	return last, nil
}
