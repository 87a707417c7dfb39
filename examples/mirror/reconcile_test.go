package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// bench is a device on disks whose power can be cut at any request, gates in front of them, and what was written.
type bench struct {
	t     *testing.T
	disks []*failing
	gates gates
	args  []string
	size  int64
	*history
}

func newBench(t *testing.T, n int, args ...string) *bench {
	const size = 2 << 20
	disks, uris := failingDisks(t, n, size)
	b := &bench{
		t: t, disks: disks, gates: make(gates, n), size: size, history: newHistory(size),
		args: append(uris, append([]string{"-wait", "200ms"}, args...)...),
	}
	r, err := b.start("-create")
	require.NoError(t, err)
	r.end()
	return b
}

func (b *bench) start(args ...string) (*rig, error) {
	b.t.Helper()
	cfg, err := parse(append(args, b.args...), io.Discard)
	require.NoError(b.t, err)
	return rigOf(b.t, cfg, b.gates.change)
}

// hook has all disks ask before they do anything.
func (b *bench) hook(fail func(disk int, r *nbd.Request) error) {
	for i, d := range b.disks {
		f := func(r *nbd.Request) error { return fail(i, r) }
		if d.fail.Store(&f); fail == nil {
			d.fail.Store(nil)
		}
	}
}

// powerFails cuts the power of all disks when a few more requests were done.
func (b *bench) powerFails(after int) (cut <-chan struct{}) {
	off := make(chan struct{})
	var done atomic.Int64
	b.hook(func(int, *nbd.Request) error {
		switch n := int(done.Add(1)); {
		case n < after:
			return nil
		case n == after:
			close(off)
		}
		return nbd.ESHUTDOWN
	})
	return off
}

// crash starts the device, writes to it until the power is cut, and kills mirror.
func (b *bench) crash(after int, seed uint64) {
	b.t.Helper()
	r, err := b.start()
	require.NoError(b.t, err)
	cut := b.powerFails(after)
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-cut
		r.kill()
	}()
	answers := b.suffer(b.t, r.uri, seed)
	require.True(b.t, answers > 0 || after < 50, "nothing was answered")
	<-done
	r.parts.close()
	b.hook(nil)
}

// whole looks that everything flushed is on the device, and, when all replicas are active, that they are equal and go on
// together.
func (b *bench) whole(r *rig) {
	b.t.Helper()
	require.NoError(b.t, b.look(image(b.t, r.uri)))
	for i := range b.disks {
		b.gates[i].Store(false)
	}
	for i := range b.disks {
		r.phase(i, jobtracker.Voting)
	}
	c := r.client()
	copy(c.model, image(b.t, r.uri))
	require.NoError(b.t, c.run(load(b.size), 50))
	require.NoError(b.t, c.check())
	require.NoError(b.t, c.close())
	r.end()
	for i, d := range b.disks {
		got := make([]byte, b.size)
		require.NoError(b.t, d.ReadAt(got, 0))
		require.True(b.t, bytes.Equal(c.model, got), "replica %d differs", i)
	}
	require.Equal(b.t, int32(len(b.disks)), r.clean.Load())
}

// TestR18KilledUnderLoad: mirror is killed under load, with replies in flight, again and again, with others away each time; the
// next one reconciles, and everything that was flushed is there. Whoever was not there is repaired later.
func TestR18KilledUnderLoad(t *testing.T) {
	for _, tc := range []struct {
		n, ack, away int
	}{{3, 2, 0}, {3, 2, 1}, {3, 1, 0}, {3, 3, 0}, {5, 3, 2}, {2, 2, 0}, {1, 1, 0}} {
		t.Run(fmt.Sprintf("%d of %d, %d away", tc.ack, tc.n, tc.away), func(t *testing.T) {
			for _, after := range []int{20, 57, 131, 310} {
				b := newBench(t, tc.n, "-ack", fmt.Sprint(tc.ack))
				for round := range 3 {
					b.crash(after, uint64(after+round))
					for i := range tc.n {
						b.gates[i].Store((after+round+i)%tc.n < tc.away)
					}
				}
				r, err := b.start()
				require.NoError(t, err)
				require.True(t, strings.Contains(r.said.String(), "reconciled:") || after < 50 || tc.n == 1, "it was not needed")
				b.whole(r)
			}
		})
	}
}

// step tells what a request of a reconciliation does.
func (b *bench) step(r *nbd.Request) string {
	at := int64(r.Offset)
	switch {
	case r.Command == nbd.CmdFlush:
		return "flush"
	case r.Command == nbd.CmdRead && at < b.size:
		return "read"
	case r.Command == nbd.CmdWrite && at < b.size:
		return "write"
	case r.Command == nbd.CmdWrite:
		if m, err := decodeMeta(r.Data); err == nil && m.clean {
			return "remember"
		}
		return "mark"
	}
	return ""
}

var steps = []string{"mark", "read", "write", "flush", "remember"}

