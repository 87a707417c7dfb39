package streamtest

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/staleproof/staleproof/streamstate"
)

// ErrNothing is what [Stream.Deliver] and [Stream.Repeat] answer when there is no message.
var ErrNothing = errors.New("streamtest: no message in hand")

// Kind is what a [Message] says.
type Kind uint8

// The kinds of message.
const (
	Begun       Kind = iota // a stream begins, or demands a roll-back
	Data                    // items
	HandedOver              // the stream ends in good order, after its last item
	Broken                  // it ends because it cannot go on
	BeginFailed             // it has not begun
	OwnerGone               // a life of a node is over, with all its streams; the message belongs to none
)

// String is the kind's name in lower case.
func (k Kind) String() string {
	return [...]string{"begun", "data", "handed-over", "broken", "begin-failed", "owner-gone"}[k]
}

// Message is what a [Source] says. Streams of a former session go on to say what they have in hand.
type Message struct {
	Kind      Kind
	Session   streamstate.SessionID // the session that the stream was opened for
	Stream    *Stream               // nil: [OwnerGone]
	Partition int
	Owner     string
	Term      uint64

	From         streamstate.Position // Begun
	MustRollBack bool                 // Begun: the source does not know From
	RollBackTo   streamstate.Position // Begun

	First    uint64               // Data: the number of the first item
	Items    []uint64             // Data
	Position streamstate.Position // Data: that of what follows the last item
}

// Request is what a stream is opened with.
type Request struct {
	Session   streamstate.SessionID
	Partition int
	Owner     string
	Term      uint64
	From      streamstate.Position
}

// Source is the far end of a key: it has the items of each partition, and the streams that send them. What it says goes to
// a function, in [Stream.Deliver] and [Source.Settle]; nothing is said by itself. No lock is held while the function is
// called. All methods are safe for concurrent use.
type Source struct {
	hand       func(Message) error
	partitions int

	mu sync.Mutex
	// +checklocks:mu
	logs []partitionLog
	// streams are those that were opened and not cut, the first one first.
	// +checklocks:mu
	streams []*Stream
	// ever are all streams there were.
	// +checklocks:mu
	ever []*Stream
	// +checklocks:mu
	branches uint64
	// +checklocks:mu
	faults faults
}

// faults are what a source was told to do otherwise. They are guarded by its mutex.
type faults struct {
	hold                              bool
	repeat, begins, restarts, pending int
	shutDowns, resubscribes, recovers int
}

// partitionLog are the items of one partition. An item's value tells its number and its branch.
type partitionLog struct {
	items    []uint64
	branches []branch // the present history, the oldest first
}

// branch is a history: it has the items from start on.
type branch struct{ id, start uint64 }

// NewSource makes the source of a key of that many partitions, whose messages go to hand.
func NewSource(partitions int, hand func(Message) error) *Source {
	logs := make([]partitionLog, partitions)
	for p := range logs {
		logs[p].branches = []branch{{uint64(p + 1), 0}}
	}
	return &Source{hand: hand, partitions: partitions, logs: logs, branches: uint64(partitions)}
}

// Partitions is how many there are.
func (s *Source) Partitions() int { return s.partitions }

// Produce appends items to a partition. The streams send them when they are told to.
func (s *Source) Produce(partition, items int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.logs[partition]
	for range items {
		l.items = append(l.items, valueOf(partition, uint64(len(l.items)), l.branches[len(l.branches)-1].id))
	}
}

// valueOf is what an item says; no two are the same.
func valueOf(partition int, number, branch uint64) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, [3]uint64{uint64(partition), number, branch}) // a hash does not fail
	return h.Sum64()
}

// Lose loses the items of a partition from a number on, as a failover does: another history begins there, and the
// partition's streams break. Who asks to go on from what was lost is told to roll back.
func (s *Source) Lose(partition int, from uint64) {
	if !s.fork(partition, from) {
		return
	}
	for _, st := range s.Streams() {
		if st.req.Partition == partition {
			st.Break()
		}
	}
}

// fork begins another history of a partition at a number; false: it has not come so far.
func (s *Source) fork(partition int, from uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.logs[partition]
	if from >= uint64(len(l.items)) {
		return false
	}
	s.branches++
	l.items = slices.Clone(l.items[:from])
	kept := slices.DeleteFunc(slices.Clone(l.branches), func(b branch) bool { return b.start >= from })
	l.branches = append(kept, branch{s.branches, from})
	return true
}

// Items are the items of a partition.
func (s *Source) Items(partition int) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.logs[partition].items)
}

