package streamstate

import (
	"fmt"
	"iter"
	"math"
)

// Position is how far a partition has come. The zero Position is "from the beginning"; that there is none at all is said
// by absence, never by a value.
type Position struct {
	// Next is the next number wanted (a Kafka offset + 1, a DCP seqno + 1), below 2^64-1.
	Next uint64
	// Branch is the history that the number belongs to (a vbuuid, a leader epoch). It is kept for a restart and never
	// ordered or compared.
	Branch uint64
	// SnapStart and SnapEnd are the snapshot that the number lies in, where the source has snapshots; SnapStart <= SnapEnd.
	SnapStart, SnapEnd uint64
}

// never is the Next of an absent position.
const never = math.MaxUint64

var absent = Position{Next: never}

// valid tells whether a caller may hand p in.
func (p *Position) valid() bool { return p.Next != never && p.SnapStart <= p.SnapEnd }

func (p *Position) present() bool { return p.Next != never }

// String is the number and, where there is one, the branch.
func (p Position) String() string {
	switch {
	case !p.present():
		return "never"
	case p.Branch == 0:
		return fmt.Sprintf("%d", p.Next)
	default:
		return fmt.Sprintf("%d@%x", p.Next, p.Branch)
	}
}

// Timestamp is an immutable vector of positions, one or none for each partition. Vectors of one session share what did
// not change between them. Copying one is cheap, it is safe for concurrent use, and it keeps no session alive. The zero
// Timestamp has no partitions.
type Timestamp struct{ v *vector }

// NewTimestamp makes a vector for that many partitions out of pairs of partition and position; the rest is absent. A
// partition out of range or given twice, or a position that cannot be, is an *[ArgumentError].
func NewTimestamp(partitions int, positions iter.Seq2[int, Position]) (Timestamp, error) {
	if partitions < 0 || partitions > MaxPartitions {
		return Timestamp{}, badArgument("partitions", partitions, fmt.Sprintf("0 to %d", MaxPartitions))
	}
	v := newVector(partitions).draft(0)
	if positions != nil {
		for p, pos := range positions {
			if err := v.add(p, pos); err != nil {
				return Timestamp{}, err
			}
		}
	}
	if partitions == 0 {
		return Timestamp{}, nil
	}
	return Timestamp{v}, nil
}

// add sets a position of a vector that nobody has seen yet.
func (v *vector) add(p int, pos Position) error {
	switch {
	case p < 0 || p >= v.n:
		return badArgument("partition", p, fmt.Sprintf("0 to %d", v.n-1))
	case !pos.valid():
		return badArgument("position", pos, "Next below 2^64-1, SnapStart <= SnapEnd")
	case v.at(p).present():
		return badArgument("partition", p, "each partition once")
	}
	*v.own(p) = pos
	return nil
}

// Len is the number of partitions.
func (t Timestamp) Len() int {
	if t.v == nil {
		return 0
	}
	return t.v.n
}

// At is the position of a partition; ok is false where there is none, or no such partition.
func (t Timestamp) At(partition int) (pos Position, ok bool) {
	if partition < 0 || partition >= t.Len() {
		return Position{}, false
	}
	if pos = *t.v.at(partition); !pos.present() {
		return Position{}, false
	}
	return pos, true
}

// All ranges over the partitions that have a position, in ascending order.
func (t Timestamp) All() iter.Seq2[int, Position] {
	return func(yield func(int, Position) bool) {
		for p := range t.Len() {
			if pos := t.v.at(p); pos.present() && !yield(p, *pos) {
				return
			}
		}
	}
}

// Equal tells whether both have the same partitions and positions.
func (t Timestamp) Equal(o Timestamp) bool {
	if t.Len() != o.Len() {
		return false
	}
	if t.v == o.v {
		return true
	}
	for i := range t.v.index {
		if c, d := t.v.chunk(i), o.v.chunk(i); c != d && *c != *d {
			return false
		}
	}
	return true
}

// String lists the partitions that have a position.
func (t Timestamp) String() string {
	b := []byte{'['}
	for p, pos := range t.All() {
		if len(b) > 1 {
			b = append(b, ' ')
		}
		b = fmt.Appendf(b, "%d:%v", p, pos)
	}
	return string(append(b, ']'))
}

// at is the position of p, absent if there is none; p is in range, or the vector is empty.
func (t Timestamp) at(p int) Position {
	if t.v == nil {
		return absent
	}
	return *t.v.at(p)
}

// editor changes copies of chunks, each copied once, and leaves the vector it began with as it is.
type editor struct {
	from, to *vector
}

// edit begins to change a vector of n partitions, which may be zero yet.
func (t Timestamp) edit(n int) editor {
	if t.v == nil {
		return editor{from: newVector(n)}
	}
	return editor{from: t.v}
}

func (e *editor) set(p int, pos Position) {
	cur := e.to
	if cur == nil {
		cur = e.from
	}
	if *cur.at(p) == pos {
		return
	}
	if e.to == nil {
		e.to = e.from.draft(1)
	}
	*e.to.own(p) = pos
}

func (e *editor) done() Timestamp {
	if e.to != nil {
		return Timestamp{e.to}
	}
	return Timestamp{e.from}
}
