package xbase

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMedian(t *testing.T) {
	require.Zero(t, Median(nil))
	require.InDelta(t, 3.0, Median([]float64{3}), 0)
	require.InDelta(t, 2.0, Median([]float64{100, 1, 2}), 0)
	require.InDelta(t, 2.5, Median([]float64{3, 0, 100, 2}), 0)
}

// BenchmarkMeasure measures the base itself, and the base done twice: 1 and 2 xbase but for noise. No
// test asserts that, since no test should depend on what else the machine is doing.
func BenchmarkMeasure(b *testing.B) {
	for _, c := range []struct {
		name  string
		times int
	}{{"once", 1}, {"twice", 2}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			unit := new(base)
			Measure(b, 4096, func(n int) { unit.run(n * c.times) })
		})
	}
}
