package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/streamstate"
)

// mParts is how many partitions the model has.
const mParts = 3

// mModel drives one key, its drivers and a source that may do anything: it answers late or not at all, says yes and does
// nothing, begins without being asked, ends, contests, sends or demands a roll-back. It knows what was promised:
//
//   - a source is never asked for a session that has ended, nor with a context that has;
//   - a rung is given up because the source refused or was asked often enough, because what it gave did not last, or by a
//     deadline: never before it, and never more than a look of the timer after it;
//   - there is one live ticket for a partition, and none beside one of the session (streamstate.Check);
//   - a driver ends when, and only when, its session has ended, its context has, or a recovery is due;
//   - when faults stop, all ends well within the stated number of tickets.
type mModel struct {
	t    *rapid.T
	book *book
	s    *sess
	deaf bool

	slept bool // time has passed in the last step

	drivers []*mDriver
	claims  []*claim

	mu sync.Mutex
	// +checklocks:mu
	mSeen
}

// mSeen is what hooks and drivers write.
type mSeen struct {
	wrong   []string
	tickets map[mTicket]*mLife
	ended   []streamstate.Event // tickets that ended, not looked at yet
	issued  map[int]int         // tickets by partition, while they are counted
	stats   mSum
}

type mTicket struct {
	session streamstate.SessionID
	ticket  uint64
}

// mLife is what is known of a ticket.
type mLife struct {
	work    string
	since   time.Time // when its deadline was armed
	within  time.Duration
	attempt int
	answer  error
	asked   bool
}

// mDriver is one call of Stream.
type mDriver struct {
	s      *sess
	src    *source
	cancel context.CancelFunc
	done   chan error
	open   []*call // not answered
}

// fault notes what is wrong. Under the lock.
//
// +checklocks:m.mu
func (m *mModel) fault(format string, args ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, args...))
}

// life is what is known of a ticket. Which of its events comes first is chance: two goroutines tell them.
//
// +checklocks:m.mu
func (m *mModel) life(s streamstate.SessionID, ticket uint64, work string, at time.Time) *mLife {
	id := mTicket{s, ticket}
	l := m.tickets[id]
	if l == nil {
		l = &mLife{work: work, since: at, within: deadlines.TicketWithin}
		m.tickets[id] = l
	}
	return l
}

func (m *mModel) count(f func(*mSum)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(&m.stats)
}

// onBook sees the session's tickets come and go.
func (m *mModel) onBook(e streamstate.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e.Kind {
	case streamstate.TicketIssued:
		m.stats.tickets++
		m.life(e.Session, e.Ticket, e.Work, e.Time)
		if m.issued != nil {
			m.issued[e.Partition]++
		}
	case streamstate.TicketEnded:
		m.ended = append(m.ended, e)
	case streamstate.PhaseChanged, streamstate.PartitionChanged, streamstate.FlushStarted, streamstate.FlushEnded:
	}
}

// judge looks at the tickets that have ended, when all events have been told.
//
// +checklocks:m.mu
func (m *mModel) judge() {
	for _, e := range m.ended {
		l := m.life(e.Session, e.Ticket, e.Work, e.Time)
		switch {
		case errors.Is(e.Cause, streamstate.ErrTimeout):
			m.stats.timeouts++
			if took := e.Time.Sub(l.since); took < l.within || took > l.within+look {
				m.fault("%s ticket %d timed out after %v, not %v", l.work, e.Ticket, took, l.within)
			}
		case errors.Is(e.Cause, streamstate.ErrResolved) && l.answer != nil && l.work != "recover":
			if !errors.Is(l.answer, ErrRefused) && l.attempt < 5 {
				m.fault("%s ticket %d given up after attempt %d: %v", l.work, e.Ticket, l.attempt, l.answer)
			}
		}
	}
	m.ended = nil
}

// onStream sees what a driver does.
func (m *mModel) onStream(e StreamEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch e.Kind {
	case StreamAsked:
		l := m.life(e.Session, e.Ticket, e.Work, e.Time)
		if l.asked && l.answer == nil || l.attempt+1 != e.Attempt || e.Attempt > 5 {
			m.fault("%s ticket %d: attempt %d after %d, answered %v", l.work, e.Ticket, e.Attempt, l.attempt, l.answer)
		}
		l.asked, l.attempt, l.answer = true, e.Attempt, nil
	case StreamAnswered:
		m.life(e.Session, e.Ticket, e.Work, e.Time).answer = e.Err
	case StreamEscalated:
		m.stats.escalated++
	case StreamStarted, StreamOutcome, StreamEnded:
	}
}

