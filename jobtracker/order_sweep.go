package jobtracker

// sweep forgets what can be waited for no more and numbers the rest anew. It changes no answer. It runs
// when the slots have doubled, so its cost, linear where no read is wide, is constant per add.
func (o *order) sweep() {
	wide := o.wide[:0]
	for _, w := range o.wide {
		if !o.isGone(w.slot) {
			wide = append(wide, w)
		}
	}
	o.wide = wide

	o.markKept()
	o.number()
	for i := range o.wide {
		o.wide[i].slot = o.renumber[o.wide[i].slot]
	}
	o.sweepCells()
	o.sweepSegments()
	o.sweepSlots()

	o.limit = len(o.ids) + max(len(o.ids), len(o.segs)/2, sweepMin)
	o.shrink(o.limit)
}

// markKept sets the bits of the slots to keep in many, and lets go of retired writers.
func (o *order) markKept() {
	o.growMany()
	for i, gone := range o.gone {
		o.many[i] = ^gone
	}
	o.many[0] |= 1<<slotNone | 1<<slotFloor
	for i := range o.segs {
		switch s := &o.segs[i]; {
		case !o.isGone(s.writer):
		case o.hides(s):
			o.many[s.writer>>6] |= 1 << (s.writer & 63)
		default:
			s.writer = slotNone
		}
	}
}

// hides reports whether the writer of s, though retired, must be remembered because it overwrote what a
// wide read is still reading.
func (o *order) hides(s *segment) bool {
	for i := range o.wide {
		if w := &o.wide[i]; w.slot < s.writer && w.start <= s.last && s.start <= w.last {
			return true
		}
	}
	return false
}

// number fills renumber with the new numbers of the slots to keep.
func (o *order) number() {
	o.renumber = append(o.renumber[:0], make([]uint32, len(o.ids))...)
	n := uint32(0)
	for slot := range o.renumber {
		o.renumber[slot] = n
		n += uint32(o.many[slot>>6] >> (slot & 63) & 1)
	}
}

// sweepCells drops retired readers from all lists and makes equal lists one. Cells of a slot are
// neighbours, at most maxShare of them, so equal ones are found by looking back.
func (o *order) sweepCells() {
	o.forward = append(o.forward[:0], make([]uint32, len(o.cells))...)
	kept := o.cells[:1]
	for i := 1; i < len(o.cells); i++ {
		c := readerCell{slot: o.renumber[o.cells[i].slot], next: o.forward[o.cells[i].next]}
		if o.isGone(o.cells[i].slot) {
			o.forward[i] = c.next
			continue
		}
		k := len(kept) - 1
		for k > 0 && kept[k].slot == c.slot && kept[k].next != c.next {
			k--
		}
		if k == 0 || kept[k].slot != c.slot {
			k = len(kept)
			kept = append(kept, c)
		}
		o.forward[i] = uint32(k)
	}
	o.cells = kept
}

// sweepSegments drops segments that answer like untouched blocks and joins neighbours that answer alike.
func (o *order) sweepSegments() {
	untouched := uint32(slotFloor)
	if o.isGone(slotFloor) {
		untouched = slotNone
	}
	kept := o.segs[:0]
	for _, s := range o.segs {
		s.writer, s.readers = o.renumber[s.writer], o.forward[s.readers]
		if s.writer == untouched && s.readers == 0 && !o.readWide(&s) {
			continue
		}
		if n := len(kept); n > 0 {
			p := &kept[n-1]
			if p.last+1 == s.start && p.writer == s.writer && p.readers == s.readers && !o.wideEdge(s.start) {
				p.last = s.last
				continue
			}
		}
		kept = append(kept, s)
	}
	o.segs = kept
}

// readWide reports whether a wide read reads what the last writer of s wrote.
func (o *order) readWide(s *segment) bool {
	for i := range o.wide {
		if o.wide[i].reads(s) {
			return true
		}
	}
	return false
}

// wideEdge reports whether a wide read starts at block or ends right before it.
func (o *order) wideEdge(block uint64) bool {
	for i := range o.wide {
		if w := &o.wide[i]; w.start == block || w.last == block-1 {
			return true
		}
	}
	return false
}

// sweepSlots drops the slots that are not kept, and clears many. A slot never moves up, so ids and
// gone are rewritten in place.
func (o *order) sweepSlots() {
	n := 0
	for slot, id := range o.ids {
		if o.many[slot>>6]>>(slot&63)&1 == 0 {
			continue
		}
		gone := o.gone[slot>>6] >> (slot & 63) & 1
		o.ids[n] = id
		o.gone[n>>6] = o.gone[n>>6]&^(1<<(n&63)) | gone<<(n&63)
		n++
	}
	o.ids = o.ids[:n]
	o.gone = o.gone[:(n+63)>>6]
	if n&63 != 0 {
		o.gone[len(o.gone)-1] &= 1<<(n&63) - 1
	}
	clear(o.many)
}

// shrink gives back memory of which far less than what n slots can take was in use. many is clear.
func (o *order) shrink(n int) {
	o.ids = fit(o.ids, n)
	o.gone = fit(o.gone, n/64)
	o.segs = fit(o.segs, n)
	o.cells = fit(o.cells, 2*n)
	o.wide = fit(o.wide, n)
	o.many = fit(o.many[:0], n/64)
	o.pieces = fit(o.pieces[:0], n)
	o.renumber = fit(o.renumber[:0], n)
	o.forward = fit(o.forward[:0], 2*n)
}

// fit returns s, or a smaller copy where s has room for more than four times n and [sweepMin].
func fit[E any](s []E, n int) []E {
	n = max(n, len(s), sweepMin)
	if cap(s) <= 4*n {
		return s
	}
	return append(make([]E, 0, 2*n), s...)
}
