package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/streamstate"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOrphanGolden(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-race", "orphan"}, &stdout, &stderr), "%s", &stdout)
	require.Empty(t, stderr.String())
	requireGolden(t, "testdata/orphan.txt", stdout.String())
}

func TestOrphanDumps(t *testing.T) {
	o, err := newOurs(true)
	require.NoError(t, err)
	var out strings.Builder
	require.True(t, perform(&out, true, orphanStory(orphanScript(true)[:8], newNaive(ringSize), o)))
	requireGolden(t, "testdata/orphan_dumps.txt", out.String())
	require.NoError(t, o.close())
}

func TestStreamGolden(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"-race", "stream"}, &stdout, &stderr), "%s", &stdout)
	require.Empty(t, stderr.String())
	requireGolden(t, "testdata/stream.txt", stdout.String())
}

func TestStreamDumps(t *testing.T) {
	f := newFollower()
	var out strings.Builder
	require.True(t, perform(&out, true, streamStory(true, newNaiveFollower(), f)))
	requireGolden(t, "testdata/stream_dumps.txt", out.String())
	require.NoError(t, f.close())
}

func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(name, []byte(got), 0o644))
	}
	want, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "-update writes %s", name)
}

func TestCommandLine(t *testing.T) {
	ends, was := true, slices.Clone(races)
	defer func() { races = was }()
	races = slices.Clone(races)
	for i, r := range races {
		races[i].play = func(out *strings.Builder, dumps bool) bool {
			fmt.Fprintf(out, "%s played, dumps %v\n", r.name, dumps)
			return ends
		}
	}
	for name, tc := range map[string]struct {
		args           []string
		status         int
		stdout, stderr string
	}{
		"no flags":     {nil, 0, "stream played, dumps false\n\norphan played, dumps false\n", ""},
		"all":          {[]string{"-race", "all"}, 0, "stream played, dumps false\n\norphan played, dumps false\n", ""},
		"both":         {[]string{"-race", "orphan,stream"}, 0, "stream played, dumps false\n\norphan played, dumps false\n", ""},
		"verbose":      {[]string{"-race", "orphan", "-v"}, 0, "orphan played, dumps true", ""},
		"help":         {[]string{"-h"}, 0, "usage: races", ""},
		"unknown race": {[]string{"-race", "orphan,lost"}, 2, "", `unknown race "lost"; there are: all, stream, orphan`},
		"no race":      {[]string{"-race", ""}, 2, "", `unknown race ""`},
		"unknown flag": {[]string{"-x"}, 2, "", "flag provided but not defined: -x"},
		"argument":     {[]string{"orphan"}, 2, "", `unexpected argument "orphan"`},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tc.status, run(tc.args, &stdout, &stderr))
			require.Contains(t, stdout.String(), tc.stdout)
			require.Contains(t, stderr.String(), tc.stderr)
			require.True(t, tc.stdout != "" || stdout.Len() == 0, "on standard output: %s", &stdout)
			require.True(t, tc.stderr != "" || stderr.Len() == 0, "on standard error: %s", &stderr)
		})
	}
	require.Equal(t, 1, run(nil, fullDisk{}, fullDisk{}), "what cannot be printed is not shown")
	ends = false
	var stdout, stderr bytes.Buffer
	require.Equal(t, 1, run(nil, &stdout, &stderr))
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("disk full") }

// A story that ends otherwise is not told as a success, and the status says so.
func TestOrphanVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		naive tracker
		spoil func(o *ours) tracker
		says  string
	}{
		"a ring that is long enough": {newNaive(1 << 20), nil, "the naive tracker's assertion should have failed"},
		"a ring that is too short":   {newNaive(8), nil, "the naive tracker's assertion should have failed"},
		"another panic":              {&spoilt{tracker: newNaive(ringSize), panics: true}, nil, "the naive tracker's assertion should have failed"},
		"ours accepts":               {newNaive(ringSize), func(o *ours) tracker { return &spoilt{tracker: o, err: errors.New("accepted")} }, "WRONG: accepted"},
		"ours panics":                {newNaive(ringSize), func(o *ours) tracker { return &spoilt{tracker: o, panics: true} }, "PANIC: spoilt"},
		"ours gives another reason":  {newNaive(ringSize), func(o *ours) tracker { o.reason++; return o }, "WRONG: want never issued"},
		"ours is another kind":       {newNaive(ringSize), func(o *ours) tracker { o.kind = errors.New("other"); return o }, "WRONG: want an *OrphanError: other"},
		"the heap grows":             {newNaive(ringSize), func(o *ours) tracker { o.heap = 1; return o }, "WRONG: the heap has grown"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := newOurs(false)
			require.NoError(t, err)
			var ours tracker = o
			if tc.spoil != nil {
				ours = tc.spoil(o)
			}
			var out strings.Builder
			require.False(t, perform(&out, false, orphanStory(orphanScript(false)[:7], tc.naive, ours))) // the rest takes long
			require.Contains(t, out.String(), tc.says)
			require.Contains(t, out.String(), "Verdict: NOT AS EXPECTED")
			require.NoError(t, o.close())
		})
	}
}

// TestStreamVerdict is TestOrphanVerdict for the other race.
func TestStreamVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		reopened bool
		naive    func(n *naiveFollower) follower
		ours     func(f *ourFollower) follower
		says     string
	}{
		"naive checks again":   {false, func(n *naiveFollower) follower { return &spoiltFollower{follower: n} }, nil, "should have indexed what was erased"},
		"another panic":        {false, func(n *naiveFollower) follower { return &spoiltFollower{follower: n, panics: true} }, nil, "should have indexed what was erased"},
		"successor left alone": {true, func(n *naiveFollower) follower { return &spoiltFollower{follower: n} }, nil, "should have written into the new life"},
		"ours accepts":         {true, nil, func(f *ourFollower) follower { return &spoiltFollower{follower: f, err: errors.New("accepted")} }, "WRONG: accepted"},
		"ours panics":          {false, nil, func(f *ourFollower) follower { return &spoiltFollower{follower: f, panics: true} }, "PANIC: spoilt"},
		"ours is a live token": {true, nil, func(f *ourFollower) follower { return &spoiltFollower{follower: f, live: f} }, "WRONG: want session"},
	} {
		t.Run(name, func(t *testing.T) {
			f, n := newFollower(), newNaiveFollower()
			var naive, ours follower = n, f
			if tc.naive != nil {
				naive = tc.naive(n)
			}
			if tc.ours != nil {
				ours = tc.ours(f)
			}
			var out strings.Builder
			require.False(t, perform(&out, false, streamStory(tc.reopened, naive, ours)))
			require.Contains(t, out.String(), tc.says)
			require.Contains(t, out.String(), "Verdict: NOT AS EXPECTED")
			require.NoError(t, f.close())
		})
	}
}

// spoiltFollower takes the late answer otherwise.
type spoiltFollower struct {
	follower
	panics bool
	err    error
	live   *ourFollower // answers with a token of the present life
}

func (s *spoiltFollower) reply(p int) (string, error) {
	if p != raced {
		return s.follower.reply(p)
	}
	switch {
	case s.panics:
		panic("spoilt")
	case s.live != nil:
		return s.live.late(question{s.live.s, s.live.asked[p].ticket}, func(streamstate.Tx[restarts]) error { return nil })
	}
	return "accepted", s.err
}

// spoilt is a tracker that takes a late reply otherwise.
type spoilt struct {
	tracker
	panics bool
	err    error
}

func (s *spoilt) reply(r int, id uint64) (string, error) {
	if s.panics {
		panic("spoilt")
	}
	return "accepted", s.err
}