// onCall is the source being asked.
func (m *mModel) onCall(s *sess, c *call) {
	err := s.Read(func(streamstate.ReadTx[int]) error { return nil })
	c.tickets = map[int]uint64{}
	for _, t := range s.Dump().Tickets {
		if slices.Contains(c.parts, t.Partition) {
			c.tickets[t.Partition] = t.Ticket
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.calls++
	if err != nil || s.Context().Err() != nil || c.ctx.Err() != nil {
		m.fault("%s %v asked for: %v, %v", c.what, c.parts, err, c.ctx.Err())
	}
}

// answered arms a restart's deadline anew. It is the model's own view of what an answer does.
func (m *mModel) answered(d *mDriver, c *call, err error) {
	if c.what != "restart" {
		return
	}
	dump := d.s.Dump()
	m.mu.Lock()
	defer m.mu.Unlock()
	some, partly := errors.AsType[PartitionErrors](err)
	for _, t := range dump.Tickets {
		l := m.tickets[mTicket{d.s.ID(), t.Ticket}]
		if l == nil || t.Ticket != c.tickets[t.Partition] {
			continue // the answer is late
		}
		e := err
		if partly {
			e = some[t.Partition]
		}
		switch {
		case e == nil:
			l.since, l.within = time.Now(), deadlines.BeginWithin
		case errors.Is(e, ErrPending):
			l.since, l.within = time.Now(), deadlines.PendingWithin
		}
	}
}

// recoveryDue is the rule for it, as the documents have it.
func (m *mModel) recoveryDue() (due bool) {
	begun, back := true, false
	require.NoError(m.t, m.s.Read(func(tx streamstate.ReadTx[int]) error {
		for _, v := range tx.Partitions() {
			live := v.State == streamstate.Begun || v.State == streamstate.Contested
			due = due || v.Rung == streamstate.RungRecover && (v.State == streamstate.Due || v.State == streamstate.Fenced)
			begun = begun && (live || v.State == streamstate.Unwanted)
			for _, c := range v.Claims {
				back = back || live && c.MustRollBack
				due = due || live && c.MustRollBack && c.RollBackTo.Next == 0
			}
		}
		return nil
	}))
	return due || begun && back
}

func (m *mModel) drive() {
	d := &mDriver{s: m.s, src: newSource(), done: make(chan error, 1)}
	d.src.deaf = m.deaf
	s := m.s
	d.src.check = func(c *call) { m.onCall(s, c) }
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	o := StreamOptions{OnEvent: m.onStream}
	o.setDefaults()
	l := newLadder(s, d.src, o)
	l.chance = func(n int64) int64 { return n / 3 } // a failure is to be seen again
	go func() { d.done <- l.run(ctx) }()
	m.drivers = append(m.drivers, d)
}

func (m *mModel) open() {
	var err error
	m.s, err = m.book.Open(orders, streamstate.OpenOptions[int]{Partitions: mParts})
	require.NoError(m.t, err)
	m.drive()
}

// look takes the calls that have come, and has drivers that ended replaced.
func (m *mModel) look() {
	synctest.Wait()
	require.NoError(m.t, m.s.Check())
	var left []*mDriver
	due := false
	for _, d := range m.drivers {
		for len(d.src.calls) > 0 {
			d.open = append(d.open, <-d.src.calls)
		}
		if len(d.done) == 0 {
			left = append(left, d)
			continue
		}
		err := <-d.done
		require.Error(m.t, err)
		if errors.Is(err, context.Canceled) {
			continue
		}
		if d.s != m.s || m.s.Context().Err() != nil {
			require.Truef(m.t, errors.Is(err, streamstate.ErrPhase) || errors.Is(err, streamstate.ErrStaleSession) ||
				errors.Is(err, ErrRecoveryDue), "%v", err)
			continue
		}
		require.ErrorIs(m.t, err, ErrRecoveryDue, "it has ended before its session")
		m.count(func(n *mSum) { n.recoveries++ })
		require.True(m.t, m.slept || m.deaf || m.recoveryDue(), "recovery for no reason")
		due = true
	}
	m.drivers = left
	if due {
		m.reopen()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge()
	require.Empty(m.t, m.wrong)
}
