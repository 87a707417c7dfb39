package main

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// load is a workload with every kind of request.
func load(size int64) workload { return mixed(invented(size, rand.New(rand.NewPCG(3, 4)))) }

func TestServeWriteReadVerify(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "16M")
	c := r.client()
	require.NoError(t, c.run(load(16<<20), 3000))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	requireModel(t, dir, c.model, 0, 1, 2)
	require.Equal(t, int32(3), r.clean.Load())
	for i := range 3 {
		m := metaOf(t, dir, i)
		require.True(t, m.clean)
		require.Zero(t, m.dirty.count(), "a flush is done on all: nothing is dirty")
		require.Equal(t, r.generation, m.generation)
	}
}

// TestSeveralClients: each has its own part of the device; a flush of one covers what all were answered.
func TestSeveralClients(t *testing.T) {
	r := newRig(t, "-size", "16M")
	var clients [4]*client
	for i := range clients {
		clients[i] = r.client()
	}
	var wg sync.WaitGroup
	errs := make([]error, len(clients))
	for i, c := range clients {
		inner := load(4 << 20)
		wg.Go(func() {
			errs[i] = c.run(func() step {
				s := inner()
				if s.command != nbd.CmdFlush {
					s.off += int64(i) * 4 << 20
				}
				return s
			}, 500)
			errs[i] = errors.Join(errs[i], c.sync())
		})
	}
	wg.Wait()
	for i, c := range clients {
		require.NoError(t, errs[i])
		require.NoError(t, c.close())
	}
	r.end()
}

// TestLongTrim: it is done in pieces, answered once, and what it covers reads as zeros everywhere.
func TestLongTrim(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "80M")
	c := r.client()
	for off := int64(0); off < 80<<20; off += 1 << 20 {
		require.NoError(t, c.send(step{command: nbd.CmdWrite, off: off, length: 4096}))
	}
	require.NoError(t, c.send(step{command: nbd.CmdTrim, off: 512, length: 79 << 20, fua: true}))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	requireModel(t, dir, c.model, 0, 1, 2)
}

func TestUnalignedIsRefused(t *testing.T) {
	r := newRig(t, "-size", "1M")
	c, err := nbd.Dial(t.Context(), r.uri)
	require.NoError(t, err)
	require.Equal(t, uint32(blockSize), c.Info().MinBlock)
	for _, h := range []nbd.Header{
		{Command: nbd.CmdRead, Offset: 1, Length: 512},
		{Command: nbd.CmdRead, Offset: 512, Length: 100},
		{Command: nbd.CmdTrim, Offset: 256, Length: 512},
		{Command: nbd.CmdWriteZeroes, Offset: 0, Length: 513},
	} {
		require.NoError(t, c.Send(nbd.Call{Header: h}))
		reply, err := c.Receive(func(uint64) (uint32, []byte, bool) { return h.Length, nil, true })
		require.NoError(t, err)
		require.Equal(t, nbd.EINVAL, reply.Errno, h)
	}
	require.NoError(t, c.Close())
	r.end()
}

// TestJ02CutAndReplay: answers on their way when the connection ends are orphans; the replica comes back by replay, once
// it is drained and not before (J30).
func TestJ02CutAndReplay(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "16M")
	c := r.client()
	w := load(16 << 20)
	for range 3 {
		require.NoError(t, c.run(w, 500))
		release, done := strand(limited(t), r.drivers[1], r.parts.locals[1], r.watch)
		_, err := c.runUntil(w, math.MaxInt, done)
		require.NoError(t, err)
		require.NoError(t, c.run(w, 300))
		_, err = r.tracker.Connect(1, jobtracker.Hello{})
		require.ErrorIs(t, err, jobtracker.ErrNotQuiesced)
		before := r.tracker.Stats()
		r.back(1, release)
		after := r.tracker.Stats()
		require.Greater(t, after.Orphans[jobtracker.OrphanStaleConn], before.Orphans[jobtracker.OrphanStaleConn])
	}
	require.NoError(t, c.run(w, 500))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	requireModel(t, dir, c.model, 0, 1, 2)
	require.Equal(t, int32(3), r.clean.Load())
	require.Contains(t, orphans(new(r.tracker.Stats())), "stale connection")
}

