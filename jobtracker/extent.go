package jobtracker

import "fmt"

// ExtentState is what is known of one extent of a replica, in the present activation. It is how a repair knows what is
// left to do, and how the next one knows what the last one has proven.
type ExtentState uint8

// The states.
const (
	ExtentUnknown ExtentState = iota // the tracker knows nothing: what the caller knows decides, else it is copied
	ExtentDirty                      // a change was written off here, or may be lost: it is copied, whatever the caller knows (R24)
	ExtentCopying                    // a copy or a comparison of it is out
	ExtentEqual                      // what is remembered of it was compared and is alike; a flush done here proves it
	ExtentCopied                     // copied, compared by checksum, or changed; a flush done here proves it
	ExtentClean                      // proven: it holds what the voters hold, durably (R25)

	numExtentStates = iota
)

var extentNames = [numExtentStates]string{"unknown", "dirty", "copying", "equal", "copied", "clean"}

// String is the state's name in lower case.
func (s ExtentState) String() string { return nameOf(extentNames[:], int(s), "extent") }

// extentEvent is what happens to an extent of a replica.
type extentEvent uint8

const (
	extentMissed    extentEvent = iota // a change was written off or has failed here, or may be lost; or it was found to differ
	extentUnflushed                    // a change was done here and retired, and no flush done here vouches for it
	extentAsked                        // a copy or a comparison was admitted
	extentFilled                       // its write is done here, or it holds the same; and its source still votes
	extentFailed                       // the copy has ended in any other way
	extentSame                         // the caller has compared it
	extentKept                         // the connection has ended, after a flush that covers it
	extentDropped                      // the connection has ended, and nothing covers it; or the repair has, with its copies

	numExtentEvents = iota
)

var extentEventNames = [numExtentEvents]string{
	"missed", "unflushed", "asked", "filled", "failed", "same", "kept", "dropped",
}

// nextExtent is the whole relation of an extent's states: total and pure.
func nextExtent(s ExtentState, e extentEvent) (to ExtentState, ok bool) {
	unproven := s == ExtentUnknown || s == ExtentDirty || s == ExtentCopying
	switch e {
	case extentMissed:
		return ExtentDirty, true
	case extentUnflushed:
		if unproven {
			return s, true
		}
		return ExtentCopied, true
	case extentAsked:
		if unproven {
			return ExtentCopying, true
		}
		return s, true // it is as good as it was, until the copy is done
	case extentFilled:
		return ExtentCopied, true
	case extentFailed:
		if s == ExtentCopying {
			return ExtentDirty, true
		}
		return s, true
	case extentSame:
		if s == ExtentUnknown {
			return ExtentEqual, true
		}
		return s, !unproven
	case extentKept:
		if unproven {
			return nextExtent(s, extentDropped)
		}
		return ExtentClean, true
	case extentDropped:
		switch s {
		case ExtentCopying, ExtentCopied:
			return ExtentDirty, true
		case ExtentEqual:
			return ExtentUnknown, true
		case ExtentUnknown, ExtentDirty, ExtentClean:
		}
		return s, true
	}
	return s, false
}

// extentTable is what is known of the extents of one replica. While all are in one state it needs no memory, else 8 bytes
// an extent.
type extentTable struct {
	size    uint64 // blocks of an extent
	blocks  uint64 // of the device
	uniform ExtentState
	cells   []extentCell // nil: all are uniform
	counts  [numExtentStates]int
}

// extentCell is an extent's state and, above it, the number of the last flush that does not cover what was done to it.
type extentCell uint64

const extentBits = 3

func newCell(s ExtentState, flush uint64) extentCell {
	return extentCell(flush<<extentBits | uint64(s))
}

func (c extentCell) state() ExtentState { return ExtentState(c & (1<<extentBits - 1)) }
func (c extentCell) flush() uint64      { return uint64(c >> extentBits) }

// total is how many extents there are.
func (t *extentTable) total() int { return int((t.blocks + t.size - 1) / t.size) }

// reset puts all extents into one state.
func (t *extentTable) reset(s ExtentState) {
	t.uniform, t.cells, t.counts = s, nil, [numExtentStates]int{}
	t.counts[s] = t.total()
}

// at is the state of extent i.
func (t *extentTable) at(i int) ExtentState {
	if t.cells == nil {
		return t.uniform
	}
	return t.cells[i].state()
}

// apply is one event for extents from..to-1; flush is the number of the last flush admitted.
func (t *extentTable) apply(from, to int, e extentEvent, flush uint64) {
	if t.cells == nil {
		if next, ok := nextExtent(t.uniform, e); !ok || next == t.uniform {
			return
		}
		t.cells = make([]extentCell, t.total())
		for i := range t.cells {
			t.cells[i] = newCell(t.uniform, 0)
		}
	}
	for i := from; i < to; i++ {
		c := t.cells[i]
		next, ok := nextExtent(c.state(), e)
		if !ok {
			continue
		}
		after := flush
		if e == extentFilled && c.state() == ExtentCopying {
			after = c.flush() // it was counted when the copy was admitted
		}
		t.counts[c.state()]--
		t.counts[next]++
		t.cells[i] = newCell(next, after)
	}
}