// Position is that of the next item that a partition will have.
func (s *Source) Position(partition int) streamstate.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &s.logs[partition]
	return l.position(uint64(len(l.items)))
}

// position is that of an item, with the branch of the one before.
func (l *partitionLog) position(next uint64) streamstate.Position {
	pos := streamstate.Position{Next: next}
	for _, b := range l.branches {
		if b.start < next {
			pos.Branch = b.id
		}
	}
	return pos
}

// rollBack is where to who asks for a position must roll back; ok: it is part of the present history. A position without a
// branch is taken for one of it.
func (l *partitionLog) rollBack(from streamstate.Position) (to streamstate.Position, ok bool) {
	end := uint64(0)
	for i, b := range l.branches {
		if b.id == from.Branch || from.Branch == 0 {
			if end = uint64(len(l.items)); i+1 < len(l.branches) && from.Branch != 0 {
				end = l.branches[i+1].start
			}
		}
	}
	if from.Next <= end {
		return from, true
	}
	return l.position(end), false
}

// Open opens a stream, which has its begin in hand.
func (s *Source) Open(req Request) *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &Stream{s: s, req: req, next: req.From.Next}
	m := st.message(Begun)
	m.From = req.From
	if to, ok := s.logs[req.Partition].rollBack(req.From); !ok {
		m.MustRollBack, m.RollBackTo = true, to
		st.back = true
	}
	if take(&s.faults.begins) {
		m = st.message(BeginFailed)
		st.over = true
	}
	st.queue = []Message{m}
	s.streams = append(s.streams, st)
	s.ever = append(s.ever, st)
	return st
}

// take uses up one of n.
func take(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}

// Streams are the streams that were opened and not cut, the first one first.
func (s *Source) Streams() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.streams)
}

func (s *Source) all() []*Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ever)
}

// LoseOwner ends a life of a node: its streams are cut, and it is said, for that session, that the owner is gone.
func (s *Source) LoseOwner(session streamstate.SessionID, owner string) error {
	for _, st := range s.Streams() {
		if st.req.Owner == owner {
			st.Cut()
		}
	}
	return s.hand(Message{Kind: OwnerGone, Session: session, Owner: owner})
}

// Settle has each stream send all there is and hands in what it has in hand, until nothing moves; it tells whether
// anything did. A stream of which a message is refused is cut, as whoever is refused does. See [Source.HoldMessages].
func (s *Source) Settle() bool {
	moved := false
	for again := true; again; {
		again = false
		for _, st := range s.Streams() {
			if s.held() {
				return moved
			}
			st.Send(-1)
			taken := true
			for taken && st.running() {
				if taken = st.Deliver() == nil; taken && s.takes(func(f *faults) *int { return &f.repeat }) {
					_ = st.Repeat() // it may be refused, and that is all
				}
				again = again || taken
			}
			if !taken || st.Over() {
				again = st.Cut() || again
			}
		}
		moved = moved || again
	}
	return moved
}

func (s *Source) held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults.hold
}

func (s *Source) takes(which func(*faults) *int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return take(which(&s.faults))
}

func (s *Source) set(f func(*faults)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.faults)
}

// HoldMessages has Settle leave all messages in hand, until [Source.Heal].
func (s *Source) HoldMessages() { s.set(func(f *faults) { f.hold = true }) }

// RepeatNext has Settle hand in each of the next n messages twice.
func (s *Source) RepeatNext(n int) { s.set(func(f *faults) { f.repeat = n }) }

// FailBegins has the next n streams that are opened not begin.
func (s *Source) FailBegins(n int) { s.set(func(f *faults) { f.begins = n }) }

// RefuseRestarts has the next n restarts that repair asks for be refused.
func (s *Source) RefuseRestarts(n int) { s.set(func(f *faults) { f.restarts = n }) }

// PendRestarts has the next n restarts be accepted as pending.
func (s *Source) PendRestarts(n int) { s.set(func(f *faults) { f.pending = n }) }

// FailShutDowns has the next n shutdowns that repair asks for fail.
func (s *Source) FailShutDowns(n int) { s.set(func(f *faults) { f.shutDowns = n }) }

// FailResubscribes has the next n resubscribes that repair asks for fail.
func (s *Source) FailResubscribes(n int) { s.set(func(f *faults) { f.resubscribes = n }) }

// FailRecoveries has the next n recoveries fail that repair asks for.
func (s *Source) FailRecoveries(n int) { s.set(func(f *faults) { f.recovers = n }) }

// Heal ends all faults.
func (s *Source) Heal() { s.set(func(f *faults) { *f = faults{} }) }
