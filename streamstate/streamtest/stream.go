package streamtest

import (
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// Stream is one stream of a partition at the source, opened for one session. What it has said and not handed in is in hand,
// and can be handed in late: after the stream was cut, the claim has ended, or the session. All methods are safe for
// concurrent use.
type Stream struct {
	s   *Source
	req Request

	// All below is guarded by s.mu.
	next  uint64 // the next item to be sent
	back  bool   // it has demanded a roll-back, and sends nothing
	over  bool   // it has ended at the source
	cut   bool   // nobody listens: Settle leaves alone what is in hand
	queue []Message
	last  *Message // the last one handed in
}

// Partition is the partition that it sends.
func (st *Stream) Partition() int { return st.req.Partition }

// Owner is who sends it.
func (st *Stream) Owner() string { return st.req.Owner }

// Session is the session that it was opened for.
func (st *Stream) Session() streamstate.SessionID { return st.req.Session }

func (st *Stream) message(k Kind) Message {
	return Message{Kind: k, Session: st.req.Session, Stream: st, Partition: st.req.Partition, Owner: st.req.Owner, Term: st.req.Term}
}

// InHand are the messages that were not handed in, in their order.
func (st *Stream) InHand() []Message {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return slices.Clone(st.queue)
}

// Over tells whether the stream has ended at the source.
func (st *Stream) Over() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.over
}

// Send takes up to n of the items that the stream has not sent into hand, as one message; all of them if n is negative. It
// returns how many there were.
func (st *Stream) Send(n int) int {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	l := &st.s.logs[st.req.Partition]
	end := uint64(len(l.items))
	if st.over || st.back || st.next >= end {
		return 0
	}
	if n >= 0 {
		end = min(end, st.next+uint64(n))
	}
	m := st.message(Data)
	m.First, m.Items, m.Position = st.next, slices.Clone(l.items[st.next:end]), l.position(end)
	if len(m.Items) > 0 {
		st.queue = append(st.queue, m)
	}
	st.next = end
	return len(m.Items)
}

// HandOver ends the stream in good order, behind what is in hand.
func (st *Stream) HandOver() { st.end(HandedOver) }

// Break ends the stream because it cannot go on, behind what is in hand.
func (st *Stream) Break() { st.end(Broken) }

func (st *Stream) end(k Kind) {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if !st.over {
		st.over = true
		st.queue = append(st.queue, st.message(k))
	}
}

// Cut closes the stream from this end: it says nothing more. What is in hand stays in hand. False: it was cut before.
func (st *Stream) Cut() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	was := st.cut
	st.cut, st.over = true, true
	st.s.streams = slices.DeleteFunc(st.s.streams, func(o *Stream) bool { return o == st })
	return !was
}

func (st *Stream) isCut() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.cut
}

// running tells whether somebody listens and something is in hand.
func (st *Stream) running() bool {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return !st.cut && len(st.queue) > 0
}

// Deliver hands in the first message in hand, whether or not anybody should still listen, and returns what was said to it.
// A begin that is refused cuts the stream.
func (st *Stream) Deliver() error {
	m := st.takeMessage()
	if m == nil {
		return ErrNothing
	}
	err := st.s.hand(*m)
	if err != nil && m.Kind == Begun {
		st.Cut()
	}
	return err
}

// DeliverAll hands in all messages in hand and returns the first refusal.
func (st *Stream) DeliverAll() (first error) {
	for range st.InHand() {
		if err := st.Deliver(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Repeat hands in once more what was handed in last.
func (st *Stream) Repeat() error {
	m := st.lastMessage()
	if m == nil {
		return ErrNothing
	}
	return st.s.hand(*m)
}

func (st *Stream) takeMessage() *Message {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	if len(st.queue) == 0 {
		return nil
	}
	m := st.queue[0]
	st.queue = st.queue[1:]
	st.last = &m
	return &m
}

func (st *Stream) lastMessage() *Message {
	st.s.mu.Lock()
	defer st.s.mu.Unlock()
	return st.last
}
