package streamtest_test

import (
	"context"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// ticket takes the first ticket of a kind that is due.
func ticket[W streamstate.Work](o *tour, k *streamtest.Keyspace) (w W, ok bool) {
	for _, d := range k.Poll() {
		if w, ok = d.(W); ok {
			return w, ok
		}
	}
	if !o.x.Disturbed() {
		o.x.Errorf("no %T is due\n%v", w, o.f)
		o.x.FailNow()
	}
	return w, false
}

// fail has the claim of a stream fail.
func (o *tour) fail(k *streamtest.Keyspace, st *streamtest.Stream) {
	if st != nil {
		st.Break()
		o.must(st.DeliverAll())
	}
}

// restarts are asked for, answered and superseded.
func (o *tour) restarts() {
	o.fail(o.a, o.start(o.a, 0, "A", 0, nil))
	if w, ok := ticket[*streamstate.RestartTicket](o, o.a); ok {
		o.call(nil, "Abandon", w.Abandon)
		o.call(streamstate.ErrSuperseded, "Abandon", w.Abandon)
	}
	w, ok := ticket[*streamstate.RestartTicket](o, o.a)
	if ok {
		o.must(w.Context().Err())
		o.call(nil, "Accepted", w.Accepted)
		o.call(streamstate.ErrSuperseded, "Pending", w.Pending)
	}
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 1, nil)
	if ok {
		o.call(streamstate.ErrSuperseded, "Refused", w.Refused)
	}
	o.fail(o.a, st)
	if w, ok := ticket[*streamstate.RestartTicket](o, o.a); ok {
		o.call(nil, "Pending", w.Pending)
		o.must(o.a.Stop(nil).Wait(polls))
		o.call(streamstate.ErrPhase, "Refused", w.Refused)
		o.on(o.a, func(s *streamtest.Session) {
			o.call(streamstate.ErrPhase, "NextDue", func() error { _, err := s.NextDue(polls); return err })
		})
		_, err := o.a.TryReopen(streamstate.Timestamp{}, false)
		o.must(err)
		o.call(streamstate.ErrStaleSession, "Refused", w.Refused)
	}
	o.f.Settle()
}

// ladder climbs from a refused restart to a recovery.
func (o *tour) ladder() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 1, nil)
	o.start(o.a, 1, "A", 0, nil)
	o.fail(o.a, st)
	if w, ok := ticket[*streamstate.RestartTicket](o, o.a); ok {
		o.call(nil, "Refused", w.Refused)
	}
	if w, ok := ticket[*streamstate.ShutDownTicket](o, o.a); ok {
		o.call(nil, "Failed", w.Failed)
	}
	if w, ok := ticket[*streamstate.ResubscribeTicket](o, o.a); ok {
		o.call(nil, "Abandon", w.Abandon)
	}
	if w, ok := ticket[*streamstate.ResubscribeTicket](o, o.a); ok {
		o.call(nil, "Done", w.Done)
		o.call(streamstate.ErrSuperseded, "Done", w.Done)
	}
	o.on(o.a, func(s *streamtest.Session) {
		o.call(nil, "BeginFailed", func() error { return s.BeginFailed(0, "A") })
	})
	if w, ok := ticket[*streamstate.RecoverTicket](o, o.a); ok {
		o.call(nil, "Abandon", w.Abandon)
	}
	if w, ok := ticket[*streamstate.RecoverTicket](o, o.a); ok {
		o.call(nil, "Failed", w.Failed)
		o.call(streamstate.ErrSuperseded, "Failed", w.Failed)
	}
	o.late(st, streamstate.ErrStaleClaim)
	o.f.Settle()
	o.late(st, streamstate.ErrStaleSession)
}

// recovery is due when the source has lost what was received.
func (o *tour) recovery() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 3, nil)
	o.must(o.a.Flush(polls))
	o.send(o.a, st, 2, nil)
	o.a.Source.Lose(0, 2)
	o.a.Source.Produce(0, 4)
	if st != nil {
		o.must(st.DeliverAll()) // it has broken
	}
	back := o.start(o.a, 0, "A", 0, nil)
	if c := o.a.Claim(back); c != nil {
		o.call(streamstate.ErrMustRollBack, "Advance", func() error { return c.Advance(streamstate.Position{}) })
	}
	_, err := o.a.StartFlush()
	o.must(err)
	o.start(o.a, 1, "A", 0, nil)
	if w, ok := ticket[*streamstate.RecoverTicket](o, o.a); ok {
		if pos, _ := w.Restart().At(0); pos.Next != 2 && !o.x.Disturbed() {
			o.x.Errorf("restart from %v", pos)
		}
	}
	o.f.Settle()
	if !o.x.Disturbed() {
		o.f.RequireSettled()
		o.f.RequireFollowed()
	}
}

