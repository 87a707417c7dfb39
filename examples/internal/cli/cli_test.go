package cli_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/cli"
)

func TestIsTerminal(t *testing.T) {
	require.False(t, cli.IsTerminal(&bytes.Buffer{}))
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	require.False(t, cli.IsTerminal(f))
	require.NoError(t, f.Close())
	require.False(t, cli.IsTerminal(f), "a file that is closed")
	null, err := os.Open(os.DevNull) // a character device, as a terminal is
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	require.True(t, cli.IsTerminal(null))
}
