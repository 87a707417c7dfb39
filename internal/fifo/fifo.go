// Package fifo is a growing first-in, first-out queue that allocates nothing in steady state.
package fifo

// Queue is a first-in, first-out queue in a power-of-two ring. The zero value is empty and ready for use. It is not safe
// for concurrent use. It never shrinks: its memory is that of its longest time.
type Queue[E any] struct {
	ring []E
	head uint // index of the oldest entry, before masking
	tail uint // index behind the newest entry, before masking
}

// Len is how many entries are queued.
func (q *Queue[E]) Len() int { return int(q.tail - q.head) }

// Push appends e.
func (q *Queue[E]) Push(e E) {
	if q.tail-q.head == uint(len(q.ring)) {
		q.grow()
	}
	q.ring[q.tail&uint(len(q.ring)-1)] = e
	q.tail++
}

// Pop removes and returns the oldest entry; ok is false when the queue is empty.
func (q *Queue[E]) Pop() (e E, ok bool) {
	if q.head == q.tail {
		return e, false
	}
	at := &q.ring[q.head&uint(len(q.ring)-1)]
	e = *at
	var zero E
	*at = zero // keep nothing alive
	q.head++
	return e, true
}

// Peek points at the oldest entry, or is nil when the queue is empty. It is valid until the next call.
func (q *Queue[E]) Peek() *E {
	if q.head == q.tail {
		return nil
	}
	return q.At(0)
}

// At points at the i-th oldest entry, 0 <= i < Len. It is valid until the next call.
func (q *Queue[E]) At(i int) *E { return &q.ring[(q.head+uint(i))&uint(len(q.ring)-1)] }

// Clear removes all entries and keeps the memory.
func (q *Queue[E]) Clear() {
	clear(q.ring)
	q.head, q.tail = 0, 0
}

// Clone is a copy that shares nothing with q but what the entries point at.
func (q *Queue[E]) Clone() Queue[E] {
	c := *q
	c.ring = append([]E(nil), q.ring...)
	return c
}

// grow doubles the ring. It is kept out of Push, which would be larger by it.
//
//go:noinline
func (q *Queue[E]) grow() {
	ring := make([]E, max(8, 2*len(q.ring)))
	for i := range q.Len() {
		ring[i] = *q.At(i)
	}
	q.tail -= q.head
	q.head, q.ring = 0, ring
}
