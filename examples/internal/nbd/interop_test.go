//go:build linux

package nbd

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// These tests talk to real programs and skip where those are not installed.

// program skips the test where a program is not installed.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// run returns what a program printed; it must succeed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program(t, name), args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// serveFile offers a file of n random bytes over the loopback.
func serveFile(t *testing.T, n int) (f *os.File, uri string) {
	t.Helper()
	f = tempFile(t, 0)
	_, err := io.CopyN(f, rand.Reader, int64(n))
	require.NoError(t, err)
	_, uri = listen(t, Options{Exports: []Export{
		{Description: "a test's file", Backend: newFile(t, f, FileOptions{})},
		{Name: "ro", Backend: newFile(t, f, FileOptions{ReadOnly: true})},
	}})
	return f, uri
}

func TestInteropNBDInfo(t *testing.T) {
	program(t, "nbdinfo")
	_, uri := serveFile(t, 3<<20)
	out := run(t, "nbdinfo", uri)
	for _, want := range []string{
		"newstyle-fixed without TLS", "using simple packets", "export-size: 3145728", "description: a test's file",
		"is_read_only: false", "can_multi_conn: true", "can_flush: true", "can_fua: true", "can_trim: true",
		"can_zero: true", "can_fast_zero: false", "can_cache: false",
		"block_size_minimum: 1", "block_size_preferred: 4096", "block_size_maximum: 33554432",
	} {
		require.Contains(t, out, want)
	}
	require.Contains(t, run(t, "nbdinfo", uri+"ro"), "is_read_only: true")
	list := run(t, "nbdinfo", "--list", uri)
	require.Contains(t, list, `export="ro"`)
	require.Contains(t, list, `export=""`)
	_, err := exec.CommandContext(t.Context(), "nbdinfo", uri+"none").CombinedOutput()
	require.Error(t, err)
}

func TestInteropNBDCopy(t *testing.T) {
	program(t, "nbdcopy")
	const size = 40 << 20
	f, uri := serveFile(t, size)
	want := make([]byte, size)
	_, err := f.ReadAt(want, 0)
	require.NoError(t, err)
	dir := t.TempDir()
	down := filepath.Join(dir, "down")
	run(t, "nbdcopy", uri, down)
	got, err := os.ReadFile(down)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "down")

	clear(want[5<<20 : 25<<20]) // nbdcopy zeroes these, or trims
	_, err = rand.Read(want[:1<<20])
	require.NoError(t, err)
	up := filepath.Join(dir, "up")
	require.NoError(t, os.WriteFile(up, want, 0o600))
	run(t, "nbdcopy", "--flush", up, uri)
	_, err = f.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "up")
}

func TestInteropQemuIO(t *testing.T) {
	program(t, "qemu-io")
	f, uri := serveFile(t, 2<<20)
	out := run(t, "qemu-io", "-f", "raw", "-t", "writeback",
		"-c", "write -P 0x61 4096 8192", "-c", "write -f -P 0x62 512 512", "-c", "write -z 65536 65536",
		"-c", "discard 1048576 65536", "-c", "flush", "-c", "read -P 0x61 4096 8192", "-c", "read -P 0 65536 65536",
		"-c", "aio_write -P 0x63 131072 4096", "-c", "aio_write -P 0x64 200704 4096", "-c", "aio_flush", uri)
	require.NotContains(t, out, "failed", out)
	got := make([]byte, 2<<20)
	_, err := f.ReadAt(got, 0)
	require.NoError(t, err)
	for _, tc := range []struct {
		off, n int
		b      byte
	}{{4096, 8192, 'a'}, {512, 512, 'b'}, {65536, 65536, 0}, {131072, 4096, 'c'}, {200704, 4096, 'd'}} {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{tc.b}, tc.n), got[tc.off:tc.off+tc.n]), "at %d", tc.off)
	}
	refused, err := exec.CommandContext(t.Context(), "qemu-io", "-f", "raw", "-c", "write 0 512", uri+"ro").CombinedOutput()
	require.Error(t, err, string(refused))
}