// leave is the end of the connection: flushed is the number of the last flush done on it.
func (t *extentTable) leave(flushed uint64) {
	for i, c := range t.cells {
		e := extentDropped
		if flushed > c.flush() {
			e = extentKept
		}
		t.apply(i, i+1, e, c.flush())
	}
}

// touched is the range of extents that some blocks are in.
func (t *extentTable) touched(start, blocks uint64) (from, to int) {
	return int(start / t.size), int((start + blocks + t.size - 1) / t.size)
}

// covered is the range of extents that some blocks cover to the last one.
func (t *extentTable) covered(start, blocks uint64) (from, to int) {
	from, to = int((start+t.size-1)/t.size), int((start+blocks)/t.size)
	if start+blocks == t.blocks {
		to = t.total()
	}
	return from, max(from, to)
}

// left is how many extents are neither proven nor will be by a flush.
func (t *extentTable) left() int {
	return t.counts[ExtentUnknown] + t.counts[ExtentDirty] + t.counts[ExtentCopying]
}

// next is the first extent from i on that is to be copied; -1 if there is none.
func (t *extentTable) next(i int) int {
	if t.counts[ExtentUnknown]+t.counts[ExtentDirty] == 0 {
		return -1
	}
	for ; i < t.total(); i++ {
		if s := t.at(i); s == ExtentUnknown || s == ExtentDirty {
			return i
		}
	}
	return -1
}

// extent is extent i.
func (t *extentTable) extent(i int) Extent {
	start := uint64(i) * t.size
	return Extent{Index: i, Start: start, Blocks: min(t.size, t.blocks-start), State: t.at(i)}
}

// check verifies the table's invariants.
func (t *extentTable) check() error {
	var counts [numExtentStates]int
	for i := range t.cells {
		counts[t.at(i)]++
	}
	if t.cells == nil {
		counts[t.uniform] = t.total()
	}
	if counts != t.counts {
		return fmt.Errorf("counts %v extents, there are %v", t.counts, counts)
	}
	return nil
}

// missed takes note that a change of some blocks is not, or may not be, on the replicas of the mask.
func (c *core) missed(s *slot, mask uint8) {
	for r := range replicas(mask) {
		t := &c.reps[r].extents
		from, to := t.touched(s.start, uint64(s.blocks))
		t.apply(from, to, extentMissed, 0)
	}
}

// copyEnded takes note of how a copy has ended on its target, whose ticket may be another by now (R06).
func (c *core) copyEnded(s *slot, e extentEvent) {
	rep := &c.reps[targetOf(s)]
	if rep.repair == repairNone || rep.ticket != s.aux>>16 {
		return
	}
	if e == extentFilled && c.reps[sourceOf(s)].state.Phase != Voting {
		e = extentFailed // what it has read is not relied on
	}
	from, to := rep.extents.covered(s.start, uint64(s.blocks))
	rep.extents.apply(from, to, e, c.flushes)
}

// unflushed takes note of a change that retires before a flush done on every replica that did it vouches for it.
func (c *core) unflushed(id JobID, s *slot) {
	for r := range replicas(s.done) {
		if rep := &c.reps[r]; id > rep.vouched {
			from, to := rep.extents.touched(s.start, uint64(s.blocks))
			rep.extents.apply(from, to, extentUnflushed, c.flushes)
		}
	}
}

// leaveExtents is the end of a connection that is not to be replayed: what was done on it since the last flush may be
// lost (R25).
func (c *core) leaveExtents(r int) {
	rep, bit := &c.reps[r], uint8(1)<<r
	c.each(func(id JobID, s *slot) {
		if s.kind.writes() && s.done&bit != 0 && id > rep.vouched {
			c.missed(s, bit)
		}
	})
	rep.extents.leave(rep.flushed)
}

// distrust looks at what a replica that connects says of itself: if it cannot be what was proven, everything is copied.
func (c *core) distrust(rep *replica, h Hello) {
	said := version{h.Generation, h.Flush}
	switch {
	case rep.state.Home == HomeNew && h.Generation > 0:
		return // the first time in this activation
	case h.Generation == 0 && (rep.state.Home == HomeNew || h.Replica == (ID{})):
		// Blank, and it may be another than the one that was here.
	case h.Replica != rep.said:
	case h.Generation == c.generation && h.Flush >= rep.noted && h.Flush <= rep.told, rep.noted == 0 && said == rep.hello:
		return
	}
	rep.extents.reset(ExtentDirty)
}
