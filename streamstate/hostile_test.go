package streamstate

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTimestampOfNoPartitions(t *testing.T) {
	none, err := NewTimestamp(0, nil)
	require.NoError(t, err)
	require.True(t, none.Equal(Timestamp{}))
	require.True(t, Timestamp{}.Equal(none))
	book := NewBook[int](Options{})
	_, err = book.Open(key("a"), OpenOptions[int]{Partitions: 3, Restart: none})
	require.NoError(t, err)
	require.NoError(t, book.Close().Wait(t.Context()))
}

func TestLongestDeadlineIsNotEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := NewBook[int](Options{BeginWithin: math.MaxInt64})
		time.Sleep(time.Millisecond)
		s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, "idle", s.Dump().Parts[0].State)
		require.NoError(t, book.Close().Wait(t.Context()))
	})
}

// nosy is a caller's error that calls back whenever it is asked something.
type nosy struct{ call func() }

func (e *nosy) Error() string { e.call(); return "nosy" }
func (e *nosy) Is(error) bool { e.call(); return false }

func TestCausesAreNotAskedUnderTheLock(t *testing.T) {
	l := newLedger(t, false, "Begun")
	asked := 0
	cause := &nosy{func() {
		asked++
		_ = l.s.Context()
	}}
	require.NoError(t, l.a.Fence(cause))
	pending, err := l.book.Open(key("b"), OpenOptions[int]{Partitions: 1, Pending: true})
	require.NoError(t, err)
	require.NoError(t, pending.OpenFailed(cause))
	require.NoError(t, l.s.Stop(cause).Err())
	require.Equal(t, 3, asked)
	require.Contains(t, l.s.Dump().Cause, "nosy")
	was := l.s.Fingerprint()
	require.Equal(t, was, l.s.Fingerprint())
	require.Equal(t, 6, asked)
}

func TestBatchOfNoClaim(t *testing.T) {
	l := newLedger(t, false, "Begun")
	was := l.s.Fingerprint()
	batch := []Advance[int]{{l.a, Position{Next: 11}}, {&Claim[int]{}, Position{}}}
	require.ErrorIs(t, l.s.AdvanceBatch(batch), ErrArgument)
	require.Equal(t, was, l.s.Fingerprint())
}

// TestCallbackPanics shows that a callback that panics loses no other event, and does not keep the book from ending.
func TestCallbackPanics(t *testing.T) {
	var r recorder
	book := NewBook[int](Options{OnEvent: func(e Event) {
		r.add(e)
		if e.Kind == PhaseChanged {
			panic("foreign")
		}
	}})
	require.Panics(t, func() { _, _ = book.Open(key("a"), OpenOptions[int]{Partitions: 2}) })
	var s *Session[int]
	for s = range book.Sessions() {
		_, err := s.Begin(0, Begin{Owner: "A"})
		require.NoError(t, err)
	}
	require.Panics(t, func() { s.Drop() })
	require.Equal(t, []uint64{1, 2, 3, 4}, r.seqs())
	require.NoError(t, book.Close().Wait(t.Context()))
}

func TestMergePanicsAndOthersGoOn(t *testing.T) {
	l, from := mergers(t)
	third, err := l.book.Open(key("third"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	_, err = third.Begin(0, Begin{Owner: "A"})
	require.NoError(t, err)
	on := false
	ready := func(View, View) bool { return on }
	bad := l.book.Merge(third, l.s, ready, func(_, _ Tx[int]) error { panic("foreign") })
	good := l.book.Merge(from, l.s, ready, takePayload)
	on = true
	require.Panics(t, func() { _ = l.s.Update(nothing) })
	require.ErrorIs(t, bad.Err(), ErrPanicked)
	require.False(t, open(good))
	require.NoError(t, good.Err())
}

func TestSessionsOfAnotherBook(t *testing.T) {
	l, from := mergers(t)
	other := NewBook[int](Options{})
	was := l.s.Fingerprint()
	require.ErrorIs(t, other.Merge(from, l.s, nil, takePayload).Err(), ErrArgument)
	require.ErrorIs(t, other.Pair(from, l.s, func(_, _ Tx[int]) error { return errors.New("ran") }), ErrArgument)
	require.Equal(t, was, l.s.Fingerprint())
	stats := other.Stats()
	require.Equal(t, uint64(2), stats.Refusals())
}

func TestGoneKeepsNoPayload(t *testing.T) {
	book := NewBook[*int](Options{})
	s, err := book.Open(key("a"), OpenOptions[*int]{Partitions: 1, Payload: new(int)})
	require.NoError(t, err)
	require.NoError(t, s.Update(func(tx Tx[*int]) error { return tx.SetPayload(new(int)) }))
	_, err = s.Begin(0, Begin{Owner: "A"})
	require.NoError(t, err)
	require.NoError(t, s.Drop().Err())
	require.Nil(t, s.e.payload)
	require.Nil(t, s.e.pending)
	require.Nil(t, s.e.slab)
}

func TestKindOfEndOfAListedClaim(t *testing.T) {
	l := newLedger(t, false, "Fenced")
	was := l.s.Fingerprint()
	require.ErrorIs(t, l.a.End(EndKind(9)), ErrArgument)
	require.Equal(t, was, l.s.Fingerprint())
}

// TestGoexitIsAPanic ends the goroutine in functions of the caller's.
func TestGoexitIsAPanic(t *testing.T) {
	l := newLedger(t, false, "Begun")
	was := l.s.Fingerprint()
	exit := func(Tx[int]) error { runtime.Goexit(); return nil }
	for _, call := range []func(){
		func() { _ = l.s.Update(exit) },
		func() { _ = l.a.Apply(Position{Next: 99}, exit) },
		func() { _ = l.s.When(t.Context(), View.Healthy, exit) },
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		<-done
		require.Equal(t, was, l.s.Fingerprint())
	}
}
