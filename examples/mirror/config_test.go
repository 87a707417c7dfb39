package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBadFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-none"}, "not defined"},
		{[]string{"extra"}, `unexpected argument "extra"`},
		{[]string{"-replicas", "0"}, "-replicas is 0, not in 1 to 7"},
		{[]string{"-replicas", "8"}, "-replicas is 8"},
		{[]string{"-ack", "4"}, "-ack is 4, not in 1 to 3"},
		{[]string{"-ack", "0"}, "-ack is 0"},
		{[]string{"-size", "12Q"}, "not a number of bytes"},
		{[]string{"-size", "9999999999T"}, "not a number of bytes"},
		{[]string{"-size", "1K"}, "-size is 1K, not in 64K"},
		{[]string{"-size", "1000001"}, "not a multiple of 512"},
		{[]string{"-offline-jobs", "1"}, "-offline-jobs is 1, not in 64"},
		{[]string{"-offline-bytes", "1M"}, "-offline-bytes is 1M, not in 32M"},
		{[]string{"-offline-for", "-1s"}, "-offline-for is -1s"},
		{[]string{"-reply-timeout", "0"}, "-reply-timeout is 0s"},
		{[]string{"-listen", "nowhere"}, "neither host:port nor unix:path"},
		{[]string{"-listen", "unix:"}, "has no path"},
		{[]string{"-create"}, "-create is for replicas given with -replica"},
		{[]string{"-replica", "nbd://h/x", "-size", "1M"}, "-size is for replicas in this process"},
		{[]string{"-replica", "nbd://h/x", "-dir", "d"}, "-dir is for replicas in this process"},
		{[]string{"-replica", "http://h/x"}, "scheme is neither"},
		{[]string{"-demo", "-size", "1M"}, "-size has no place in the demonstration"},
		{[]string{"-control", "10.0.0.1:1"}, "must be an address of the loopback"},
		{[]string{"-control", ":1"}, "must be an address of the loopback"},
		{[]string{"-control", "localhost:1"}, "must be an address of the loopback"},
		{[]string{"-control", "1"}, "-control is \"1\", neither"},
		{[]string{"-control", "unix:"}, "-control unix: has no path"},
		{[]string{"status"}, "-control is missing"},
		{[]string{"status", "-control", "0.0.0.0:1"}, "must be an address of the loopback"},
		{[]string{"status", "-control", "127.0.0.1:1", "x"}, `unexpected argument "x"`},
		{[]string{"replace", "-control", "127.0.0.1:1"}, "-replica is missing"},
		{[]string{"replace", "-control", "127.0.0.1:1", "-replica", "x"}, "invalid value"},
		{[]string{"-plan"}, "-plan needs a device"},
		{[]string{"-plan=x", "-dir", "d"}, "neither text nor json"},
		{[]string{"-plan", "-create", "-replica", "nbd://h/x"}, "-create makes a new one"},
		{[]string{"-replica", "foo"}, "scheme is neither"},
		{[]string{"-replica", "nbd://h/x", "-replica", "nbd://i/x", "-replica", "nbd://h:10809/x"}, "-replica names nbd://h:10809/x twice"},
	} {
		var out strings.Builder
		require.Equal(t, exitUsage, run(tc.args, &out, &out), tc.args)
		require.Contains(t, out.String(), tc.want)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-listen", "256.0.0.1:0"}, "listen tcp"},
		{[]string{"-control", "unix:/nowhere/to/be/found"}, "listen unix"},
	} {
		var out, errOut strings.Builder
		require.Equal(t, exitFailed, run(tc.args, &out, &errOut), tc.args)
		require.Contains(t, errOut.String(), "mirror: failed: "+tc.want)
	}
	var out strings.Builder
	require.Equal(t, exitGood, run([]string{"-h"}, &out, &out))
	for _, words := range []string{"8192", "128M", "30s", "10s", "-offline-jobs", "last MiB", "Exit status", "Never run two mirrors", "second signal"} {
		require.Contains(t, out.String(), words)
	}
}

func TestBytes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "512": 512, "64K": 64 << 10, "64k": 64 << 10, "3M": 3 << 20, "1G": 1 << 30, "2T": 2 << 40} {
		var b bytesFlag
		require.NoError(t, b.Set(s))
		require.Equal(t, want, int64(b))
		require.Equal(t, strings.ToUpper(s), b.String())
	}
}

func TestTraceLines(t *testing.T) {
	for line, ok := range map[string]bool{
		"1,5633898,2a,512,42932745": true, "1,0,28,69632,15943": true,
		"": false, "1,2,3": false, "1,0,2b,512,1": false, "1,0,28,511,1": false, "1,0,28,x,1": false, "1,0,28,512,-1": false,
	} {
		s, err := parseTraced(line, demoSize)
		require.Equal(t, ok, err == nil, line)
		require.LessOrEqual(t, s.off+int64(s.length), int64(demoSize))
	}
}
