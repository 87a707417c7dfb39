package streamstate

import (
	"context"
	"time"
)

// Work is a ticket of [Session.NextDue]: one of *[RestartTicket], *[ShutDownTicket], *[ResubscribeTicket] and
// *[RecoverTicket]. It ends when it is answered, when its deadline passes, and when an event makes it pointless: then its
// context ends and its answers are [ErrSuperseded]. Once the session has ended they are [ErrPhase] or [ErrStaleSession].
type Work interface {
	// Context ends with the ticket; its cause is an *[EndedError] that says why.
	Context() context.Context
	// Ticket is the ticket's number, as events and dumps show it.
	Ticket() uint64
	// Within is how long the ticket may be unanswered, from when it was handed out; negative: for ever.
	Within() time.Duration
	// Tries is how many tickets the partition has had before, at most 31, since a claim of it lived
	// [Options].StableAfter; if none is to, since one accepted data. Who asks pauses the longer, the more they are. Zero
	// for a ticket of the session.
	Tries() int
	// Abandon gives the ticket back unanswered: what it asks for is due again at once.
	Abandon() error
	work()
}

// workTicket is what all tickets are.
type workTicket struct {
	r       *record
	session uint64
	t       *ticket
}

// Context ends with the ticket; its cause is an *[EndedError] that says why.
func (w *workTicket) Context() context.Context { return w.r.context(&w.t.life) }

// Ticket is the ticket's number, as events and dumps show it.
func (w *workTicket) Ticket() uint64 { return w.t.id }

// Within is how long the ticket may be unanswered, from when it was handed out; negative: for ever.
func (w *workTicket) Within() time.Duration { return w.t.within }

// Tries is how many tickets the partition has had before since it was well; see [Work].
func (w *workTicket) Tries() int { return int(w.t.tries) }

// Abandon gives the ticket back unanswered: what it asks for is due again at once.
func (w *workTicket) Abandon() error {
	return w.reply(func(k *held) error { return k.abandon(w.t) })
}

func (*workTicket) work() {}

// reply answers the ticket in a hold.
func (w *workTicket) reply(fn func(*held) error) error {
	return w.r.do(token{session: w.session, op: OpReply}, fn)
}

// workOf makes a ticket's handle. Under the lock.
func workOf(r *record, session uint64, t *ticket) Work {
	t.since = time.Now()
	w := workTicket{r, session, t}
	switch t.kind {
	case workRestart:
		return &RestartTicket{w}
	case workShutDown:
		return &ShutDownTicket{w}
	case workResubscribe:
		return &ResubscribeTicket{w}
	case workRecover:
		return &RecoverTicket{w}
	}
	panic("streamstate: bug: a ticket of no kind")
}

// RestartTicket asks to have the source send a partition again from what is received. The Begin that follows ends it.
type RestartTicket struct{ workTicket }

// Partition is the partition to be restarted.
func (w *RestartTicket) Partition() int { return w.t.part }

// From is what is received; ok is false if nothing is.
func (w *RestartTicket) From() (pos Position, ok bool) {
	if !w.t.from.present() {
		return Position{}, false
	}
	return w.t.from, true
}

// Accepted says that the source will begin: the ticket's deadline is now that of the Begin.
func (w *RestartTicket) Accepted() error {
	return w.reply(func(k *held) error { return k.acceptRestart(w.t, false) })
}

// Pending says that the source will begin when it can: the deadline is longer.
func (w *RestartTicket) Pending() error {
	return w.reply(func(k *held) error { return k.acceptRestart(w.t, true) })
}

// Refused says that the source will not begin: the last claimants are to be shut down, or a resubscribe is due.
func (w *RestartTicket) Refused() error {
	return w.reply(func(k *held) error { return k.refuseRestart(w.t) })
}

// ShutDownTicket asks to end claims at their source, so that nothing of them can come any more.
type ShutDownTicket struct{ workTicket }

// Partition is the partition that was claimed.
func (w *ShutDownTicket) Partition() int { return w.t.part }

// Claims are the claims to be shut down.
func (w *ShutDownTicket) Claims() []ClaimView {
	var out []ClaimView
	for _, c := range w.t.claims {
		out = append(out, c.look(0))
	}
	return out
}

// Done says that a claim cannot send anything any more. When all are done the partition is to be restarted.
func (w *ShutDownTicket) Done(claim ClaimID) error {
	return w.reply(func(k *held) error { return k.shutDown(w.t, claim) })
}

// Failed says that a claim cannot be shut down: a resubscribe is due.
func (w *ShutDownTicket) Failed() error {
	return w.reply(func(k *held) error { return k.shutDownFailed(w.t) })
}