// nbdkit starts a server for one connection, over a pair of sockets, and returns the client's end.
func nbdkit(t *testing.T, args ...string) net.Conn {
	t.Helper()
	path := program(t, "nbdkit")
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	near, far := os.NewFile(uintptr(pair[0]), "near"), os.NewFile(uintptr(pair[1]), "far")
	ctx := context.WithoutCancel(t.Context()) // it is not to be killed, but to end with its connection
	cmd := exec.CommandContext(ctx, path, append([]string{"--single"}, args...)...)
	var log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = far, far, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("nbdkit: %v: %s", err, log.String())
		}
	})
	require.NoError(t, far.Close())
	nc, err := net.FileConn(near)
	require.NoError(t, err)
	require.NoError(t, near.Close())
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// TestInteropNBDKit: our client and another's server, through a handshake with GO and one without.
func TestInteropNBDKit(t *testing.T) {
	for name, args := range map[string][]string{
		"fixed newstyle": nil,
		"newstyle":       {"--mask-handshake=0"},
		"no zeroes":      {"--mask-handshake=2"},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			file := tempFile(t, size)
			nc := nbdkit(t, append(args, "file", file.Name())...)
			c, err := NewClient(t.Context(), nc, "")
			require.NoError(t, err)
			require.Equal(t, int64(size), c.Info().Size)
			require.True(t, c.Info().Has(SendFlush|SendFUA|SendTrim|SendWriteZeroes|CanMultiConn), c.Info().Flags)

			const n = 64 // requests on their way at once
			want := bytes.Repeat([]byte("x"), size)
			var calls []Call
			for i := range uint64(n) {
				one := call(CmdWrite, FlagFUA, i*8192, 4096)
				one.Cookie = i
				_, err := rand.Read(one.Payload)
				require.NoError(t, err)
				copy(want[one.Offset:], one.Payload)
				calls = append(calls, one)
			}
			require.NoError(t, c.Send(calls...))
			receiveAll(t, c, n, 0)
			zero := call(CmdWriteZeroes, FlagNoHole, 4096, 8192)
			clear(want[4096 : 4096+8192])
			require.NoError(t, do(t, c, zero, nil).Err())
			require.NoError(t, do(t, c, call(CmdFlush, 0, 0, 0), nil).Err())
			got := make([]byte, size)
			require.NoError(t, do(t, c, call(CmdRead, 0, 0, size), got).Err())
			require.True(t, bytes.Equal(want, got))
			require.Equal(t, EINVAL, do(t, c, call(CmdRead, 0, size, 512), nil).Errno)
			require.Equal(t, ENOSPC, do(t, c, call(CmdWrite, 0, size, 512), nil).Errno)

			// Half-closed with requests on their way: all of them are answered, some perhaps with ESHUTDOWN, which
			// does not say whether they were executed; and then comes the end.
			require.NoError(t, c.Send(calls...))
			require.NoError(t, c.CloseWrite())
			receiveAll(t, c, n, ESHUTDOWN)
			_, err = c.Receive(noData)
			require.Equal(t, io.EOF, err)
			require.NoError(t, c.Close())
		})
	}
}

// receiveAll receives n replies, of the cookies from 0 to n-1, in any order: successes, or else what is tolerated.
func receiveAll(t *testing.T, c *Client, n int, tolerated Errno) {
	t.Helper()
	seen := map[uint64]bool{}
	for range n {
		r, err := c.Receive(noData)
		require.NoError(t, err)
		if r.Errno != tolerated {
			require.NoError(t, r.Err())
		}
		seen[r.Cookie] = true
	}
	require.Len(t, seen, n)
	for cookie := range seen {
		require.Less(t, cookie, uint64(n))
	}
}

// TestInteropNBDKitErrors: what a server says went wrong arrives.
func TestInteropNBDKitErrors(t *testing.T) {
	for name, want := range map[string]Errno{"EPERM": EPERM, "EIO": EIO, "ENOMEM": ENOMEM, "EINVAL": EINVAL, "ENOSPC": ENOSPC, "ESHUTDOWN": ESHUTDOWN} {
		nc := nbdkit(t, "--filter=error", "memory", "1M", "error="+name, "error-rate=1")
		c, err := NewClient(t.Context(), nc, "")
		require.NoError(t, err)
		require.Equal(t, want, do(t, c, call(CmdRead, 0, 0, 512), make([]byte, 512)).Errno)
		require.NoError(t, c.Send(call(CmdDisc, 0, 0, 0)))
		_, err = c.Receive(noData)
		require.Equal(t, io.EOF, err)
		require.NoError(t, c.Close())
	}
}

func TestInteropNBDKitUnknownExport(t *testing.T) {
	nc := nbdkit(t, "--filter=exportname", "memory", "1M", "exportname=known", "exportname-strict=true")
	_, err := NewClient(t.Context(), nc, "unknown")
	require.ErrorIs(t, err, ErrRefused)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, RepErrUnknown, refused.Reply, strings.TrimSpace(err.Error()))
}
