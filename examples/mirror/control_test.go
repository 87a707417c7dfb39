package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// controlled is a device with a control endpoint.
func controlled(t *testing.T, at string) (r *rig, addr string) {
	t.Helper()
	r = newRig(t, "-size", "1M")
	ln, err := listenOn(t.Context(), "control", at)
	require.NoError(t, err)
	end := r.control(ln)
	t.Cleanup(func() {
		end()
		r.end()
	})
	if ln.Addr().Network() == "unix" {
		return r, at
	}
	return r, ln.Addr().String()
}

// TestCommands: status and replace, by the command line, over the loopback and over a socket.
func TestCommands(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "unix:" + filepath.Join(t.TempDir(), "s")} {
		t.Run(at, func(t *testing.T) {
			r, addr := controlled(t, at)
			do := func(args ...string) (status int, out, errOut string) {
				var stdout, stderr strings.Builder
				status = run(append([]string{args[0], "-control", addr}, args[1:]...), &stdout, &stderr)
				return status, stdout.String(), stderr.String()
			}
			c := r.client()
			require.NoError(t, c.run(load(1<<20), 100))
			require.NoError(t, c.close())
			status, out, _ := do("status")
			require.Equal(t, exitGood, status)
			for _, words := range []string{
				"1M, 2 of 3 replicas acknowledge", "0 failed", "orphans: 0 stale connection, 0 never issued", "replica 2  active  ",
				"active, generation",
			} {
				require.Contains(t, out, words)
			}
			status, out, _ = do("status", "-json")
			require.Equal(t, exitGood, status)
			var got report
			require.NoError(t, json.Unmarshal([]byte(out), &got))
			require.Equal(t, r.report().Device, got.Device)
			require.Len(t, got.Replicas, 3)
			require.Len(t, got.Orphans, 7)
			require.Len(t, got.Dump.Replicas, 3)
			require.Positive(t, got.Acked)

			joins := r.watch.joins(1)
			status, out, _ = do("replace", "-replica", "1")
			require.Equal(t, exitGood, status)
			require.Contains(t, out, "replica 1 is replaced by what is at "+r.parts.locals[1].path)
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] > joins }))
			status, _, errOut := do("replace", "-replica", "7")
			require.Equal(t, exitFailed, status)
			require.Contains(t, errOut, "replica: 7 is not in 0 to 2")
			status, _, errOut = do("replace", "-replica", "1", "-uri", "nbd://h/x")
			require.Equal(t, exitFailed, status)
			require.Contains(t, errOut, "uri: this replica is a file of mirror's own")
			status, _, errOut = do("replace", "-h")
			require.Equal(t, exitGood, status)
			require.Contains(t, errOut, "overwritten as a whole")
		})
	}
}

// TestControlRefuses: each bad request is answered with a status of its own and the field that is wrong, and changes nothing.
func TestControlRefuses(t *testing.T) {
	r, addr := controlled(t, "127.0.0.1:0")
	before := r.tracker.Fingerprint()
	for _, tc := range []struct {
		method, path string
		header       [2]string
		status       int
		want         string
	}{
		{"GET", "/", [2]string{}, 404, "not found"},
		{"POST", "/status", [2]string{}, 405, "Not Allowed"},
		{"GET", "/replace?replica=1", [2]string{}, 405, "Not Allowed"},
		{"GET", "/status?format=xml", [2]string{}, 400, `format: "xml" is neither`},
		{"GET", "/status?x=1", [2]string{}, 400, "x: there is no such field"},
		{"POST", "/replace", [2]string{}, 400, `replica: "" is not a number`},
		{"POST", "/replace?replica=one", [2]string{}, 400, `replica: "one" is not a number`},
		{"POST", "/replace?replica=9", [2]string{}, 400, "replica: 9 is not in 0 to 2"},
		{"POST", "/replace?replica=1&replica=2", [2]string{}, 400, "replica: it is given more than once"},
		{"POST", "/replace?replica=1&url=x", [2]string{}, 400, "url: there is no such field"},
		{"POST", "/replace?replica=1&uri=", [2]string{}, 400, "uri: it is empty"},
		{"POST", "/replace?replica=1&uri=nbd://h/x", [2]string{}, 400, "uri: this replica is a file"},
		{"POST", "/replace?%zz", [2]string{}, 400, "query: invalid URL escape"},
		{"POST", "/replace?replica=1", [2]string{"Origin", "http://elsewhere"}, 403, "cross-origin"},
		{"GET", "/status", [2]string{"Host", "rebound.example:80"}, 403, "host: "},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://"+addr+tc.path, nil)
		require.NoError(t, err)
		if tc.header[0] == "Host" {
			req.Host = tc.header[1]
		} else if tc.header[0] != "" {
			req.Header.Set(tc.header[0], tc.header[1])
		}
		answer, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, tc.status, answer.StatusCode, tc.path)
		require.Contains(t, string(body), tc.want)
	}
	http.DefaultClient.CloseIdleConnections()
	require.Equal(t, before, r.tracker.Fingerprint())
	require.Equal(t, 1, r.watch.joins(1))
}

// TestReportOfARepair: what a repair has done, and what is left, is told while it goes on.
func TestReportOfARepair(t *testing.T) {
	r := newRig(t, "-size", "8M", "-repair-rate", "8M")
	require.NoError(t, r.replace(t.Context(), 1, ""))
	r.phase(1, jobtracker.Repairing)
	r.said.await(t, "its repair begins")
	one := r.report().Replicas[1]
	require.NotNil(t, one.Repair)
	require.Equal(t, 32, one.Repair.Total)
	require.Contains(t, r.report().String(), "of 32 extents are clean")
	require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return s.joined[1] == 2 }))
	r.said.await(t, "it is repaired: ")
	require.Nil(t, r.report().Replicas[1].Repair)
	r.end()
}
