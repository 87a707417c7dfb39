package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/staleproof/staleproof/streamstate"
)

// restarts is the payload: how often a partition was restarted.
type restarts int

// ourFollower is package streamstate, and the handler of a repair.
type ourFollower struct {
	book  *streamstate.Book[restarts]
	s     *streamstate.Session[restarts] // of the present life
	own   map[int]*streamstate.Claim[restarts]
	polls context.Context //nolint:containedctx // it has ended: calls that could wait do not
	asked map[int]question
	lives []string // the ids of the sessions, which are random
}

// question is what the handler holds between its two holds: tokens.
type question struct {
	s      *streamstate.Session[restarts]
	ticket *streamstate.RestartTicket
}

func newFollower() *ourFollower {
	f := &ourFollower{
		// No deadline: the script says what happens.
		book: streamstate.NewBook[restarts](streamstate.Options{BeginWithin: -1, HandOverWithin: -1, TicketWithin: -1, PendingWithin: -1, StableAfter: -1}),
		own:  map[int]*streamstate.Claim[restarts]{}, asked: map[int]question{},
	}
	var cancel context.CancelFunc
	f.polls, cancel = context.WithCancel(context.Background())
	cancel()
	return f
}

// close ends the book.
func (f *ourFollower) close() error { return f.book.Close().Wait(context.Background()) }

func (f *ourFollower) open(from uint64) (err error) {
	f.s, err = f.book.Open(streamstate.Key{Stream: "maint", Keyspace: keyspace}, streamstate.OpenOptions[restarts]{Partitions: partitions})
	if err != nil {
		return err
	}
	f.lives = append(f.lives, f.s.ID().String(), fmt.Sprintf("<session %d>", len(f.lives)/2+1))
	for p := range partitions {
		err = errors.Join(err, f.begin(p, from))
	}
	return err
}

// named says which session is meant, so that the output is always the same.
func (f *ourFollower) named(text string) string { return strings.NewReplacer(f.lives...).Replace(text) }

func (f *ourFollower) begin(p int, from uint64) (err error) {
	f.own[p], err = f.s.Begin(p, streamstate.Begin{Owner: "node 1", From: streamstate.Position{Next: from}})
	return err
}

func (f *ourFollower) end(p int) error { return f.own[p].End(streamstate.Failed) }

func (f *ourFollower) ask(p int) error {
	work, err := f.s.NextDue(f.polls)
	if err != nil {
		return err
	}
	for _, w := range work {
		if t, ok := w.(*streamstate.RestartTicket); ok && t.Partition() == p {
			f.asked[p] = question{f.s, t}
			return nil
		}
	}
	return fmt.Errorf("no restart of partition %d is due in %v", p, work)
}

func (f *ourFollower) drop() error { return f.s.Drop().Wait(context.Background()) }

func (f *ourFollower) reply(p int) (string, error) {
	q := f.asked[p]
	count := func(tx streamstate.Tx[restarts]) error {
		n, err := tx.Payload()
		return errors.Join(err, tx.SetPayload(n+1))
	}
	if q.s.Context().Err() != nil {
		return f.late(q, count)
	}
	err := errors.Join(q.ticket.Accepted(), q.s.Update(count), f.begin(p, start))
	return fmt.Sprintf("partition %d restarts at %d", p, start), err
}

// late looks at all that is promised of an answer to a former life: by its ticket, and by any other write of the handler.
func (f *ourFollower) late(q question, write func(streamstate.Tx[restarts]) error) (string, error) {
	was, before := f.s.Fingerprint(), f.book.Stats()
	said := ""
	for _, err := range []error{q.ticket.Accepted(), q.s.Update(write)} {
		if said == "" {
			said = fmt.Sprintf("%T\n%s", err, f.named(err.Error()))
		}
		e, ok := err.(*streamstate.StaleError) //nolint:errorlint // this type is promised, not one that wraps it
		switch {
		case !ok || !errors.Is(err, streamstate.ErrStaleSession) || !errors.Is(err, streamstate.ErrDropped):
			return said, fmt.Errorf("want a *StaleError: %w: %w", streamstate.ErrStaleSession, streamstate.ErrDropped)
		case e.Session != q.s.ID() || e.Key.Keyspace != keyspace:
			return said, fmt.Errorf("want session %v of %s", q.s.ID(), keyspace)
		}
	}
	now := f.book.Stats()
	const stale = streamstate.ReasonStaleSession
	if f.s.Fingerprint() != was || now.Refused[stale] != before.Refused[stale]+2 || now.Refusals() != before.Refusals()+2 || now.Opened != before.Opened {
		return said, errors.New("want two more refusals of this reason, and no other change")
	}
	return said + "\nin both writes of the second hold; state unchanged: true", nil
}

func (f *ourFollower) table() string {
	if f.s.Context().Err() != nil {
		return "nothing is known of " + keyspace
	}
	repairing := 0
	d := f.s.Dump()
	for _, p := range d.Parts {
		if p.State != streamstate.Begun.String() {
			repairing++
		}
	}
	return fmt.Sprintf("%d partitions, %d in repair", d.Partitions, repairing)
}

func (f *ourFollower) dump() string {
	d := f.s.Dump()
	d.Tickets = nil // they say how old they are
	return f.named(d.String())
}
