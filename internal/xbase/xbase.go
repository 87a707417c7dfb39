// Package xbase measures benchmarks in multiples of one uncontended mu.Lock(); a[i]++; mu.Unlock(), so
// that figures can be compared between machines, and between runs on one whose clock speed changes.
//
// A base that is measured once is off by as much as the clock has changed since. [Measure] therefore takes
// turns: a chunk of work, a chunk of base, each timed as a whole, and reports the median of the ratios of neighbours.
// A change of clock, a collection or a preemption spoils the few chunks that it falls into, not the median.
//
// It is for benchmarks only, and not safe for concurrent use.
package xbase

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// base is what everything is measured in.
type base struct {
	mu sync.Mutex
	// +checklocks:mu
	a [64]uint64
}

// run does n units of base.
//
//go:noinline
func (b *base) run(n int) {
	for i := range n {
		b.mu.Lock()
		b.a[i&63]++
		b.mu.Unlock()
	}
}

// Measure runs the benchmark b of work, where work(n) does n operations, going on where the last call
// left off. It calls work b.N operations in all, in chunks of up to chunk (some thousands; that many
// operations should take ten microseconds or more), and reports
//
//   - xbase: the median, over all chunks, of time per operation divided by time per unit of base,
//   - ns/op: the mean time of an operation, the time for base left out.
//
// What work needs is set up before; Measure resets the timer. ReportAllocs and -benchmem count what work
// allocates, since base allocates nothing. The duration given to -benchtime covers both. With a
// count of operations (-benchtime=100x) below a few chunks, xbase is a guess.
//
// It is built on b.N, not on b.Loop: one turn of b.Loop would be a chunk, and allocations would be reported per chunk.
func Measure(b *testing.B, chunk int, work func(n int)) {
	b.Helper()
	if chunk < 1 {
		b.Fatalf("xbase: chunk is %d, must be positive", chunk)
	}
	unit := new(base)
	ratios := make([]float64, 0, b.N/chunk+1)
	var spent time.Duration
	unit.run(chunk) // warm up
	b.ResetTimer()
	for done := 0; done < b.N; {
		n := min(chunk, b.N-done)
		t0 := time.Now()
		work(n)
		t1 := time.Now()
		unit.run(chunk)
		t2 := time.Now()

		spent += t1.Sub(t0)
		perOp := float64(t1.Sub(t0)) / float64(n)
		perUnit := float64(t2.Sub(t1)) / float64(chunk)
		ratios = append(ratios, perOp/max(perUnit, 1e-3))
		done += n
	}
	b.StopTimer()
	b.ReportMetric(float64(spent)/float64(b.N), "ns/op")
	b.ReportMetric(Median(ratios), "xbase")
}

// Median returns the median of x, which it sorts; 0 if x is empty.
func Median(x []float64) float64 {
	slices.Sort(x)
	switch n := len(x); {
	case n == 0:
		return 0
	case n%2 == 1:
		return x[n/2]
	default:
		return (x[n/2-1] + x[n/2]) / 2
	}
}
