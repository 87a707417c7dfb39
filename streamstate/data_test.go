package streamstate

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

func next(n uint64) Position { return Position{Next: n} }

func vector1(t *testing.T, n int, at map[int]Position) Timestamp {
	t.Helper()
	ts, err := NewTimestamp(n, maps.All(at))
	require.NoError(t, err)
	return ts
}

func TestTimestamp(t *testing.T) {
	ts := vector1(t, 20, map[int]Position{3: next(0), 9: {Next: 7, Branch: 2, SnapStart: 1, SnapEnd: 9}})
	require.Equal(t, 20, ts.Len())
	require.Equal(t, "[3:0 9:7@2]", ts.String())
	_, ok := ts.At(4)
	require.False(t, ok, "absent is not zero")
	pos, ok := ts.At(3)
	require.True(t, ok)
	require.Equal(t, next(0), pos)
	_, ok = ts.At(-1)
	require.False(t, ok)
	_, ok = ts.At(20)
	require.False(t, ok)

	e := ts.edit(20)
	e.set(4, next(1))
	other := e.done()
	require.False(t, ts.Equal(other))
	require.Same(t, ts.v.chunk(9>>chunkShift), other.v.chunk(9>>chunkShift), "what did not change is shared")
	require.True(t, ts.Equal(other.without(4)))
	require.True(t, Timestamp{}.Equal(Timestamp{}))
	require.False(t, ts.Equal(Timestamp{}))
	require.True(t, vector1(t, 20, nil).Equal(ts.without(3).without(9)), "a chunk without positions is no chunk")

	for name, bad := range map[string]func(yield func(int, Position) bool){
		"out of range": maps.All(map[int]Position{20: next(1)}),
		"negative":     maps.All(map[int]Position{-1: next(1)}),
		"never":        maps.All(map[int]Position{1: {Next: never}}),
		"snapshot":     maps.All(map[int]Position{1: {SnapStart: 2, SnapEnd: 1}}),
		"twice":        func(yield func(int, Position) bool) { _ = yield(1, next(1)) && yield(1, next(2)) },
	} {
		_, err := NewTimestamp(20, bad)
		require.ErrorIs(t, err, ErrArgument, name)
	}
	_, err := NewTimestamp(-1, nil)
	require.ErrorIs(t, err, ErrArgument)
}

func TestPositions(t *testing.T) {
	l := newLedger(t, false, "Idle")
	a := l.begin(0, Begin{Owner: "A", From: next(10)})
	require.Equal(t, next(10), l.at(0).Received, "a gap that the caller vouches for lifts what is received")
	require.NoError(t, a.Advance(Position{Next: 12, Branch: 3}))
	require.NoError(t, a.Advance(next(12)), "where it is")
	l.deny(ErrPosition, func() error { return a.Advance(next(11)) })
	l.deny(ErrArgument, func() error { return a.Advance(next(never)) })
	l.deny(ErrArgument, func() error { return a.Advance(Position{Next: 13, SnapStart: 9, SnapEnd: 8}) })

	b := l.begin(0, Begin{Owner: "B", From: next(5)})
	applied := 0
	apply := func(tx Tx[int]) error { applied++; return tx.SetPayload(applied) }
	require.NoError(t, b.Apply(next(8), apply))
	require.NoError(t, b.Apply(next(12), apply))
	require.Zero(t, applied, "received before: skipped")
	require.Equal(t, uint64(12), l.at(0).Claims[1].Next)
	require.NoError(t, b.Apply(next(13), apply))
	require.Equal(t, 1, applied)
	require.Equal(t, next(13), l.at(0).Received)
	require.NoError(t, a.Apply(next(13), apply))
	require.Equal(t, 1, applied, "A hands in what B has handed in")

	ts, err := l.s.Timestamp()
	require.NoError(t, err)
	require.Equal(t, "[0:13 1:0 2:0]", ts.String())
	again, err := l.s.Timestamp()
	require.NoError(t, err)
	require.Same(t, ts.v, again.v)

	require.NoError(t, a.End(Failed))
	require.NoError(t, b.End(HandOver))
	require.Equal(t, next(13), l.at(0).Received, "the payload has it")
	require.NoError(t, l.s.Unwant(0).Err())
	require.False(t, l.at(0).HasReceived)
	require.NoError(t, l.s.Want(0))
	require.False(t, l.at(0).HasReceived)
}

