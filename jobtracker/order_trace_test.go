package jobtracker

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sharedFile reads a compressed file of another system's answers, which are no part of the repository.
func sharedFile(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "shared", "oracle", name))
	if os.IsNotExist(err) {
		t.Skipf("../shared/oracle/%s is absent", name)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	b, err := io.ReadAll(z)
	require.NoError(t, err)
	return b
}

func sharedTrace(t testing.TB, name string) []orderOp {
	t.Helper()
	var ops []orderOp
	for line := range strings.Lines(string(sharedFile(t, name))) {
		op, err := parseOrderOp(line)
		require.NoError(t, err)
		ops = append(ops, op)
	}
	return ops
}

func parseOrderOp(line string) (op orderOp, err error) {
	f := strings.Fields(line)
	var n [3]uint64
	for i := range f[1:] {
		if n[i], err = strconv.ParseUint(f[1+i], 10, 64); err != nil {
			return op, err
		}
	}
	op = orderOp{id: JobID(n[0]), start: n[1], blocks: n[2]}
	switch f[0] + strconv.Itoa(len(f)) {
	case "R4":
		op.kind = orderRead
	case "W4":
		op.kind = orderWrite
	case "F2":
		op.kind = orderAll
	case "X2":
		op.retire = true
	default:
		err = fmt.Errorf("no operation: %q", line)
	}
	return op, err
}

func joinIDs(ids []JobID) string {
	var b []byte
	for i, id := range ids {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return string(b)
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	return b
}
