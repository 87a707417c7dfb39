package main

import (
	"math/bits"
	"sync"

	"github.com/staleproof/staleproof/jobtracker"
)

// bitmap has a bit for each extent.
type bitmap []uint64

func newBitmap(n int) bitmap { return make(bitmap, (n+63)/64) }

func (b bitmap) has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }
func (b bitmap) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitmap) drop(i int)     { b[i/64] &^= 1 << (i % 64) }

func (b bitmap) any() bool { return b.count() > 0 }

func (b bitmap) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// each yields the bits that are set.
func (b bitmap) each(yield func(int) bool) {
	for i, w := range b {
		for ; w != 0; w &= w - 1 {
			if !yield(64*i + bits.TrailingZeros64(w)) {
				return
			}
		}
	}
}

// within tells whether no bit is set at n or beyond.
func (b bitmap) within(n int) bool {
	for i := n; i < 64*len(b); i++ {
		if b.has(i) {
			return false
		}
	}
	return true
}

// marks are the dirty bits of one replica. The rule that they keep: a write is dispatched only where its extents' bits
// are durable on the replica and stay so, and clearing never races a new set. They are owned by the replica's sender.
//
// Invariant: durable is what the newest copy on the replica says, flying what the copy on its way says. A bit may be
// relied on if all three have it.
type marks struct {
	want    bitmap // what the next copy will say
	flying  bitmap // nil: none is on its way
	durable bitmap
}

func newMarks(durable bitmap) marks {
	return marks{want: append(bitmap(nil), durable...), durable: append(bitmap(nil), durable...)}
}

// require wants the bits of from..to-1, and tells whether they can be relied on already.
func (m *marks) require(from, to int) bool {
	ready := true
	for i := from; i < to; i++ {
		m.want.set(i)
		ready = ready && m.durable.has(i) && (m.flying == nil || m.flying.has(i))
	}
	return ready
}

// unsaved tells whether a copy must be written for bits that are wanted.
func (m *marks) unsaved() bool {
	for i, w := range m.want {
		if w&^m.durable[i] != 0 {
			return true
		}
	}
	return false
}

// launch drops the bits of extents that are clean, and gives the bits of the copy that is now on its way.
func (m *marks) launch(clean func(extent int) bool) bitmap {
	for e := range m.want.each {
		if clean(e) {
			m.want.drop(e)
		}
	}
	m.flying = append(bitmap(nil), m.want...)
	return m.flying
}

// landed says that the copy on its way is durable.
func (m *marks) landed() { m.durable, m.flying = m.flying, nil }

// extentBook knows for each extent the newest job that changes it, and which flushes every replica has done. An extent is
// clean when its newest change is older than a flush that is done on all replicas, all of them voters for it.
type extentBook struct {
	newest []jobtracker.JobID // dispatched to any replica; 0: none in this activation
	done   []flushSpan        // for each replica
}

// flushSpan are the first and last flush that a replica has done in one life as a voter; it did all between.
type flushSpan struct{ first, last jobtracker.JobID }

func newExtentBook(extents, replicas int) extentBook {
	return extentBook{newest: make([]jobtracker.JobID, extents), done: make([]flushSpan, replicas)}
}

// wrote notes that a job which changes extents from..to-1 is being dispatched.
func (b *extentBook) wrote(id jobtracker.JobID, from, to int) {
	for i := from; i < to; i++ {
		b.newest[i] = max(b.newest[i], id)
	}
}

// joined notes that a replica begins to vote: only flushes that it does from here on count.
func (b *extentBook) joined(replica int) { b.done[replica] = flushSpan{} }

// flushed notes that a replica's answer to a flush was accepted. A replica's flushes come in the order of their ids.
func (b *extentBook) flushed(replica int, id jobtracker.JobID) {
	d := &b.done[replica]
	if d.first == 0 {
		d.first = id
	}
	d.last = max(d.last, id)
}

// fence is the newest flush that all replicas have done, 0 if there is none.
func (b *extentBook) fence() jobtracker.JobID {
	first, last := b.done[0].first, b.done[0].last
	for _, d := range b.done[1:] {
		first, last = max(first, d.first), min(last, d.last)
	}
	if last < first {
		return 0
	}
	return last
}

// clean tells whether the extent has no change that a fence does not vouch for.
func (b *extentBook) clean(extent int, fence jobtracker.JobID) bool { return b.newest[extent] < fence }

// sharedBook is the book of all replicas' senders. No lock is held while it is used but its own.
type sharedBook struct {
	mu   sync.Mutex
	book extentBook
}

func (s *sharedBook) update(fn func(*extentBook)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.book)
}