func TestApplyThatFails(t *testing.T) {
	l := newLedger(t, false, "Begun")
	no := errors.New("no")
	before := l.s.Fingerprint()
	err := l.a.Apply(next(11), func(tx Tx[int]) error {
		require.NoError(t, tx.SetPayload(9))
		return no
	})
	require.ErrorIs(t, err, no)
	require.Equal(t, before, l.s.Fingerprint())
	var leaked Tx[int]
	require.PanicsWithValue(t, "foreign", func() {
		_ = l.a.Apply(next(11), func(tx Tx[int]) error {
			leaked = tx
			_ = tx.SetPayload(9)
			panic("foreign")
		})
	})
	require.Equal(t, before, l.s.Fingerprint(), "the lock is free, nothing has changed")
	require.ErrorIs(t, leaked.SetPayload(3), ErrTxDone)
	require.ErrorIs(t, leaked.Err(), ErrTxDone)
	_, err = leaked.Payload()
	require.ErrorIs(t, err, ErrTxDone)
	_, err = leaked.Partition(0)
	require.ErrorIs(t, err, ErrTxDone)
	require.NoError(t, l.s.Read(func(tx ReadTx[int]) error {
		p, err := tx.Payload()
		require.Zero(t, p)
		require.ErrorIs(t, leaked.Err(), ErrTxDone, "nor while another runs")
		return err
	}))
}

func TestMustRollBack(t *testing.T) {
	l := newLedger(t, false, "Idle")
	c := l.begin(0, Begin{Owner: "C", MustRollBack: true, RollBackTo: Position{Next: 0, Branch: 4}})
	l.deny(ErrMustRollBack, func() error { return c.Advance(next(1)) })
	v := l.at(0)
	require.Equal(t, Begun, v.State)
	require.True(t, v.Claims[0].MustRollBack)
	require.False(t, v.HasReceived, "never flushed, flushed to zero and rolled back to zero are three values (S33)")
	work, err := l.s.NextDue(ends())
	require.NoError(t, err)
	restart := work[0].(*RecoverTicket).Restart()
	pos, ok := restart.At(0)
	require.True(t, ok)
	require.Equal(t, Position{Branch: 4}, pos)
	_, ok = restart.At(1)
	require.False(t, ok)
	require.NoError(t, l.s.Stop(nil).Wait(ends()))
	s, err := l.book.Reopen(l.s, ReopenOptions[int]{})
	require.NoError(t, err)
	l.s = s
	require.Equal(t, Position{Branch: 4}, l.at(0).Received)
}

func TestBatches(t *testing.T) {
	l := newLedger(t, false, "Begun")
	one := l.begin(1, Begin{Owner: "A", Term: 6, From: next(3)})
	batch := []Advance[int]{{l.a, next(11)}, {one, next(4)}}
	require.NoError(t, l.s.AdvanceBatch(batch))
	require.NoError(t, l.s.AdvanceBatch(batch), "again: where they are")
	require.NoError(t, l.s.AdvanceBatch(nil))
	require.Equal(t, next(4), l.at(1).Received)
	for name, bad := range map[string][]Advance[int]{
		"twice":     {{l.a, next(12)}, {one, next(5)}, {l.a, next(13)}},
		"no claim":  {{l.a, next(12)}, {nil, next(5)}},
		"not valid": {{l.a, next(12)}, {one, next(never)}},
	} {
		t.Run(name, func(t *testing.T) {
			l.deny(ErrArgument, func() error { return l.s.AdvanceBatch(bad) })
			l.deny(ErrArgument, func() error { return l.s.ApplyBatch(bad, nil) })
		})
	}
	l.deny(ErrPosition, func() error { return l.s.AdvanceBatch([]Advance[int]{{one, next(9)}, {l.a, next(2)}}) })

	var got []int
	err := l.s.ApplyBatch([]Advance[int]{{one, next(4)}, {l.a, next(20)}}, func(tx Tx[int], fresh []Advance[int]) error {
		for _, a := range fresh {
			got = append(got, a.Claim.Partition())
		}
		return tx.SetPayload(len(fresh))
	})
	require.NoError(t, err)
	require.Equal(t, []int{0}, got)
	require.Panics(t, func() {
		_ = l.s.ApplyBatch([]Advance[int]{{l.a, next(30)}}, func(Tx[int], []Advance[int]) error { panic("foreign") })
	})
	require.NoError(t, l.s.Check())

	require.NoError(t, l.a.End(HandOver))
	l.deny(ErrStaleClaim, func() error { return l.s.AdvanceBatch([]Advance[int]{{one, next(9)}, {l.a, next(30)}}) })
	require.Equal(t, next(4), l.at(1).Received)
}

