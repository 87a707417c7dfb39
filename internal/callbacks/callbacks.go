// Package callbacks queues what a record has to tell its caller, so that it is told in order, by one goroutine at a time,
// with no lock held. The record's gate owns the queue: methods said to be under the lock are called by the gate.
package callbacks

import "github.com/staleproof/staleproof/internal/fifo"

// Queue holds entries until they are run. The goroutine that finds nobody draining becomes the drainer; others append and
// go on, so a callback may call anything. The zero value is empty.
//
// The drainer runs
//
//	if q.Start() { unlock; for { q.Run(f); lock; more := q.More(); unlock; if !more { break } } }
//
// and, should f panic, calls Abandon under the lock on the way out: what is left is run by the next drainer.
type Queue[E any] struct {
	waiting  fifo.Queue[E] // guarded by the record's lock
	running  fifo.Queue[E] // owned by the drainer, by the lock when nobody drains
	taken    int           // guarded by the record's lock: entries in running at the last look
	draining bool          // guarded by the record's lock
}

// Push appends an entry. Under the lock.
func (q *Queue[E]) Push(e E) { q.waiting.Push(e) }

// Len is how many entries have not been run, counting those in the drainer's hands as not run. Under the lock.
func (q *Queue[E]) Len() int { return q.waiting.Len() + q.taken }

// Start makes the caller the drainer if there is something to run and nobody drains. Under the lock.
func (q *Queue[E]) Start() bool {
	if q.draining || q.Len() == 0 {
		return false
	}
	q.draining = true
	q.take()
	return true
}

// Run runs the entries taken. By the drainer, with no lock held.
func (q *Queue[E]) Run(f func(E)) {
	for e, ok := q.running.Pop(); ok; e, ok = q.running.Pop() {
		f(e)
	}
}

// More takes what has come since; false ends the draining. By the drainer, under the lock.
func (q *Queue[E]) More() bool {
	q.taken = 0
	if q.waiting.Len() == 0 {
		q.draining = false
		return false
	}
	q.take()
	return true
}

// Abandon ends the draining before everything was run, because an entry panicked. By the drainer, under the lock.
func (q *Queue[E]) Abandon() {
	q.taken = q.running.Len()
	q.draining = false
}

// Draining tells whether somebody drains. Under the lock.
func (q *Queue[E]) Draining() bool { return q.draining }

// take hands what waits to the drainer, behind what an abandoned drainer left.
func (q *Queue[E]) take() {
	if q.running.Len() == 0 {
		q.running, q.waiting = q.waiting, q.running
	} else {
		for e, ok := q.waiting.Pop(); ok; e, ok = q.waiting.Pop() {
			q.running.Push(e)
		}
	}
	q.taken = q.running.Len()
}
