package streamtest_test

import (
	"context"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// flushes end in each way, and once.
func (o *tour) flushes() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 3, nil)
	fl, err := o.a.StartFlush()
	o.must(err)
	_, err = o.a.StartFlush()
	o.want(err, streamstate.ErrFlushRunning)
	o.want(o.a.Flush(polls), context.Canceled)
	o.send(o.a, st, 1, nil)
	if fl != nil {
		_, err = fl.Finish()
		o.must(err)
		o.call(streamstate.ErrSuperseded, "Fail", func() error { return fl.Fail(nil) })
		o.call(streamstate.ErrSuperseded, "Abort", fl.Abort)
		_, err = fl.Finish()
		o.want(err, streamstate.ErrSuperseded)
	}
	o.on(o.a, func(s *streamtest.Session) {
		for _, end := range []func(*streamstate.FlushTicket) error{
			(*streamstate.FlushTicket).Abort, func(t *streamstate.FlushTicket) error { return t.Fail(errMine) },
		} {
			o.call(nil, "StartFlush", func() error {
				t, err := s.StartFlush()
				if err == nil {
					err = end(t)
				}
				return err
			})
		}
	})
	o.want(o.a.Flush(polls), nil)
	o.f.Settle()
}

// holds keep flushes closed, and end with either session.
func (o *tour) holds() {
	h, err := o.f.Hold(o.b, o.a)
	o.must(err)
	_, err = o.f.Hold(o.a, o.a)
	o.want(err, streamstate.ErrSameSession)
	_, err = o.a.StartFlush()
	o.want(err, streamstate.ErrHeld)
	second, err := o.f.Hold(o.b, o.a)
	o.must(err)
	if h != nil {
		o.call(nil, "hold.Release", h.Release)
		o.call(streamstate.ErrStaleHold, "hold.Release", h.Release)
	}
	_, err = o.a.StartFlush()
	o.want(err, streamstate.ErrHeld)
	o.must(o.b.Stop(nil).Wait(polls))
	if second != nil {
		o.call(streamstate.ErrStaleHold, "hold.Release", second.Release)
	}
	o.must(o.a.Flush(polls))
	_, err = o.f.Hold(o.b, o.a)
	o.want(err, streamstate.ErrPhase)
	_, err = o.b.TryReopen(streamstate.Timestamp{}, false)
	o.must(err)
	third, err := o.f.Hold(o.b, o.a)
	o.must(err)
	o.must(o.a.Stop(nil).Wait(polls))
	if third != nil {
		o.call(streamstate.ErrStaleHold, "hold.Release", third.Release)
	}
}

// merges wait for health and flushes, and end one key.
func (o *tour) merges() {
	o.want(o.f.Merge(o.a, o.a, nil).Wait(polls), streamstate.ErrSameSession)
	h := o.f.Merge(o.b, o.a, func(from, into streamstate.View) bool { return from.Received().Len() == into.Len() })
	o.want(h.Wait(polls), context.Canceled) // not healthy
	for _, k := range []*streamtest.Keyspace{o.a, o.b} {
		o.send(k, o.start(k, 0, "A", 0, nil), 1, nil)
	}
	o.start(o.a, 1, "A", 0, nil)
	fl, err := o.a.StartFlush()
	o.must(err)
	crosswise := o.f.Merge(o.a, o.b, nil)
	o.want(crosswise.Wait(polls), context.Canceled)
	o.start(o.b, 1, "A", 0, nil)
	o.want(h.Wait(polls), context.Canceled) // it waits for the flush
	_, err = o.b.StartFlush()
	o.want(err, streamstate.ErrHeld)
	if fl != nil {
		_, err = fl.Finish()
		o.must(err)
	}
	o.must(h.Wait(polls))
	o.want(crosswise.Wait(polls), streamstate.ErrMerged)
	o.on(o.b, func(s *streamtest.Session) {
		o.call(streamstate.ErrStaleSession, "Update", func() error { return s.Update(func(tx) error { return nil }) })
	})
	_, err = o.b.TryOpen()
	o.must(err)
}

// transactions look and change, on one session or two, at once or when it is time.
func (o *tour) transactions() {
	o.send(o.a, o.start(o.a, 0, "A", 0, nil), 2, nil)
	a, b := o.a.Session(), o.b.Session()
	if a == nil || b == nil {
		return
	}
	keep := func(t tx) error {
		ix, err := t.Payload()
		if err == nil {
			err = t.SetPayload(ix)
		}
		return err
	}
	o.call(nil, "Read", func() error { return a.Read(func(t readTx) error { return t.Err() }) })
	o.call(nil, "Update", func() error { return a.Update(keep) })
	o.want(a.Update(func(tx) error { return errMine }), errMine)
	o.call(nil, "Pair", func() error {
		return o.f.Book.Pair(a, b, func(x, y tx) error {
			if err := keep(x); err != nil {
				return err
			}
			return keep(y)
		})
	})
	o.call(streamstate.ErrSameSession, "Pair", func() error { return o.f.Book.Pair(a, a, func(_, _ tx) error { return nil }) })
	has := func(v streamstate.View) bool { return v.Received().Len() > 0 }
	o.call(nil, "When", func() error { return a.When(polls, has, keep) })
	o.call(context.Canceled, "When", func() error { return a.When(polls, streamstate.View.Healthy, keep) })
	exchange := func(call func(context.Context, *streamtest.Index) (*streamtest.Index, error)) func() error {
		return func() error {
			return streamstate.Exchange(o.x.Context(), a, readTx.Payload, call, func(t tx, of *streamtest.Index) error {
				if ix, err := t.Payload(); err != nil || ix != of {
					o.x.Errorf("what was asked of one session was answered to another: %v", err)
				}
				return keep(t)
			})
		}
	}
	updates := func(_ context.Context, of *streamtest.Index) (*streamtest.Index, error) { return of, a.Update(keep) }
	o.call(nil, "Exchange", exchange(updates))
	o.want(exchange(func(context.Context, *streamtest.Index) (*streamtest.Index, error) { return nil, errMine })(), errMine)
	o.must(o.a.Stop(nil).Wait(polls))
	o.call(streamstate.ErrPhase, "Update", func() error { return a.Update(keep) })
	o.call(nil, "Read", func() error { return a.Read(func(t readTx) error { return t.Err() }) })
	o.call(streamstate.ErrPhase, "When", func() error { return a.When(polls, has, keep) })
	o.call(streamstate.ErrPhase, "Exchange", exchange(updates))
}