// TestR16LostInReconcile: a participant is lost in the middle of each step, comes back or stays away, or fails whenever it is
// asked: the others begin, and it is repaired when it can be.
func TestR16LostInReconcile(t *testing.T) {
	for _, how := range []string{"comes back", "stays away", "fails"} {
		for _, step := range steps {
			t.Run(step+", "+how, func(t *testing.T) {
				b := newBench(t, 3)
				b.crash(150, 7)
				var victim atomic.Int64 // its number and 1
				b.hook(func(disk int, r *nbd.Request) error {
					if b.step(r) != step {
						return nil
					}
					first := victim.CompareAndSwap(0, int64(disk)+1)
					switch {
					case how == "fails" && victim.Load() == int64(disk)+1:
						return nbd.EIO
					case how != "fails" && first:
						b.gates[disk].Store(how == "stays away")
						return nbd.ESHUTDOWN
					}
					return nil
				})
				r, err := b.start()
				require.NoError(t, err)
				b.hook(nil)
				require.Positive(t, victim.Load(), "nobody was lost")
				require.Contains(t, r.said.String(), "begun again with whoever is here")
				b.whole(r)
			})
		}
	}
}

// TestR16KilledInReconcile: mirror is killed in the middle of each step, twice, and the third reconciles.
func TestR16KilledInReconcile(t *testing.T) {
	for _, step := range steps {
		for _, nth := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s %d", step, nth), func(t *testing.T) {
				b := newBench(t, 3)
				b.crash(150, 11)
				for range 2 {
					ctx, kill := context.WithCancel(t.Context())
					var seen atomic.Int64
					b.hook(func(_ int, r *nbd.Request) error {
						if b.step(r) == step && seen.Add(1) == int64(nth) {
							kill()
						}
						if seen.Load() >= int64(nth) {
							return nbd.ESHUTDOWN
						}
						return nil
					})
					cfg, err := parse(b.args, io.Discard)
					require.NoError(t, err)
					_, err = rigWithin(ctx, t, cfg, b.gates.change)
					require.ErrorIs(t, err, context.Canceled)
					b.hook(nil)
				}
				r, err := b.start()
				require.NoError(t, err)
				b.whole(r)
			})
		}
	}
}

// TestR26TooFew: what cannot be made up of those that are here is refused, with the names of those that are missing; a blank
// one does not count. It waits for them as long as -wait says.
func TestR26TooFew(t *testing.T) {
	b := newBench(t, 3)
	b.crash(150, 3)
	b.gates[0].Store(true)
	b.gates[2].Store(true)
	_, err := b.start()
	require.ErrorIs(t, err, errReconcile)
	require.ErrorContains(t, err, "of those that know what they hold 1 are here, and it takes 2")
	require.ErrorContains(t, err, "replica 0 (nbd://")
	require.ErrorContains(t, err, "the gate is shut")
	require.NotContains(t, err.Error(), "replica 1 (")

	b.gates[2].Store(false)
	was := make([]byte, b.size+metaSpace)
	require.NoError(t, b.disks[2].ReadAt(was, 0))
	require.NoError(t, b.disks[2].Zero(0, int64(len(was)), true))
	_, err = b.start()
	require.ErrorIs(t, err, errReconcile)
	require.ErrorContains(t, err, "it is blank")

	b.gates[0].Store(false)
	r, err := b.start()
	require.NoError(t, err)
	require.Contains(t, r.said.String(), "make 2 replicas equal", "nobody waits for the copy of a blank one")
	b.whole(r)
}

// TestBlankTakesPart: where a write needs all replicas, a blank one is copied before the device begins.
func TestBlankTakesPart(t *testing.T) {
	b := newBench(t, 3, "-ack", "3")
	b.crash(150, 5)
	require.NoError(t, b.disks[1].Zero(0, b.size+metaSpace, true))
	r, err := b.start()
	require.NoError(t, err)
	require.Contains(t, r.said.String(), "replica 1: blank: copy 8 of 8 extents")
	b.whole(r)
}

// TestR26ReplacedDoesNotCount: what was put at a replica's place is worth nothing before its repair is done, whatever it was
// before, also for the next mirror. With its metadata left as it was, the device begins without what was flushed.
func TestR26ReplacedDoesNotCount(t *testing.T) {
	b := newBench(t, 3)
	r, err := b.start("-repair-rate", "64K")
	require.NoError(t, err)
	c := r.client()
	require.NoError(t, c.run(load(b.size), 50))
	require.NoError(t, c.sync())
	require.NoError(t, r.replace(t.Context(), 2, ""))
	r.busy(c, load(b.size), func() { r.phase(2, jobtracker.Repairing) })
	r.kill()
	_ = c.nbd.Close()
	<-c.done
	r.parts.close()
	b.gates[0].Store(true)
	_, err = b.start()
	require.ErrorIs(t, err, errReconcile)
	require.ErrorContains(t, err, "it is blank")
	b.gates[0].Store(false)
	r, err = b.start()
	require.NoError(t, err)
	for i := range b.disks {
		r.phase(i, jobtracker.Voting)
	}
	r.end()
	require.Equal(t, int32(3), r.clean.Load())
}
