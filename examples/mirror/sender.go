package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// calmFor is how long an extent must have been clean before its bit is dropped: a bit that is set costs nothing.
const calmFor = 2 * time.Second

// sender owns the sending half of a session, and what its replica remembers. All of it is for one goroutine.
type sender struct {
	*session
	meta  meta
	place int // where the next copy goes
	marks marks
	copy  *call // the copy of the metadata on its way; nil for none

	parked []*call // wait for dirty bits to be durable
	flush  *call   // answered; waits for its number to be durable
	noted  bool    // the copy on its way has that number
	calm   jobtracker.JobID
	wrote  bool // a change was sent that no flush vouches for
	copies uint64
	outbox []nbd.Call

	behind bool // it does not vote before its repair is done
	blank  bool // it remembers nothing before its repair is done
}

// send is the sender's life.
func (s *session) send() {
	w := &sender{session: s}
	defer s.closeWrite()
	defer w.leave()
	if !w.join() {
		<-s.conn.Context().Done()
		return
	}
	var wg sync.WaitGroup
	wg.Go(s.fetch)
	if w.behind {
		wg.Go(s.repair)
	}
	defer wg.Wait()
	w.loop()
	if errors.Is(context.Cause(s.conn.Context()), jobtracker.ErrDeactivated) {
		w.farewell()
	}
}

// join waits for the activation to begin, and makes it durable before anything else is sent that its generation is the
// replica's, and that it is not clean any more. False: nothing is to be sent.
func (w *sender) join() bool {
	defer w.d.joined()
	defer close(w.known)
	m := w.d.m
	select {
	case <-m.ready:
	case <-w.conn.Context().Done():
		return false
	}
	phase := m.tracker.Stats().Replicas[w.d.index].State.Phase
	if phase != jobtracker.Voting && (phase != jobtracker.RepairReady || !m.cfg.repair) {
		return false // behind: the tracker says so, and why
	}
	w.meta, w.place = w.d.remembered(w.link)
	w.marks = newMarks(w.meta.dirty)
	if phase == jobtracker.RepairReady {
		w.behind, w.blank = true, w.link.meta == nil
		m.book.update(func(b *extentBook) { b.joined(w.d.index) }) // it has not done all flushes since it was here
		if w.blank {
			return true
		}
		w.remember(w.meta.dirty)
		return !w.meta.clean || w.taken()
	}
	w.voted.Store(true)
	w.remember(w.meta.dirty)
	older := w.meta.generation != m.generation
	if older {
		w.meta.generation, w.meta.flush = m.generation, 0
	}
	if (older || w.meta.clean) && !w.taken() { // a reconciliation leaves it with the generation, and clean
		return false
	}
	if w.conn.Plan() != jobtracker.PlanReplay {
		m.book.update(func(b *extentBook) { b.joined(w.d.index) })
	}
	return true
}

// taken takes it back, durably, that the replica is clean. False: it has not landed.
func (w *sender) taken() bool {
	w.meta.clean = false
	w.writeMeta(0)
	return w.awaitCopy()
}

// loop sends until the connection ends.
func (w *sender) loop() {
	tick := time.NewTicker(calmFor)
	defer tick.Stop()
	for {
		select {
		case batch := <-w.batches:
			w.dispatch(batch)
		case n := <-w.notes:
			w.note(n)
		case <-tick.C:
			w.tidy()
		case <-w.conn.Context().Done():
			return
		}
	}
}

// dispatch sends what can be sent, and parks what needs dirty bits that are not durable.
func (w *sender) dispatch(batch []jobtracker.Dispatch[*request]) {
	ready := make([]*call, 0, len(batch))
	w.d.m.book.update(func(b *extentBook) {
		for i := range batch {
			c := newCall(&batch[i])
			if c.req != nil && !c.req.hold() {
				continue // the connection has ended, and the job is gone
			}
			if !c.changes() {
				ready = append(ready, c)
				continue
			}
			from, to := w.meta.span(c.start, c.blocks)
			b.wrote(c.id, from, to)
			if w.marks.require(from, to) || w.blank {
				ready = append(ready, c)
			} else {
				w.parked = append(w.parked, c)
			}
		}
	})
	w.post(ready)
	w.advance()
}

func newCall(d *jobtracker.Dispatch[*request]) *call {
	c := &call{id: d.ID, kind: d.Kind, half: d.Half, number: d.Number, start: d.Start, blocks: d.Blocks, req: d.Payload}
	if d.Kind == jobtracker.Read || d.Half == jobtracker.HalfRead {
		c.data = make([]byte, d.Blocks*blockSize)
	}
	return c
}

// post sends calls, and lets go of their payloads.
func (w *sender) post(calls []*call) {
	defer release(calls)
	if len(calls) == 0 || w.conn.Context().Err() != nil {
		return
	}
	w.outbox = w.outbox[:0]
	for _, c := range calls {
		w.wrote = w.wrote || c.changes()
		w.register(uint64(c.id), c)
		w.outbox = append(w.outbox, c.wire())
	}
	if err := w.link.client.Send(w.outbox...); err != nil {
		w.conn.Close(err)
	}
	clear(w.outbox)
}

