package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlan: the plan of a start is printed for people and for programs, and nothing is touched; the start does it.
func TestPlan(t *testing.T) {
	dir := t.TempDir()
	plan := func(args ...string) (status int, out, errOut string) {
		var stdout, stderr strings.Builder
		status = run(append([]string{"-dir", dir, "-wait", "100ms"}, args...), &stdout, &stderr)
		return status, stdout.String(), stderr.String()
	}
	status, _, errOut := plan("-plan")
	require.Equal(t, exitFailed, status)
	require.Contains(t, errOut, "there is no device in "+dir)
	require.Empty(t, files(t, dir))

	r := newRig(t, "-dir", dir, "-size", "2M")
	c := r.client()
	require.NoError(t, c.run(load(2<<20), 300))
	require.NoError(t, c.settle())
	r.kill()
	_ = c.nbd.Close()
	<-c.done
	r.parts.close()

	was := files(t, dir)
	status, out, _ := plan("-plan")
	require.Equal(t, exitGood, status)
	require.Contains(t, out, "make 3 replicas equal to replica")
	status, out, _ = plan("-plan=json")
	require.Equal(t, exitGood, status)
	var p planned
	require.NoError(t, json.Unmarshal([]byte(out), &p), out)
	require.True(t, p.Needed)
	require.Len(t, p.Plan.Participants, 3)
	require.Equal(t, was, files(t, dir), "it was touched")

	require.NoError(t, os.Rename(filepath.Join(dir, "replica-0.img"), filepath.Join(dir, "away")))
	status, out, _ = plan("-plan=text")
	require.Equal(t, exitGood, status)
	require.Contains(t, out, "; 1 are not here")
	require.NoError(t, os.Rename(filepath.Join(dir, "replica-1.img"), filepath.Join(dir, "away too")))
	status, _, errOut = plan("-plan")
	require.Equal(t, exitReconcile, status)
	require.Contains(t, errOut, "missing: replica 0 ("+filepath.Join(dir, "replica-0.img"))
	require.NoError(t, os.Rename(filepath.Join(dir, "away"), filepath.Join(dir, "replica-0.img")))
	require.NoError(t, os.Rename(filepath.Join(dir, "away too"), filepath.Join(dir, "replica-1.img")))
	require.Equal(t, was, files(t, dir))

	newRig(t, "-dir", dir).end()
	status, out, _ = plan("-plan")
	require.Equal(t, exitGood, status)
	require.Contains(t, out, "nothing is to be made equal")
	status, out, _ = plan("-plan=json")
	require.Equal(t, exitGood, status)
	require.JSONEq(t, `{"Needed":false}`, out)
}

// files are the contents of a directory.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		all[e.Name()] = string(b)
	}
	return all
}
