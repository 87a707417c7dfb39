package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

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
		cfg, err := parse([]string{"-dir", dir, "-wait", "100ms", "-repair=false"}, io.Discard)
		require.NoError(t, err)
		r, err := rigOf(t, cfg, g.change)
		require.NoError(t, err)
		require.Contains(t, r.said.String(), "the gate is shut; trying for 100ms")
		require.Equal(t, "2 of 3 replicas", r.strength())
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

// TestOneFromACrash: two that are clean and hold the same begin; a third that is from a crash does not force them to be
// reconciled.
func TestOneFromACrash(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "4M")
	c := r.client()
	require.NoError(t, c.run(load(4<<20), 300))
	require.NoError(t, c.settle())
	crashed := copyDir(t, dir)
	require.NoError(t, c.close())
	r.end()
	b, err := os.ReadFile(filepath.Join(crashed, "replica-0.img"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "replica-0.img"), b, 0o600))
	r = newRig(t, "-dir", dir, "-repair=false")
	r.said.await(t, "NEEDS A REPAIR")
	require.NotContains(t, r.said.String(), "reconcile:")
	r.end()
}

// TestIdleIsClean: a device that was flushed and left alone for a while survives even a crash without a reconcile.
func TestIdleIsClean(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "1M", "-v")
	c := r.client()
	require.NoError(t, c.run(load(1<<20), 100))
	require.NoError(t, c.sync())
	for i := range 3 {
		r.said.await(t, fmt.Sprintf("msg=\"extents are clean again\" replica=%d dirty=0", i))
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
	r := newRig(t, "-dir", one, "-repair=false")
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
