package main

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// busy has a client go on until something has happened.
func (r *rig) busy(c *client, w workload, happened func()) {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		happened()
	}()
	_, err := c.runUntil(w, math.MaxInt, done)
	require.NoError(r.t, err)
}

// TestReplaceUnderLoad: a replica is replaced under load, twice, and a third time in the middle of its repair; a blank file takes
// its place each time, and what was there is kept. Answers of the old ones are orphans.
func TestReplaceUnderLoad(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "8M", "-repair-rate", "32M")
	c, w := r.client(), load(8<<20)
	require.NoError(t, c.run(w, 300))
	for range 2 {
		caught, release := r.parts.locals[1].hold()
		r.busy(c, w, func() { <-caught })
		before := r.tracker.Stats().Orphans[jobtracker.OrphanStaleConn]
		joins := r.watch.joins(1)
		require.NoError(t, r.replace(t.Context(), 1, ""))
		release()
		r.busy(c, w, func() {
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] > joins }))
		})
		require.Greater(t, r.tracker.Stats().Orphans[jobtracker.OrphanStaleConn], before)
	}
	require.NoError(t, r.replace(t.Context(), 1, ""))
	r.busy(c, w, func() { r.phase(1, jobtracker.Repairing) })
	joins := r.watch.joins(1)
	require.NoError(t, r.replace(t.Context(), 1, ""))
	r.busy(c, w, func() {
		require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] > joins }))
	})
	require.NoError(t, c.run(w, 100))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	require.Zero(t, r.badJobs.Load(), "copies that end with a repair are nobody's failures")
	r.end()
	require.Equal(t, int32(3), r.clean.Load())
	requireModel(t, dir, c.model, 0, 1, 2)
	for _, n := range []string{"1", "2", "3", "4"} {
		i, err := os.Stat(filepath.Join(dir, "replica-1.img.replaced-"+n))
		require.NoError(t, err)
		require.Equal(t, int64(9<<20), i.Size())
	}
	again := newRig(t, "-dir", dir)
	require.Equal(t, "3 replicas", again.strength())
	again.end()
}

// TestReplaceLostFile: a file of -dir that is missing, or cannot be one of this device, has a blank one put in its place.
func TestReplaceLostFile(t *testing.T) {
	dir := t.TempDir()
	newRig(t, "-dir", dir, "-size", "1M").end()
	require.NoError(t, os.Remove(filepath.Join(dir, "replica-2.img")))
	r := newRig(t, "-dir", dir, "-wait", "100ms")
	require.NoError(t, r.replace(t.Context(), 2, ""))
	r.phase(2, jobtracker.Voting)
	r.end()
	require.NoFileExists(t, filepath.Join(dir, "replica-2.img.replaced-1"))
	require.Equal(t, int32(3), r.clean.Load())
}

// mute is a device of three, one of which answers nothing from some time on, and whose connection never ends.
func mute(t *testing.T) (r *rig, disks []*failing, hush func() (release func())) {
	t.Helper()
	disks, args := failingDisks(t, 3, 4<<20)
	r = newRig(t, append(args, "-create", "-reply-timeout", "1s", "-offline-for", "100ms")...)
	return r, disks, func() func() {
		stop := make(chan struct{})
		hold := func(*nbd.Request) error {
			<-stop
			return nil
		}
		disks[1].fail.Store(&hold)
		release := sync.OnceFunc(func() {
			disks[1].fail.CompareAndSwap(&hold, nil)
			close(stop)
		})
		t.Cleanup(release)
		return release
	}
}

// TestReplaceDeadPeer: a replica whose server is stopped for good is faulted and never quiesces; another device takes its
// place. When it goes on after all, what it answers are orphans, and the device takes no notice.
func TestReplaceDeadPeer(t *testing.T) {
	r, _, hush := mute(t)
	blank, at := failingDisks(t, 1, 5<<20)
	c, w := r.client(), load(4<<20)
	require.NoError(t, c.run(w, 100))
	release := hush()
	r.busy(c, w, func() { r.said.await(t, "NEEDS A REPAIR") })
	require.Equal(t, jobtracker.Stopping, r.tracker.Stats().Replicas[1].State.Phase)
	require.NoError(t, r.replace(t.Context(), 1, at[1]))
	r.busy(c, w, func() { r.phase(1, jobtracker.Voting) })
	before := r.tracker.Stats().Orphans[jobtracker.OrphanStaleConn]
	release()
	require.NoError(t, c.run(w, 100))
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	require.Greater(t, r.tracker.Stats().Orphans[jobtracker.OrphanStaleConn], before, "the late answers were not counted")
	require.Equal(t, int32(3), r.clean.Load())
	got := make([]byte, len(c.model))
	require.NoError(t, blank[0].ReadAt(got, 0))
	require.Equal(t, c.model, got)
}

