//go:build unix

package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// attacked is a device on disks that fail what they are told to, with a client whose load goes on whatever is done.
type attacked struct {
	*rig
	disks []*failing
	uris  []string
	size  int64
	c     *client
	w     workload
}

func newAttacked(t *testing.T, size int64, args ...string) *attacked {
	t.Helper()
	a := &attacked{size: size, w: load(size)}
	a.disks, a.uris = failingDisks(t, 3, size)
	a.rig = newRig(t, slices.Concat(a.uris, []string{"-create"}, args)...)
	a.c = a.client()
	require.NoError(t, a.c.run(a.w, 500))
	return a
}

// under runs the load until do has returned, and a little longer.
func (a *attacked) under(do func()) {
	a.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	_, err := a.c.runUntil(a.w, math.MaxInt, done)
	require.NoError(a.t, err)
	require.NoError(a.t, a.c.run(a.w, 100))
}

// fails has a disk answer errors from now on; nil ends that.
func (a *attacked) fails(disk int, fail func(*nbd.Request) error) {
	if fail == nil {
		a.disks[disk].fail.Store(nil)
		return
	}
	a.disks[disk].fail.Store(&fail)
}

func (a *attacked) lose(replica int) { _ = a.tracker.Fault(replica, errCut) }

// whole: all replicas are active, the client has seen nothing, and all disks hold what it wrote.
func (a *attacked) whole() {
	a.t.Helper()
	for i := range a.disks {
		a.phase(i, jobtracker.Voting)
	}
	require.NoError(a.t, a.c.run(a.w, 300))
	require.NoError(a.t, a.c.check())
	require.NoError(a.t, a.c.close())
	a.end()
	for i, d := range a.disks {
		got := make([]byte, a.size)
		require.NoError(a.t, d.ReadAt(got, 0))
		require.True(a.t, bytes.Equal(a.c.model, got), "replica %d differs", i)
	}
	require.Equal(a.t, int32(len(a.disks)), a.clean.Load())
}

// forStress skips what takes a while, and what TestRepairChaos does a little of.
func forStress(t *testing.T) {
	t.Helper()
	if !*stress {
		t.Skip("for -stress")
	}
}

// TestRepairTwoAtOnce: both others are repaired from the one that is left.
func TestRepairTwoAtOnce(t *testing.T) {
	forStress(t)
	a := newAttacked(t, 8<<20, "-repair-rate", "16M", "-ack", "1")
	for range longer(1) {
		a.under(func() {
			a.back(1, func() {
				a.back(2, func() {
					a.lose(1)
					a.lose(2)
					a.phase(1, jobtracker.Repairing)
					a.phase(2, jobtracker.Repairing)
				})
			})
		})
	}
	a.whole()
}

// TestRepairSourceFails: a source that cannot read an extent is passed over; when none can, the repair is tried again.
func TestRepairSourceFails(t *testing.T) {
	a := newAttacked(t, 8<<20)
	bad := func(r *nbd.Request) error {
		if r.Command == nbd.CmdRead && r.Length == minExtent && r.Offset == 4<<20 {
			return nbd.EIO
		}
		return nil
	}
	a.fails(0, bad)
	a.under(func() { a.back(2, func() { a.lose(2) }) })
	require.NotContains(t, a.said.String(), "tried again")
	a.fails(1, bad)
	a.under(func() {
		a.back(2, func() {
			a.lose(2)
			a.said.await(t, "its repair has failed and is tried again")
			a.fails(1, nil)
		})
	})
	a.whole()
}

// TestRepairStopped: the device is ended in the middle of a repair, as a signal would, with its client there or gone. What was
// acknowledged is in the next life, which brings the replica back.
func TestRepairStopped(t *testing.T) {
	a := newAttacked(t, 8<<20, "-repair-rate", "2M")
	for _, gone := range []bool{true, false} {
		require.NoError(t, a.c.run(a.w, 200))
		a.lose(2)
		a.phase(2, jobtracker.Repairing)
		require.NoError(t, a.c.run(a.w, 200))
		require.NoError(t, a.c.settle())
		if gone {
			require.NoError(t, a.c.close())
		}
		a.end()
		require.Equal(t, int32(2), a.clean.Load())
		require.NotContains(t, a.said.String(), "tried again")
		if !gone {
			<-a.c.done
			require.NoError(t, a.c.nbd.Close())
		}
		model := a.c.model
		a.rig = newRig(t, append(a.uris, "-repair-rate", "8M")...)
		a.c = a.client()
		copy(a.c.model, model)
		require.NoError(t, a.c.check())
		a.phase(2, jobtracker.Voting)
	}
	a.whole()
}