// TestJ08SilentReplica: one that stays connected and never answers holds nobody up for longer than the limits say, and is
// then said to need a repair; the end does not wait for it for ever.
func TestJ08SilentReplica(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "16M", "-reply-timeout", "500ms", "-offline-for", "100ms", "-repair=false")
	c := r.client()
	w := load(16 << 20)
	require.NoError(t, c.run(w, 200))
	_, release := r.parts.locals[2].hold()
	require.NoError(t, c.run(w, 1000))
	require.NoError(t, c.sync())
	r.said.await(t, "stopping(faulted)")
	r.said.await(t, "NEEDS A REPAIR")
	require.NoError(t, c.run(w, 200))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	require.NoError(t, r.stop())
	require.Contains(t, r.said.String(), "has not ended the connection", "the end must say what it leaves behind")
	release()
	r.parts.close()
	requireModel(t, dir, c.model, 0, 1)
	require.Equal(t, int32(2), r.clean.Load())
	require.Positive(t, metaOf(t, dir, 0).dirty.count(), "what one replica lacks stays dirty on the others")
}

// gates are in front of replicas: one that is shut cannot be connected.
type gates []atomic.Bool

func (g gates) change(sources []source) {
	for i := range sources {
		dial := sources[i].dial
		sources[i].dial = func(ctx context.Context) (net.Conn, string, error) {
			if g[i].Load() {
				return nil, "", errors.New("the gate is shut")
			}
			return dial(ctx)
		}
	}
}

// gated is a device behind gates.
func gated(t *testing.T, args ...string) (*rig, gates) {
	t.Helper()
	g := make(gates, 7)
	cfg, err := parse(args, io.Discard)
	require.NoError(t, err)
	r, err := rigOf(t, cfg, g.change)
	require.NoError(t, err)
	return r, g
}

// TestJ13OfflineLimits: a replica that misses too much is faulted; when it comes back it is left alone.
func TestJ13OfflineLimits(t *testing.T) {
	for name, args := range map[string][]string{
		"jobs": {"-offline-jobs", "64"},
		"for":  {"-offline-for", "50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r, g := gated(t, append(args, "-dir", dir, "-size", "16M", "-repair=false")...)
			c := r.client()
			w := load(16 << 20)
			require.NoError(t, c.run(w, 100))
			g[0].Store(true)
			r.drivers[0].cut(errCut)
			require.NoError(t, c.run(w, 500))
			r.said.await(t, "NEEDS A REPAIR")
			r.said.await(t, "the gate is shut")
			g[0].Store(false)
			r.phase(0, jobtracker.RepairReady)
			require.NoError(t, c.run(w, 100))
			require.NoError(t, c.check())
			require.NoError(t, c.close())
			dispatched := r.tracker.Stats().Replicas[0].Dispatched
			r.end()
			require.Equal(t, dispatched, r.tracker.Stats().Replicas[0].Dispatched)
			requireModel(t, dir, c.model, 1, 2)
			require.Equal(t, int32(2), r.clean.Load())

			again := newRig(t, "-dir", dir, "-repair=false")
			again.said.await(t, "NEEDS A REPAIR")
			c2 := again.client()
			copy(c2.model, c.model)
			require.NoError(t, c2.check())
			require.NoError(t, c2.close())
			again.end()
		})
	}
}

