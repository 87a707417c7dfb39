package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

var errWrongData = errors.New("WRONG DATA")

// client drives a device over one NBD connection, many requests at a time, and holds it to a model. The device executes
// what a connection sends in its order where blocks overlap, so the model is changed when a request is sent. run and
// check are for one goroutine.
type client struct {
	nbd   *nbd.Client
	model []byte // what the device holds
	sent  uint64
	room  chan struct{} // a slot for each request on its way
	done  chan struct{} // closed when the stream has ended

	mu sync.Mutex
	// +checklocks:mu
	calls map[uint64]expected
	// err is the first thing that was wrong.
	// +checklocks:mu
	err    error
	failed chan struct{} // closed when err is set
}

// expected is a request on its way; of a read what must come.
type expected struct {
	step
	data, want []byte
}

func newClient(c *nbd.Client, depth int) *client {
	out := &client{
		nbd: c, model: make([]byte, c.Info().Size), room: make(chan struct{}, depth), done: make(chan struct{}),
		calls: make(map[uint64]expected), failed: make(chan struct{}),
	}
	go out.receive()
	return out
}

// run sends n requests of a workload, as many at a time as there is room for.
func (c *client) run(w workload, n int) error {
	_, err := c.runUntil(w, n, nil)
	return err
}

// runUntil sends requests of a workload, at most n, until done is closed.
func (c *client) runUntil(w workload, n int, done <-chan struct{}) (sent int, err error) {
	for ; sent < n; sent++ {
		select {
		case <-done:
			return sent, nil
		default:
		}
		if err := c.send(w()); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// send sends one request; it waits for room.
func (c *client) send(s step) error {
	select {
	case c.room <- struct{}{}:
	case <-c.failed:
		return c.error()
	case <-c.done:
		return c.gone()
	}
	c.sent++
	call := nbd.Call{Header: nbd.Header{Command: s.command, Cookie: c.sent, Offset: uint64(s.off), Length: uint32(s.length)}}
	if s.fua {
		call.Flags = nbd.FlagFUA
	}
	e := expected{step: s}
	part := c.model[s.off:][:s.length]
	switch s.command {
	case nbd.CmdWrite:
		fill(part, c.sent)
		call.Payload = part
	case nbd.CmdWriteZeroes, nbd.CmdTrim:
		clear(part)
	case nbd.CmdRead:
		if e.data, e.want = part, part; !s.learn {
			e.data, e.want = make([]byte, s.length), bytes.Clone(part)
		}
	case nbd.CmdFlush, nbd.CmdCache, nbd.CmdDisc:
	}
	c.mu.Lock()
	c.calls[c.sent] = e
	c.mu.Unlock()
	return c.nbd.Send(call)
}

// fill makes data that is like no other request's.
func fill(p []byte, seed uint64) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], seed<<24^uint64(i))
	}
}

// settle waits until everything sent was answered.
func (c *client) settle() error {
	taken := 0
	defer func() {
		for range taken {
			<-c.room
		}
	}()
	for range cap(c.room) {
		select {
		case c.room <- struct{}{}:
			taken++
		case <-c.failed:
			return c.error()
		case <-c.done:
			return c.gone()
		}
	}
	return c.error()
}

// sync flushes and waits.
func (c *client) sync() error {
	if err := c.settle(); err != nil {
		return err
	}
	if err := c.send(step{command: nbd.CmdFlush}); err != nil {
		return err
	}
	return c.settle()
}

// check reads the whole device.
func (c *client) check() error {
	const piece = 1 << 20
	for off := int64(0); off < int64(len(c.model)); off += piece {
		if err := c.send(step{command: nbd.CmdRead, off: off, length: int(min(piece, int64(len(c.model))-off))}); err != nil {
			return err
		}
	}
	return c.settle()
}

// learn reads the whole device and takes it for the model.
func (c *client) learn() error {
	const piece = 1 << 20
	for off := int64(0); off < int64(len(c.model)); off += piece {
		length := int(min(piece, int64(len(c.model))-off))
		if err := c.send(step{command: nbd.CmdRead, off: off, length: length, learn: true}); err != nil {
			return err
		}
	}
	return c.settle()
}

// close leaves the device.
func (c *client) close() error {
	err := c.nbd.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdDisc}})
	<-c.done
	return errors.Join(err, c.nbd.Close())
}

func (c *client) receive() {
	defer close(c.done)
	for {
		var e expected
		reply, err := c.nbd.Receive(func(cookie uint64) (uint32, []byte, bool) {
			c.mu.Lock()
			defer c.mu.Unlock()
			var ok bool
			e, ok = c.calls[cookie]
			delete(c.calls, cookie)
			return uint32(len(e.data)), e.data, ok
		})
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			c.wrong(err)
			return
		case reply.Err() != nil:
			c.wrong(fmt.Errorf("%v of %d bytes at %d: %w", e.command, e.length, e.off, reply.Err()))
		case !bytes.Equal(e.data, e.want):
			c.wrong(fmt.Errorf("%w: read of %d bytes at %d", errWrongData, e.length, e.off))
		}
		<-c.room
	}
}

// wrong keeps the first thing that was wrong.
func (c *client) wrong(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.failed)
	}
}

// gone is the end of the stream, unless something was wrong before.
func (c *client) gone() error {
	if err := c.error(); err != nil {
		return err
	}
	return io.EOF
}

func (c *client) error() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