// lives are sessions that stop, drain and are followed by others.
func (o *tour) lives() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 2, nil)
	old := o.a.Session()
	_, err := o.a.TryReopen(streamstate.Timestamp{}, false)
	o.want(err, streamstate.ErrPhase)
	fl, err := o.a.StartFlush()
	o.must(err)
	h := o.a.Drain()
	o.want(h.Wait(polls), context.Canceled)
	o.want(o.a.Stop(nil).Wait(polls), context.Canceled) // cancels the flush
	o.must(o.a.Want(1))
	o.a.Unwant(1)
	o.send(o.a, st, 1, streamstate.ErrPhase)
	_, err = o.a.TryReopen(streamstate.Timestamp{}, false)
	o.want(err, streamstate.ErrPhase)
	if fl != nil {
		_, err = fl.Finish()
		o.must(err)
	}
	o.must(h.Wait(polls))
	_, err = o.a.TryReopen(streamstate.Timestamp{}, false)
	o.must(err)
	if st != nil && old != nil {
		o.want(st.Repeat(), streamstate.ErrStaleSession)
		st.Break()
		o.want(st.DeliverAll(), streamstate.ErrStaleSession)
		o.handle(streamstate.ErrStaleSession, "Stop", func() *handle { return old.Stop(nil) })
		o.call(streamstate.ErrStaleSession, "Want", func() error { return old.Want(0) })
		o.flush(old, streamstate.ErrStaleSession)
		o.want(o.a.Source.LoseOwner(old.ID(), "A"), streamstate.ErrStaleSession)
	}
	o.send(o.a, o.start(o.a, 0, "A", 0, nil), 2, nil)
	o.must(o.a.Flush(polls))
	o.must(o.a.Drain().Wait(polls))
	o.must(o.a.Unwant(0).Wait(polls)) // what was flushed of it counts no more
	o.must(o.a.Want(0))
	o.call(streamstate.ErrArgument, "Reopen", func() error {
		ts, err := streamstate.NewTimestamp(3, nil)
		if err == nil {
			_, err = o.a.TryReopen(ts, false)
		}
		return err
	})
	_, err = o.a.TryReopen(streamstate.Timestamp{}, false)
	o.must(err)
	o.must(o.a.Want(1))
	o.f.Settle()
}

// drops erase keys, once, and hit no successor.
func (o *tour) drops() {
	st := o.start(o.a, 0, "A", 0, nil)
	o.send(o.a, st, 2, nil)
	fl, err := o.a.StartFlush()
	o.must(err)
	stop := o.a.Stop(nil)
	h := o.a.Drop()
	o.want(h.Wait(polls), context.Canceled)
	o.want(stop.Wait(polls), streamstate.ErrDropped)
	_, err = o.a.TryOpen()
	o.want(err, streamstate.ErrExists) // it is being dropped
	o.want(o.a.Want(1), streamstate.ErrStaleSession)
	if fl != nil {
		_, err = fl.Finish()
		o.must(err)
		_, err = fl.Finish()
		o.want(err, streamstate.ErrSuperseded)
	}
	o.must(h.Wait(polls))
	old := o.a.Session()
	_, err = o.a.TryOpen()
	o.must(err)
	if old != nil {
		o.handle(nil, "Drop", old.Drop)
		o.call(streamstate.ErrStaleSession, "Opened", old.Opened)
	}
	o.send(o.a, st, 1, streamstate.ErrStaleSession)
	o.send(o.a, o.start(o.a, 0, "A", 0, nil), 2, nil)
	o.handle(nil, "Drop", func() *handle { return o.f.Book.Drop(o.b.Key) })
	o.handle(nil, "Drop", func() *handle { return o.f.Book.Drop(o.b.Key) })
	o.handle(nil, "DropStream", func() *handle { return o.f.Book.DropStream("test") })
	o.handle(streamstate.ErrArgument, "DropStream", func() *handle { return o.f.Book.DropStream("") })
	_, err = o.b.TryOpen()
	o.must(err)
	o.f.Book.Close()
	_, err = o.a.TryOpen()
	o.want(err, streamstate.ErrClosed)
}
