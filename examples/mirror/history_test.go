package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// history is what was written to a device, by one client, that may be cut off at any moment: what must be found
// afterwards, and what may be. Every block says which write it is from.
type history struct {
	writes []span            // by number; 0 is the zeros that a new device has
	acked  []bool            // by number
	must   []int             // by block: the oldest write that may be found, since a flush was answered that covers it
	heard  func(answers int) // nil, or told of each answer
}

// span are the blocks of a write.
type span struct{ from, to int }

func newHistory(size int64) *history {
	return &history{writes: make([]span, 1), acked: []bool{true}, must: make([]int, size/blockSize)}
}

// write is the data of the next write.
func (h *history) write(from, to int) []byte {
	n := len(h.writes)
	h.writes, h.acked = append(h.writes, span{from, to}), append(h.acked, false)
	data := make([]byte, (to-from)*blockSize)
	for i := from; i < to; i++ {
		part := data[(i-from)*blockSize:]
		binary.LittleEndian.PutUint64(part, uint64(n))
		binary.LittleEndian.PutUint64(part[8:], uint64(i))
	}
	return data
}

// covered is what a flush that is sent now vouches for, when it is answered.
func (h *history) covered() []int {
	must := append([]int(nil), h.must...)
	for n, w := range h.writes {
		for i := w.from; h.acked[n] && i < w.to; i++ {
			must[i] = max(must[i], n)
		}
	}
	return must
}

// look holds what a device has against the history, and takes it for what must be found from now on.
func (h *history) look(image []byte) error {
	for i := range h.must {
		part := image[i*blockSize:]
		n, block := int(binary.LittleEndian.Uint64(part)), int(binary.LittleEndian.Uint64(part[8:]))
		switch {
		case n >= len(h.writes), n > 0 && (block != i || i < h.writes[n].from || i >= h.writes[n].to):
			return fmt.Errorf("block %d has something that was never written to it: write %d of block %d", i, n, block)
		case n < h.must[i]:
			return fmt.Errorf("block %d has write %d, and write %d was flushed", i, n, h.must[i])
		}
		h.must[i] = n
	}
	return nil
}

// ordeal is a client that writes and flushes until its device is gone.
type ordeal struct {
	*history
	nbd  *nbd.Client
	room chan struct{}
	gone chan struct{} // closed when nothing more is answered

	mu      sync.Mutex
	flushes map[uint64][]int // on their way
	answers int
}

// suffer writes and flushes until the device is gone, 16 requests at a time, and answers how many were answered.
func (h *history) suffer(t *testing.T, uri string, seed uint64) (answers int) {
	t.Helper()
	c, err := nbd.Dial(limited(t), uri)
	require.NoError(t, err)
	o := &ordeal{history: h, nbd: c, room: make(chan struct{}, 16), gone: make(chan struct{}), flushes: make(map[uint64][]int)}
	clear(h.acked) // what was acknowledged before the last crash, and not flushed, no flush vouches for
	go o.receive()
	r := rand.New(rand.NewPCG(seed, 1))
	for err == nil {
		select {
		case o.room <- struct{}{}:
			err = c.Send(o.next(r))
		case <-o.gone:
			err = io.EOF
		}
	}
	_ = c.Close()
	<-o.gone
	return o.answers
}

const (
	ofFlush = 1 << 40 // cookies of flushes
	ofFUA   = 1 << 41 // and of writes that are to be durable
)

func (o *ordeal) next(r *rand.Rand) nbd.Call {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.IntN(20) == 0 {
		cookie := uint64(ofFlush + len(o.flushes))
		o.flushes[cookie] = o.covered()
		return nbd.Call{Header: nbd.Header{Command: nbd.CmdFlush, Cookie: cookie}}
	}
	from := r.IntN(len(o.must) - 64)
	if r.IntN(2) == 0 {
		from %= 64 // where it is crowded
	}
	out := nbd.Call{Header: nbd.Header{Command: nbd.CmdWrite, Cookie: uint64(len(o.writes)), Offset: uint64(from) * blockSize}}
	out.Payload = o.write(from, from+1+r.IntN(32))
	out.Length = uint32(len(out.Payload))
	if r.IntN(20) == 0 {
		out.Cookie |= ofFUA
		out.Flags = nbd.FlagFUA
	}
	return out
}

func (o *ordeal) receive() {
	defer close(o.gone)
	for {
		var cookie uint64
		reply, err := o.nbd.Receive(func(c uint64) (uint32, []byte, bool) {
			cookie = c
			return 0, nil, true
		})
		if err != nil || reply.Err() != nil {
			return
		}
		o.answered(cookie)
		<-o.room
	}
}

func (o *ordeal) answered(cookie uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers++
	if o.heard != nil {
		o.heard(o.answers)
	}
	if cookie&ofFlush != 0 {
		for i, n := range o.flushes[cookie] {
			o.must[i] = max(o.must[i], n)
		}
		return
	}
	n := int(cookie &^ ofFUA)
	o.acked[n] = true
	for i := o.writes[n].from; cookie&ofFUA != 0 && i < o.writes[n].to; i++ {
		o.must[i] = max(o.must[i], n)
	}
}

// image reads a whole device.
func image(t *testing.T, uri string) []byte {
	t.Helper()
	n, err := nbd.Dial(limited(t), uri)
	require.NoError(t, err)
	all := make([]byte, n.Info().Size)
	const piece = 1 << 20
	for off := 0; off < len(all); off += piece {
		part := all[off:min(off+piece, len(all))]
		require.NoError(t, n.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdRead, Offset: uint64(off), Length: uint32(len(part))}}))
		reply, err := n.Receive(func(uint64) (uint32, []byte, bool) { return uint32(len(part)), part, true })
		require.NoError(t, err)
		require.NoError(t, reply.Err())
	}
	require.NoError(t, n.Close())
	return all
}

// TestHistory: a device that lacks something flushed, or has something that was never written, is found out.
func TestHistory(t *testing.T) {
	h := newHistory(4 * blockSize)
	first := h.write(0, 2)
	h.acked[1] = true
	h.must = h.covered()
	second := h.write(1, 3)
	all := make([]byte, 4*blockSize)
	require.ErrorContains(t, h.look(all), "block 0 has write 0, and write 1 was flushed")
	copy(all, first)
	require.NoError(t, h.look(all), "the second write may be missing")
	copy(all[blockSize:], second)
	require.NoError(t, h.look(all), "and it may be there")
	copy(all[blockSize:], first[blockSize:])
	require.ErrorContains(t, h.look(all), "block 1 has write 1, and write 2 was flushed", "but not go again")
	copy(all[blockSize:], second)
	copy(all[3*blockSize:], second)
	require.ErrorContains(t, h.look(all), "block 3 has something that was never written to it")
	require.NotErrorIs(t, h.look(all), errors.ErrUnsupported)
}
