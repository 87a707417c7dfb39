package main

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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
		caught, release := r.parts.locals[1].hold()
		cut := make(chan struct{})
		go func() {
			<-caught
			r.drivers[1].cut(errCut)
			close(cut)
		}()
		require.NoError(t, c.run(w, 500))
		<-cut
		_, err := r.tracker.Connect(1, jobtracker.Hello{})
		require.ErrorIs(t, err, jobtracker.ErrNotQuiesced)
		before := r.tracker.Stats()
		release()
		r.phase(1, jobtracker.Voting)
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
	r := newRig(t, "-dir", dir, "-size", "16M", "-reply-timeout", "500ms", "-offline-for", "100ms")
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
			r, g := gated(t, append(args, "-dir", dir, "-size", "16M")...)
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

			again := newRig(t, "-dir", dir)
			again.said.await(t, "NEEDS A REPAIR")
			c2 := again.client()
			copy(c2.model, c.model)
			require.NoError(t, c2.check())
			require.NoError(t, c2.close())
			again.end()
		})
	}
}

func TestRestartFromDisk(t *testing.T) {
	dir := t.TempDir()
	var model []byte
	var generation uint64
	for range 3 {
		r := newRig(t, "-dir", dir, "-size", "8M", "-ack", "3")
		require.Greater(t, r.generation, generation)
		generation = r.generation
		c := r.client()
		copy(c.model, model)
		require.NoError(t, c.check())
		require.NoError(t, c.run(load(8<<20), 300))
		require.NoError(t, c.close())
		r.end()
		model = c.model
		requireModel(t, dir, model, 0, 1, 2)
	}
	for want, args := range map[string][]string{
		"made with -ack 3, and 2 is given": {"-ack", "2"},
		"has 3 replicas, and 2 are given":  {"-replicas", "2"},
		"-size is 16777216":                {"-size", "16M"},
	} {
		_, err := tryRig(t, append(args, "-dir", dir)...)
		require.ErrorContains(t, err, want)
	}
}

// TestLateReplica: one that is missing at the start and has everything joins as long as nothing was written; one that is
// missing for longer needs a repair.
func TestLateReplica(t *testing.T) {
	dir := t.TempDir()
	newRig(t, "-dir", dir, "-size", "1M").end()
	for _, written := range []bool{false, true} {
		g := make(gates, 7)
		g[2].Store(true)
		cfg, err := parse([]string{"-dir", dir, "-wait", "100ms"}, io.Discard)
		require.NoError(t, err)
		r, err := rigOf(t, cfg, g.change)
		require.NoError(t, err)
		require.Contains(t, r.said.String(), "the gate is shut")
		c := r.client()
		if written {
			require.NoError(t, c.run(load(1<<20), 50))
		}
		g[2].Store(false)
		want := jobtracker.Voting
		if written {
			want = jobtracker.RepairReady
		}
		r.phase(2, want)
		require.NoError(t, c.check())
		require.NoError(t, c.close())
		r.end()
	}
}

// TestCrashNeedsReconcile: the disks as they are at any moment under load are those of a crash. It is said, with what each
// replica holds, and nothing is served.
func TestCrashNeedsReconcile(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "4M")
	c := r.client()
	require.NoError(t, c.run(load(4<<20), 300))
	require.NoError(t, c.settle())
	crashed := copyDir(t, dir)
	require.NoError(t, c.close())
	r.end()
	again, err := tryRig(t, "-dir", crashed)
	require.ErrorIs(t, err, errReconcile)
	require.Contains(t, again.said.String(), "DIRTY")

	// Two of three that differ are no majority, and the third cannot help. The one that was in the crash is dirty.
	b, err := os.ReadFile(filepath.Join(crashed, "replica-0.img"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "replica-0.img"), b, 0o600))
	r = newRig(t, "-dir", dir)
	r.said.await(t, "NEEDS A REPAIR")
	r.end()
}

