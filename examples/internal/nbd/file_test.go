package nbd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// tempFile is a file of n bytes 'x'.
func tempFile(t testing.TB, n int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	_, err = f.Write(bytes.Repeat([]byte("x"), n))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

func newFile(t testing.TB, s Storage, opts FileOptions) *File {
	t.Helper()
	f, err := NewFile(s, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, f.Close(), "idempotent")
	})
	return f
}

func TestFileServes(t *testing.T) {
	const size = 3 << 20 // more than one chunk of zeros
	for _, kind := range []string{"file", "memory"} {
		t.Run(kind, func(t *testing.T) {
			var storage Storage = &memory{b: bytes.Repeat([]byte("x"), size)}
			if kind == "file" {
				storage = tempFile(t, size)
			}
			f := newFile(t, storage, FileOptions{Size: size})
			_, c := backed(t, f)
			model := bytes.Repeat([]byte("x"), size)
			same := func() {
				got := make([]byte, size)
				require.NoError(t, do(t, c, call(CmdRead, 0, 0, size), got).Err())
				require.True(t, bytes.Equal(model, got))
			}
			same()
			write := call(CmdWrite, 0, 4095, 3)
			copy(write.Payload, "abc")
			copy(model[4095:], "abc")
			require.NoError(t, do(t, c, write, nil).Err())
			same()
			require.NoError(t, do(t, c, call(CmdWriteZeroes, 0, 1000, 100_000), nil).Err())
			clear(model[1000:101_000])
			same()
			require.NoError(t, do(t, c, call(CmdWriteZeroes, FlagNoHole, 200_000, 2<<20), nil).Err())
			clear(model[200_000 : 200_000+2<<20])
			same()
			require.NoError(t, do(t, c, call(CmdTrim, 0, 0, 4096), nil).Err())
			require.NoError(t, do(t, c, call(CmdFlush, 0, 0, 0), nil).Err())
			require.Equal(t, EINVAL, do(t, c, call(CmdCache, 0, 0, 4096), nil).Errno, "not offered")
		})
	}
}

func TestFileSizes(t *testing.T) {
	require.Equal(t, int64(5000), newFile(t, tempFile(t, 5000), FileOptions{}).Info().Size)
	f := newFile(t, tempFile(t, 5), FileOptions{Size: 10})
	require.Equal(t, int64(10), f.Info().Size)
	got := bytes.Repeat([]byte("?"), 10)
	require.NoError(t, f.ReadAt(got, 0))
	require.Equal(t, append(bytes.Repeat([]byte("x"), 5), 0, 0, 0, 0, 0), got, "zeros beyond the end")
	_, err := NewFile(&memory{}, FileOptions{Size: -1})
	require.ErrorIs(t, err, ErrOptions)
	_, err = NewFile(&memory{}, FileOptions{Workers: -1})
	require.ErrorIs(t, err, ErrOptions)
	closed := tempFile(t, 1)
	other, err := os.Open(closed.Name())
	require.NoError(t, err)
	require.NoError(t, other.Close())
	_, err = NewFile(other, FileOptions{})
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestFileSyncs(t *testing.T) {
	m := &memory{b: make([]byte, testSize)}
	_, c := backed(t, newFile(t, m, FileOptions{Size: testSize}))
	for _, tc := range []struct {
		call Call
		want int
	}{
		{call(CmdWrite, 0, 0, 512), 0},
		{call(CmdWrite, FlagFUA, 0, 512), 1},
		{call(CmdTrim, FlagFUA, 0, 512), 1},
		{call(CmdWriteZeroes, FlagFUA, 0, 512), 1},
		{call(CmdWriteZeroes, 0, 0, 512), 0},
		{call(CmdRead, FlagFUA, 0, 0), 0},
		{call(CmdFlush, 0, 0, 0), 1},
	} {
		before := m.syncs
		require.NoError(t, do(t, c, tc.call, nil).Err())
		require.Equal(t, tc.want, m.syncs-before, tc.call.Command)
	}
}

func TestFileReportsErrors(t *testing.T) {
	m := &memory{b: make([]byte, testSize), err: syscall.ENOSPC}
	_, c := backed(t, newFile(t, m, FileOptions{Size: testSize}))
	for _, one := range []Call{
		call(CmdRead, 0, 0, 512), call(CmdWrite, 0, 0, 512), call(CmdWriteZeroes, 0, 0, 512),
		call(CmdFlush, 0, 0, 0), call(CmdTrim, FlagFUA, 0, 512),
	} {
		require.Equal(t, ENOSPC, do(t, c, one, nil).Errno, one.Command)
	}
	require.NoError(t, do(t, c, call(CmdTrim, 0, 0, 512), nil).Err(), "a hint")
}

func TestFileReadOnly(t *testing.T) {
	f := tempFile(t, 4096)
	_, c := backed(t, newFile(t, f, FileOptions{ReadOnly: true}))
	require.True(t, c.Info().Has(ReadOnly|CanMultiConn))
	require.False(t, c.Info().Has(SendTrim))
	require.Equal(t, EPERM, do(t, c, call(CmdWrite, 0, 0, 512), nil).Errno)
	require.NoError(t, do(t, c, call(CmdRead, 0, 0, 512), make([]byte, 512)).Err())
}

func TestFileRefusesAfterClose(t *testing.T) {
	f := newFile(t, &memory{b: make([]byte, testSize)}, FileOptions{Size: testSize})
	_, c := backed(t, f)
	require.NoError(t, f.Close())
	require.Equal(t, ESHUTDOWN, do(t, c, call(CmdRead, 0, 0, 512), nil).Errno)
}

func TestFileRefusesWhenItsConnectionEnds(t *testing.T) {
	f := newFile(t, &memory{}, FileOptions{Size: testSize})
	require.NoError(t, f.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	srv, err := NewServer(Options{})
	require.NoError(t, err)
	r := &Request{Header: Header{Command: CmdFlush}, conn: newConn(srv, nil)}
	f.Submit(ctx, r)
	require.Equal(t, ESHUTDOWN, r.errno)
	require.Equal(t, requestReplied|requestReleased, r.state.Load())
}

func TestFilePunchesHoles(t *testing.T) {
	const size = 1 << 20
	file := tempFile(t, size)
	require.NoError(t, file.Sync())
	f := newFile(t, file, FileOptions{})
	if err := f.punch(0, 4096, true); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("no holes here: " + file.Name())
	}
	before := blocks(t, file)
	require.NoError(t, f.Trim(0, size/2))
	require.NoError(t, file.Sync())
	require.Less(t, blocks(t, file), before)
	require.NoError(t, f.Zero(0, size, true))
	require.NoError(t, file.Sync())
	require.Zero(t, blocks(t, file))
	stat, err := file.Stat()
	require.NoError(t, err)
	require.Equal(t, int64(size), stat.Size())
}
