package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// Making a device of replicas on servers.

const (
	probeAt   = maxMeta          // of a replica's own MiB: where distinct writes, beside the metadata
	tellEvery = 10 * time.Second // of the progress of a long zeroing
)

// invent makes up a new device.
func (m *mirror) invent(ctx context.Context, links []*link) error {
	size := links[0].room()
	for i, l := range links {
		if l.meta != nil {
			return fmt.Errorf("replica %d (%s) belongs to device %x already, and -create overwrites nothing; to give it up, write zeros over its last MiB", i, m.drivers[i].name(), l.meta.device)
		}
		size = min(size, l.room())
	}
	quorum := m.cfg.ack
	if quorum == 0 {
		quorum = len(links)/2 + 1
	}
	m.geometry = newGeometry(newID(), size, len(links), quorum)
	for i, l := range links {
		if more := l.room() - size; more > 0 {
			m.drivers[i].tell("it has %d bytes more than the device uses", more)
		}
	}
	if len(m.cfg.uris) == 0 {
		return nil // the files were made just now: they are distinct, and all zeros
	}
	if err := m.distinct(ctx, links); err != nil {
		return err
	}
	m.log.Printf("zeroing %s on %d replicas, which must begin alike", bytesFlag(size).text(), len(links))
	return m.onAll(links, func(d *driver, l *link) error { return d.zero(ctx, l, size) })
}

// onAll does something to all replicas at once.
func (m *mirror) onAll(links []*link, do func(*driver, *link) error) error {
	errs := make([]error, len(links))
	var wg sync.WaitGroup
	for i, l := range links {
		d := m.drivers[i]
		wg.Go(func() {
			if err := do(d, l); err != nil {
				errs[i] = fmt.Errorf("replica %d (%s): %w", i, d.name(), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// distinct finds replicas that are the same disk by different names: each gets a mark of its own, and must have that one
// when all were marked.
func (m *mirror) distinct(ctx context.Context, links []*link) error {
	found := make([][]byte, len(links))
	mark := func(i int) []byte {
		return append(bytes.Clone(links[i].id[:]), make([]byte, blockSize-len(links[i].id))...)
	}
	for i, l := range links {
		if err := m.drivers[i].ask(ctx, l, nbd.CmdWrite, l.metaAt+probeAt, blockSize, mark(i)); err != nil {
			return fmt.Errorf("replica %d (%s): %w", i, m.drivers[i].name(), err)
		}
	}
	err := m.onAll(links, func(d *driver, l *link) error {
		found[d.index] = make([]byte, blockSize)
		return d.ask(ctx, l, nbd.CmdRead, l.metaAt+probeAt, blockSize, found[d.index])
	})
	err = errors.Join(err, m.onAll(links, func(d *driver, l *link) error {
		return d.ask(ctx, l, nbd.CmdWriteZeroes, l.metaAt+probeAt, blockSize, nil)
	}))
	if err != nil {
		return err
	}
	for i := range links {
		for other := range links {
			if other != i && bytes.Equal(found[i], mark(other)) {
				return fmt.Errorf("replicas %d (%s) and %d (%s) are the same disk", i, m.drivers[i].name(), other, m.drivers[other].name())
			}
		}
		if !bytes.Equal(found[i], mark(i)) {
			return fmt.Errorf("replica %d (%s) does not hold what was written to it", i, m.drivers[i].name())
		}
	}
	return nil
}

// zero makes the device's part of a replica read as zeros, durably.
func (d *driver) zero(ctx context.Context, l *link, size int64) error {
	g := d.gauge("zeroing", "MiB", size>>20)
	defer g.end()
	for off := int64(0); off < size; {
		n := min(maxRequest, size-off)
		if err := d.ask(ctx, l, nbd.CmdWriteZeroes, off, n, nil); err != nil {
			return fmt.Errorf("zeroing it: %w", err)
		}
		off += n
		g.set(off>>20, "")
	}
	return d.ask(ctx, l, nbd.CmdFlush, 0, 0, nil)
}

// ask does one request on a link that nobody else uses; data is read or written. A server that owes an answer for longer
// than it may is given up.
func (d *driver) ask(ctx context.Context, l *link, command nbd.Command, off, length int64, data []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.m.cfg.answerTime(command), errNoAnswer)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.client.Close() })
	err := l.ask(nbd.Header{Command: command, Offset: uint64(off), Length: uint32(length)}, data)
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	return err
}

// ask does one request; data is read or written.
func (l *link) ask(h nbd.Header, data []byte) error {
	call := nbd.Call{Header: h}
	var length uint32
	switch h.Command {
	case nbd.CmdRead:
		length = h.Length
	case nbd.CmdWrite:
		call.Payload = data
	case nbd.CmdWriteZeroes, nbd.CmdTrim, nbd.CmdFlush, nbd.CmdCache, nbd.CmdDisc:
	}
	if err := l.client.Send(call); err != nil {
		return err
	}
	reply, err := l.client.Receive(func(uint64) (uint32, []byte, bool) { return length, data[:length], true })
	if err != nil {
		return err
	}
	return reply.Err()
}
