// Package callbacks queues what a record has to tell its caller, so that it is told in order, by one goroutine at a time,
// with no lock held. The record's gate owns the queue: methods said to be under the lock are called by the gate.
package callbacks

import (
	"sync/atomic"

	"github.com/staleproof/staleproof/internal/fifo"
)

// Queue holds entries until they are run. Whoever queues when nothing is left to be run becomes the drainer; others append
// and go on, so a callback may call anything. The zero value is empty.
//
// The drainer runs
//
//	if q.Start() { unlock; for q.Run(f) { lock; q.Take(); unlock } }
//
// and, should f panic, calls Abandon under the lock on the way out: what is left is run by the next drainer.
type Queue[E any] struct {
	pending count            // entries that have not been run; nobody drains while it is 0
	queues  [2]fifo.Queue[E] // one waits, guarded by the record's lock; one is the drainer's, by the lock when nobody drains
	waits   uint8            // which of them waits; changed by the drainer, under the lock
	pushed  int32            // guarded by the record's lock: entries not in pending yet, or not any more
}

// count grows under the record's lock; the drainer alone makes it less, without. So once it is found 0 under the lock
// nobody else touches it, and to set it needs no atomic operation.
type count struct{ n int32 }

func (c *count) load() int32           { return atomic.LoadInt32(&c.n) }       // +checklocksignore: see count
func (c *count) add(delta int32) int32 { return atomic.AddInt32(&c.n, delta) } // +checklocksignore: see count
func (c *count) set(n int32)           { c.n = n }                             // of 0, under the lock

func (q *Queue[E]) waiting() *fifo.Queue[E] { return &q.queues[q.waits&1] }
func (q *Queue[E]) running() *fifo.Queue[E] { return &q.queues[q.waits&1^1] }

// Push appends an entry; Start must follow in the same hold. Under the lock.
func (q *Queue[E]) Push(e E) {
	q.waiting().Push(e)
	q.pushed++
}

// Len is how many entries have not been run, those that a drainer abandoned included. Those that the present drainer has
// taken count until it has run them all. Under the lock.
func (q *Queue[E]) Len() int { return int(q.pending.load() + q.pushed) }

// Start makes the caller the drainer if there is something to run and nobody drains. Under the lock.
func (q *Queue[E]) Start() bool {
	n := q.pushed
	if n == 0 {
		return false
	}
	q.pushed = 0
	if q.pending.load() != 0 && q.pending.add(n) != n {
		return false // the drainer goes on with them
	}
	q.pending.set(n)
	q.Take()
	return true
}

// Run runs the entries taken; more tells that others have come meanwhile, to be taken and run. Without more, the caller
// is not the drainer any longer. By the drainer, with no lock held.
func (q *Queue[E]) Run(f func(E)) (more bool) {
	ran := int32(0)
	for e, ok := q.running().Pop(); ok; e, ok = q.running().Pop() {
		f(e)
		ran++
	}
	return q.pending.add(-ran) != 0
}

// Take takes what waits, behind what an abandoned drainer left. By the drainer, under the lock.
func (q *Queue[E]) Take() {
	if q.running().Len() == 0 {
		q.waits ^= 1
		return
	}
	for e, ok := q.waiting().Pop(); ok; e, ok = q.waiting().Pop() {
		q.running().Push(e)
	}
}

// Abandon ends the draining before everything was run, because an entry panicked: the next Start is for the rest as
// well. By the drainer, under the lock.
func (q *Queue[E]) Abandon() {
	q.pushed = int32(q.running().Len() + q.waiting().Len())
	q.pending.add(-q.pending.load())
}
