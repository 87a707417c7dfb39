package main

import (
	"bytes"
	"flag"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBadCommandLines(t *testing.T) {
	cluster := []string{"-brokers", "127.0.0.1:9", "-index", "t=a", "-dir", "d"}
	for want, args := range map[string][]string{
		"unexpected argument":           {"more"},
		"not topic=field,field":         {"-index", "t"},
		"is not a field":                {"-index", "t=a..b"},
		"field a is given twice":        {"-index", "t=a,a"},
		"topic t is given twice":        {"-index", "t=a", "-index", "t=b"},
		"nothing to index":              {"-brokers", "127.0.0.1:9"},
		"give -dir":                     {"-brokers", "127.0.0.1:9", "-index", "t=a"},
		"not host:port":                 {"-brokers", "nowhere", "-index", "t=a", "-dir", "d"},
		"-dir is for a real cluster":    {"-dir", "d"},
		"-index is for a real cluster":  {"-index", "t=a"},
		"-records are generated":        append([]string{"-records", "500"}, cluster...),
		"-records is 1":                 {"-records", "1"},
		"-workers is 0":                 {"-workers", "0"},
		"-flush-every is 0s":            {"-flush-every", "0s"},
		"-session-timeout is 1ms":       {"-session-timeout", "1ms"},
		"has no place in the":           {"-demo", "-listen", "127.0.0.1:0"},
		"say with -advertise":           append([]string{"-listen", ":8080"}, cluster...),
		`-advertise is "here"`:          append([]string{"-advertise", "here"}, cluster...),
		`-listen is "8080"`:             append([]string{"-listen", "8080"}, cluster...),
		"-group is empty":               append([]string{"-group", ""}, cluster...),
		"every address of this machine": append([]string{"-listen", "[::]:8080"}, cluster...),
	} {
		_, err := parse(args, io.Discard)
		require.ErrorContains(t, err, want, "%q", args)
		var out, errOut bytes.Buffer
		require.Equal(t, exitUsage, run(args, &out, &errOut))
		require.Contains(t, errOut.String(), "indexer -h says more")
		require.Empty(t, out.String())
	}
	_, err := parse(cluster, io.Discard)
	require.NoError(t, err)
}

func TestHelp(t *testing.T) {
	var out, errOut bytes.Buffer
	require.Equal(t, exitGood, run([]string{"-h"}, &out, &errOut))
	for _, words := range []string{"-demo", "-brokers", "loopback", "Exit status", "/v1/lookup"} {
		require.Contains(t, errOut.String(), words)
	}
	_, err := parse([]string{"-h"}, io.Discard)
	require.ErrorIs(t, err, flag.ErrHelp)
}

func TestReachable(t *testing.T) {
	bound := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	for advertised, want := range map[string]string{"": "127.0.0.1:4711", "me.example:80": "me.example:80", "me.example:0": "me.example:4711"} {
		require.Equal(t, want, (&config{advertise: advertised}).reachable(bound))
	}
}