// TestIdleIsClean: a device that was flushed and left alone for a while survives even a crash without a reconcile.
func TestIdleIsClean(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "1M")
	c := r.client()
	require.NoError(t, c.run(load(1<<20), 100))
	require.NoError(t, c.sync())
	tidied := time.NewTicker(calmFor / 8) // the sender looks by the clock; so must we
	defer tidied.Stop()
	for limit := limited(t); ; {
		dirty := 0
		for i := range 3 {
			dirty += metaOf(t, dir, i).dirty.count()
		}
		if dirty == 0 {
			break
		}
		select {
		case <-tidied.C:
		case <-limit.Done():
			require.Fail(t, "bits stay dirty")
		}
	}
	crashed := copyDir(t, dir)
	require.NoError(t, c.close())
	r.end()
	again := newRig(t, "-dir", crashed)
	d := again.client()
	copy(d.model, c.model)
	require.NoError(t, d.check())
	require.NoError(t, d.close())
	again.end()
}

func TestForeignReplicaIsRefused(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	newRig(t, "-dir", one, "-size", "1M").end()
	newRig(t, "-dir", two, "-size", "1M").end()
	b, err := os.ReadFile(filepath.Join(two, "replica-1.img"))
	require.NoError(t, err)
	path := filepath.Join(one, "replica-1.img")
	was, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err = tryRig(t, "-dir", one)
	require.ErrorContains(t, err, "belongs to another device")
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b, now, "it must not be touched")

	b, err = os.ReadFile(filepath.Join(one, "replica-0.img"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err = tryRig(t, "-dir", one)
	require.ErrorContains(t, err, "are the same one")

	require.NoError(t, os.WriteFile(path, make([]byte, len(b)), 0o600))
	r := newRig(t, "-dir", one)
	r.said.await(t, "it is blank")
	r.phase(1, jobtracker.RepairReady)
	r.end()

	b[len(b)-metaSpace+40] ^= 1
	b[len(b)-metaStride+40] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err = tryRig(t, "-dir", one)
	require.ErrorIs(t, err, errDamaged)
	require.NoError(t, os.WriteFile(path, was, 0o600))
	newRig(t, "-dir", one).end()
}

// TestForeignReplicaLater: one that takes a replica's place while the device runs is refused as well, and not touched.
func TestForeignReplicaLater(t *testing.T) {
	other := t.TempDir()
	newRig(t, "-dir", other, "-size", "1M").end()
	l, err := newLocal(filepath.Join(other, "replica-0.img"), 0)
	require.NoError(t, err)
	var swapped atomic.Bool
	cfg, err := parse([]string{"-size", "1M"}, io.Discard)
	require.NoError(t, err)
	r, err := rigOf(t, cfg, func(s []source) {
		dial := s[1].dial
		s[1].dial = func(ctx context.Context) (net.Conn, string, error) {
			if swapped.Load() {
				return l.source().dial(ctx)
			}
			return dial(ctx)
		}
	})
	require.NoError(t, err)
	swapped.Store(true)
	r.drivers[1].cut(errCut)
	r.said.await(t, "belongs to another device")
	r.end()
	l.close()
}

// spy is a replica that holds every change it is asked for against what its metadata says at that moment.
type spy struct {
	*nbd.File
	size    int64
	changes atomic.Int64
	slow    atomic.Int64 // how long a copy of the metadata takes, in nanoseconds
	wrong   atomic.Pointer[string]
}

// Info does not offer trim: none is to be sent.
func (s *spy) Info() nbd.Info {
	i := s.File.Info()
	i.Flags &^= nbd.SendTrim
	return i
}

func (s *spy) Submit(ctx context.Context, r *nbd.Request) {
	change := r.Command == nbd.CmdWrite || r.Command == nbd.CmdWriteZeroes
	switch {
	case change && int64(r.Offset) < s.size:
		s.changes.Add(1)
		if why := s.look(r); why != "" {
			s.wrong.CompareAndSwap(nil, &why)
		}
	case change && s.slow.Load() > 0:
		time.AfterFunc(time.Duration(s.slow.Load()), func() { s.File.Submit(ctx, r) })
		return
	}
	s.File.Submit(ctx, r)
}

func (s *spy) look(r *nbd.Request) string {
	copies := make([]byte, 2*maxMeta)
	if err := errors.Join(s.ReadAt(copies[:maxMeta], s.size), s.ReadAt(copies[maxMeta:], s.size+metaStride)); err != nil {
		return err.Error()
	}
	m, _, err := newest(copies[:maxMeta], copies[maxMeta:])
	if err != nil {
		return "a change before the metadata: " + err.Error()
	}
	from, to := m.span(r.Offset/blockSize, uint64(r.Length)/blockSize)
	for e := from; e < to; e++ {
		if !m.dirty.has(e) {
			return "a change to an extent whose bit is not durable"
		}
	}
	if m.clean {
		return "a change to a replica that says it is clean"
	}
	return ""
}

// served offers a backend as a real server would.
func served(t *testing.T, b nbd.Backend) (uri string) {
	t.Helper()
	srv, err := nbd.NewServer(nbd.Options{Exports: []nbd.Export{{Name: "disk", Backend: b}}})
	require.NoError(t, err)
	ln := listen(t)
	end := make(chan error, 1)
	go func() { end <- srv.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		require.ErrorIs(t, <-end, nbd.ErrServerClosed)
	})
	return clientURI(ln.Addr()) + "/disk"
}