// TestLateReadIsNotDelivered: a read whose replica was cut is asked of another one. The late answer of the first is refused
// by the tracker, so the client gets nothing of it.
func TestLateReadIsNotDelivered(t *testing.T) {
	r := newRig(t, "-size", "1M")
	c, err := nbd.Dial(t.Context(), r.uri)
	require.NoError(t, err)
	var releases []func()
	var caught []<-chan struct{}
	for _, l := range r.parts.locals {
		got, release := l.hold()
		caught, releases = append(caught, got), append(releases, release)
	}
	for i := range uint64(3) { // one for each
		require.NoError(t, c.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdRead, Cookie: i, Offset: i * 4096, Length: 4096}}))
	}
	for _, got := range caught {
		<-got
	}
	r.drivers[1].cut(errCut)
	releases[1]()
	require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] == 2 }))
	require.Equal(t, uint64(1), r.tracker.Stats().Orphans[jobtracker.OrphanStaleConn])
	require.NoError(t, c.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdRead, Cookie: 9, Offset: 1, Length: 1}}))
	lookup := func(cookie uint64) (uint32, []byte, bool) { return 4096, nil, true }
	reply, err := c.Receive(lookup)
	require.NoError(t, err)
	require.Equal(t, uint64(9), reply.Cookie, "a read was answered that no replica has an accepted answer to")
	releases[0]()
	releases[2]()
	for range 3 {
		reply, err = c.Receive(lookup)
		require.NoError(t, err)
		require.NoError(t, reply.Err())
	}
	require.NoError(t, c.Close())
	r.end()
}

// TestPayloadIsHeld: a payload that nobody holds any more cannot be held again.
func TestPayloadIsHeld(t *testing.T) {
	q := newRequest(&nbd.Request{}, 1)
	require.True(t, q.hold())
	q.drop(1)
	require.True(t, q.hold(), "its job is not retired")
	q.drop(2)
	require.False(t, q.hold())
}

// broken is a connection that ends without an end of the stream.
type broken struct {
	net.Conn
	broken *atomic.Bool
}

func (b broken) CloseWrite() error { return b.Conn.(*net.TCPConn).CloseWrite() }

var errBroken = errors.New("no route")

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if err != nil && b.broken.Load() {
		err = errBroken
	}
	return n, err
}

// TestCutOff: where it cannot be known that a replica executes nothing more, it is not connected again.
func TestCutOff(t *testing.T) {
	var down atomic.Bool
	cfg, err := parse([]string{"-size", "1M", "-repair=false"}, io.Discard)
	require.NoError(t, err)
	r, err := rigOf(t, cfg, func(s []source) {
		dial := s[1].dial
		s[1].dial = func(ctx context.Context) (net.Conn, string, error) {
			nc, export, err := dial(ctx)
			if err != nil {
				return nil, "", err
			}
			return broken{nc, &down}, export, nil
		}
	})
	require.NoError(t, err)
	down.Store(true)
	r.drivers[1].cut(errCut)
	r.said.await(t, "CUT OFF")
	r.said.await(t, "NEEDS A REPAIR")
	require.Equal(t, jobtracker.Stopping, r.tracker.Stats().Replicas[1].State.Phase)
	c := r.client()
	require.NoError(t, c.run(load(1<<20), 100))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
}

// TestNobodyLeft: when the last replica is faulted the device ends, and says so.
func TestNobodyLeft(t *testing.T) {
	r := newRig(t, "-size", "1M", "-replicas", "1")
	c := r.client()
	require.NoError(t, c.run(load(1<<20), 20))
	require.NoError(t, c.settle())
	require.NoError(t, r.tracker.Fault(0, errCut))
	<-r.failed
	r.said.await(t, "the device has ENDED")
	require.Error(t, r.until(t.Context()))
	require.NoError(t, c.send(step{command: nbd.CmdFlush}))
	<-c.failed
	require.ErrorIs(t, c.error(), nbd.ESHUTDOWN)
	_ = c.nbd.Close()
	<-c.done
	require.Error(t, r.stop())
	r.parts.close()
}

// TestDemo is the demonstration, cut short.
func TestDemo(t *testing.T) {
	cfg, err := parse([]string{"-demo"}, io.Discard)
	require.NoError(t, err)
	said := newDiary(t.Output())
	require.NoError(t, play(t.Context(), cfg, log.New(said, "", 0), slog.New(slog.DiscardHandler), 1500))
	for _, words := range []string{"PROVEN", "by replay", "by repair", "lost a second time", "reconciled: "} {
		require.Contains(t, said.String(), words)
	}
	require.Contains(t, said.String(), "stale connection")
}
