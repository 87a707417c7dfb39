package jobtracker

import (
	"math"
	"math/bits"
	"slices"
)

// orderKind says what an operation does to its blocks, as far as order goes.
type orderKind uint8

const (
	orderRead  orderKind = iota // shares its blocks with other reads
	orderWrite                  // owns its blocks: write, zero, trim, the copy of an extent
	orderAll                    // flush, barrier: all blocks there are; its range is ignored
)

const (
	slotNone  = 0 // "waits for nothing": ids[slotNone] is retired from the start
	slotFloor = 1 // the last orderAll, or a retired dummy before the first

	// maxShare is how many cells one read may cost. A read that finds more distinct reader lists
	// in its range is kept once, in wide, so that memory stays linear in the number of operations.
	maxShare = 8

	// sweepMin is how many operations are recorded before the first look for dead ones.
	sweepMin = 1024
)

// order answers, for the operations of a block device in the order in which they are submitted,
// which earlier ones each must wait for:
//
//   - a read waits for the last write of each of its blocks;
//   - a write waits for the reads of a block since its last write, or, when none of them is left,
//     for that write;
//   - an operation on everything (flush, barrier) waits for what a write of every block would wait
//     for, and counts as the last write of every block from then on.
//
// Retired operations are waited for by nobody. A retired write leaves its blocks free: what it
// had replaced does not come back, not even an older operation that is still to be retired.
//
// The zero value is ready for use. order is pure and not safe for concurrent use. No input makes it
// panic.
//
// # Representation
//
// Operations are numbered by dense slots since the last orderAll; ids maps them back. The blocks
// touched since then lie in segs, a sorted array of disjoint segments, each with its last writer
// and the list of its readers since. Blocks in no segment have the floor for their last writer.
// Reader lists are cons cells in an arena, so that splitting a segment shares the list. Retirement
// sets one bit, which is looked at when an answer is put together. An orderAll starts afresh.
//
// # Memory and time
//
// An orderAll forgets everything else. Without one, dead slots, cells and segments are swept whenever the number of
// slots has doubled since the last sweep, at [sweepMin] the earliest. Let n be the largest number of unretired
// operations since then. Where operations are retired after those they were told to wait for, there are at most
// 2n+[sweepMin]+2 slots, twice as many segments and [maxShare] times as many cells, in all less than 256 KiB + 300n
// bytes; between 60 and 100n where n is large. Each operation retired before one it was to wait for can add two
// segments that last as long as the other does: which blocks are free within the range of an outstanding operation is
// an arbitrary set, and exact answers need all of it.
//
// An add finds its place by bisection and moves the segments behind it: 4 to 6 uncontended lock holds up to a
// thousand segments, 24 bytes moved for each beyond.
type order struct {
	// ids maps slots to operations. Invariant: strictly ascending from slotFloor+1 on, and above the
	// floor.
	ids []JobID
	// gone has one bit per slot: retired. Invariant: as many words as ids needs.
	gone []uint64
	// segs is sorted. Invariant: disjoint, none empty.
	segs []segment
	// cells holds the reader lists; index 0 ends a list. Invariant: next < own index, slots
	// fall along a list and are above the segment's writer, cells of a slot are neighbours.
	cells []readerCell
	// wide are the reads that are in no list. Invariant: an unretired one above a segment's writer covers
	// all of the segment or nothing, and is covered by segments.
	wide []wideRead
	// limit is the number of slots at which to sweep next.
	limit int
	// last is the highest id seen; meaningless while ids is nil.
	last JobID

	// The answer being put together: up to len(few) slots, sorted; beyond that a bit per slot.
	nfew int
	few  [8]uint32
	many []uint64 // Invariant: zero between calls

	pieces []segment // scratch of addReadOfMany
	// Scratch of sweep: the new numbers of slots and of lists.
	renumber, forward []uint32
}

// segment is a run of blocks, both ends included, that have seen the same operations.
type segment struct {
	start, last uint64
	writer      uint32 // slot of the last writer
	readers     uint32 // cell of the latest reader since
}

type readerCell struct{ slot, next uint32 }

type wideRead struct {
	start, last uint64
	slot        uint32
}

// add records operation id and appends to deps, ascending, what it must wait for. Ids must grow
// from call to call, with or without gaps; one that does not is neither recorded nor answered.
// blocks == 0 touches nothing and waits for nothing; a range that runs beyond the last possible block
// ends there.
func (o *order) add(id JobID, kind orderKind, start, blocks uint64, deps []JobID) []JobID {
	switch {
	case o.ids == nil:
		o.reset(0)
		o.gone[0] |= 1 << slotFloor
	case id <= o.last:
		return deps
	}
	o.last = id
	if kind >= orderAll {
		return o.addAll(id, deps)
	}
	if blocks == 0 {
		return deps
	}
	if len(o.ids) >= o.limit {
		o.sweep()
	}
	last := start + blocks - 1
	if last < start {
		last = math.MaxUint64
	}
	slot := uint32(len(o.ids))
	o.ids = append(o.ids, id)
	if slot&63 == 0 {
		o.gone = append(o.gone, 0)
	}
	if kind == orderWrite {
		o.addWrite(slot, start, last)
	} else {
		o.addRead(slot, start, last)
	}
	return o.drain(deps)
}

