package nbd

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
)

const (
	readBuffer = 64 << 10 // bytes; longer payloads bypass it
	slabSize   = 16       // requests per allocation
)

// phase is the position of a server's connection in its life.
type phase uint8

const (
	phaseHandshake phase = iota // no request yet
	phaseServing                // requests are taken
	phaseDraining               // the client has said its last; what is in flight is answered
	phaseStopping               // Shutdown: what the backend has is answered, the rest refused
	phaseDead                   // terminal: nothing is written any more
)

// conn is the server's side of a connection: the goroutine of serve reads, another writes.
type conn struct {
	srv *Server
	nc  net.Conn

	// Of the reader.
	br      *bufio.Reader
	header  [sizeRequest]byte
	slab    []Request // not handed out yet; a Request is never used again
	backend Backend
	info    Info

	mu sync.Mutex
	// writer and reader each have one waiter: for a reply or an end, for room or an end.
	writer, reader sync.Cond
	// +checklocks:mu
	phase phase
	// cause is why the connection died; nil for a client's orderly end.
	// +checklocks:mu
	cause error
	// cancel ends the context of Submit; nil before serve.
	// +checklocks:mu
	cancel context.CancelFunc
	// queue holds the replies to be written.
	// +checklocks:mu
	queue []*Request
	// inFlight and bytes count the requests whose reply has not been written, and their payloads.
	// Invariant: at most MaxInFlight and MaxInFlightBytes.
	// +checklocks:mu
	inFlight int
	// +checklocks:mu
	bytes int64
	// admitted are those of inFlight that the backend was given.
	// +checklocks:mu
	admitted int
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{srv: s, nc: nc, br: bufio.NewReaderSize(nc, readBuffer)}
	c.writer.L, c.reader.L = &c.mu, &c.mu
	return c
}

// serve runs the connection to its end and returns the cause.
func (c *conn) serve() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.bind(cancel)
	export, info, err := c.handshake()
	if err != nil {
		return c.kill(err)
	}
	c.backend, c.info = export.Backend, info
	if !c.advance(phaseHandshake, phaseServing) {
		return c.kill(ErrServerClosed)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writeReplies()
	}()
	if err := c.readRequests(ctx); err != nil {
		_ = c.kill(err)
	} else {
		c.advance(phaseServing, phaseDraining)
	}
	<-written
	return c.kill(nil)
}

func (c *conn) bind(cancel context.CancelFunc) {
	c.mu.Lock()
	c.cancel = cancel
	dead := c.phase == phaseDead
	c.mu.Unlock()
	if dead {
		cancel()
	}
}

// advance moves from one phase to another, and does nothing from any other.
func (c *conn) advance(from, to phase) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != from {
		return false
	}
	c.phase = to
	c.writer.Signal()
	return true
}

// stop is a Shutdown's word: a client that haggles is sent away, one that works is drained.
func (c *conn) stop() {
	if c.advance(phaseHandshake, phaseStopping) {
		_ = c.kill(ErrServerClosed) // no request can have been taken
		return
	}
	c.advance(phaseServing, phaseStopping) // never the other way round: a handshake may end at any moment
}

// kill ends the connection at once. The first cause stays, and is returned.
func (c *conn) kill(cause error) error {
	c.mu.Lock()
	if c.phase == phaseDead {
		cause = c.cause
		c.mu.Unlock()
		return cause
	}
	c.phase, c.cause = phaseDead, cause
	queue, cancel := c.queue, c.cancel
	c.queue = nil
	c.mu.Unlock()
	c.writer.Signal()
	c.reader.Signal()
	_ = c.nc.Close()
	if cancel != nil {
		cancel()
	}
	for _, r := range queue {
		r.sent()
	}
	return cause
}

// enqueue hands a reply to the writer, or drops it when the connection is dead.
func (c *conn) enqueue(r *Request) {
	c.mu.Lock()
	dead := c.phase == phaseDead
	if !dead {
		c.queue = append(c.queue, r)
	}
	c.mu.Unlock()
	if dead {
		r.sent()
		return
	}
	c.writer.Signal()
}

// readRequests takes requests until the client says its last (nil) or the connection is of no more use.
func (c *conn) readRequests(ctx context.Context) error {
	for {
		h, err := c.readHeader()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case h.Command == CmdDisc:
			return nil
		}
		if err := c.request(ctx, h); err != nil {
			return err
		}
	}
}

// readHeader returns io.EOF only between two requests.
func (c *conn) readHeader() (Header, error) {
	if _, err := io.ReadFull(c.br, c.header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return Header{}, io.EOF
		}
		return Header{}, lost("a request", err)
	}
	return decodeHeader(&c.header)
}

