package repair

import (
	"fmt"
	"time"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/streamstate"
)

// StreamEventKind is what a [StreamEvent] tells.
type StreamEventKind uint8

// The kinds of event.
const (
	StreamStarted   StreamEventKind = iota // the driver has begun; always the first
	StreamEscalated                        // a rung above restart is due: to shut down, to resubscribe, to recover
	StreamAsked                            // the source is being asked for a ticket
	StreamAnswered                         // it has answered; without Err it accepted, or has done it
	StreamOutcome                          // a ticket has ended; Err is why, as [streamstate.Work].Context says it
	StreamEnded                            // the driver has ended; always the last. Err is what it returns

	numStreamEventKinds = iota
)

var streamEventNames = [numStreamEventKinds]string{"started", "escalated", "asked", "answered", "outcome", "ended"}

// String is the kind's name in lower case.
func (k StreamEventKind) String() string {
	if int(k) < len(streamEventNames) {
		return streamEventNames[k]
	}
	return fmt.Sprintf("event(%d)", k)
}

// StreamEvent is something that a driver of [Stream] did or saw. Fields that the kind does not need are zero.
type StreamEvent struct {
	Kind      StreamEventKind
	Time      time.Time
	Key       streamstate.Key
	Session   streamstate.SessionID
	Work      string // "restart", "shut-down", "resubscribe" or "recover"
	Ticket    uint64 // its number, as the session's events and dumps show it
	Partition int    // -1: of the session
	Attempt   int    // StreamAsked, StreamAnswered: under this ticket, from 1
	Err       error
	Lost      int // events lost since the last one that was told
}

// teller tells a driver's events on a goroutine of its own. Its memory is the channel's; what does not fit is lost.
// A nil one tells nobody.
type teller struct {
	hook  func(StreamEvent)
	who   StreamEvent // what all events have in common
	queue chan *StreamEvent
	lost  atomic.Int64
	last  *StreamEvent // written before queue is closed, read after
}

func newTeller(s session, o StreamOptions) *teller {
	if o.OnEvent == nil {
		return nil
	}
	t := &teller{hook: o.OnEvent, who: StreamEvent{Key: s.Key(), Session: s.ID()}, queue: make(chan *StreamEvent, o.MaxEvents)}
	t.queue <- t.stamp(StreamEvent{Kind: StreamStarted, Partition: -1}) // there is room
	go t.run()
	return t
}

func (t *teller) stamp(e StreamEvent) *StreamEvent {
	e.Key, e.Session, e.Time = t.who.Key, t.who.Session, time.Now()
	return &e
}

// about tells something about a ticket.
func (t *teller) about(kind StreamEventKind, j *job, attempt int, err error) {
	if t == nil {
		return
	}
	select {
	case t.queue <- t.stamp(StreamEvent{
		Kind: kind, Work: j.what, Ticket: j.ticket.Ticket(), Partition: j.partition, Attempt: attempt, Err: err,
	}):
	default:
		t.lost.Inc()
	}
}

// finish tells the last event, which needs no room. Nothing may be told after it.
func (t *teller) finish(e StreamEvent) {
	if t == nil {
		return
	}
	t.last = t.stamp(e)
	close(t.queue)
}

func (t *teller) run() {
	for e := range t.queue {
		t.call(e)
	}
	t.call(t.last)
}

func (t *teller) call(e *StreamEvent) {
	e.Lost = int(t.lost.Swap(0))
	t.hook(*e)
}
