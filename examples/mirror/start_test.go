//go:build unix

package main

import (
	"net"
	"os"
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

// TestNumberOfReplicas: a device tells how many replicas it has, also when some are lost.
func TestNumberOfReplicas(t *testing.T) {
	dir := t.TempDir()
	newRig(t, "-dir", dir, "-size", "1M", "-replicas", "5").end()
	require.NoError(t, os.Remove(filepath.Join(dir, "replica-0.img")))
	require.NoError(t, os.Remove(filepath.Join(dir, "replica-4.img")))
	r := newRig(t, "-dir", dir, "-wait", "100ms")
	require.Equal(t, "3 of 5 replicas", r.strength())
	r.end()
}

// TestSocketInUse: a socket is taken over only if nobody listens on it.
func TestSocketInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := listenOn(t.Context(), "listen", "unix:"+path)
	require.NoError(t, err)
	_, err = listenOn(t.Context(), "listen", "unix:"+path)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	ln, err = listenOn(t.Context(), "listen", "unix:"+path)
	require.NoError(t, err)
	require.NoError(t, ln.Close())

	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = listenOn(t.Context(), "listen", "unix:"+path)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.FileExists(t, path)
}
