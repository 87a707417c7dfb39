package fifo

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestQueueAgreesWithSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		var want []int
		n := 0
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) { n++; q.Push(n); want = append(want, n) },
			"pop": func(t *rapid.T) {
				got, ok := q.Pop()
				require.Equal(t, len(want) > 0, ok)
				if ok {
					require.Equal(t, want[0], got)
					want = want[1:]
				}
			},
			"clear": func(*rapid.T) { q.Clear(); want = nil },
			"clone": func(*rapid.T) { old := q; q = q.Clone(); old.Clear() },
			"": func(t *rapid.T) {
				require.Equal(t, len(want), q.Len())
				if q.Len() == 0 {
					require.Nil(t, q.Peek())
				}
				for i, w := range want {
					require.Equal(t, w, *q.At(i))
				}
			},
		})
	})
}

func TestQueueSteadyStateAllocatesNothing(t *testing.T) {
	var q Queue[*int]
	for range 5 {
		q.Push(new(int))
	}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		e, _ := q.Pop()
		q.Push(e)
	}))
}
