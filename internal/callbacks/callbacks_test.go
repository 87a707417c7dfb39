package callbacks

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record is the smallest owner of a queue, with a gate as the doc comment of Queue has it.
type record struct {
	mu sync.Mutex
	// +checklocks:mu
	q Queue[int]
	// +checklocks:mu
	next int
	run  func(int) // immutable
}

// push queues n entries, numbered on, and runs what is to be run.
func (r *record) push(n int) {
	r.mu.Lock()
	for range n {
		r.q.Push(r.next)
		r.next++
	}
	drain := r.q.Start()
	r.mu.Unlock()
	if drain {
		r.drain()
	}
}

// +checklocksignore: Run is the drainer's, with no lock held
func (r *record) drain() {
	done := false
	defer func() {
		if !done {
			r.mu.Lock()
			r.q.Abandon()
			r.mu.Unlock()
		}
	}()
	for r.q.Run(r.run) {
		r.mu.Lock()
		r.q.Take()
		r.mu.Unlock()
	}
	done = true
}

func (r *record) len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.q.Len()
}

// requireAll demands the entries 0 to n-1, in order.
func requireAll(t *testing.T, got []int, n int) {
	t.Helper()
	require.Equal(t, n, len(got)) //nolint:testifylint // Len would print them all
	for i, e := range got {
		require.Equal(t, i, e)
	}
}

func TestOrder(t *testing.T) {
	var got []int
	r := &record{run: func(e int) { got = append(got, e) }}
	for _, n := range []int{0, 1, 3, 0, 20} {
		r.push(n)
		require.Zero(t, r.len())
	}
	require.Len(t, got, 24)
	require.IsIncreasing(t, got)
}

func TestNothingToRun(t *testing.T) {
	var q Queue[int]
	require.False(t, q.Start())
	require.Zero(t, q.Len())
}

// TestReentrance has entries queue others: they come after what was queued before them, run by the same drainer.
func TestReentrance(t *testing.T) {
	var got []int
	depth := 0
	r := &record{}
	r.run = func(e int) {
		require.Zero(t, depth, "an entry runs inside another")
		depth++
		defer func() { depth-- }()
		got = append(got, e)
		if e < 10 {
			before := r.len()
			r.push(2)
			require.Equal(t, before+2, r.len())
		}
	}
	r.push(1)
	require.Len(t, got, 21)
	require.IsIncreasing(t, got)
	require.Zero(t, r.len())
}

func TestLenCountsWhatHasNotRun(t *testing.T) {
	r := &record{}
	r.run = func(int) { require.Positive(t, r.len()) }
	r.push(3)
	require.Zero(t, r.len())

	r.mu.Lock()
	defer r.mu.Unlock()
	for e := range 3 {
		r.q.Push(e)
	}
	require.Equal(t, 3, r.q.Len())
	require.True(t, r.q.Start())
	require.Equal(t, 3, r.q.Len())
	require.False(t, r.q.Start(), "nothing was pushed")
	r.q.Push(3)
	require.False(t, r.q.Start(), "somebody drains")
	require.Equal(t, 4, r.q.Len())
}

// TestOneDrainer has many push at once: each entry is run once, in order, one at a time.
func TestOneDrainer(t *testing.T) {
	const pushers, each = 16, 500
	var inside atomic.Int32
	var got []int // no lock: the race detector sees two drainers
	r := &record{run: func(e int) {
		if inside.Inc() != 1 {
			t.Error("two entries run at once")
		}
		got = append(got, e)
		inside.Dec()
	}}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range pushers {
		wg.Go(func() {
			<-start
			for i := range each {
				r.push(i % 3)
			}
		})
	}
	close(start)
	wg.Wait()
	require.Zero(t, r.len())
	requireAll(t, got, pushers*(each-1)) // 0, 1, 2, 0, …, 1
}

// TestOthersGoOn blocks in an entry: others push and return, and what they pushed is run when it goes on.
func TestOthersGoOn(t *testing.T) {
	inside, leave := make(chan struct{}), make(chan struct{})
	var got []int
	r := &record{run: func(e int) {
		if e == 0 {
			close(inside)
			<-leave
		}
		got = append(got, e)
	}}
	var wg sync.WaitGroup
	wg.Go(func() { r.push(2) })
	<-inside
	r.push(1)
	r.push(1)
	require.Equal(t, 4, r.len())
	close(leave)
	wg.Wait()
	require.Equal(t, []int{0, 1, 2, 3}, got)
}

// TestPanic has an entry panic, and somebody above recover: what is left is run once each by the next drainer, before
// what is pushed later.
func TestPanic(t *testing.T) {
	var got []int
	r := &record{}
	r.run = func(e int) {
		got = append(got, e)
		if e == 1 {
			r.push(2) // the drainer takes them later
		}
		if e == 2 || e == 4 {
			panic("foreign")
		}
	}
	require.PanicsWithValue(t, "foreign", func() { r.push(4) })
	require.Equal(t, []int{0, 1, 2}, got)
	require.Equal(t, 3, r.len(), "what was abandoned has not been run")
	require.PanicsWithValue(t, "foreign", func() { r.push(1) })
	require.Equal(t, []int{0, 1, 2, 3, 4}, got)
	require.Equal(t, 2, r.len())
	r.push(0) // needs nothing new
	require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6}, got)
	require.Zero(t, r.len())
}

// TestPanicWhileOthersPush has every seventh entry panic while many push.
func TestPanicWhileOthersPush(t *testing.T) {
	const pushers, each = 8, 300
	var got []int
	r := &record{run: func(e int) {
		got = append(got, e)
		if e%7 == 0 {
			panic("foreign")
		}
	}}
	push := func(n int) {
		defer func() { _ = recover() }()
		r.push(n)
	}
	var wg sync.WaitGroup
	for range pushers {
		wg.Go(func() {
			for range each {
				push(1)
			}
		})
	}
	wg.Wait()
	for r.len() > 0 {
		push(0)
	}
	requireAll(t, got, pushers*each)
}

// TestModel drives the queue step by step against a list of what was pushed and one of what has been run.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[int]
		pushed, ran := 0, 0
		taken := 0 // of what was pushed, what the drainer has; -1: nobody drains
		draining, bad := false, -1
		run := func(e int) {
			require.Equal(t, ran, e)
			require.Less(t, e, taken)
			ran++
			if e == bad {
				panic("foreign")
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(0, 20).Draw(t, "n") {
					q.Push(pushed)
					pushed++
				}
				start := !draining && pushed > ran
				require.Equal(t, start, q.Start())
				if start {
					draining, taken = true, pushed
				}
			},
			"run": func(t *rapid.T) {
				if !draining {
					t.Skip("nobody drains")
				}
				draining = pushed > taken
				require.Equal(t, draining, q.Run(run))
				require.Equal(t, taken, ran)
				if draining {
					q.Take()
					taken = pushed
				}
			},
			"panic": func(t *rapid.T) {
				if !draining || taken == ran {
					t.Skip("nothing to run")
				}
				bad = rapid.IntRange(ran, taken-1).Draw(t, "bad")
				require.PanicsWithValue(t, "foreign", func() { q.Run(run) })
				q.Abandon()
				draining, bad = false, -1
			},
			"": func(t *rapid.T) {
				require.GreaterOrEqual(t, q.Len(), pushed-ran)
				if !draining {
					require.Equal(t, pushed-ran, q.Len())
				}
			},
		})
	})
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	n := 0
	r := &record{run: func(int) { n++ }}
	r.push(64)
	require.Zero(t, testing.AllocsPerRun(1000, func() { r.push(40) }))
	require.Equal(t, 64+1001*40, n)
}
