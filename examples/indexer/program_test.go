package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// program is the test's own binary, as the program.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.CommandContext(limited(t), self, args...)
	c.Env = append(os.Environ(), asIndexer+"=1", "GORACE=atexit_sleep_ms=0") // else each end takes a second with the race detector
	return c
}

// TestDemo is the demonstration in short. It proves what it says, or fails.
func TestDemo(t *testing.T) {
	c := program(t, "-demo", "-records", "2000")
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err, "the demonstration failed")
	require.Contains(t, string(out), "PROVEN")
	require.Regexp(t, `refused, .*: .*\d+ stale-claim`, string(out))
}

// TestAlone runs the program without arguments, but for the address, and ends it by a signal.
func TestAlone(t *testing.T) {
	c := program(t, "-listen", "127.0.0.1:0", "-records", "300")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = c.Stdout
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(out)
	var url string
	for url == "" && lines.Scan() {
		if m := servingLine.FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	require.NotEmpty(t, url, "it never served: %s", lines.Text())
	req, err := http.NewRequestWithContext(limited(t), http.MethodGet, url+"/v1/lookup?topic=orders&field=status&value=paid", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, c.Wait(), "%s", rest)
	require.Regexp(t, `records applied in \d+ commits; refused: none`, string(rest))
}

func TestNoBroker(t *testing.T) {
	c := program(t, "-brokers", "127.0.0.1:1", "-index", "t=a", "-dir", t.TempDir(), "-listen", "127.0.0.1:0", "-start-within", "300ms")
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, exitFailed, exit.ExitCode())
	require.Contains(t, string(out), "indexer: broker 127.0.0.1:1 cannot be reached: ")
	require.Contains(t, string(out), "indexer: failed: brokers 127.0.0.1:1: ")
}