// TestReplaceAtTheSamePlace: what was sent to a place that is stopped is still executed there, so whatever takes its place
// is not connected before that has come to an end.
func TestReplaceAtTheSamePlace(t *testing.T) {
	for _, named := range []bool{false, true} {
		r, disks, hush := mute(t)
		c, w := r.client(), load(4<<20)
		require.NoError(t, c.run(w, 100))
		var uri string
		if named {
			uri = r.drivers[1].name()
		}
		release := hush()
		r.busy(c, w, func() { r.said.await(t, "NEEDS A REPAIR") })
		joins := r.watch.joins(1)
		require.NoError(t, r.replace(t.Context(), 1, uri))
		r.busy(c, w, func() { r.said.await(t, "the former connection to this place has not ended") })
		is := r.tracker.Stats().Replicas[1].State
		require.Equal(t, jobtracker.ReplicaState{Phase: jobtracker.Down, Home: jobtracker.HomeReplaced}, is)
		var forgot atomic.Bool
		spy := func(req *nbd.Request) error {
			if req.Command == nbd.CmdWriteZeroes && req.Offset == 4<<20 && req.Length == metaSpace {
				forgot.Store(true)
			}
			return nil
		}
		disks[1].fail.Store(&spy)
		release()
		r.busy(c, w, func() {
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] > joins }))
		})
		require.True(t, forgot.Load(), "it must not say that it has what was flushed before it has")
		require.NoError(t, c.check())
		require.NoError(t, c.close())
		r.end()
	}
}

// TestReplaceCutOff: a replica that was cut off, so that nobody knows what it still executes, is got rid of.
func TestReplaceCutOff(t *testing.T) {
	var down atomic.Bool
	cfg, err := parse([]string{"-size", "1M"}, io.Discard)
	require.NoError(t, err)
	r, err := rigOf(t, cfg, func(s []source) {
		dial := s[1].dial
		s[1].dial = func(ctx context.Context) (net.Conn, string, error) {
			nc, export, err := dial(ctx)
			return broken{nc, &down}, export, err
		}
	})
	require.NoError(t, err)
	down.Store(true)
	r.drivers[1].cut(errCut)
	r.said.await(t, "CUT OFF")
	require.NoError(t, r.replace(t.Context(), 1, ""))
	require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] == 2 }))
	r.end()
	require.Equal(t, int32(3), r.clean.Load())
}

// TestReplaceIsRefused: what cannot take a replica's place is refused, with the field that is wrong, and nothing changes: not
// the device, and not what was named.
func TestReplaceIsRefused(t *testing.T) {
	const size = 1 << 20
	disks, args := failingDisks(t, 3, size)
	r := newRig(t, append(args, "-create")...)
	foreign, other := failingDisks(t, 1, size)
	newRig(t, append(other, "-create")...).end()
	small, narrow := failingDisks(t, 1, size-blockSize)
	twin := serveFile(t, copyOf(t, disks[0], size+metaSpace))
	was := make([]byte, size+metaSpace)
	require.NoError(t, foreign[0].ReadAt(was, 0))
	for _, tc := range []struct {
		replica  int
		uri      string
		field    string
		conflict bool
		want     string
	}{
		{3, "", "replica", false, "3 is not in 0 to 2"},
		{-1, "", "replica", false, "-1 is not in 0 to 2"},
		{1, "http://h", "uri", false, "scheme is neither"},
		{1, other[1], "uri", true, "belongs to another device"},
		{1, narrow[1], "uri", true, "it has room for 1048064 bytes, and the device has 1048576"},
		{1, args[1], "uri", true, "it names replica 0"},
		{1, twin, "uri", true, "it is or was a replica of this device"},
		{1, "nbd+unix:///?socket=/nowhere/to/be/found", "uri", true, "it cannot be connected"},
	} {
		before := r.tracker.Fingerprint()
		err := r.replace(t.Context(), tc.replica, tc.uri)
		var f *fieldError
		require.ErrorAs(t, err, &f, tc.want)
		require.Equal(t, tc.field, f.field)
		require.Equal(t, tc.conflict, f.conflict)
		require.ErrorContains(t, err, tc.want)
		require.Equal(t, before, r.tracker.Fingerprint(), "something has changed")
		require.Equal(t, args[3], r.drivers[1].name())
	}
	now := make([]byte, size+metaSpace)
	require.NoError(t, foreign[0].ReadAt(now, 0))
	require.Equal(t, was, now, "it was touched")
	require.NoError(t, small[0].ReadAt(now[:len(now)-blockSize], 0))
	require.Equal(t, make([]byte, len(now)-blockSize), now[:len(now)-blockSize], "it was touched")

	// One of the last two that a write needs is not spared; the one that is gone already may be replaced.
	no := func(*nbd.Request) error { return nbd.ESHUTDOWN }
	disks[2].fail.Store(&no)
	require.NoError(t, r.tracker.Fault(2, errors.New("the test faults it")))
	require.ErrorContains(t, r.replace(t.Context(), 0, ""), "1 of the others are active, and a write needs 2")
	require.NoError(t, r.replace(t.Context(), 2, ""))
	disks[2].fail.Store(nil)
	r.phase(2, jobtracker.Voting)
	r.end()
	require.ErrorIs(t, r.replace(t.Context(), 1, ""), errEnding)
}

// copyOf is a file with what a disk holds.
func copyOf(t *testing.T, d *failing, size int) (path string) {
	t.Helper()
	b := make([]byte, size)
	require.NoError(t, d.ReadAt(b, 0))
	path = filepath.Join(t.TempDir(), "copy")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}