// TestRepairLongChanges: trims, zeroes, FUA writes and reads that span many extents, of which some are under copy.
func TestRepairLongChanges(t *testing.T) {
	forStress(t)
	const size = 8 << 20
	a := newAttacked(t, size, "-repair-rate", "32M")
	short, n := a.w, 0
	a.w = func() step {
		s := short()
		s.off = s.off / 2 / blockSize * blockSize
		switch n++; n % 7 {
		case 1:
			return step{command: nbd.CmdTrim, off: s.off, length: size / 4}
		case 2:
			return step{command: nbd.CmdWriteZeroes, off: s.off, length: size / 8, fua: true}
		case 3:
			return step{command: nbd.CmdWrite, off: s.off, length: size / 8, fua: true}
		case 4:
			return step{command: nbd.CmdRead, off: s.off, length: size / 4}
		}
		return s
	}
	for range longer(1) {
		a.under(func() { a.back(2, func() { a.lose(2) }) })
	}
	a.whole()
}

// TestRepairClientLeaves: clients go away, in order or not, while what they asked for waits behind copies.
func TestRepairClientLeaves(t *testing.T) {
	a := newAttacked(t, 8<<20, "-repair-rate", "32M")
	a.under(func() {
		a.back(2, func() {
			a.lose(2)
			a.phase(2, jobtracker.Repairing)
			for i := range 10 { // fewer than mirror serves at once: those that are gone count until nothing of theirs is left
				n, err := nbd.Dial(limited(t), a.uri)
				require.NoError(t, err)
				for k := range uint64(64) {
					h := nbd.Header{Command: nbd.CmdRead, Cookie: k, Offset: k * 128 << 10, Length: 64 << 10}
					require.NoError(t, n.Send(nbd.Call{Header: h}))
				}
				if i%2 == 0 {
					require.NoError(t, n.CloseWrite())
				}
				require.NoError(t, n.Close())
			}
		})
	})
	a.whole()
}

// TestR18RepairedDisksAreMarked: the rule that dirty bits come first holds for what is under repair too, copies included.
func TestR18RepairedDisksAreMarked(t *testing.T) {
	const size = 8 << 20
	spies, args := newSpies(t, size)
	r := newRig(t, append(args, "-create")...)
	c := r.client()
	a := &attacked{rig: r, c: c, w: load(size)}
	for i := range longer(3) {
		require.NoError(t, c.run(a.w, 200))
		a.under(func() { r.back(i%3, func() { a.lose(i % 3) }) })
	}
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	requireGood(t, spies)
}

// garbling is a connection that answers rubbish when it is told to, once.
type garbling struct {
	net.Conn
	now *atomic.Bool
}

func (g garbling) CloseWrite() error { return g.Conn.(*net.TCPConn).CloseWrite() }

func (g garbling) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	if n > 0 && g.now.CompareAndSwap(true, false) {
		for i := range p[:n] {
			p[i] = byte(i * 7)
		}
	}
	return n, err
}

// TestRepairGarbage: the target, and a source, answer rubbish in the middle of a repair. Their connections end, and all
// come back.
func TestRepairGarbage(t *testing.T) {
	const size = 8 << 20
	disks, args := failingDisks(t, 3, size)
	cfg, err := parse(append(args, "-create", "-repair-rate", "32M"), io.Discard)
	require.NoError(t, err)
	var now [3]atomic.Bool
	r, err := rigOf(t, cfg, func(s []source) {
		for i := range s {
			dial := s[i].dial
			s[i].dial = func(ctx context.Context) (net.Conn, string, error) {
				nc, export, err := dial(ctx)
				if err != nil {
					return nil, "", err
				}
				return garbling{nc, &now[i]}, export, nil
			}
		}
	})
	require.NoError(t, err)
	a := &attacked{rig: r, disks: disks, size: size, c: r.client(), w: load(size)}
	for i := range longer(3) {
		a.under(func() {
			r.back(2, func() {
				a.lose(2)
				r.phase(2, jobtracker.Repairing)
				r.back(i%3, func() { now[i%3].Store(true) })
			})
		})
	}
	a.whole()
}

