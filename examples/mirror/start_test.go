//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInterruptedStart: what is waited for is told at once, and a signal ends the waiting.
func TestInterruptedStart(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	m := newChild(t, "-listen", "127.0.0.1:0", "-wait", "1h", "-replica", "nbd+unix:///?socket="+socket)
	m.said.await(t, "; trying for 1h0m0s")
	require.NoError(t, m.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, exitFailed, m.ended())
	require.Contains(t, m.said.String(), "mirror: failed: interrupted before it could start")
}
