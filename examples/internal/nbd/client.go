package nbd

import (
	"bufio"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Call is a request as a client sends it.
type Call struct {
	Header
	// Payload is what a write writes, Length bytes; nil for other commands. Send only reads it, and not
	// after it has returned.
	Payload []byte
}

// Reply is a server's answer.
type Reply struct {
	Cookie uint64
	Errno  Errno // zero for success
	// Data is what was read into the buffer that the Lookup gave; nil after an error.
	Data []byte
}

// Err returns the Errno as an error, nil for success.
func (r Reply) Err() error {
	if r.Errno == 0 {
		return nil
	}
	return r.Errno
}

// Lookup tells Receive about the call that a reply answers: length is the number of bytes that the
// server sends if it succeeded, so a read's Length and zero for everything else; dst is where they go. What
// does not fit into dst is skipped, so nil skips all. ok is false for a cookie that nobody waits for.
// It is called once for each reply, failed ones too, by Receive's goroutine with no lock held. A nil
// Lookup knows no cookie.
type Lookup func(cookie uint64) (length uint32, dst []byte, ok bool)

// Client is a connection in its transmission phase, from Dial or NewClient. Send and Receive are its halves,
// each for one goroutine at a time; the other methods are safe for concurrent use with all.
type Client struct {
	nc   net.Conn
	info Info // immutable

	// writeClosed is set by CloseWrite and Close, and by Send after CmdDisc.
	writeClosed atomic.Bool
	close       func() error // once

	// Of the sender.
	headers []byte
	pieces  [][]byte
	vec     net.Buffers
	sendErr error // the first failure: part of a call may have been written

	// Of the receiver.
	br         *bufio.Reader
	header     [sizeSimpleReply]byte
	receiveErr error // the first failure
}

func newClient(nc net.Conn, br *bufio.Reader, info Info) *Client {
	return &Client{nc: nc, br: br, info: info, close: sync.OnceValue(nc.Close)}
}

// Info is what the server said about the export. MaxBlock is 0xffffffff for no limit.
func (c *Client) Info() Info { return c.info }

// Send writes calls, all in one vectored write where the connection has it. It blocks while the
// server does not read, until CloseWrite or Close. After a *CallError nothing has been written and the connection is
// as it was; after any other error some of the calls may have reached the server, and every later
// Send fails with the same error. A call with CmdDisc must be the last; what follows gets
// ErrWriteClosed. Send does not hold calls against Info: the server does.
func (c *Client) Send(calls ...Call) error {
	if err := checkCalls(calls); err != nil {
		return err
	}
	if c.sendErr != nil {
		return c.sendErr
	}
	if c.writeClosed.Load() {
		return ErrWriteClosed
	}
	c.gather(calls)
	_, err := c.vec.WriteTo(c.nc)
	clear(c.pieces) // after an error some still point at payloads
	switch {
	case err != nil && c.writeClosed.Load():
		c.sendErr = ErrWriteClosed
	case err != nil:
		c.sendErr = lost("a call", err)
	case len(calls) > 0 && calls[len(calls)-1].Command == CmdDisc:
		c.writeClosed.Store(true)
	}
	return c.sendErr
}

func checkCalls(calls []Call) error {
	for i := range calls {
		call := &calls[i]
		want := uint32(0)
		if call.Command == CmdWrite {
			want = call.Length
		}
		switch {
		case uint64(len(call.Payload)) != uint64(want):
			return &CallError{Call: call.Header, Reason: "payload and length differ"}
		case call.Command == CmdDisc && i != len(calls)-1:
			return &CallError{Call: call.Header, Reason: "calls after a disconnect"}
		}
	}
	return nil
}

// gather lays the calls out for one vectored write.
func (c *Client) gather(calls []Call) {
	// Grown before anything points into it.
	c.headers = slices.Grow(c.headers[:0], len(calls)*sizeRequest)
	c.pieces = c.pieces[:0]
	start := 0
	for i := range calls {
		c.headers = appendHeader(c.headers, &calls[i].Header)
		if p := calls[i].Payload; len(p) > 0 {
			c.pieces = append(c.pieces, c.headers[start:], p)
			start = len(c.headers)
		}
	}
	if start < len(c.headers) {
		c.pieces = append(c.pieces, c.headers[start:])
	}
	c.vec = c.pieces
}

// Receive reads one reply. It blocks until there is one, or until Close. It returns io.EOF, alone, when the
// server has ended the connection between two replies: after CloseWrite that means that nothing sent
// can be executed any more. After any error every later Receive fails with the same error; those of the
// peer's making match ErrProtocol, an unknown cookie is an *UnknownCookieError.
func (c *Client) Receive(lookup Lookup) (Reply, error) {
	if c.receiveErr != nil {
		return Reply{}, c.receiveErr
	}
	r, err := c.receive(lookup)
	c.receiveErr = err
	return r, err
}

func (c *Client) receive(lookup Lookup) (Reply, error) {
	if _, err := io.ReadFull(c.br, c.header[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return Reply{}, io.EOF
		}
		return Reply{}, lost("a reply", err)
	}
	errno, cookie, err := decodeSimpleReply(&c.header)
	if err != nil {
		return Reply{}, err
	}
	if lookup == nil {
		return Reply{}, &UnknownCookieError{Cookie: cookie, Errno: errno}
	}
	length, dst, ok := lookup(cookie)
	if !ok {
		return Reply{}, &UnknownCookieError{Cookie: cookie, Errno: errno}
	}
	if errno != 0 || length == 0 {
		return Reply{Cookie: cookie, Errno: errno}, nil
	}
	dst = dst[:min(uint64(length), uint64(len(dst)))]
	if _, err := io.ReadFull(c.br, dst); err != nil {
		return Reply{}, lost("a reply", err)
	}
	return Reply{Cookie: cookie, Data: dst}, c.skip(length - uint32(len(dst)))
}

// skip reads over the data that the Lookup did not want.
func (c *Client) skip(n uint32) error {
	for n > 0 {
		step := min(n, 1<<30)
		if _, err := c.br.Discard(int(step)); err != nil {
			return lost("a reply", err)
		}
		n -= step
	}
	return nil
}

// CloseWrite ends the sending half: the server sees the end of the stream after what was sent, answers what it
// has and closes. A Send that is blocked returns ErrWriteClosed, its call cut short and so never executed. Receive
// goes on, to io.EOF. A CmdDisc before is the caller's choice. On a connection that cannot be half-closed it
// ends Send all the same and returns ErrNoHalfClose. It is idempotent.
func (c *Client) CloseWrite() error {
	c.writeClosed.Store(true)
	// The deadline ends a Send that a stopped server holds, on connections too that have no half-close.
	if err := c.nc.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		return lost("half-close", err)
	}
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok {
		return ErrNoHalfClose
	}
	if err := half.CloseWrite(); err != nil {
		return lost("half-close", err)
	}
	return nil
}

// Close ends the connection at once, and with it blocked calls of Send and Receive. What was sent may still be
// executed, after Close has returned too: see CloseWrite. It is idempotent.
func (c *Client) Close() error {
	c.writeClosed.Store(true)
	return c.close()
}
