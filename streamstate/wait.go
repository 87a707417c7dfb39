package streamstate

import "context"

// await has look look at the state in a hold, and again after every change, until it says done or an error, or the
// context ends; all tells that moves of positions count as changes. What has happened is told even to an ended context. look runs behind the gate given, with the session
// checked anew each time, so the session's end ends the wait.
func (r *record) await(
	ctx context.Context, t token, gate func(token, func(*held) error) error, all bool, look func(*held) (done bool, err error),
) error {
	for {
		var changed chan struct{}
		err := gate(t, func(k *held) error {
			done, err := look(k)
			if !done && err == nil {
				changed = k.listeners(all).listen(k)
			}
			return err
		})
		if changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			_ = r.do(token{op: opLook}, func(k *held) error { // allowed in every phase
				k.listeners(all).unlisten(k, changed)
				return nil
			})
			return context.Cause(ctx)
		}
	}
}

// When runs fn as a transaction in the hold in which cond holds: at once, or after the change that makes it hold. cond
// is looked at after every change, and is to be short. It ends with the session ([ErrPhase], [ErrStaleSession]) or the
// context.
func (s *Session[P]) When(ctx context.Context, cond func(View) bool, fn func(Tx[P]) error) error {
	e := s.e
	return e.await(ctx, s.token(OpWhen), e.run, true, func(k *held) (bool, error) {
		if cond == nil || fn == nil {
			return false, needs("cond or fn")
		}
		if !cond(e.txOf().View) {
			return false, nil
		}
		if err := e.call(k, fn); err != nil {
			return false, err
		}
		k.changed()
		return true, nil
	})
}

// Exchange is a question that takes long, asked without the lock and answered under it: read looks at the session, call
// asks, apply changes the session. The session is checked in both holds, so what happened to it in between is an error
// and nothing has changed; the context of call ends with the session. An error of any of the three is returned; one of call
// matches the session's end as well, if that is what it is about.
func Exchange[P, Q, A any](
	ctx context.Context, s *Session[P], read func(ReadTx[P]) (Q, error), call func(context.Context, Q) (A, error), apply func(Tx[P], A) error,
) error {
	var q Q
	err := s.e.run(s.token(OpExchange), func(k *held) error {
		if read == nil || call == nil || apply == nil {
			return needs("read, call or apply")
		}
		var err error
		k.set = false
		q, err = read(s.e.txOf().readTx)
		k.foreign = err != nil
		return err
	})
	if err != nil {
		return err
	}
	a, err := ask(ctx, s.Context(), func(ctx context.Context) (A, error) { return call(ctx, q) })
	if err != nil {
		ended := s.e.do(s.token(OpExchange), func(*held) error { return nil })
		return both(ended, err)
	}
	return s.update(OpExchange, func(tx Tx[P]) error { return apply(tx, a) })
}

// ask calls with a context that ends with either.
func ask[A any](ctx, life context.Context, call func(context.Context) (A, error)) (A, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(life, func() { cancel(context.Cause(life)) })
	defer stop()
	return call(ctx)
}

// NextDue waits until repair has to do something and hands it out: *[RestartTicket], *[ShutDownTicket],
// *[ResubscribeTicket] or *[RecoverTicket]. Each partition has at most one ticket that is out; a ticket of the session
// ends those of its partitions, and while it is out nothing else is due. It ends with the session ([ErrPhase], [ErrStaleSession]) or the context; an ended context
// makes it a poll.
func (s *Session[P]) NextDue(ctx context.Context) ([]Work, error) {
	r := &s.e.record
	var out []Work
	err := r.await(ctx, s.token(OpNextDue), r.do, false, func(k *held) (bool, error) {
		for _, t := range k.dueWork() {
			out = append(out, workOf(r, s.n, t))
		}
		return len(out) > 0, nil
	})
	return out, err
}