// ResubscribeTicket asks to close all streams of the session at the source, and then to open them anew. The claims have
// ended when it is handed out.
type ResubscribeTicket struct{ workTicket }

// Done says that the streams are being opened: begins are expected from here on.
func (w *ResubscribeTicket) Done() error {
	return w.reply(func(k *held) error { return k.resubscribed(w.t) })
}

// Failed says that it could not be done: recovery is due.
func (w *ResubscribeTicket) Failed() error {
	return w.reply(func(k *held) error { return k.failed(w.t) })
}

// RecoverTicket asks to stop the session, roll its data back to Restart and reopen it from there. [Session.Stop] ends it,
// and so does giving up a partition that Restart names.
type RecoverTicket struct{ workTicket }

// Restart is what is flushed, lowered where a live claim said roll back.
func (w *RecoverTicket) Restart() Timestamp { return w.t.restart }

// Failed says that recovery could not begin: it is due again after [Options].RetryAfter.
func (w *RecoverTicket) Failed() error {
	return w.reply(func(k *held) error { return k.failed(w.t) })
}

// FlushTicket is a running flush. It is answered once: Done, Fail or Abort; a later answer is [ErrSuperseded]. Its
// session's Stop, Drain and Drop wait for it.
type FlushTicket struct {
	r *record
	f *flush
}

// Target is what the flush is to make durable.
func (t *FlushTicket) Target() Timestamp { return t.f.target }

// Ticket is the flush's number, as events and dumps show it.
func (t *FlushTicket) Ticket() uint64 { return t.f.id }

// Context ends with the flush, or when the session is stopped or dropped before; its cause is an *[EndedError].
func (t *FlushTicket) Context() context.Context { return t.r.context(&t.f.life) }

// Done says that the target is durable: what is flushed moves to it. The partitions returned were given up since it was
// taken: the flush does not vouch for them.
func (t *FlushTicket) Done() (returned []int, err error) {
	err = t.r.do(token{op: OpFlushReply}, func(k *held) error {
		returned, err = k.flushDone(t.f)
		return err
	})
	return returned, err
}

// Fail says that the flush has failed; nothing counts as flushed by it.
func (t *FlushTicket) Fail(cause error) error {
	return t.end(ended("flush", orElse(ErrFailed, cause)))
}

// Abort says that the flush was given up; nothing counts as flushed by it.
func (t *FlushTicket) Abort() error { return t.end(causeAborted) }

func (t *FlushTicket) end(why *ending) error {
	return t.r.do(token{op: OpFlushReply}, func(k *held) error { return k.flushFailed(t.f, why) })
}

// StartFlush begins a flush. [ErrPhase], [ErrFlushRunning], [ErrHeld] (also while a merge is engaged).
func (s *Session[P]) StartFlush() (*FlushTicket, error) {
	var f *flush
	err := s.e.do(s.token(OpStartFlush), func(k *held) (err error) {
		f, err = startFlush(&k.core)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &FlushTicket{&s.e.record, f}, nil
}

func startFlush(k *core) (*flush, error) {
	f, err := k.startFlush()
	if err == nil {
		f.since = time.Now()
	}
	return f, err
}

// Flush waits until a flush may begin, and has fn do it. The context of fn ends with the caller's, and when the session
// is stopped or dropped. What fn returns is returned, and resolves the flush; so does a panic of fn. While it waits it
// ends with the session ([ErrPhase], [ErrStaleSession]) or the context.
func (s *Session[P]) Flush(ctx context.Context, fn func(ctx context.Context, target Timestamp) error) error {
	r := &s.e.record
	var f *flush
	err := r.await(ctx, s.token(OpFlush), r.do, false, func(k *held) (bool, error) {
		if fn == nil {
			return false, needs("fn")
		}
		if k.phase != Active || k.flush != nil || k.merging != 0 || len(k.holds) > 0 {
			return false, nil
		}
		var err error
		f, err = startFlush(&k.core)
		return true, err
	})
	if err != nil {
		return err
	}
	t := &FlushTicket{r, f}
	resolved := false
	defer func() {
		if !resolved { // fn panicked or ended its goroutine
			_ = t.Fail(ErrPanicked) // nobody else has the ticket
		}
	}()
	_, err = ask(ctx, t.Context(), func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx, t.Target()) })
	resolved = true
	if err != nil {
		if t.Context().Err() != nil {
			err = both(context.Cause(t.Context()), err)
		}
		_ = t.Fail(err) // nobody else has the ticket
		return err
	}
	_, err = t.Done()
	return err
}
