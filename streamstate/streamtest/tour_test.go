package streamtest_test

import (
	"context"
	"errors"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

var errMine = errors.New("mine")

type (
	tx     = streamtest.Tx
	readTx = streamstate.ReadTx[*streamtest.Index]
	handle = streamstate.Handle
)

// opens opens and finds.
func (o *tour) opens() {
	_, err := o.a.TryOpen()
	o.want(err, streamstate.ErrExists)
	c := o.f.Add("c", streamtest.OpenOptions{Partitions: 1, Pending: true})
	_, err = c.TryOpen()
	o.must(err)
	o.call(streamstate.ErrArgument, "Open", func() error {
		_, err := o.f.Book.Open(streamstate.Key{Stream: "test"}, streamstate.OpenOptions[*streamtest.Index]{Partitions: 1})
		return err
	})
	o.on(c, func(s *streamtest.Session) {
		o.start(c, 0, "A", 0, nil)
		o.flush(s, streamstate.ErrPhase)
		o.call(nil, "Opened", s.Opened)
		o.call(streamstate.ErrSuperseded, "Opened", s.Opened)
		o.call(streamstate.ErrSuperseded, "OpenFailed", func() error { return s.OpenFailed(nil) })
		o.must(s.Context().Err())
		o.must(c.Stop(nil).Wait(polls))
		_, err := c.TryReopen(streamstate.Timestamp{}, true)
		o.must(err)
		o.call(streamstate.ErrStaleSession, "Session", func() error { _, err := o.f.Book.Session(c.Key, s.ID()); return err })
	})
	o.on(c, func(s *streamtest.Session) {
		o.call(nil, "Session", func() error { _, err := o.f.Book.Session(c.Key, s.ID()); return err })
		o.call(nil, "OpenFailed", func() error { return s.OpenFailed(errMine) })
		o.call(streamstate.ErrPhase, "Opened", s.Opened)
		_, err := s.Dump().JSON()
		o.must(err)
		o.call(nil, "Check", s.Check)
		_ = s.Fingerprint()
	})
	for range o.f.Book.Sessions() {
		continue
	}
	_ = o.f.String()
	_ = o.f.Book.Stats()
}

// claims begins, hands over, contests and ends claims.
func (o *tour) claims() {
	st := o.start(o.a, 0, "A", 1, nil)
	o.start(o.a, 0, "A", 1, streamstate.ErrDuplicate)
	o.send(o.a, st, 3, nil)
	next := o.start(o.a, 0, "B", 1, nil) // contested
	if st != nil {
		st.HandOver()
		o.must(st.DeliverAll())
		o.want(st.Repeat(), streamstate.ErrStaleClaim)
	}
	o.send(o.a, next, 2, nil)
	newest := o.start(o.a, 0, "C", 2, nil) // replaces it
	o.send(o.a, next, 1, streamstate.ErrStaleClaim)
	o.send(o.a, newest, 1, nil)
	o.start(o.a, 1, "A", 1, streamstate.ErrStaleTerm)
	o.on(o.a, func(s *streamtest.Session) {
		o.call(streamstate.ErrUnexpected, "BeginFailed", func() error { return s.BeginFailed(0, "A") })
		o.call(nil, "BeginFailed", func() error { return s.BeginFailed(1, "A") })
		o.call(streamstate.ErrArgument, "BeginFailed", func() error { return s.BeginFailed(2, "A") })
		o.must(o.a.Source.LoseOwner(s.ID(), "C"))
		o.must(o.a.Source.LoseOwner(s.ID(), "nobody"))
		if c := o.a.Claim(newest); c != nil {
			o.call(streamstate.ErrStaleClaim, "End", func() error { return c.End(streamstate.Failed) })
		}
	})
	o.f.Settle()
	o.late(newest, streamstate.ErrStaleClaim)
}

// fences lists claims for shutdown.
func (o *tour) fences() {
	st, other := o.start(o.a, 0, "A", 0, nil), o.start(o.a, 0, "B", 0, nil)
	o.send(o.a, st, 2, nil)
	if st == nil || other == nil {
		return
	}
	o.must(o.a.Fence(st))
	o.want(o.a.Fence(other), streamstate.ErrStaleClaim)
	o.start(o.a, 0, "C", 0, streamstate.ErrNotShutDown)
	o.on(o.a, func(s *streamtest.Session) {
		o.must(o.a.Source.LoseOwner(s.ID(), "B")) // is not to be shut down
	})
	o.start(o.a, 0, "C", 0, streamstate.ErrNotShutDown)
	st.Break()
	o.must(st.DeliverAll()) // its shutdown
	third := o.start(o.a, 0, "C", 0, nil)
	if third != nil && o.a.Claim(third) != nil {
		o.must(o.a.Fence(third))
	}
	for _, w := range o.a.Poll() {
		if w, ok := w.(*streamstate.ShutDownTicket); ok {
			for _, c := range w.Claims() {
				o.call(nil, "Done", func() error { return w.Done(c.ID) })
				o.call(streamstate.ErrSuperseded, "Done", func() error { return w.Done(c.ID) })
			}
			o.call(streamstate.ErrSuperseded, "Failed", w.Failed)
		}
	}
	o.f.Settle()
	o.late(st, streamstate.ErrStaleClaim)
}

// wanted gives partitions up and takes them back.
func (o *tour) wanted() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 2, nil)
	o.on(o.a, func(s *streamtest.Session) {
		o.must(o.a.Want(0))
		o.want(o.a.Want(2), streamstate.ErrArgument)
		o.must(o.a.Unwant(0).Wait(polls))
		o.start(o.a, 0, "A", 0, streamstate.ErrUnwanted)
		o.send(o.a, st, 1, streamstate.ErrStaleClaim)
		o.must(o.a.Want(0))
		again := o.start(o.a, 0, "A", 0, nil)
		o.send(o.a, again, 1, nil)
		if o.a.Claim(again) == nil {
			return
		}
		fl, err := o.a.StartFlush()
		o.must(err)
		h := o.a.Release(again)
		o.want(h.Wait(polls), context.Canceled) // the flush covers it
		o.want(o.a.Want(0), streamstate.ErrReleasing)
		if fl != nil {
			returned, err := fl.Finish()
			o.must(err)
			if len(returned) != 1 && !o.x.Disturbed() {
				o.x.Errorf("returned: %v", returned)
			}
		}
		o.must(h.Wait(polls))
		o.must(o.a.Want(0))
		o.must(s.Context().Err())
	})
	o.f.Settle()
}

