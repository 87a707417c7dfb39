package streamtest

import (
	"context"
	"errors"
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// take is what a feed does with a message of its source: what a service does, but for the audit.
func (k *Keyspace) take(m Message) error {
	switch m.Kind {
	case Begun:
		return k.takeBegun(m)
	case BeginFailed:
		s, err := k.find(m.Session)
		if err != nil {
			return err
		}
		return k.f.call("BeginFailed", func() error { return s.BeginFailed(m.Partition, m.Owner) })
	case OwnerGone:
		s, err := k.find(m.Session)
		if err != nil {
			return err
		}
		return k.f.call("OwnerGone", func() error {
			_, err := s.OwnerGone(m.Owner)
			return err
		})
	case Data, HandedOver, Broken:
	}
	l := k.claimOf(m.Stream)
	if l == nil {
		return ErrNoClaim
	}
	if m.Kind == Data {
		return k.checked("Apply", l, func() error {
			return l.claim.Apply(m.Position, func(tx Tx) error { return k.apply(tx, l.claim, &m) })
		})
	}
	kind := streamstate.HandOver
	if m.Kind == Broken {
		kind = streamstate.Failed
	}
	return k.f.call("End", func() error { return l.claim.End(kind) })
}

// find is the session that a message is for, as the book knows it.
func (k *Keyspace) find(id streamstate.SessionID) (s *Session, err error) {
	err = k.f.call("Session", func() (err error) {
		s, err = k.f.Book.Session(k.Key, id)
		return err
	})
	return s, err
}

func (k *Keyspace) takeBegun(m Message) error {
	s, err := k.find(m.Session)
	if err != nil {
		return err
	}
	var c *Claim
	err = k.checked("Begin", k.life(m.Session), func() (err error) {
		c, err = s.Begin(m.Partition, streamstate.Begin{
			Owner: m.Owner, Term: m.Term, From: m.From, MustRollBack: m.MustRollBack, RollBackTo: m.RollBackTo,
		})
		return err
	})
	if err != nil {
		return err
	}
	l := &life{s: s, claim: c, ctx: c.Context()}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.claims[m.Stream] = l
	return nil
}

// life is what is known of a session.
func (k *Keyspace) life(id streamstate.SessionID) *life {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	for _, l := range k.sessions {
		if l.s.ID() == id {
			return l
		}
	}
	return nil
}

// checked makes a call with a token, which must be refused if the token has ended before the call, or in the gap before it.
func (k *Keyspace) checked(what string, l *life, call func() error) error {
	dead := l != nil && l.ctx.Err() != nil
	from := 0
	if k.f.trial != nil {
		from = k.f.trial.engine.Steps()
	}
	err := k.f.call(what, call)
	if err != nil || l == nil {
		return err
	}
	if k.f.trial != nil && k.f.trial.engine.WentAt(from) { // a merge that this call has made possible may have ended it
		dead = dead || l.ctx.Err() != nil && !errors.Is(context.Cause(l.ctx), streamstate.ErrMerged)
	}
	if dead {
		k.f.violate("%v: %s was let in with a token that had ended: %v", k.Key, what, context.Cause(l.ctx))
	}
	return nil
}

// Flush is a running flush of a keyspace. Finish, or Settle, writes to the disk and says that it is done.
type Flush struct {
	*streamstate.FlushTicket
	k *Keyspace
	s *Session
}

// StartFlush begins a flush, which Settle finishes if nobody does before.
func (k *Keyspace) StartFlush() (*Flush, error) {
	s := k.Session()
	if s == nil {
		return nil, ErrNoSession
	}
	fl := &Flush{k: k, s: s}
	err := k.f.call("StartFlush", func() (err error) {
		fl.FlushTicket, err = s.StartFlush()
		return err
	})
	if err != nil {
		return nil, err
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.flushes = append(k.flushes, fl)
	return fl, nil
}

// Finish writes the target to the disk and says that it is durable.
func (fl *Flush) Finish() (returned []int, err error) {
	fl.k.write(fl.s, fl.Target())
	err = fl.k.f.call("Done", func() (err error) {
		returned, err = fl.Done()
		return err
	})
	fl.k.lose(returned)
	fl.k.answered(fl)
	return returned, err
}

// Flush flushes as [streamstate.Session.Flush] does; with a context that has ended it does not wait.
func (k *Keyspace) Flush(ctx context.Context) error {
	s := k.Session()
	if s == nil {
		return ErrNoSession
	}
	return k.f.call("Flush", func() error {
		return s.Flush(ctx, func(_ context.Context, t streamstate.Timestamp) error {
			k.write(s, t)
			return nil
		})
	})
}

// write writes what a flush is to make durable to the disk. Of what is being dropped nothing is.
func (k *Keyspace) write(s *Session, target streamstate.Timestamp) {
	var parts []indexPart
	_ = s.Read(func(tx streamstate.ReadTx[*Index]) error { // refused: it is being dropped
		ix, err := tx.Payload()
		if err == nil && tx.FlushRunning() { // else it was answered before
			parts = ix.durable(target)
		}
		return err
	})
	if parts == nil {
		return
	}
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.disk = parts
}

// lose forgets what a flush does not vouch for.
func (k *Keyspace) lose(partitions []int) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	for _, p := range partitions {
		if p < len(k.disk) {
			k.disk[p] = indexPart{}
		}
	}
}

func (k *Keyspace) answered(fl *Flush) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.flushes = slices.DeleteFunc(k.flushes, func(o *Flush) bool { return o == fl })
}

// Durable are the items of a partition that flushes have written, and the number of the first.
func (k *Keyspace) Durable(partition int) (first uint64, items []uint64) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if partition >= len(k.disk) {
		return 0, nil
	}
	return k.disk[partition].first, slices.Clone(k.disk[partition].items)
}

// Items are the items of a partition that the present session has received, and the number of the first; nothing if the
// session is gone.
func (k *Keyspace) Items(partition int) (first uint64, items []uint64) {
	s := k.Session()
	if s == nil {
		return 0, nil
	}
	_ = s.Read(func(tx streamstate.ReadTx[*Index]) error { // who is gone has nothing
		ix, err := tx.Payload()
		if err != nil {
			return err
		}
		v, err := tx.Partition(partition)
		if err == nil {
			p := ix.parts[partition].until(v.Received.Next)
			first, items = p.first, p.items
		}
		return err
	})
	return first, items
}
