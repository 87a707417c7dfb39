package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// disks are files full of something, with a blank last MiB, behind servers.
func disks(t *testing.T, sizes ...int64) (paths, args []string) {
	t.Helper()
	args = []string{"-create"}
	for _, size := range sizes {
		path := filepath.Join(t.TempDir(), "disk")
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{byte(len(paths) + 1)}, int(size)), 0o600))
		require.NoError(t, os.Truncate(path, size+metaSpace))
		paths, args = append(paths, path), append(args, "-replica", serveFile(t, path))
	}
	return paths, args
}

func serveFile(t *testing.T, path string) (uri string) {
	t.Helper()
	disk, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	f, err := nbd.NewFile(disk, nbd.FileOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, disk.Close())
	})
	return served(t, f)
}

// TestCreateZeroes: whatever the disks held, a new device reads as zeros, on all of them.
func TestCreateZeroes(t *testing.T) {
	const size = maxRequest + 5<<20
	paths, args := disks(t, size, size+4096, size)
	r := newRig(t, args...)
	require.Contains(t, r.said.String(), "has 4096 bytes more than the device uses")
	c := r.client()
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	r.end()
	for i, path := range paths {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(make([]byte, size), b[:size]), "replica %d", i)
		at := len(b) - metaSpace + probeAt
		require.Equal(t, make([]byte, blockSize), b[at:at+blockSize], "replica %d has a mark", i)
	}
}

// TestCreateTwice: a disk with two names is no two replicas, and goes on to be blank.
func TestCreateTwice(t *testing.T) {
	paths, args := disks(t, 1<<20, 1<<20)
	again := append(args, "-replica", serveFile(t, paths[0]))
	for range 2 {
		_, err := tryRig(t, again...)
		require.ErrorContains(t, err, "are the same disk")
		b, err := os.ReadFile(paths[0])
		require.NoError(t, err)
		require.Equal(t, byte(1), b[0], "it was zeroed")
	}
	newRig(t, args...).end()
}

// TestCreateOverOther: a disk in use for something else is not taken for a blank one.
func TestCreateOverOther(t *testing.T) {
	for _, at := range []int64{8, metaStride + maxMeta - 1} {
		paths, args := disks(t, 1<<20, 1<<20, 1<<20)
		f, err := os.OpenFile(paths[1], os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt([]byte("x"), 1<<20+at)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		was, err := os.ReadFile(paths[1])
		require.NoError(t, err)
		_, err = tryRig(t, args...)
		require.ErrorIs(t, err, errOther)
		require.ErrorContains(t, err, "write zeros over its last MiB")
		_, err = tryRig(t, args[1:]...)
		require.ErrorIs(t, err, errOther)
		now, err := os.ReadFile(paths[1])
		require.NoError(t, err)
		require.True(t, bytes.Equal(was, now), "it was touched")
	}
}
