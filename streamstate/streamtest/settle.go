package streamtest

import (
	"errors"
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// errRecovery is the cause of a session's end by a recovery.
var errRecovery = errors.New("streamtest: recovery")

// Settle has everything go on until nothing is left to do: open requests are answered, sources send and their messages are
// handed in, wanted partitions without a claim are served, repair is done, flushes that were begun through the feed
// finish and its holds are released; as far as sources were not told to do otherwise. A stopped session stays so.
func (f *Feed) Settle() {
	f.t.Helper()
	for n := 0; f.settleOnce(); n++ {
		if n > 1000 {
			f.fatal("the feed does not settle\n%v", f)
		}
	}
}

func (f *Feed) settleOnce() bool {
	moved := f.letGo()
	for _, k := range f.Keyspaces() {
		moved = k.settle() || moved
	}
	return moved
}

// letGo finishes flushes and releases holds.
func (f *Feed) letGo() bool {
	moved := false
	for _, k := range f.Keyspaces() {
		for _, fl := range k.running() {
			moved = true
			_, _ = fl.Finish() // it may have been answered
		}
	}
	f.mu.Lock()
	holds := f.holds
	f.holds = nil
	f.mu.Unlock()
	for _, h := range holds {
		moved = true
		_ = f.call("hold.Release", h.Release) // it may have ended
	}
	return moved
}

func (k *Keyspace) running() []*Flush {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return slices.Clone(k.flushes)
}

// look is what Settle sees of a session.
type look struct {
	phase streamstate.Phase
	parts []streamstate.PartitionView
}

func (k *Keyspace) look() (l look) {
	l.phase = streamstate.Gone
	s := k.Session()
	if s == nil {
		return l
	}
	_ = k.f.call("Read", func() error { // refused: it is gone
		return s.Read(func(tx streamstate.ReadTx[*Index]) error {
			l.phase = tx.Phase()
			for _, p := range tx.Partitions() {
				l.parts = append(l.parts, p)
			}
			return tx.Err()
		})
	})
	return l
}

// settle makes what moves there are to make for one key.
func (k *Keyspace) settle() bool {
	moved := false
	l := k.look()
	if l.phase == streamstate.Opening {
		moved = k.f.call("Opened", k.Session().Opened) == nil
	}
	moved = k.Source.Settle() || moved
	if k.Source.held() || l.phase != streamstate.Active && !moved {
		return moved
	}
	for p, v := range k.look().parts {
		moved = k.serve(p, v) || moved
	}
	k.Poll()
	for _, w := range k.takeDue() {
		moved = true
		k.answer(w)
	}
	return moved
}

// serve has a partition served by one stream.
func (k *Keyspace) serve(p int, v streamstate.PartitionView) bool {
	switch v.State {
	case streamstate.Idle:
		_, err := k.TryStart(p, "source", 0)
		return err == nil
	case streamstate.Begun:
		st, c := k.streamOf(v.Claims[0].ID)
		if st != nil && !slices.Contains(k.Source.Streams(), st) { // nobody sends
			return k.f.call("End", func() error { return c.End(streamstate.Failed) }) == nil
		}
	case streamstate.Contested:
		st, _ := k.streamOf(v.Claims[0].ID)
		if st == nil {
			return k.Source.LoseOwner(k.Session().ID(), v.Claims[0].Owner) == nil
		}
		st.HandOver()
		if !slices.Contains(k.Source.Streams(), st) {
			return k.f.call("End", func() error { return k.Claim(st).End(streamstate.HandOver) }) == nil
		}
		return true
	case streamstate.Unwanted, streamstate.Due, streamstate.Fenced:
	}
	return false
}

// streamOf is the stream that a claim of the present session was begun for, if there is one.
func (k *Keyspace) streamOf(id streamstate.ClaimID) (*Stream, *Claim) {
	s := k.Session()
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	for st, l := range k.claims {
		if l.s == s && l.claim.ID() == id {
			return st, l.claim
		}
	}
	return nil, nil
}

// loseStrangers ends the lives of owners of claims that no stream of the source was begun for.
func (k *Keyspace) loseStrangers() {
	for _, v := range k.look().parts {
		if v.State != streamstate.Begun && v.State != streamstate.Contested {
			continue
		}
		for _, c := range v.Claims {
			if st, _ := k.streamOf(c.ID); st == nil {
				_ = k.Source.LoseOwner(k.Session().ID(), c.Owner) // it may be gone already
			}
		}
	}
}

// Poll takes the tickets of repair that are due, which Settle answers, and returns them.
func (k *Keyspace) Poll() []streamstate.Work {
	s := k.Session()
	if s == nil {
		return nil
	}
	var due []streamstate.Work
	_ = k.f.call("NextDue", func() (err error) { // nothing is due, or the session has ended
		due, err = s.NextDue(ended)
		return err
	})
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.due = append(k.due, due...)
	return due
}

func (k *Keyspace) takeDue() []streamstate.Work {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	due := k.due
	k.due = nil
	return due
}

// answer does what a ticket of repair asks for. A ticket may have ended: its answers are refused then.
func (k *Keyspace) answer(w streamstate.Work) {
	call := func(name string, f func() error) error { return k.f.call(name, f) }
	fails := func(which func(*faults) *int) bool { return k.Source.takes(which) }
	switch w := w.(type) {
	case *streamstate.RestartTicket:
		switch {
		case fails(func(f *faults) *int { return &f.restarts }):
			_ = call("Refused", w.Refused)
			return
		case fails(func(f *faults) *int { return &f.pending }):
			_ = call("Pending", w.Pending)
		default:
			_ = call("Accepted", w.Accepted)
		}
		if w.Context().Err() != nil {
			return
		}
		if _, err := k.TryStart(w.Partition(), "source", 0); err != nil {
			_ = call("Refused", w.Refused) // it has not begun after all
		}
	case *streamstate.ShutDownTicket:
		if fails(func(f *faults) *int { return &f.shutDowns }) {
			_ = call("Failed", w.Failed)
			return
		}
		for _, c := range w.Claims() {
			if st, _ := k.streamOf(c.ID); st != nil {
				st.Cut()
			}
			_ = call("Done", func() error { return w.Done(c.ID) })
		}
	case *streamstate.ResubscribeTicket:
		if fails(func(f *faults) *int { return &f.resubscribes }) {
			_ = call("Failed", w.Failed)
			return
		}
		k.cutAll()
		_ = call("Done", w.Done)
	case *streamstate.RecoverTicket:
		if fails(func(f *faults) *int { return &f.recovers }) {
			_ = call("Failed", w.Failed)
			return
		}
		k.recover(w)
	}
}

// cutAll cuts all streams of the present session.
func (k *Keyspace) cutAll() {
	s := k.Session()
	for _, st := range k.Source.Streams() {
		if st.Session() == s.ID() {
			st.Cut()
		}
	}
}

// recover stops the session and reopens it. The index rolls back to where that begins, which is Restart or what has been
// flushed since.
func (k *Keyspace) recover(w *streamstate.RecoverTicket) {
	s := k.Session()
	if w.Context().Err() != nil {
		return // somebody else has stopped it
	}
	k.cutAll()
	h := k.Stop(errRecovery)
	for _, fl := range k.running() {
		_, _ = fl.Finish() // it may have been answered
	}
	if h.Wait(ended) == nil {
		_, _ = k.reopen(s, streamstate.Timestamp{}, false)
	}
}

// RequireSettled fails the test unless nothing is pending: each key that is open is active and healthy, without a ticket, a
// running flush, a hold, a merge or a caller that waits; every handle has ended; and [streamstate.Session.Check].
func (f *Feed) RequireSettled() {
	f.t.Helper()
	f.quietly(f.checkSettled)
	f.stopIfFailed()
}

func (f *Feed) checkSettled() {
	f.t.Helper()
	f.checkAudit(false)
	for _, d := range f.Book.Dump() {
		if d.Phase != streamstate.Active.String() || !d.Healthy || len(d.Tickets) > 0 || d.Merging ||
			d.Holds+d.Taken+d.Merges+d.Waiting+d.Events > 0 {
			f.errorf("not settled\n%v", d)
		}
	}
	for s := range f.Book.Sessions() {
		if err := s.Check(); err != nil {
			f.errorf("%v\n%v", err, s.Dump())
		}
	}
	f.checkHandles()
}

// RequireFollowed fails the test unless each open key has received all that its source has of the wanted partitions, and its
// index has just that: nothing lost, nothing twice, nothing of a history that was lost.
func (f *Feed) RequireFollowed() {
	f.t.Helper()
	f.quietly(f.checkFollowed)
	f.stopIfFailed()
}

func (f *Feed) checkFollowed() {
	f.t.Helper()
	f.checkAudit(false)
	for _, k := range f.Keyspaces() {
		for p, v := range k.look().parts {
			if v.State != streamstate.Unwanted {
				k.checkPartition(p, v)
			}
		}
	}
}

func (k *Keyspace) checkPartition(p int, v streamstate.PartitionView) {
	k.f.t.Helper()
	want, at := k.Source.Items(p), k.Source.Position(p)
	first, items := k.Items(p)
	switch {
	case !v.HasReceived || v.Received.Next != at.Next:
		k.f.errorf("%v partition %d: received %v, the source is at %v", k.Key, p, v.Received, at)
	case len(items) == 0 && at.Next > 0 && !k.isVouched(p, at.Next):
		k.f.errorf("%v partition %d: items up to %v were lost", k.Key, p, at)
	case len(items) > 0 && !slices.Equal(items, want[min(first, uint64(len(want))):]):
		k.f.errorf("%v partition %d: items %d to %d are not those of the source", k.Key, p, first, first+uint64(len(items)))
	}
}

// RequireRecovery is the liveness half of a test: it ends all faults and the claims that were not begun by a stream, opens
// again what is stopped, and settles. Then all that
// is open must be settled and followed, else the test fails.
func (f *Feed) RequireRecovery() {
	f.t.Helper()
	f.quietly(f.recover)
	f.stopIfFailed()
}

func (f *Feed) recover() {
	f.t.Helper()
	for _, k := range f.Keyspaces() {
		k.Source.Heal()
		k.loseStrangers()
	}
	f.Settle()
	for _, k := range f.Keyspaces() {
		if k.look().phase == streamstate.Stopped {
			if _, err := k.TryReopen(streamstate.Timestamp{}, false); err != nil {
				f.errorf("%v cannot be reopened: %v\n%v", k.Key, err, f)
			}
		}
	}
	f.Settle()
	f.checkSettled()
	f.checkFollowed()
}
