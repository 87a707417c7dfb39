package nbd

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// blocks is what a file takes up on the disk.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	stat, err := f.Stat()
	require.NoError(t, err)
	return stat.Sys().(*syscall.Stat_t).Blocks
}
