//go:build unix

package repair

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
	"golang.org/x/sync/errgroup"

	"github.com/staleproof/staleproof/streamstate"
)

// raced tells whether the race detector is on: it stops at 8,128 goroutines.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if ok && s.Key == "-race" && s.Value == "true" {
			return true
		}
	}
	return false
}

// scheduled is how often a goroutine of the process was made to run; the runtime counts every eighth.
func scheduled() (n uint64) {
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(s)
	for _, c := range s[0].Value.Float64Histogram().Counts {
		n += c
	}
	return n
}

// memory is what heap and stacks take.
func memory() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// used is how much processor time the process has used.
func used(t *testing.T) time.Duration {
	var use syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// TestTenThousandIdleSessions has a driver for each of ten thousand sessions with nothing to do, for a year: no lock is
// acquired, no timer fires and no goroutine is woken. Then each is still there.
func TestTenThousandIdleSessions(t *testing.T) {
	sessions := 10_000
	if raced() {
		sessions = 2_000
	}
	synctest.Test(t, func(t *testing.T) {
		var locked, called atomic.Int64
		book := streamstate.NewBook[int](streamstate.Options{Gap: func() { locked.Inc() }})
		src := newSource()
		src.check = func(*call) { called.Inc() }
		var drivers errgroup.Group
		all := make([]*sess, sessions)
		for i := range all {
			var err error
			all[i], err = book.Open(streamstate.Key{Stream: "maint", Keyspace: strconv.Itoa(i)}, streamstate.OpenOptions[int]{Partitions: 4})
			require.NoError(t, err)
			for p := range 4 {
				_, err := all[i].Begin(p, streamstate.Begin{Owner: "A"})
				require.NoError(t, err)
			}
		}
		time.Sleep(time.Hour) // what was armed before they began is over
		before := memory()
		for _, s := range all {
			drivers.Go(func() error { return Stream(t.Context(), s, src, StreamOptions{}) })
		}
		time.Sleep(time.Hour)
		synctest.Wait()

		bytes := (memory() - before) / uint64(sessions)
		locks, wakes, cpu := locked.Load(), scheduled(), used(t)
		time.Sleep(365 * 24 * time.Hour)
		cpu, wakes = used(t)-cpu, scheduled()-wakes
		require.Zero(t, locked.Load()-locks, "locks that were acquired")
		require.Less(t, wakes, uint64(sessions/100), "goroutines that were woken")
		t.Logf("%d sessions: %d bytes each; in a year %d wake-ups and %v of CPU", sessions, bytes, wakes, cpu)

		wakes = scheduled()
		for _, s := range all { // what is counted would be seen
			require.NoError(t, s.Update(func(streamstate.Tx[int]) error { return nil }))
		}
		synctest.Wait()
		require.GreaterOrEqual(t, locked.Load()-locks, int64(2*sessions))
		require.Greater(t, scheduled()-wakes, uint64(sessions/20))

		_, err := all[sessions/2].OwnerGone("A")
		require.NoError(t, err)
		c := <-src.calls
		require.Equal(t, []int{0, 1, 2, 3}, c.parts)
		require.Equal(t, int64(1), called.Load())
		close(src.over)
		require.NoError(t, book.Close().Wait(t.Context()))
		require.ErrorIs(t, drivers.Wait(), streamstate.ErrClosed)
	})
}