// TestApplyBatchIsChecked has the function change the batch, and what it is given: what was checked is what is committed.
// It is red if the second pass reads the caller's batch.
func TestApplyBatchIsChecked(t *testing.T) {
	for name, spoil := range map[string]func(batch []Advance[int]){
		"cleared":     func(batch []Advance[int]) { clear(batch) },
		"moved on":    func(batch []Advance[int]) { batch[0].Position = next(99) },
		"not a claim": func(batch []Advance[int]) { batch[1].Claim = new(Claim[int]) },
		"twice":       func(batch []Advance[int]) { batch[1] = batch[0] },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			one := l.begin(1, Begin{Owner: "A", Term: 6, From: next(3)})
			batch := []Advance[int]{{l.a, next(20)}, {one, next(4)}}
			require.NoError(t, l.s.ApplyBatch(batch, func(_ Tx[int], fresh []Advance[int]) error {
				spoil(batch)
				spoil(fresh)
				return nil
			}))
			require.Equal(t, next(20), l.at(0).Received)
			require.Equal(t, next(4), l.at(1).Received)
			require.NoError(t, l.s.Check())
		})
	}
}

func TestBadInput(t *testing.T) {
	book := NewBook[int](Options{})
	defer book.Close()
	good := OpenOptions[int]{Partitions: 2}
	for name, open := range map[string]func() error{
		"no stream":       func() error { _, err := book.Open(Key{"", "x"}, good); return err },
		"no keyspace":     func() error { _, err := book.Open(Key{"x", ""}, good); return err },
		"control":         func() error { _, err := book.Open(Key{"x", "a\nb"}, good); return err },
		"not UTF-8":       func() error { _, err := book.Open(Key{"x", "\xff"}, good); return err },
		"zero partitions": func() error { _, err := book.Open(key("a"), OpenOptions[int]{}); return err },
		"too many": func() error {
			_, err := book.Open(key("a"), OpenOptions[int]{Partitions: MaxPartitions + 1})
			return err
		},
		"restart": func() error {
			_, err := book.Open(key("a"), OpenOptions[int]{Partitions: 2, Restart: vector1(t, 3, nil)})
			return err
		},
		"wanted twice": func() error {
			_, err := book.Open(key("a"), OpenOptions[int]{Partitions: 2, Wanted: Some(1, 1)})
			return err
		},
		"wanted": func() error {
			_, err := book.Open(key("a"), OpenOptions[int]{Partitions: 2, Wanted: Some(2)})
			return err
		},
		"drop":        func() error { return book.Drop(Key{}).Err() },
		"drop stream": func() error { return book.DropStream("").Err() },
		"session id": func() error {
			var id SessionID
			return id.UnmarshalText([]byte("12"))
		},
	} {
		require.ErrorIs(t, open(), ErrArgument, name)
	}
	l := newLedger(t, false, "Begun")
	l.deny(ErrArgument, func() error { return l.s.Want(3) })
	l.deny(ErrArgument, func() error { return l.s.Want(-1) })
	l.deny(ErrArgument, func() error { return l.s.Unwant(3).Err() })
	l.deny(ErrArgument, func() error { _, err := l.s.Begin(3, Begin{Owner: "A"}); return err })
	l.deny(ErrArgument, func() error { _, err := l.s.Begin(0, Begin{}); return err })
	l.deny(ErrArgument, func() error { _, err := l.s.Begin(0, Begin{Owner: "A", From: next(never)}); return err })
	l.deny(ErrArgument, func() error { return l.s.BeginFailed(7, "A") })
	l.deny(ErrArgument, func() error { return l.s.BeginFailed(0, "") })
	l.deny(ErrArgument, func() error { _, err := l.s.OwnerGone(""); return err })
	l.deny(ErrArgument, func() error { return l.a.End(EndKind(7)) })
	require.NoError(t, l.s.Stop(nil).Err())
	l.deny(ErrArgument, func() error {
		_, err := l.book.Reopen(l.s, ReopenOptions[int]{Restart: vector1(t, 1, nil)})
		return err
	})
}

