package jobtracker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// clone returns an independent copy.
func (o *order) clone() order {
	c := *o
	c.ids = slices.Clone(o.ids)
	c.gone = slices.Clone(o.gone)
	c.segs = slices.Clone(o.segs)
	c.cells = slices.Clone(o.cells)
	c.wide = slices.Clone(o.wide)
	c.many, c.pieces, c.renumber, c.forward = nil, nil, nil, nil
	return c
}

// appendState appends a canonical description to b: two orders append the same bytes if and only if they
// answer every sequence of further calls alike, as long as ids grow.
//
// It is the unretired floor, then the blocks at which the set of operations to wait for changes, each
// with the unretired writer and readers from there on.
func (o *order) appendState(b []byte) []byte {
	if o.ids == nil {
		return append(b, 0)
	}
	b = o.appendWriter(b, slotFloor)
	untouched := append(o.appendWriter(nil, slotFloor), 0)
	was := untouched
	change := func(block uint64, is []byte) {
		if !bytes.Equal(is, was) {
			b = append(binary.AppendUvarint(b, block), is...)
			was = is
		}
	}
	next := uint64(0) // the first block that is not described yet; 0 again after the last block there is
	for i := range o.segs {
		s := &o.segs[i]
		if s.start != next {
			change(next, untouched)
		}
		change(s.start, o.appendSegment(nil, s))
		next = s.last + 1
	}
	if next != 0 {
		change(next, untouched)
	}
	return b
}

func (o *order) appendSegment(b []byte, s *segment) []byte {
	b = o.appendWriter(b, s.writer)
	o.putReaders(s)
	readers := o.drain(nil)
	b = binary.AppendUvarint(b, uint64(len(readers)))
	for _, id := range readers {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

func (o *order) appendWriter(b []byte, slot uint32) []byte {
	if o.isGone(slot) {
		return append(b, 0)
	}
	return binary.AppendUvarint(append(b, 1), uint64(o.ids[slot]))
}

// check returns an error that says which invariant is broken, if any.
func (o *order) check() error {
	if o.ids == nil {
		if o.gone != nil || o.segs != nil || o.cells != nil || o.wide != nil {
			return errors.New("order: no slots, but something is recorded")
		}
		return nil
	}
	return errors.Join(o.checkSlots(), o.checkCells(), o.checkSegments(), o.checkWide())
}

func (o *order) checkSlots() error {
	n := len(o.ids)
	if n < 2 || n > o.limit || o.last < o.ids[n-1] {
		return fmt.Errorf("order: %d slots up to %d of %d, last id %d", n, o.ids[n-1], o.limit, o.last)
	}
	if len(o.gone) != (n+63)/64 || o.gone[len(o.gone)-1]>>1>>((n-1)&63) != 0 || !o.isGone(slotNone) {
		return fmt.Errorf("order: retirement bits %x of %d slots", o.gone, n)
	}
	for slot := slotFloor + 1; slot < n; slot++ {
		if id, before := o.ids[slot], o.ids[slot-1]; id <= before && (slot != slotFloor+1 || !o.isGone(slotFloor)) {
			return fmt.Errorf("order: id %d of slot %d does not ascend", id, slot)
		}
	}
	if o.nfew != 0 || slices.ContainsFunc(o.many, func(w uint64) bool { return w != 0 }) {
		return errors.New("order: an answer was left behind")
	}
	return nil
}

func (o *order) checkCells() error {
	for i, c := range o.cells {
		if i == 0 {
			continue
		}
		if c.slot <= slotFloor || int(c.slot) >= len(o.ids) || int(c.next) >= i ||
			c.slot < o.cells[i-1].slot || c.next != 0 && o.cells[c.next].slot >= c.slot {
			return fmt.Errorf("order: reader cell %d is %+v after %+v", i, c, o.cells[i-1])
		}
	}
	if len(o.cells) == 0 || o.cells[0] != (readerCell{}) {
		return errors.New("order: no cell to end lists")
	}
	return nil
}

func (o *order) checkSegments() error {
	for i, s := range o.segs {
		if s.start > s.last || i > 0 && s.start <= o.segs[i-1].last {
			return fmt.Errorf("order: segment %d is %+v", i, s)
		}
		if int(s.writer) >= len(o.ids) || int(s.readers) >= len(o.cells) {
			return fmt.Errorf("order: segment %d is %+v of %d slots, %d cells", i, s, len(o.ids), len(o.cells))
		}
		for c := s.readers; c != 0; c = o.cells[c].next {
			if o.cells[c].slot <= s.writer {
				return fmt.Errorf("order: segment %d is %+v with reader %d", i, s, o.cells[c].slot)
			}
		}
	}
	return nil
}

func (o *order) checkWide() error {
	for _, w := range o.wide {
		if w.start > w.last || w.slot <= slotFloor || int(w.slot) >= len(o.ids) {
			return fmt.Errorf("order: wide read %+v", w)
		}
		if o.isGone(w.slot) {
			continue
		}
		next, full := w.start, false
		for i := range o.segs {
			s := &o.segs[i]
			if s.start > w.last || s.last < w.start {
				continue
			}
			if full || s.start > next {
				return fmt.Errorf("order: wide read %+v, but no segment at %d", w, next)
			}
			if w.reads(s) && (s.start < w.start || s.last > w.last) {
				return fmt.Errorf("order: wide read %+v has a part of segment %+v", w, *s)
			}
			next, full = s.last+1, s.last == math.MaxUint64
		}
		if !full && next <= w.last {
			return fmt.Errorf("order: wide read %+v, but no segment at %d", w, next)
		}
	}
	return nil
}
