package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

const (
	batchSize  = 32
	metaCookie = 1 << 63 // of a copy of the metadata
	askCookie  = 1 << 62 // of a question; every other cookie is a job's id
)

// session is one life of a replica's connection: from the tracker's Connect to the end of the stream.
type session struct {
	d    *driver
	at   *source // where its replica is
	link *link
	conn *jobtracker.Conn[*request]

	mu sync.Mutex
	// calls are those on their way.
	// +checklocks:mu
	calls map[uint64]*call
	// dirty is what the replica remembers as dirty, or is about to; nil for all.
	// +checklocks:mu
	dirty bitmap
	// known is closed when dirty says it, or the connection has ended before.
	known chan struct{}
	// repairing is how its repair goes; nil for none.
	// +checklocks:mu
	repairing *repair.LiveProgress

	batches chan []jobtracker.Dispatch[*request]
	// notes go from the receiver to the sender: an answer to the flush or to the copy of the metadata that is on its way.
	// There is at most one of each, so that the receiver never waits.
	notes chan note
	// settled is closed when the sender has seen the end of the connection, and all accepted flushes are in the book.
	settled chan struct{}
	settle  func()        // closes settled; once
	drained chan struct{} // closed when the stream has been read to its end

	received *call // of the receiver: what the reply being read answers
	voted    atomic.Bool

	asking sync.Mutex // the sending half belongs to one question at a time, while the sender waits for the beginning
	// +checklocks:asking
	asked uint64
}

// note is an answer that the sender acts upon: to a flush, or, without one, to a copy of the metadata.
type note struct {
	flush *call
	err   error
}

func newSession(d *driver, l *link, conn *jobtracker.Conn[*request]) *session {
	s := &session{
		d: d, link: l, conn: conn, calls: make(map[uint64]*call),
		batches: make(chan []jobtracker.Dispatch[*request]), notes: make(chan note, 2),
		settled: make(chan struct{}), drained: make(chan struct{}), known: make(chan struct{}),
	}
	s.settle = sync.OnceFunc(func() { close(s.settled) })
	return s
}

// run lives until the stream has been read to its end, and answers how that came about. Whatever ends the tracker's
// connection also ends the sending half, so that the replica's server comes to an end; what it still answers is handed
// to the tracker, which refuses and counts it. Only then can the replica be connected again.
func (s *session) run() error {
	stop := context.AfterFunc(s.conn.Context(), s.hangUp)
	var wg sync.WaitGroup
	wg.Go(s.send)
	err := s.receive()
	s.conn.Close(err)
	if !endOfStream(err) {
		err = s.skim(err)
	}
	close(s.drained)
	wg.Wait()
	stop()
	s.leftovers()
	_ = s.link.client.Close()
	if !endOfStream(err) {
		return err
	}
	if err := s.conn.Quiesced(); err != nil {
		return fmt.Errorf("bug: %w", err)
	}
	return nil
}

// gaveUp tells, when the connection has ended, that the replica was under repair and has failed a part of it.
func (s *session) gaveUp() bool {
	errno, failed := errors.AsType[nbd.Errno](context.Cause(s.conn.Context()))
	return failed && errno != nbd.ESHUTDOWN && !s.voted.Load()
}

