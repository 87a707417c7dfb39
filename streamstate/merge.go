package streamstate

// merge is a merge that has not ended. All but engaged is fixed; engaged is guarded by both records' locks.
type merge struct {
	id         uint64
	from, into *record
	tf, ti     token
	ready      func() bool              // the caller's, in a transaction on both
	run        func(kf, ki *core) error // the caller's, in a transaction on both
	handle     *Handle
}

// Merge ends one session in another: when both are Active, healthy and free of repair tickets and holds, and ready says
// so, it closes both to flushes, waits for those that run, and runs fn as a transaction on both; after that from's key is
// gone. It is looked at after every change of either, by the goroutine that made the change, so nobody needs to wait for
// it. The handle resolves when the merge has ended: with nil, with what fn returned, or with an *[EndedError] if either
// session ended. A nil ready says yes. ready and fn are to be short.
func (b *Book[P]) Merge(from, into *Session[P], ready func(from, into View) bool, fn func(from, into Tx[P]) error) *Handle {
	if err := b.owns(from); err != nil {
		return resolvedHandle(err)
	}
	m := &merge{
		id: b.c.others.Inc(), from: &from.e.record, into: &into.e.record, handle: newHandle(),
		tf: from.token(OpMerge), ti: into.token(OpMerge),
	}
	m.ready = func() bool { return ready == nil || ready(from.e.txOf().View, into.e.txOf().View) }
	m.run = func(kf, ki *core) error {
		kf.set, ki.set = false, false
		if err := fn(from.e.txOf(), into.e.txOf()); err != nil {
			from.e.discard(kf)
			into.e.discard(ki)
			return err
		}
		from.e.discard(kf)
		into.e.commit(ki)
		return nil
	}
	err := pairUp(m.from, m.into, m.tf, m.ti, func(kf, ki *held) error {
		if fn == nil {
			return needs("fn")
		}
		kf.join(m)
		ki.join(m)
		return nil
	})
	if err != nil {
		return resolvedHandle(err)
	}
	a := after{merges: []*merge{m}}
	a.finish()
	return m.handle
}

// look is one look at the merge, with both records locked.
func (m *merge) look(a *after) {
	select {
	case <-m.handle.Done():
		m.part(a, nil)
		return
	default:
	}
	looked := false
	defer func() {
		if !looked { // fn or ready panicked
			m.part(a, &EndedError{What: "merge", Cause: ErrPanicked})
		}
	}()
	look := token{op: opLook} // allowed in every phase
	_ = pairInto(a, m.from, m.into, look, look, func(kf, ki *held) error {
		m.decide(kf, ki)
		return nil
	})
	looked = true
}

// decide goes on, or lets go: nothing is in the way but running flushes, or the merge holds nothing and waits.
func (m *merge) decide(kf, ki *held) {
	select {
	case <-m.handle.Done():
		return
	default:
	}
	switch {
	case !m.free(&kf.core) || !m.free(&ki.core) || !m.ready():
		m.engage(kf, ki, 0)
	case kf.flush != nil || ki.flush != nil:
		m.engage(kf, ki, m.id)
	default:
		m.finish(kf, ki)
	}
}

// free tells whether nothing of one session is in the way but a running flush.
func (m *merge) free(k *core) bool {
	return k.phase == Active && k.healthy() && !k.ticketsOut() && len(k.holds) == 0 && (k.merging == 0 || k.merging == m.id)
}

// engage closes both flush gates, or opens those that this merge has closed.
func (m *merge) engage(kf, ki *held, id uint64) {
	for _, k := range [...]*held{kf, ki} {
		if id != 0 || k.merging == m.id {
			k.engage(id)
		}
	}
}

// finish runs the merge.
func (m *merge) finish(kf, ki *held) {
	err := m.run(&kf.core, &ki.core)
	m.engage(kf, ki, 0)
	kf.leave(m)
	ki.leave(m)
	resolve(m.handle, err)
	if err == nil {
		m.into.book.stats.merged.Inc()
		kf.drop(causeMerged)
	}
	kf.changed()
	ki.changed()
	kf.due |= dueChanged // others wait for this merge to let go
	ki.due |= dueChanged
}

// part has a merge that has ended, or must end, leave both records.
func (m *merge) part(a *after, err error) {
	look := token{op: opLook} // allowed in every phase
	_ = pairInto(a, m.from, m.into, look, look, func(kf, ki *held) error {
		m.engage(kf, ki, 0)
		kf.leave(m)
		ki.leave(m)
		resolve(m.handle, err)
		return nil
	})
}

// ticketsOut tells whether repair is at work.
func (k *core) ticketsOut() bool {
	if k.ticket != nil {
		return true
	}
	for _, p := range k.wantedParts {
		if p.ticket() != nil {
			return true
		}
	}
	return false
}