// retire makes id waited for no more. Ids that are unknown or already retired are ignored. It is
// O(1) where ids have no gaps after id, else logarithmic in the number of operations since.
func (o *order) retire(id JobID) {
	n := len(o.ids)
	if n == 0 || id < o.ids[slotFloor] || id > o.ids[n-1] { // before the floor, as most are
		return
	}
	if id == o.ids[slotFloor] && !o.isGone(slotFloor) {
		o.gone[0] |= 1 << slotFloor
		return
	}
	// Ids ascend, so id lies as far from the end as its distance from the last id, or less.
	lo := slotFloor + 1
	if d := uint64(o.ids[n-1] - id); d < uint64(n-1-lo) {
		lo = n - 1 - int(d)
	}
	for hi := n; o.ids[lo] != id; {
		if hi-lo < 2 || o.ids[lo] > id {
			return
		}
		if mid := int(uint(lo+hi) >> 1); o.ids[mid] <= id {
			lo = mid
		} else {
			hi = mid
		}
	}
	o.gone[lo>>6] |= 1 << (lo & 63)
}

// isGone reports whether slot is waited for no more.
func (o *order) isGone(slot uint32) bool { return o.gone[slot>>6]>>(slot&63)&1 != 0 }

// find returns the index of the first segment that ends at block or after it.
func (o *order) find(block uint64) int {
	s, base := o.segs, 0
	for n := len(s); n > 0; {
		half := (n + 1) >> 1
		// No branch on the outcome: which half it is is a coin toss, and costs a misprediction every other time.
		_, before := bits.Sub64(s[base+half-1].last, block, 0)
		base += half & -int(before)
		n -= half
	}
	return base
}

// addWrite makes slot the last writer of its range.
func (o *order) addWrite(slot uint32, start, last uint64) {
	i := o.find(start)
	j, next, gap := i, start, false
	for ; j < len(o.segs) && o.segs[j].start <= last; j++ {
		s := &o.segs[j]
		gap = gap || s.start > next
		next = s.last + 1
		o.putFrontier(s)
	}
	if gap || j == i || o.segs[j-1].last < last {
		o.put(slotFloor)
	}
	o.replace(i, j, segment{start: start, last: last, writer: slot})
}

// addRead adds slot to the readers of each segment of its range.
func (o *order) addRead(slot uint32, start, last uint64) {
	i := o.find(start)
	if i == len(o.segs) || o.segs[i].start > last { // untouched
		o.put(slotFloor)
		o.replace(i, i, segment{start: start, last: last, writer: slotFloor, readers: o.cons(slot, 0)})
		return
	}
	if s := o.segs[i]; s.start <= start && s.last >= last { // all in one segment
		o.put(s.writer)
		o.replace(i, i+1, segment{start: start, last: last, writer: s.writer, readers: o.cons(slot, s.readers)})
		return
	}
	o.addReadOfMany(slot, start, last, i)
}

// addReadOfMany is addRead of a range that has more than one part, from segment i on.
func (o *order) addReadOfMany(slot uint32, start, last uint64, i int) {
	// Cut the range into its parts: segments, cut to size, and what is untouched between them.
	parts := o.pieces[:0]
	j, next := i, start
	for ; j < len(o.segs) && o.segs[j].start <= last; j++ {
		s := o.segs[j]
		if s.start > next {
			parts = append(parts, segment{start: next, last: s.start - 1, writer: slotFloor})
		}
		next = s.last + 1
		s.start, s.last = max(s.start, start), min(s.last, last)
		parts = append(parts, s)
	}
	if end := parts[len(parts)-1].last; end < last {
		parts = append(parts, segment{start: end + 1, last: last, writer: slotFloor})
	}

	first := len(o.cells)
	for k := range parts {
		p := &parts[k]
		o.put(p.writer)
		if first == 0 {
			continue // given up
		}
		if c := o.share(slot, p.readers, first); c != 0 {
			p.readers = c
			continue
		}
		for b := range parts[:k] {
			parts[b].readers = o.cells[parts[b].readers].next
		}
		o.cells, first = o.cells[:first], 0
		o.wide = append(o.wide, wideRead{start: start, last: last, slot: slot})
	}
	o.replace(i, j, parts...)
	o.pieces = parts[:0]
}

// addAll records the operation id on everything and starts afresh with it for the floor.
func (o *order) addAll(id JobID, deps []JobID) []JobID {
	o.spill()
	o.put(slotFloor)
	for i := range o.segs {
		o.putFrontier(&o.segs[i])
	}
	deps = o.drain(deps)
	o.reset(id)
	return deps
}

// reset forgets all but the floor.
func (o *order) reset(floor JobID) {
	o.shrink(len(o.ids)) // before it is emptied: what was just in use will be again
	o.ids = append(o.ids[:0], 0, floor)
	o.gone = append(o.gone[:0], 1<<slotNone)
	o.segs = o.segs[:0]
	o.cells = append(o.cells[:0], readerCell{})
	o.wide = o.wide[:0]
	o.limit = sweepMin
}

// replace puts parts, which cover them but for what sticks out at both ends, in place of segments i to j.
func (o *order) replace(i, j int, parts ...segment) {
	start, last := parts[0].start, parts[len(parts)-1].last
	var left, right segment
	at, n := i, len(parts)
	if i < j {
		left, right = o.segs[i], o.segs[j-1]
		if left.start < start {
			at++
			n++
		}
		if right.last > last {
			n++
		}
	}
	if old := len(o.segs); n != j-i {
		size := old + n - (j - i)
		if size > old {
			o.segs = slices.Grow(o.segs, size-old)
		}
		o.segs = o.segs[:max(old, size)]
		copy(o.segs[i+n:], o.segs[j:old])
		o.segs = o.segs[:size]
	}
	if at > i {
		left.last = start - 1
		o.segs[i] = left
	}
	copy(o.segs[at:], parts)
	if at += len(parts); at < i+n {
		right.start = last + 1
		o.segs[at] = right
	}
}
