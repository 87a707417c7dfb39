package main

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// TestRepair: a replica that was missing for too long, or was replaced by a blank file, is repaired while a client goes on;
// its connection is cut in the middle, and the next one goes on from there.
func TestRepair(t *testing.T) {
	for _, blank := range []bool{false, true} {
		dir := t.TempDir()
		newRig(t, "-dir", dir, "-size", "8M").end()
		g := make(gates, 7)
		g[2].Store(true)
		cfg, err := parse([]string{"-dir", dir, "-wait", "100ms", "-repair-rate", "16M"}, io.Discard)
		require.NoError(t, err)
		if blank {
			require.NoError(t, os.Truncate(filepath.Join(dir, "replica-2.img"), 0))
			require.NoError(t, os.Truncate(filepath.Join(dir, "replica-2.img"), 9<<20))
		}
		r, err := rigOf(t, cfg, g.change)
		require.NoError(t, err)
		c, w := r.client(), load(8<<20)
		require.NoError(t, c.run(w, 500))
		g[2].Store(false)
		r.phase(2, jobtracker.Repairing)
		require.NoError(t, c.run(w, 100))
		r.drivers[2].cut(errors.New("the test cuts it"))
		require.NoError(t, c.run(w, 100))
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.phase(2, jobtracker.Voting)
		}()
		_, err = c.runUntil(w, math.MaxInt, done)
		require.NoError(t, err)
		require.NoError(t, c.run(w, 300))
		require.NoError(t, c.check())
		require.NoError(t, c.close())
		require.Equal(t, "3 replicas", r.strength())
		r.end()
		requireModel(t, dir, c.model, 0, 1, 2)
		require.Contains(t, r.said.String(), "its repair begins")
		require.Contains(t, r.said.String(), "it is repaired")
		require.Equal(t, r.generation, metaOf(t, dir, 2).generation)
	}
}
