package streamstate

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/xbase"
)

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestSizes(t *testing.T) {
	require.Equal(t, 72, int(unsafe.Sizeof(partition{})))
	require.Equal(t, 32, int(unsafe.Sizeof(Position{})))
	require.Equal(t, 24, int(unsafe.Sizeof(Claim[*int]{})))
	require.Equal(t, 320, int(unsafe.Sizeof(entry[*int]{})))
	require.LessOrEqual(t, int(unsafe.Sizeof(StaleError{})), 64)
	require.LessOrEqual(t, int(unsafe.Sizeof(PartitionError{})), 64)
}

// TestLines has what every call looks at in one cache line, the payload included: a transaction on a key that has not been
// used for long waits for memory once.
func TestLines(t *testing.T) {
	s, _ := opened(t, Options{}, 1)
	k := s.e.view()
	line := func(p unsafe.Pointer) uintptr { return uintptr(p) / 64 }
	want := line(unsafe.Pointer(&s.e.mu))
	for name, p := range map[string]unsafe.Pointer{
		"handle": unsafe.Pointer(&s.e), "number": unsafe.Pointer(&s.n), "payload": unsafe.Pointer(&s.e.payload), "set": unsafe.Pointer(&k.set), "tx": unsafe.Pointer(&s.e.tx), "gap": unsafe.Pointer(&s.e.gap),
		"ears": unsafe.Pointer(&k.ears), "session": unsafe.Pointer(&k.session),
		"phase": unsafe.Pointer(&k.phase), "due": unsafe.Pointer(&k.due), "lists": unsafe.Pointer(&k.lists),
	} {
		require.Equal(t, want, line(p), name)
	}
}

// TestMemoryOfKeys has ten thousand keys of 64 partitions, all begun and moved on, each with one living Timestamp.
func TestMemoryOfKeys(t *testing.T) {
	keys := 1000
	if *stress {
		keys = 10_000
	}
	book := NewBook[*int](Options{})
	sessions, stamps := make([]*Session[*int], keys), make([]Timestamp, keys)
	before := heap()
	for i := range sessions {
		s, err := book.Open(Key{"maint", fmt.Sprint(i)}, OpenOptions[*int]{Partitions: 64})
		require.NoError(t, err)
		for p := range 64 {
			c, err := s.Begin(p, Begin{Owner: "me"})
			require.NoError(t, err)
			require.NoError(t, c.Advance(next(uint64(i+p+1))))
		}
		stamps[i], err = s.Timestamp()
		require.NoError(t, err)
		sessions[i] = s
	}
	each := (heap() - before) / uint64(keys)
	t.Logf("%d bytes a key", each)
	require.LessOrEqual(t, each, uint64(12<<10))
	runtime.KeepAlive(sessions)
	runtime.KeepAlive(stamps)
	require.NoError(t, book.Close().Wait(t.Context()))
}

// TestKeysLeaveNothing opens and drops many keys.
func TestKeysLeaveNothing(t *testing.T) {
	keys := 50_000
	if *stress {
		keys = 1_000_000
	}
	book := NewBook[*int](Options{})
	var last *Session[*int]
	round := func(n int) {
		for i := range n {
			s, err := book.Open(Key{"maint", fmt.Sprint(i)}, OpenOptions[*int]{Partitions: 4})
			require.NoError(t, err)
			_, err = s.Begin(1, Begin{Owner: "me"})
			require.NoError(t, err)
			_ = s.Context()
			require.NoError(t, s.Drop().Err())
			last = s
		}
	}
	round(1000)
	before := heap()
	round(keys)
	grown := int64(heap()) - int64(before)
	t.Logf("%d bytes more after %d keys", grown, keys)
	require.Less(t, grown, int64(256<<10))
	require.ErrorIs(t, last.Want(0), ErrStaleSession)
	require.NoError(t, book.Close().Wait(t.Context()))
}

// TestTwoKeysDoNotContend works on two keys that were opened one after the other, on two cores, and on one.
func TestTwoKeysDoNotContend(t *testing.T) {
	if testing.Short() || runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two cores")
	}
	book := NewBook[*int](Options{})
	var claims [2]*Claim[*int]
	for i := range claims {
		s, err := book.Open(Key{"maint", fmt.Sprint(i)}, OpenOptions[*int]{Partitions: 1})
		require.NoError(t, err)
		claims[i], err = s.Begin(0, Begin{Owner: "me"})
		require.NoError(t, err)
	}
	var at [2]struct {
		n uint64
		_ [120]byte
	}
	advance := func(i int) {
		for range 20_000 {
			at[i].n++
			_ = claims[i].Advance(next(at[i].n))
		}
	}
	compute := func(i int) {
		for n := range uint64(500_000) {
			at[i].n ^= at[i].n<<1 + n
		}
	}
	var ours, control []float64
	for range 25 {
		control = append(control, speedUp(compute))
		at[0].n, at[1].n = uint64(len(control))<<32, uint64(len(control))<<32
		ours = append(ours, speedUp(advance))
	}
	got, want := xbase.Median(ours), xbase.Median(control)
	t.Logf("two cores do %.2f of one, plain computing %.2f", got, want)
	if want < 1.6 {
		t.Skip("the machine has no two cores for us")
	}
	require.GreaterOrEqual(t, got, 0.85*want)
	require.NoError(t, book.Close().Wait(t.Context()))
}

// speedUp is how much more two goroutines do than one.
func speedUp(work func(i int)) float64 {
	t0 := time.Now()
	work(0)
	work(1)
	one := time.Since(t0)
	var both sync.WaitGroup
	t0 = time.Now()
	for i := range 2 {
		both.Go(func() { work(i) })
	}
	both.Wait()
	return float64(one) / float64(time.Since(t0))
}
