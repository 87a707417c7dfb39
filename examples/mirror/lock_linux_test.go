package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTwoMirrors: the second one over the same files does not start, and harms nothing.
func TestTwoMirrors(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, "-dir", dir, "-size", "1M")
	c := r.client()
	require.NoError(t, c.run(load(1<<20), 50))
	var out, errOut strings.Builder
	require.Equal(t, exitFailed, run([]string{"-dir", dir, "-listen", "127.0.0.1:0"}, &out, &errOut))
	require.Contains(t, errOut.String(), filepath.Join(dir, "replica-0.img")+" is in use by another mirror")
	require.NotContains(t, out.String(), "failed")
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	newRig(t, "-dir", dir).end()
}