// endOfStream tells that the replica's server has closed its end, and so will execute nothing more.
func endOfStream(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// hangUp ends the sending half when the tracker's connection has ended. After an orderly end the sender has a last word.
func (s *session) hangUp() {
	if !errors.Is(context.Cause(s.conn.Context()), jobtracker.ErrDeactivated) {
		s.closeWrite()
		return
	}
	t := time.AfterFunc(s.d.m.cfg.replyTimeout, s.closeWrite)
	defer t.Stop()
	<-s.drained
}

// closeWrite lets the server see the end of what is sent. On a connection that is broken there is nothing to end.
func (s *session) closeWrite() { _ = s.link.client.CloseWrite() }

// skim reads to the end of a stream that cannot be understood any more.
func (s *session) skim(cause error) error {
	s.closeWrite()
	if _, err := io.Copy(io.Discard, s.link.nc); err != nil && !endOfStream(err) {
		return cause
	}
	return io.EOF
}

// receive takes replies until there are no more.
func (s *session) receive() error {
	for {
		reply, err := s.link.client.Receive(s.lookup)
		if err != nil {
			return err
		}
		s.answer(s.received, reply.Err())
	}
}

// lookup finds the call that a reply answers, and forgets it.
func (s *session) lookup(cookie uint64) (length uint32, dst []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.calls[cookie]
	delete(s.calls, cookie)
	s.received = c
	if !ok {
		return 0, nil, false
	}
	return uint32(len(c.data)), c.data, true
}

// answer takes the replica's answer to a call.
func (s *session) answer(c *call, err error) {
	if errors.Is(err, nbd.ESHUTDOWN) { // says nothing of whether it was executed
		s.conn.Close(err)
	}
	switch {
	case c.asked != nil:
		c.asked <- err
	case c.kind == 0:
		s.notes <- note{err: err}
	case c.number != 0 && err == nil && s.conn.Context().Err() == nil:
		s.notes <- note{flush: c}
	default:
		s.complete(c, err)
	}
}

// complete hands an answer to the tracker. One that is refused is an orphan: it has been counted, and that is all.
func (s *session) complete(c *call, err error) (accepted bool) {
	if c.half == jobtracker.HalfRead && err == nil {
		c.req.copied = c.data // before the target can be asked
	}
	if orphan := s.conn.Complete(c.id, jobtracker.Result{Err: err, Kind: c.kind}); orphan != nil {
		s.d.m.orphan(orphan)
		return false
	}
	if c.kind == jobtracker.Read && err == nil {
		c.req.deliver(c.data)
	}
	return true
}

// leftovers are answers that came for the sender when it had gone.
func (s *session) leftovers() {
	for {
		select {
		case n := <-s.notes:
			if n.flush != nil {
				s.complete(n.flush, n.err)
			}
		default:
			return
		}
	}
}

var errNoAnswer = errors.New("no answer in time")

// ask does one request, before the sender has anything to send; data is read or written. It returns when the request was
// answered, or when the connection has ended: so nothing that was asked is executed later, beside the next connection's. A
// server that owes the answer for longer than it may loses the connection. It may be called on many goroutines.
func (s *session) ask(command nbd.Command, flags nbd.CommandFlags, off, length int64, data []byte) error {
	most := s.d.m.cfg.answerTime(command)
	late := time.AfterFunc(most, func() { s.conn.Close(errNoAnswer) })
	defer late.Stop()
	c := &call{asked: make(chan error, 1)}
	out := nbd.Call{Header: nbd.Header{Command: command, Flags: flags, Offset: uint64(off), Length: uint32(length)}}
	switch command {
	case nbd.CmdRead:
		c.data = data
	case nbd.CmdWrite:
		out.Payload = data
	case nbd.CmdWriteZeroes, nbd.CmdTrim, nbd.CmdFlush, nbd.CmdCache, nbd.CmdDisc:
	}
	if err := s.post(out, c); err != nil {
		s.conn.Close(err)
	}
	select {
	case err := <-c.asked:
		return err
	case <-s.conn.Context().Done():
		return context.Cause(s.conn.Context())
	}
}

// post sends a question.
func (s *session) post(out nbd.Call, c *call) error {
	s.asking.Lock()
	defer s.asking.Unlock()
	s.asked++
	out.Cookie = askCookie | s.asked
	s.register(out.Cookie, c)
	return s.link.client.Send(out)
}

// register keeps a call for its reply.
func (s *session) register(cookie uint64, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[cookie] = c
}

// remember notes what the replica remembers as dirty.
func (s *session) remember(dirty bitmap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = dirty
}

// remembered is what the replica remembers as dirty; nil for all.
func (s *session) remembered() bitmap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dirty
}

// isDrained tells whether the stream has been read to its end.
func (s *session) isDrained() bool {
	select {
	case <-s.drained:
		return true
	default:
		return false
	}
}

// onTheirWay is how many calls have not been answered.
func (s *session) onTheirWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// fetch takes jobs from the tracker for the sender, many at a time. While the sender works on one batch, another fills.
func (s *session) fetch() {
	var bufs [2][batchSize]jobtracker.Dispatch[*request]
	for i := 0; ; i ^= 1 {
		batch, err := s.conn.NextBatch(context.Background(), bufs[i][:]) // ends with the connection
		if err != nil {
			return
		}
		select {
		case s.batches <- batch:
		case <-s.conn.Context().Done():
			return
		}
	}
}