// TestRepairOtherDisk: the disk of a replica that waits for its repair is smaller, or read-only, for a while. It is not touched
// until it is right again.
func TestRepairOtherDisk(t *testing.T) {
	forStress(t)
	a := newAttacked(t, 8<<20)
	for _, tc := range []struct {
		looks func(*nbd.Info)
		says  string // of the smaller one it depends on what its last MiB holds now
	}{
		{func(i *nbd.Info) { i.Size -= 2 << 20 }, "cannot be connected: it"},
		{func(i *nbd.Info) { i.Flags |= nbd.ReadOnly }, "cannot be connected: it cannot hold a replica: it is read-only"},
	} {
		i := a.disks[2].Info()
		tc.looks(&i)
		a.under(func() {
			a.back(2, func() {
				a.disks[2].looks.Store(&i)
				a.lose(2)
				a.said.await(t, tc.says)
				a.disks[2].looks.Store(nil)
			})
		})
	}
	a.whole()
}

// chaos does one harm to a replica, if another is active.
func (a *attacked) chaos(rnd *rand.Rand, i int) {
	once := func(left int, hit func(*nbd.Request) bool, err error) func(*nbd.Request) error {
		return func(r *nbd.Request) error {
			if !hit(r) {
				return nil
			}
			if left--; left >= 0 {
				return nil
			}
			a.fails(i, nil)
			return err
		}
	}
	is := func(c nbd.Command) func(*nbd.Request) bool {
		return func(r *nbd.Request) bool { return r.Command == c }
	}
	for j, r := range a.tracker.Stats().Replicas {
		if j == i || r.State.Phase != jobtracker.Voting {
			continue
		}
		switch rnd.IntN(6) {
		case 0:
			a.lose(i)
		case 1:
			a.drivers[i].cut(errCut)
		case 2:
			a.fails(i, once(rnd.IntN(20), is(nbd.CmdWrite), nbd.ENOSPC))
		case 3:
			a.fails(i, once(rnd.IntN(20), is(nbd.CmdRead), nbd.EIO))
		case 4:
			a.fails(i, once(0, func(*nbd.Request) bool { return true }, nbd.ESHUTDOWN))
		case 5: // none
		}
		return
	}
}

// TestRepairChaos: whatever is done to replicas, in the middle of repairs and one after the other, while another is active: the
// client sees nothing, and in the end all are active and alike. Half a minute of it, for other seeds each time, with -stress.
func TestRepairChaos(t *testing.T) {
	steps, seed := 8, uint64(1)
	if *stress {
		steps, seed = 200, rand.Uint64()
	}
	t.Logf("seed %d", seed)
	a := newAttacked(t, 8<<20, "-ack", "1", "-repair-rate", "64M", "-offline-for", "50ms")
	rnd := rand.New(rand.NewPCG(seed, 5))
	for range steps {
		i := rnd.IntN(len(a.disks))
		a.chaos(rnd, i)
		require.NoError(t, a.c.run(a.w, 20+rnd.IntN(400)))
		a.fails(i, nil)
		require.NoError(t, a.c.settle()) // what has failed is asked of another, which must be there until then
	}
	a.whole()
}

// TestRepairFullDisk: a replica whose disk is full fails its repair each time, late; nobody feels it, and it is not tried
// again at once. When there is room it comes back.
func TestRepairFullDisk(t *testing.T) {
	a := newAttacked(t, 8<<20)
	voter := a.drivers[2].current()
	full := func(r *nbd.Request) error {
		if r.Command == nbd.CmdWrite && r.Offset > 6<<20 && int64(r.Offset) < a.size {
			return nbd.ENOSPC
		}
		return nil
	}
	a.fails(2, full)
	a.under(func() {
		for range 2 {
			a.phase(2, jobtracker.Repairing)
			target := a.drivers[2].current()
			<-target.conn.Context().Done()
			require.True(t, target.gaveUp())
		}
	})
	require.False(t, voter.gaveUp(), "one that had voted has failed no repair")
	a.fails(2, nil)
	a.under(func() { a.phase(2, jobtracker.Voting) })
	a.whole()
}

// TestPauseAfter: a repair that was failed is not begun again before as much time has passed as it took, up to a limit.
func TestPauseAfter(t *testing.T) {
	for _, tc := range []struct {
		last, lived time.Duration
		gaveUp      bool
		want        time.Duration
	}{
		{firstPause, time.Hour, false, firstPause},
		{firstPause, time.Millisecond, false, 2 * firstPause},
		{longPause, time.Millisecond, false, longPause},
		{firstPause, time.Millisecond, true, 2 * firstPause},
		{longPause, 20 * time.Second, true, 20 * time.Second},
		{20 * time.Second, time.Second, true, longPause},
		{firstPause, time.Hour, true, longestPause},
	} {
		require.Equal(t, tc.want, pauseAfter(tc.last, tc.lived, tc.gaveUp), "%+v", tc)
	}
}
