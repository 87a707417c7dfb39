//go:build unix

package main

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// These tests drive mirror with real programs, over replicas on real servers. They skip where those are not installed.

// program skips the test where a program is not installed.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// output is what a program printed; it must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(limited(t), program(t, name), args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

func TestNBDInfo(t *testing.T) {
	program(t, "nbdinfo")
	_, args := newKits(t, false, 8<<20)
	r := newRig(t, append(args, "-create")...)
	out := output(t, "nbdinfo", r.uri)
	for _, want := range []string{
		"newstyle-fixed", "export-size: 8388608", "is_read_only: false", "can_multi_conn: true", "can_flush: true",
		"can_fua: true", "can_trim: true", "can_zero: true", "block_size_minimum: 512",
	} {
		require.Contains(t, out, want)
	}
	r.end()
}

func TestNBDCopy(t *testing.T) {
	program(t, "nbdcopy")
	const size = 48 << 20
	kits, args := newKits(t, true, size)
	r := newRig(t, append(args, "-create")...)
	want := make([]byte, size)
	_, err := rand.Read(want)
	require.NoError(t, err)
	clear(want[5<<20 : 17<<20]) // zeroed or trimmed
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(in, want, 0o600))
	output(t, "nbdcopy", "--flush", in, r.uri)
	output(t, "nbdcopy", r.uri, out)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	r.end()
	require.True(t, bytes.Equal(want, requireAlike(t, kits)))
}

func TestQemuIO(t *testing.T) {
	program(t, "qemu-io")
	kits, args := newKits(t, false, 8<<20)
	r := newRig(t, append(args, "-create")...)
	out := output(t, "qemu-io", "-f", "raw", "-t", "writeback",
		"-c", "write -P 0x61 4096 8192", "-c", "write -f -P 0x62 512 512", "-c", "write -z 65536 65536",
		"-c", "write -P 0x65 1M 128k", "-c", "discard 1M 64k", "-c", "flush", "-c", "read -P 0x61 4096 8192",
		"-c", "read -P 0 65536 65536", "-c", "read -P 0 1M 64k", "-c", "read -P 0x65 1088k 64k",
		"-c", "aio_write -P 0x63 131072 4096", "-c", "aio_write -P 0x64 200704 4096", "-c", "aio_flush",
		"-c", "read -P 0x64 200704 4096", r.uri)
	require.NotContains(t, out, "failed", out)
	r.end()
	got := requireAlike(t, kits)
	for _, tc := range []struct {
		off, n int
		b      byte
	}{{4096, 8192, 'a'}, {512, 512, 'b'}, {65536, 65536, 0}, {131072, 4096, 'c'}, {200704, 4096, 'd'}, {1 << 20, 64 << 10, 0}, {1088 << 10, 64 << 10, 'e'}} {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{tc.b}, tc.n), got[tc.off:tc.off+tc.n]), "at %d", tc.off)
	}
}

// child is mirror as a process of its own: the test's own binary.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	said *diary
	end  chan error
}

func newChild(t *testing.T, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{t: t, said: newDiary(t.Output()), end: make(chan error, 1)}
	c.cmd = exec.CommandContext(t.Context(), self, args...)
	c.cmd.Env = append(os.Environ(), asMirror+"=1")
	c.cmd.Stdout, c.cmd.Stderr = c.said, c.said
	require.NoError(t, c.cmd.Start())
	go func() { c.end <- c.cmd.Wait() }()
	return c
}

// address waits until clients can connect.
func (c *child) address() (uri string) {
	c.t.Helper()
	c.said.await(c.t, "serving nbd+unix")
	_, uri, _ = strings.Cut(c.said.String(), "serving ")
	uri, _, _ = strings.Cut(uri, ",")
	return uri
}

func (c *child) serving() *nbd.Client {
	c.t.Helper()
	n, err := nbd.Dial(limited(c.t), c.address())
	require.NoError(c.t, err)
	return n
}

// ended is the exit status.
func (c *child) ended() int {
	c.t.Helper()
	select {
	case err := <-c.end:
		c.t.Log("mirror ended:", err)
	case <-limited(c.t).Done():
		require.Fail(c.t, "it does not end")
	}
	return c.cmd.ProcessState.ExitCode()
}

// TestProgram: the program serves on a unix socket, ends well by SIGTERM, and starts again; killed with dirty extents, it
// reconciles its replicas.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-dir", filepath.Join(dir, "disks"), "-size", "4M", "-listen", "unix:" + filepath.Join(dir, "s")}
	var model []byte
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		m := newChild(t, args...)
		c := newClient(m.serving(), 8)
		copy(c.model, model)
		model = c.model
		require.NoError(t, c.run(load(4<<20), 100))
		require.NoError(t, c.send(step{command: nbd.CmdWrite, off: 0, length: 4096}))
		require.NoError(t, c.settle())
		require.NoError(t, m.cmd.Process.Signal(sig))
		status := m.ended()
		_ = c.nbd.Close()
		<-c.done
		if sig == syscall.SIGKILL {
			break
		}
		require.Equal(t, exitGood, status)
		require.Contains(t, m.said.String(), "3 of 3 replicas were left with everything")
	}
	m := newChild(t, args...)
	c := newClient(m.serving(), 8)
	require.Contains(t, m.said.String(), "reconciled:")
	require.NoError(t, c.close())
	require.NoError(t, m.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, exitGood, m.ended())
}
