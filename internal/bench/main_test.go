package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const results = `goos: linux
BenchmarkGate-2     	 1000	        20.0 ns/op	         1.200 xbase	       0 B/op
BenchmarkGate-2     	 1000	        20.0 ns/op	         1.600 xbase	       0 B/op
BenchmarkGate-2     	 1000	        20.0 ns/op	         1.250 xbase	       0 B/op
BenchmarkJobLife/batch-16-2  	 10	 100.0 ns/op	 30 xbase
BenchmarkPair  	 10	 0.9 share
BenchmarkGate: a log line
PASS
`

func runWith(t *testing.T, budgets string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "budgets.txt")
	require.NoError(t, os.WriteFile(file, []byte(budgets), 0o600))
	var out strings.Builder
	err := run([]string{file}, strings.NewReader(results), &out)
	return out.String(), err
}

func TestFiguresBesideBudgets(t *testing.T) {
	out, err := runWith(t, "# comment\nBenchmarkGate xbase 1.3 # median\n\nBenchmarkJobLife/batch-16 xbase 24\nBenchmarkPair share >=0.8\n")
	require.NoError(t, err, "a figure alone fails nothing")
	require.Regexp(t, `BenchmarkGate +1\.25 xbase +<=1\.3\n`, out)
	require.Regexp(t, `BenchmarkJobLife/batch-16 +30 xbase +<=24  missed\n`, out)
	require.Regexp(t, `BenchmarkPair +0\.9 share +>=0\.8\n`, out)
}

func TestFloor(t *testing.T) {
	out, err := runWith(t, "BenchmarkPair share >=0.95")
	require.NoError(t, err)
	require.Contains(t, out, "missed")
}

func TestMissingFails(t *testing.T) {
	for _, budgets := range []string{"BenchmarkGone xbase 1", "BenchmarkGate xbas 1", "BenchmarkJobLife/batch xbase 1"} {
		out, err := runWith(t, budgets)
		require.ErrorContains(t, err, "1 budgets have no figure")
		require.Contains(t, out, "MISSING")
	}
}

func TestBadInput(t *testing.T) {
	_, err := runWith(t, "BenchmarkGate 1.3")
	require.ErrorContains(t, err, "want a benchmark, a metric and a budget")
	_, err = runWith(t, "BenchmarkGate xbase low")
	require.ErrorContains(t, err, "invalid syntax")
	require.ErrorContains(t, run(nil, nil, nil), "usage")
	require.ErrorIs(t, run([]string{filepath.Join(t.TempDir(), "gone")}, nil, nil), os.ErrNotExist)
}