// request takes one request in and answers it or hands it to the backend.
func (c *conn) request(ctx context.Context, h Header) error {
	refusal := c.info.vet(&h)
	if refusal != 0 && h.Command == CmdWrite {
		// The payload is there all the same, of a length that nobody has agreed to.
		if err := c.discard(h.Length); err != nil {
			return err
		}
	}
	r := c.newRequest(h)
	if refusal == 0 && (h.Command == CmdRead || h.Command == CmdWrite) {
		r.cost = h.Length // what is refused has no buffer, and may be longer than the limit
	}
	if !c.reserve(r.cost) {
		return net.ErrClosed // the connection has its cause
	}
	if err := c.fetch(r); err != nil {
		return err
	}
	switch {
	case refusal != 0:
		c.answer(r, refusal)
	case h.Length == 0 && h.Command != CmdFlush:
		c.answer(r, nil)
	case !c.admit(r):
		c.answer(r, ESHUTDOWN)
	default:
		c.backend.Submit(ctx, r)
	}
	return nil
}

// fetch gives r its buffer, and a write its payload.
func (c *conn) fetch(r *Request) error {
	if r.cost == 0 {
		return nil
	}
	r.buf = c.srv.buffers.get(r.cost)
	r.Data = r.buf.b[:r.cost:r.cost]
	if r.Command != CmdWrite {
		return nil
	}
	if _, err := io.ReadFull(c.br, r.Data); err != nil {
		return lost("a payload", err)
	}
	return nil
}

// answer replies on the backend's behalf.
func (c *conn) answer(r *Request, err error) {
	r.Release()
	r.Reply(err)
}

func (c *conn) newRequest(h Header) *Request {
	if len(c.slab) == 0 {
		c.slab = make([]Request, slabSize)
	}
	r := &c.slab[0]
	c.slab = c.slab[1:]
	r.Header, r.conn = h, c
	return r
}

// discard skips a payload.
func (c *conn) discard(n uint32) error {
	for n > 0 {
		step := min(n, 1<<30) // Discard takes an int, of 32 bits perhaps
		if _, err := c.br.Discard(int(step)); err != nil {
			return lost("a payload", err)
		}
		n -= step
	}
	return nil
}

// reserve waits for room for one more request. False: the connection is dead.
func (c *conn) reserve(bytes uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.phase != phaseDead && (c.inFlight >= c.srv.opts.MaxInFlight || c.bytes+int64(bytes) > c.srv.opts.MaxInFlightBytes) {
		c.reader.Wait()
	}
	c.inFlight++
	c.bytes += int64(bytes)
	return c.phase != phaseDead
}

// admit counts r as the backend's, unless the server is being shut down.
func (c *conn) admit(r *Request) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.phase != phaseServing {
		return false
	}
	r.admitted = true
	c.admitted++
	return true
}

// writeReplies writes replies until the connection has ended.
func (c *conn) writeReplies() {
	var out replyWriter
	var batch []*Request
	for {
		var ok bool
		if batch, ok = c.takeReplies(batch); !ok {
			return
		}
		err := out.write(c.nc, batch)
		for _, r := range batch {
			r.sent()
		}
		if err != nil {
			_ = c.kill(lost("a reply", err))
			return
		}
		c.settle(batch)
	}
}

// takeReplies waits for replies and swaps them for spare. False: nothing is to be written any more.
func (c *conn) takeReplies(spare []*Request) ([]*Request, bool) {
	c.mu.Lock()
	for {
		switch {
		case c.phase == phaseDead:
			c.mu.Unlock()
			return nil, false
		case c.phase == phaseStopping && c.admitted == 0:
			c.mu.Unlock()
			_ = c.kill(ErrServerClosed)
			return nil, false
		case len(c.queue) > 0:
			batch := c.queue
			c.queue = spare[:0]
			c.mu.Unlock()
			return batch, true
		case c.phase == phaseDraining && c.admitted == 0:
			c.mu.Unlock()
			_ = c.kill(nil)
			return nil, false
		}
		c.writer.Wait()
	}
}

// settle returns what reserve and admit took.
func (c *conn) settle(batch []*Request) {
	c.mu.Lock()
	for i, r := range batch {
		c.inFlight--
		c.bytes -= int64(r.cost)
		if r.admitted {
			c.admitted--
		}
		batch[i] = nil
	}
	c.mu.Unlock()
	c.reader.Signal()
}

// replyWriter turns replies into one vectored write. Its slices are used again and again.
type replyWriter struct {
	headers []byte
	pieces  [][]byte
	vec     net.Buffers // what is left of pieces: a field, so that it is not allocated for each call
}

func (w *replyWriter) write(nc net.Conn, batch []*Request) error {
	// Grown before anything points into it.
	w.headers = slices.Grow(w.headers[:0], len(batch)*sizeSimpleReply)
	w.pieces = w.pieces[:0]
	start := 0
	for _, r := range batch {
		w.headers = appendSimpleReply(w.headers, r.errno, r.Cookie)
		if r.Command == CmdRead && r.errno == 0 && len(r.Data) > 0 {
			w.pieces = append(w.pieces, w.headers[start:], r.Data)
			start = len(w.headers)
		}
	}
	if start < len(w.headers) {
		w.pieces = append(w.pieces, w.headers[start:])
	}
	w.vec = w.pieces
	_, err := w.vec.WriteTo(nc)
	clear(w.pieces) // after an error some still point at payloads
	return err
}