func release(calls []*call) {
	for _, c := range calls {
		if c.req != nil {
			c.req.drop(1)
		}
	}
}

// note acts upon an answer.
func (w *sender) note(n note) {
	switch {
	case n.flush != nil:
		w.flush = n.flush
	case errors.Is(n.err, nbd.ESHUTDOWN): // the receiver has ended the connection for it; the replica has failed nothing
		w.copy = nil
		return
	case n.err != nil:
		w.copy = nil
		if w.conn.Context().Err() == nil { // else it is not its replica's place any more, or will be asked again
			_ = w.d.m.tracker.Fault(w.d.index, fmt.Errorf("writing its metadata: %w", n.err)) // a faulted one stays so
		}
		return
	default:
		w.landed()
	}
	w.advance()
}

// advance writes the metadata if something waits for it.
func (w *sender) advance() {
	if w.copy == nil && (w.flush != nil || !w.blank && w.marks.unsaved()) {
		w.writeMeta(0)
	}
}

// tidy drops the bits of extents that have been clean for a while.
func (w *sender) tidy() {
	var fence jobtracker.JobID
	calm := false
	w.d.m.book.update(func(b *extentBook) {
		fence = b.fence()
		for e := range w.marks.want.each {
			calm = calm || b.clean(e, w.calm)
		}
	})
	if w.copy == nil && calm && !w.blank {
		w.writeMeta(w.calm)
	}
	w.calm = fence
}

// writeMeta sends a copy of the metadata, without the bits of extents that are clean since a fence.
func (w *sender) writeMeta(fence jobtracker.JobID) {
	w.d.m.book.update(func(b *extentBook) {
		w.meta.dirty = w.marks.launch(func(extent int) bool { return b.clean(extent, fence) })
	})
	if w.flush != nil {
		w.meta.flush, w.noted = w.flush.number, true
		w.meta.generation = w.d.m.generation // a repaired replica remembers both with its last flush
		w.blank = false
	}
	w.remember(w.meta.dirty)
	w.meta.seq++
	w.copies++
	w.copy = &call{}
	image := w.meta.encode()
	cookie := metaCookie | w.copies
	w.register(cookie, w.copy)
	err := w.link.client.Send(nbd.Call{Header: nbd.Header{
		Command: nbd.CmdWrite, Flags: nbd.FlagFUA, Cookie: cookie,
		Offset: uint64(w.link.metaAt + int64(w.place)*metaStride), Length: uint32(len(image)),
	}, Payload: image})
	w.place ^= 1
	if err != nil {
		w.conn.Close(err)
	}
}

// landed takes the news that the copy is durable: a flush has its number, and calls their dirty bits.
func (w *sender) landed() {
	w.copy = nil
	was := w.marks.durable.count()
	w.marks.landed()
	if now := w.marks.durable.count(); now < was {
		w.d.m.slog.Debug("extents are clean again", "replica", w.d.index, "dirty", now)
	}
	if w.noted {
		c := w.flush
		w.flush, w.noted = nil, false
		if w.complete(c, nil) {
			w.wrote = false
			w.d.m.book.update(func(b *extentBook) {
				if w.behind {
					b.joined(w.d.index) // it votes from here on
				} else {
					b.flushed(w.d.index, c.id)
				}
			})
			w.behind = false
			w.voted.Store(true)
		}
	}
	var ready []*call
	still := w.parked[:0]
	for _, c := range w.parked {
		if from, to := w.meta.span(c.start, c.blocks); w.marks.require(from, to) {
			ready = append(ready, c)
		} else {
			still = append(still, c)
		}
	}
	clear(w.parked[len(still):])
	w.parked = still
	w.post(ready)
}

// awaitCopy waits for the copy on its way to land. False: the connection has ended, or the replica has failed it.
func (w *sender) awaitCopy() bool {
	for w.copy != nil {
		select {
		case n := <-w.notes:
			w.note(n)
			if n.err != nil {
				return false
			}
		case <-w.drained:
			return false
		}
	}
	return true
}

// farewell leaves a replica that has everything as a clean one. By now every replica's last flush is in the book.
func (w *sender) farewell() {
	if w.behind || !w.awaitCopy() {
		return
	}
	w.settle()
	select {
	case <-w.d.m.final:
	case <-w.drained:
		return
	}
	if w.wrote || w.flush != nil || w.onTheirWay() > 0 {
		return
	}
	var fence jobtracker.JobID
	w.d.m.book.update(func(b *extentBook) { fence = b.fence() })
	w.meta.clean = true
	w.writeMeta(fence)
	if w.awaitCopy() {
		w.d.m.left(w.d.index)
		_ = w.link.client.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdDisc}}) // else the end of the stream must do
	}
}

// leave lets go of what was not sent.
func (w *sender) leave() {
	release(w.parked)
	if w.flush != nil {
		w.complete(w.flush, nil)
	}
	w.settle()
}
