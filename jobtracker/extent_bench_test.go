package jobtracker

import (
	"testing"

	"github.com/staleproof/staleproof/internal/xbase"
)

// BenchmarkExtent is what a change costs that a replica misses: finding its extents and marking them. A change that nobody
// misses costs one comparison.
func BenchmarkExtent(b *testing.B) {
	const blocks = 1 << 20
	t := extentTable{size: 16, blocks: blocks}
	t.reset(ExtentClean)
	t.apply(0, 1, extentMissed, 0)
	at := uint64(0)
	b.ReportAllocs()
	xbase.Measure(b, 4096, func(n int) {
		for range n {
			from, to := t.touched(at%(blocks-8), 8)
			t.apply(from, to, extentMissed, 0)
			at += 61
		}
	})
	if err := t.check(); err != nil {
		b.Fatal(err)
	}
}
