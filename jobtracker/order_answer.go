package jobtracker

import "math/bits"

// An answer is a set of unretired slots. Few of them are kept sorted by insertion, more in a bitset; both
// give them ascending and once, and slots ascend as ids do.

// put adds slot to the answer unless it is retired.
func (o *order) put(slot uint32) {
	if o.isGone(slot) {
		return
	}
	if o.nfew > len(o.few) {
		o.many[slot>>6] |= 1 << (slot & 63)
		return
	}
	i := o.nfew
	for i > 0 && o.few[i-1] > slot {
		i--
	}
	if i > 0 && o.few[i-1] == slot {
		return
	}
	if o.nfew == len(o.few) {
		o.spill()
		o.many[slot>>6] |= 1 << (slot & 63)
		return
	}
	copy(o.few[i+1:o.nfew+1], o.few[i:o.nfew])
	o.few[i] = slot
	o.nfew++
}

// spill goes over to the bitset.
func (o *order) spill() {
	o.growMany()
	for _, slot := range o.few[:o.nfew] {
		o.many[slot>>6] |= 1 << (slot & 63)
	}
	o.nfew = len(o.few) + 1
}

// growMany gives many a bit for each slot.
func (o *order) growMany() {
	if d := len(o.gone) - len(o.many); d > 0 {
		o.many = append(o.many, make([]uint64, d)...)
	}
}

// putFrontier adds what a write of all of s must wait for: the readers since the last write, or, when
// none is left, that write.
func (o *order) putFrontier(s *segment) {
	if !o.putReaders(s) {
		o.put(s.writer)
	}
}

// putReaders adds the unretired readers of s and reports whether there are any.
func (o *order) putReaders(s *segment) bool {
	found := false
	for c := s.readers; c != 0; c = o.cells[c].next {
		if slot := o.cells[c].slot; !o.isGone(slot) {
			o.put(slot)
			found = true
		}
	}
	for i := range o.wide {
		if w := &o.wide[i]; w.reads(s) && !o.isGone(w.slot) {
			o.put(w.slot)
			found = true
		}
	}
	return found
}

// reads reports whether w reads what the last writer of s wrote.
func (w *wideRead) reads(s *segment) bool {
	return w.slot > s.writer && w.start <= s.last && s.start <= w.last
}

// drain appends the answer to deps and empties it.
func (o *order) drain(deps []JobID) []JobID {
	if o.nfew <= len(o.few) {
		for _, slot := range o.few[:o.nfew] {
			deps = append(deps, o.ids[slot])
		}
	} else {
		for i, word := range o.many {
			if word == 0 {
				continue
			}
			for ; word != 0; word &= word - 1 {
				deps = append(deps, o.ids[i<<6|bits.TrailingZeros64(word)])
			}
			o.many[i] = 0
		}
	}
	o.nfew = 0
	return deps
}

// cons returns a new list: slot, then the list next.
func (o *order) cons(slot, next uint32) uint32 {
	o.cells = append(o.cells, readerCell{slot: slot, next: next})
	return uint32(len(o.cells) - 1)
}

// share is cons that reuses an equal cell among those from first on, and makes no more than [maxShare]
// of them: 0 says that it would need one more.
func (o *order) share(slot, next uint32, first int) uint32 {
	for c := len(o.cells) - 1; c >= first; c-- {
		if o.cells[c].next == next {
			return uint32(c)
		}
	}
	if len(o.cells)-first == maxShare {
		return 0
	}
	return o.cons(slot, next)
}