// data is applied, skipped, repeated and refused.
func (o *tour) data() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 3, nil)
	if st == nil {
		return
	}
	_ = st.Repeat() // where it is: nothing
	if o.a.Source.Position(0).Next < 3 {
		return // the source has lost what was received: from the beginning would be wrong
	}
	late, err := o.a.StartFrom(0, "B", 0, streamstate.Position{})
	o.must(err)
	o.send(o.a, late, 2, nil) // three are skipped
	c := o.a.Claim(late)
	o.on(o.a, func(s *streamtest.Session) {
		if c == nil {
			return
		}
		nothing := func(tx) error { return nil }
		o.call(streamstate.ErrPosition, "Apply", func() error { return c.Apply(streamstate.Position{Next: 1}, nothing) })
		o.call(streamstate.ErrPosition, "Advance", func() error { return c.Advance(streamstate.Position{Next: 1}) })
		o.call(streamstate.ErrArgument, "Apply", func() error { return c.Apply(streamstate.Position{Next: 1<<64 - 1}, nothing) })
		o.want(c.Apply(streamstate.Position{Next: 9}, func(tx) error { return errMine }), errMine)
		o.must(c.Context().Err())
		_, err := s.Timestamp()
		o.must(err)
		o.send(o.a, st, 1, nil)
		_, err = s.Timestamp()
		o.must(err)
	})
	st.HandOver()
	o.must(st.DeliverAll())
	o.want(st.Repeat(), streamstate.ErrStaleClaim)
	o.f.Settle()
}

// batches advance and apply several claims at once.
func (o *tour) batches() {
	c := o.f.Open("c", streamtest.OpenOptions{Partitions: 2})
	defer c.Drop() // it has received what no source has
	o.on(c, func(s *streamtest.Session) {
		x := o.claim(s, 0, streamstate.Begin{Owner: "A"}, nil)
		y := o.claim(s, 1, streamstate.Begin{Owner: "A"}, nil)
		if x == nil || y == nil {
			return
		}
		batch := func(n, m uint64) []streamstate.Advance[*streamtest.Index] {
			return []streamstate.Advance[*streamtest.Index]{
				{Claim: x, Position: streamstate.Position{Next: n}}, {Claim: y, Position: streamstate.Position{Next: m}},
			}
		}
		apply := func(n, m uint64) func() error {
			return func() error {
				return s.ApplyBatch(batch(n, m), func(tx, []streamstate.Advance[*streamtest.Index]) error { return nil })
			}
		}
		o.call(nil, "Advance", func() error { return x.Advance(streamstate.Position{Next: 2}) })
		o.call(nil, "AdvanceBatch", func() error { return s.AdvanceBatch(batch(3, 1)) })
		o.call(streamstate.ErrPosition, "AdvanceBatch", func() error { return s.AdvanceBatch(batch(4, 0)) })
		o.call(nil, "ApplyBatch", apply(4, 1))
		o.call(streamstate.ErrPosition, "ApplyBatch", apply(5, 0))
		o.call(nil, "End", func() error { return x.End(streamstate.HandOver) })
		o.call(streamstate.ErrStaleClaim, "ApplyBatch", apply(5, 2))
		o.call(streamstate.ErrStaleClaim, "Advance", func() error { return x.Advance(streamstate.Position{Next: 5}) })
		o.handle(nil, "Release", y.Release)
		o.handle(streamstate.ErrStaleClaim, "Release", y.Release)
	})
}