// TestDirtyBitsComeFirst: no change reaches a replica before the dirty bits of its extents and the generation are durable
// there, whatever is cut and cleared in between.
func TestDirtyBitsComeFirst(t *testing.T) {
	const size = 8 << 20
	args := []string{"-create"}
	var spies []*spy
	for range 3 {
		disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
		require.NoError(t, err)
		require.NoError(t, disk.Truncate(size+metaSpace))
		f, err := nbd.NewFile(disk, nbd.FileOptions{})
		require.NoError(t, err)
		t.Cleanup(func() {
			require.NoError(t, f.Close())
			require.NoError(t, disk.Close())
		})
		s := &spy{File: f, size: size}
		spies = append(spies, s)
		args = append(args, "-replica", served(t, s))
	}
	var model []byte
	for round := range 3 {
		r := newRig(t, args...)
		c := r.client()
		copy(c.model, model)
		w := load(size)
		for i := range 3 {
			require.NoError(t, c.run(w, 300))
			r.drivers[i].cut(errCut)
			require.NoError(t, c.run(w, 100))
			r.phase(i, jobtracker.Voting)
		}
		require.NoError(t, c.check())
		require.NoError(t, c.close())
		r.end()
		model = c.model
		if round == 0 {
			_, err := tryRig(t, args...)
			require.ErrorContains(t, err, "-create overwrites nothing")
			args = args[1:]
		}
	}
	requireGood := func() {
		for i, s := range spies {
			if why := s.wrong.Load(); why != nil {
				require.Fail(t, *why, "replica %d", i)
			}
			require.Positive(t, s.changes.Load())
		}
	}
	requireGood()

	// Bits that are left because a replica is missing allow nothing before the new generation is durable, however long
	// that takes.
	for i := range 2 {
		r := newRig(t, args...)
		c := r.client()
		copy(c.model, model)
		if i == 0 {
			require.NoError(t, r.tracker.Fault(2, errCut))
		}
		require.NoError(t, c.run(load(size), 100))
		require.NoError(t, c.close())
		r.end()
		model = c.model
		spies[0].slow.Store(int64(50 * time.Millisecond))
	}
	requireGood()
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
	cfg, err := parse([]string{"-size", "1M"}, io.Discard)
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

// bare is a backend that offers little.
type bare struct{ info nbd.Info }

func (b *bare) Info() nbd.Info                           { return b.info }
func (b *bare) Submit(_ context.Context, r *nbd.Request) { r.Release(); r.Reply(nil) }
func (b *bare) with(f nbd.TransmissionFlags) nbd.Backend { b.info.Flags = f; return b }
func small(size int64) *bare                             { return &bare{nbd.Info{Size: size}} }

const enough = nbd.SendFlush | nbd.SendFUA | nbd.SendWriteZeroes

func TestUnfitReplicas(t *testing.T) {
	unfit := small(4 << 20)
	unfit.info.Flags = enough
	for want, b := range map[string]nbd.Backend{
		"does not offer flush":        small(4 << 20).with(nbd.SendFUA | nbd.SendWriteZeroes),
		"does not offer FUA":          small(4 << 20).with(nbd.SendFlush | nbd.SendWriteZeroes),
		"does not offer write zeroes": small(4 << 20).with(nbd.SendFlush | nbd.SendFUA),
		"read-only":                   small(4 << 20).with(enough | nbd.ReadOnly),
		"keeps the last 1048576":      small(1 << 20).with(enough),
		"blocks have 4096 bytes":      &bare{nbd.Info{Size: 4 << 20, Flags: enough, MinBlock: 4096}},
		"less than 33554432":          &bare{nbd.Info{Size: 4 << 20, Flags: enough, MaxBlock: 1 << 20}},
	} {
		uri := served(t, b)
		_, err := tryRig(t, "-create", "-replica", uri)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "replica 0 ("+uri+")")
	}
	blank := served(t, small(4<<20).with(enough))
	_, err := tryRig(t, "-replica", blank)
	require.Error(t, err)
	_, err = tryRig(t, "-wait", "50ms", "-replica", "nbd+unix:///?socket="+filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no replica can be reached")
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
	require.Contains(t, said.String(), "PROVEN")
	require.Contains(t, said.String(), "stale connection")
}

func TestTraceLines(t *testing.T) {
	for line, ok := range map[string]bool{
		"1,5633898,2a,512,42932745": true, "1,0,28,69632,15943": true,
		"": false, "1,2,3": false, "1,0,2b,512,1": false, "1,0,28,511,1": false, "1,0,28,x,1": false, "1,0,28,512,-1": false,
	} {
		s, err := parseTraced(line, demoSize)
		require.Equal(t, ok, err == nil, line)
		require.LessOrEqual(t, s.off+int64(s.length), int64(demoSize))
	}
}

func TestBadFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-none"}, "not defined"},
		{[]string{"extra"}, `unexpected argument "extra"`},
		{[]string{"-replicas", "0"}, "-replicas is 0, not in 1 to 7"},
		{[]string{"-replicas", "8"}, "-replicas is 8"},
		{[]string{"-ack", "4"}, "-ack is 4, not in 1 to 3"},
		{[]string{"-ack", "0"}, "-ack is 0"},
		{[]string{"-size", "12Q"}, "not a number of bytes"},
		{[]string{"-size", "9999999999T"}, "not a number of bytes"},
		{[]string{"-size", "1K"}, "-size is 1K, not in 64K"},
		{[]string{"-size", "1000001"}, "not a multiple of 512"},
		{[]string{"-offline-jobs", "1"}, "-offline-jobs is 1, not in 64"},
		{[]string{"-offline-bytes", "1M"}, "-offline-bytes is 1M, not in 32M"},
		{[]string{"-offline-for", "-1s"}, "-offline-for is -1s"},
		{[]string{"-reply-timeout", "0"}, "-reply-timeout is 0s"},
		{[]string{"-listen", "nowhere"}, "neither host:port nor unix:path"},
		{[]string{"-listen", "unix:"}, "has no path"},
		{[]string{"-create"}, "-create is for replicas given with -replica"},
		{[]string{"-replica", "nbd://h/x", "-size", "1M"}, "-size is for replicas in this process"},
		{[]string{"-replica", "nbd://h/x", "-dir", "d"}, "-dir is for replicas in this process"},
	} {
		var out strings.Builder
		require.Equal(t, exitUsage, run(tc.args, &out, &out), tc.args)
		require.Contains(t, out.String(), tc.want)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-replica", "http://h/x", "-listen", "127.0.0.1:0"}, "scheme is neither"},
		{[]string{"-demo", "-size", "1M"}, "-size has no place in the demonstration"},
		{[]string{"-listen", "256.0.0.1:0"}, "listen tcp"},
	} {
		var out strings.Builder
		require.Equal(t, exitFailed, run(tc.args, &out, &out), tc.args)
		require.Contains(t, out.String(), tc.want)
	}
	var out strings.Builder
	require.Equal(t, exitGood, run([]string{"-h"}, &out, &out))
	for _, words := range []string{"8192", "128M", "30s", "10s", "-offline-jobs", "last MiB", "Exit status"} {
		require.Contains(t, out.String(), words)
	}
}

func TestBytes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "512": 512, "64K": 64 << 10, "64k": 64 << 10, "3M": 3 << 20, "1G": 1 << 30, "2T": 2 << 40} {
		var b bytesFlag
		require.NoError(t, b.Set(s))
		require.Equal(t, want, int64(b))
		require.Equal(t, strings.ToUpper(s), b.String())
	}
}
