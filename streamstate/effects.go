package streamstate

import "time"

// effects are what a change wants done outside of the core. The gate takes them in the same hold: it wakes at once, and
// queues what calls the user.
type effects struct {
	claims []claimEnd
	rare   *rareEffects // set with dueRare
}

// rareEffects are those that few changes have; a record that has none does not pay for them.
type rareEffects struct {
	tickets []ticketEnd
	session *ending // the session has ended
	flush   *flushEnd
	handles []handleEnd
	holds   []*hold // of a session that has ended: to be taken off after the hold
	events  []Event // at most MaxEvents
	lost    uint64  // events that there was no room for
	gone    bool
}

// more is where rare effects go.
func (k *core) more() *rareEffects {
	if k.fx.rare == nil {
		k.fx.rare = new(rareEffects)
		k.due |= dueRare
	}
	return k.fx.rare
}

// due says which effects there are, so that the gate looks at one byte when there are none.
type due uint8

const (
	dueMoved   due = 1 << iota // positions have moved, and somebody looks at them
	dueChanged                 // anything else has, and somebody waits
	dueClaims                  // claims have ended
	dueTime                    // a deadline wants its time, and the timer does not run
	dueRare                    // everything else
)

type claimEnd struct {
	claim *claimFacts
	why   *ending
}

type ticketEnd struct {
	ticket *ticket
	why    *ending
}

type flushEnd struct {
	flush *flush
	why   *ending
}

type handleEnd struct {
	handle *Handle
	err    error
}

// effected forgets the effects and keeps the memory of the frequent ones, but nothing alive.
func (k *core) effected() {
	if k.due&dueClaims != 0 {
		clear(k.fx.claims)
		k.fx.claims = k.fx.claims[:0]
	}
	if k.due&dueRare != 0 {
		k.fx.rare = nil
	}
	k.due = 0
}

// endClaim ends a claim. One whose context nobody has asked for is done with here; the price of an end depends on it.
func (k *core) endClaim(c *claimFacts, why *ending) {
	if c.life == nil {
		c.life = why
		return
	}
	k.fx.claims, k.due = append(k.fx.claims, claimEnd{c, why}), k.due|dueClaims
}

func (k *core) resolve(h *Handle, err error) {
	k.more().handles = append(k.more().handles, handleEnd{h, err})
}

// EventKind is what an [Event] tells.
type EventKind uint8

// The kinds of event.
const (
	PhaseChanged     EventKind = iota // a session went from one phase to another, or began
	PartitionChanged                  // a partition went from one state to another
	TicketIssued                      // repair has something to do
	TicketEnded                       // a ticket was answered, or cannot be any more
	FlushStarted                      // a flush began
	FlushEnded                        // it ended; without a cause it was done

	numEventKinds = iota
)

var eventKindNames = [numEventKinds]string{
	"phase", "partition", "ticket-issued", "ticket-ended", "flush-started", "flush-ended",
}

// String is the kind's name in lower case.
func (e EventKind) String() string { return nameOf(eventKindNames[:], int(e), "event") }

// Event is a change worth knowing of. Fields that the kind does not need are zero.
type Event struct {
	// Seq increases by one for each event of a record. A gap means that events were lost: see [Options.OnEvent].
	Seq       uint64
	Time      time.Time // when it was queued
	Kind      EventKind
	Key       Key
	Session   SessionID
	From, To  Phase          // PhaseChanged
	Partition int            // PartitionChanged, TicketIssued, TicketEnded; -1 for a ticket of the session
	Was, Is   PartitionState // PartitionChanged
	Ticket    uint64         // the ticket's number, or the flush's
	Work      string         // the ticket's kind
	Cause     error          // why
}

// event queues an event, if anybody wants it.
func (k *core) event(e Event) {
	if !k.lists {
		return
	}
	fx := k.more()
	if len(fx.events) == k.lim.events {
		fx.lost++
		return
	}
	e.Key, e.Session = *k.key, k.id
	fx.events = append(fx.events, e)
}

func (k *core) report(i int, from, to PartitionState) {
	k.event(Event{Kind: PartitionChanged, Partition: i, Was: from, Is: to})
}

// enterPhase is the only writer of the phase.
func (k *core) enterPhase(to Phase) {
	from := k.phase
	k.phase = to
	k.event(Event{Kind: PhaseChanged, From: from, To: to, Cause: k.cause.error()})
	k.changed()
}