func TestSessionIDs(t *testing.T) {
	book, other := NewBook[int](Options{}), NewBook[int](Options{})
	defer book.Close()
	defer other.Close()
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	o, err := other.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	require.NotEqual(t, s.ID(), o.ID(), "two lives of a process (S07)")
	text, err := s.ID().MarshalText()
	require.NoError(t, err)
	var id SessionID
	require.NoError(t, id.UnmarshalText(text))
	found, err := book.Session(key("a"), id)
	require.NoError(t, err)
	require.Same(t, s, found)
	_, err = book.Session(key("a"), o.ID())
	var stale *StaleError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, s.ID(), stale.Current)
	_, err = book.Session(key("b"), o.ID())
	require.ErrorAs(t, err, &stale)
	require.Zero(t, stale.Current)
	require.Equal(t, key("a"), s.Key())
	for found := range book.Sessions() {
		require.Same(t, s, found)
	}
}

func TestRestartSeedsTheFirstWant(t *testing.T) {
	book := NewBook[int](Options{})
	defer book.Close()
	restart := vector1(t, 3, map[int]Position{0: next(5), 1: next(6)})
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 3, Wanted: Some(1, 2), Restart: restart})
	require.NoError(t, err)
	require.NoError(t, s.Want(0))
	ts, err := s.Timestamp()
	require.NoError(t, err)
	require.Equal(t, "[0:5 1:6]", ts.String())
	require.NoError(t, s.Unwant(0).Err())
	require.NoError(t, s.Want(0))
	ts, err = s.Timestamp()
	require.NoError(t, err)
	require.Equal(t, "[1:6]", ts.String(), "given up: forgotten")
	require.NoError(t, s.Read(func(tx ReadTx[int]) error {
		require.Equal(t, "[1:6]", tx.Flushed().String())
		n := 0
		for p := range tx.Partitions() {
			require.Equal(t, n, p)
			n++
		}
		require.Equal(t, 3, n)
		return nil
	}))
	require.NoError(t, s.Check())
}

// TestNoFunction leaves out what a call is to run.
func TestNoFunction(t *testing.T) {
	l := newLedger(t, false, "Begun")
	other, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	always, nothing := func(View) bool { return true }, func(Tx[int]) error { return nil }
	read, call, apply := func(ReadTx[int]) (int, error) { return 0, nil },
		func(context.Context, int) (int, error) { return 0, nil }, func(Tx[int], int) error { return nil }
	for name, err := range map[string]func() error{
		"apply":          func() error { return l.a.Apply(next(99), nil) },
		"apply known":    func() error { return l.a.Apply(next(10), nil) },
		"apply below":    func() error { return l.a.Apply(next(0), nil) },
		"apply batch":    func() error { return l.s.ApplyBatch(nil, nil) },
		"read":           func() error { return l.s.Read(nil) },
		"update":         func() error { return l.s.Update(nil) },
		"when":           func() error { return l.s.When(t.Context(), nil, nothing) },
		"when, fn":       func() error { return l.s.When(t.Context(), always, nil) },
		"pair":           func() error { return l.book.Pair(l.s, other, nil) },
		"merge":          func() error { return l.book.Merge(l.s, other, nil, nil).Err() },
		"flush":          func() error { return l.s.Flush(t.Context(), nil) },
		"exchange":       func() error { return Exchange(t.Context(), l.s, nil, call, apply) },
		"exchange call":  func() error { return Exchange(t.Context(), l.s, read, nil, apply) },
		"exchange apply": func() error { return Exchange[int](t.Context(), l.s, read, call, nil) },
	} {
		t.Run(name, func(*testing.T) { l.deny(ErrArgument, err) })
	}
	require.NoError(t, l.s.Stop(nil).Err())
	l.deny(ErrPhase, func() error { return l.s.Update(nil) })
}

// TestApplyAfterPanic has nothing left of what a function set before it panicked.
func TestApplyAfterPanic(t *testing.T) {
	l := newLedger(t, false, "Begun")
	require.Panics(t, func() {
		_ = l.a.Apply(next(11), func(tx Tx[int]) error { // it does not return
			require.NoError(t, tx.SetPayload(7))
			panic("on purpose")
		})
	})
	require.NoError(t, l.a.Apply(next(11), func(Tx[int]) error { return nil }))
	require.NoError(t, l.s.Read(func(tx ReadTx[int]) error {
		p, err := tx.Payload()
		require.Zero(t, p)
		return err
	}))
}
