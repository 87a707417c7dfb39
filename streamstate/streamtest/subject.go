package streamtest

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// subject is one key as adversaries see it: that of a feed, or of the user's own book. What is refused is part of the game:
// it was checked by Call.
type subject interface {
	dump() (d streamstate.Dump, ok bool)
	open()
	reopen()
	stop()
	drain()
	drop()
	ownerGone(owner string)
	release(partition int, owner string)
	unwant(partition int)
	want(partition int)
	begin(partition int, owner string, term uint64)
	flush()
	due()
	hold(target subject)
	merge(into subject)
}

// watched is a book of the user's own.
type watched interface {
	subjects() []subject
	closeBook()
	check()
}

// mix is a hash of some numbers.
func mix(ns ...uint64) uint64 {
	h := uint64(14695981039346656037)
	for _, n := range ns {
		h = (h ^ n) * 1099511628211
		h ^= h >> 29
	}
	return h
}

// printOf is a fingerprint of all that a book has and, by also, of its payloads.
func printOf[P any](b *streamstate.Book[P], also func(s *streamstate.Session[P]) uint64) uint64 {
	var sum uint64 // of hashes, since sessions come in no order
	for s := range b.Sessions() {
		d, payload := s.Dump(), uint64(0)
		if also != nil {
			payload = also(s)
		}
		id := s.ID()
		sum += mix(s.Fingerprint(), uint64(d.Merges), uint64(d.Waiting), payload, binary.BigEndian.Uint64(id[8:]))
	}
	return sum
}

// fingerprint is that of the books and of what was applied.
func (f *Feed) fingerprint() uint64 {
	return printOf(f.Book, func(s *Session) (h uint64) {
		_ = s.Read(func(tx streamstate.ReadTx[*Index]) error { // refused: there is nothing
			ix, err := tx.Payload()
			if err != nil {
				return err
			}
			for _, p := range ix.parts {
				h = mix(h, p.first, mix(p.items...))
			}
			return nil
		})
		return h
	})
}

// own is a book of the user's own.
type own[P any] struct {
	x    *Trial
	b    *streamstate.Book[P]
	open func(streamstate.Key) streamstate.OpenOptions[P]
}

func (o *own[P]) subjects() []subject {
	var all []*ownKey[P]
	for s := range o.b.Sessions() {
		all = append(all, &ownKey[P]{o, s})
	}
	slices.SortFunc(all, func(a, b *ownKey[P]) int {
		return cmp.Or(cmp.Compare(a.s.Key().Stream, b.s.Key().Stream), cmp.Compare(a.s.Key().Keyspace, b.s.Key().Keyspace))
	})
	out := make([]subject, 0, len(all))
	for _, k := range all {
		out = append(out, k)
	}
	return out
}

func (o *own[P]) closeBook() { o.b.Close() }

func (o *own[P]) check() {
	for s := range o.b.Sessions() {
		if err := s.Check(); err != nil {
			o.x.Errorf("%v\n%v", err, s.Dump())
		}
	}
}

// ownKey is a key of the user's own book, with the session that it is in.
type ownKey[P any] struct {
	o *own[P]
	s *streamstate.Session[P]
}

func (k *ownKey[P]) call(name string, f func() error) error { return k.o.x.Call(name, f) }

func (k *ownKey[P]) handle(name string, call func() *streamstate.Handle) {
	_ = k.call(name, func() error {
		h := call()
		k.o.x.track(name, h)
		return h.Err()
	})
}

func (k *ownKey[P]) dump() (streamstate.Dump, bool) { return k.s.Dump(), true }

func (k *ownKey[P]) open() {
	if k.o.open != nil {
		_ = k.call("Open", func() (err error) {
			k.s, err = k.o.b.Open(k.s.Key(), k.o.open(k.s.Key()))
			return err
		})
	}
}

func (k *ownKey[P]) reopen() {
	_ = k.call("Reopen", func() error {
		_, err := k.o.b.Reopen(k.s, streamstate.ReopenOptions[P]{Carry: func(old P) (P, error) { return old, nil }})
		return err
	})
}

func (k *ownKey[P]) stop() {
	k.handle("Stop", func() *streamstate.Handle { return k.s.Stop(errAdversary) })
}
func (k *ownKey[P]) drain() { k.handle("Drain", k.s.Drain) }
func (k *ownKey[P]) drop()  { k.handle("Drop", k.s.Drop) }

func (k *ownKey[P]) ownerGone(owner string) {
	_ = k.call("OwnerGone", func() error {
		_, err := k.s.OwnerGone(owner)
		return err
	})
}

// release gives the partition up: the claim itself is in the user's hands.
func (k *ownKey[P]) release(partition int, _ string) { k.unwant(partition) }

func (k *ownKey[P]) unwant(partition int) {
	k.handle("Unwant", func() *streamstate.Handle { return k.s.Unwant(partition) })
}

func (k *ownKey[P]) want(partition int) {
	_ = k.call("Want", func() error { return k.s.Want(partition) })
}

func (k *ownKey[P]) begin(partition int, owner string, term uint64) {
	_ = k.call("Begin", func() error {
		_, err := k.s.Begin(partition, streamstate.Begin{Owner: owner, Term: term})
		return err
	})
}

func (k *ownKey[P]) flush() {
	_ = k.call("StartFlush", func() error {
		t, err := k.s.StartFlush()
		if err == nil {
			k.o.x.leave(func() { _ = t.Abort() }) // it may have been answered
		}
		return err
	})
}

func (k *ownKey[P]) due() {
	_ = k.call("NextDue", func() error {
		work, err := k.s.NextDue(ended)
		for _, w := range work {
			k.o.x.leave(func() { _ = w.Abandon() }) // it may have ended
		}
		return err
	})
}

func (k *ownKey[P]) hold(target subject) {
	t, ok := target.(*ownKey[P])
	if !ok {
		return
	}
	_ = k.call("Hold", func() error {
		h, err := k.s.Hold(t.s)
		if err == nil {
			k.o.x.leave(func() { _ = h.Release() }) // it may have ended
		}
		return err
	})
}

func (k *ownKey[P]) merge(into subject) {
	if t, ok := into.(*ownKey[P]); ok {
		k.handle("Merge", func() *streamstate.Handle {
			return k.o.b.Merge(k.s, t.s, nil, func(_, _ streamstate.Tx[P]) error { return nil })
		})
	}
}
