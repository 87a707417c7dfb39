package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// terminal is what a terminal was sent.
type terminal struct {
	mu     sync.Mutex
	sent   bytes.Buffer
	broken bool
}

func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken {
		return 0, errors.New("it has gone")
	}
	return t.sent.Write(p)
}

func (t *terminal) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent.String()
}

// TestScreen: bars and the status line are drawn below what is logged, nothing that was logged is lost, and when the screen has
// ended lines are written as they are. Without the draw in aboveBars.Write the last line is lost.
func TestScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out terminal
		s := newScreen(&out)
		defer s.end()
		lines := s.above(&out, &out)
		off, ok := s.status(func() string { return "all is well" })
		require.True(t, ok)
		time.Sleep(2 * redrawEvery)
		require.Contains(t, out.String(), "all is well")
		g := s.gauge("replica 1: repair", "extents", 8, func(string) { require.Fail(t, "a line beside the bar") })
		g.set(4, pace(2e6, 3*time.Second))
		time.Sleep(2 * redrawEvery)
		require.Contains(t, out.String(), "replica 1: repair 4 of 8 extents [===")
		require.Contains(t, out.String(), "]  2.0 MB/s, 3s left")
		_, err := lines.Write([]byte("something has happened\n"))
		require.NoError(t, err)
		synctest.Wait()
		_, after, _ := strings.Cut(out.String(), "something has happened\n")
		require.Contains(t, after, "4 of 8 extents")
		require.Contains(t, after, "all is well", "what is below a line is drawn with it")
		g.end()
		g.set(5, "")
		off()
		_, err = lines.Write([]byte("the last words\n"))
		require.NoError(t, err)
		s.end()
		require.Contains(t, out.String(), "the last words\n")
		_, err = lines.Write([]byte("afterwards\n"))
		require.NoError(t, err)
		require.True(t, strings.HasSuffix(out.String(), "afterwards\n"))
		_, ok = s.status(func() string { return "" })
		require.False(t, ok)
	})
}

// TestScreenFails: a terminal that is gone takes nothing down with it.
func TestScreenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newScreen(&terminal{broken: true})
		lines := &aboveBars{screen: s, out: &log}
		_, _ = s.status(func() string { return "all is well" })
		time.Sleep(10 * redrawEvery)
		for range 3 {
			_, err := lines.Write([]byte("a line\n"))
			require.NoError(t, err)
		}
		require.Contains(t, log.String(), "a line\n")
		g := s.gauge("replica 1: repair", "extents", 8, func(string) {})
		g.set(4, "")
		g.end()
		s.end()
	})
}

// TestWithoutScreen: without a terminal there are lines, and not too many.
func TestWithoutScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *screen
		var out bytes.Buffer
		require.Equal(t, &out, s.above(os.Stderr, &out))
		_, ok := s.status(func() string { return "" })
		require.False(t, ok)
		var told []string
		g := s.gauge("repair", "extents", 100, func(text string) { told = append(told, text) })
		for i := range int64(100) {
			time.Sleep(time.Second / 2)
			g.set(i, pace(1e6, time.Minute))
		}
		g.end()
		s.end()
		require.Equal(t, []string{
			"19 of 100 extents, 1.0 MB/s, 1m0s left", "39 of 100 extents, 1.0 MB/s, 1m0s left", "59 of 100 extents, 1.0 MB/s, 1m0s left",
			"79 of 100 extents, 1.0 MB/s, 1m0s left", "99 of 100 extents, 1.0 MB/s, 1m0s left",
		}, told)
	})
}

// TestSameFile: only what is the same terminal is written above the bars.
func TestSameFile(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	again, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	require.True(t, sameFile(null, again))
	require.False(t, sameFile(null, &bytes.Buffer{}))
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.False(t, sameFile(null, f))
}
