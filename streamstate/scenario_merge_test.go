package streamstate

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// One thing at a time is in the way, on either side; then it goes, and nothing more comes.
//
// Seen red with mutants/S16-nobody-looks.patch.
func TestS16_MergeGoesAheadByItself(t *testing.T) {
	type side struct {
		s *Session[int]
		c *Claim[int] // of partition 0
	}
	must := func(t *testing.T, err error) { t.Helper(); require.NoError(t, err) }
	blockers := map[string]func(t *testing.T, l *ledger, in side) (unblock func()){
		"not begun": func(t *testing.T, _ *ledger, in side) func() {
			must(t, in.c.End(HandOver))
			return func() { _, err := in.s.Begin(0, Begin{Owner: "N", Term: 9}); must(t, err) }
		},
		"contested": func(t *testing.T, _ *ledger, in side) func() {
			c, err := in.s.Begin(0, Begin{Owner: "N"})
			must(t, err)
			return func() { must(t, c.End(Failed)) }
		},
		"must roll back": func(t *testing.T, _ *ledger, in side) func() {
			must(t, in.c.End(HandOver))
			c, err := in.s.Begin(0, Begin{Owner: "N", MustRollBack: true, RollBackTo: next(1)})
			must(t, err)
			return func() { must(t, c.Release().Err()) } // not wanted any more
		},
		"held": func(t *testing.T, l *ledger, in side) func() {
			o, err := l.book.Open(key("holder"), OpenOptions[int]{Partitions: 1})
			must(t, err)
			_, err = o.Hold(in.s)
			must(t, err)
			return func() { must(t, o.Drop().Err()) }
		},
		"a repair ticket": func(t *testing.T, _ *ledger, in side) func() {
			var tk *ticket
			must(t, in.s.e.do(token{op: opLook}, func(k *held) error {
				tk = k.takeSession(&ticket{kind: workRecover, part: -1})
				return nil
			}))
			w := RecoverTicket{workTicket{&in.s.e.record, in.s.n, tk}}
			return func() { must(t, w.Failed()) }
		},
		"a flush": func(t *testing.T, _ *ledger, in side) func() {
			f, err := in.s.StartFlush()
			must(t, err)
			return func() { _, err := f.Done(); must(t, err) }
		},
		"another merge": func(t *testing.T, l *ledger, in side) func() {
			o, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 1, Wanted: None})
			must(t, err)
			f, err := o.StartFlush()
			must(t, err)
			h := l.book.Merge(o, in.s, nil, takePayload)
			require.True(t, open(h))
			return func() { must(t, f.Abort()); must(t, h.Err()) }
		},
		"an open request": nil, // replaces a session, see below
	}
	for name, block := range blockers {
		for _, on := range []string{"from", "into"} {
			t.Run(name+"/"+on, func(t *testing.T) {
				l, from := mergers(t)
				sides := map[string]side{"from": {s: from}, "into": {l.s, l.a}}
				c, err := from.Begin(0, Begin{Owner: "B", Term: 3}) // beside A, which then ends
				require.NoError(t, err)
				_, err = from.OwnerGone("A")
				require.NoError(t, err)
				sides["from"] = side{from, c}
				var unblock func()
				if block == nil {
					s, err := l.book.Open(key("pending"), OpenOptions[int]{Partitions: 1, Wanted: None, Pending: true})
					require.NoError(t, err)
					sides[on] = side{s: s}
					unblock = func() { require.NoError(t, s.Opened()) }
				} else {
					unblock = block(t, l, sides[on])
				}
				h := l.book.Merge(sides["from"].s, sides["into"].s, nil, takePayload)
				require.True(t, open(h))
				require.Positive(t, sides["from"].s.Dump().Merges)
				unblock()
				require.False(t, open(h), "it goes ahead by itself")
				require.NoError(t, h.Err())
				require.Equal(t, "gone", sides["from"].s.Dump().Phase)
				require.NoError(t, sides["into"].s.Check())
				if on == "from" || block != nil {
					l.calm()
				}
			})
		}
	}
}

// The source of each merge stays whole when the target goes away between its two halves: it waits, or is engaged and
// waits for a flush.
//
// Seen red with mutants/S20-engaged.patch.
func TestS20_TargetGoesAwayInAMerge(t *testing.T) {
	goes := map[string]struct {
		away  func(*ledger, *Session[int])
		cause error
	}{
		"dropped":           {func(_ *ledger, into *Session[int]) { into.Drop() }, ErrDropped},
		"dropped by stream": {func(l *ledger, into *Session[int]) { l.book.DropStream(into.Key().Stream) }, ErrDropped},
		"stopped":           {func(_ *ledger, into *Session[int]) { into.Stop(errAsked) }, errAsked},
		"drained":           {func(_ *ledger, into *Session[int]) { into.Drain() }, ErrDrained},
		"merged": {func(l *ledger, into *Session[int]) {
			o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
			require.NoError(l.t, err)
			require.NoError(l.t, l.book.Merge(into, o, nil, takePayload).Err())
		}, ErrMerged},
	}
	for name, g := range goes {
		for _, half := range []string{"waits", "engaged, a flush of the source runs", "engaged, a flush of the target runs"} {
			if name == "merged" && half != "waits" {
				continue // it waits for the one that is engaged
			}
			t.Run(name+"/"+half, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				into, err := l.book.Open(Key{"target", "a"}, OpenOptions[int]{Partitions: 1, Wanted: None, Payload: 5})
				require.NoError(t, err)
				var f *FlushTicket
				switch half {
				case "engaged, a flush of the source runs":
					f = l.flushes()
				case "engaged, a flush of the target runs":
					f, err = into.StartFlush()
					require.NoError(t, err)
				}
				was := l.s.Fingerprint()
				ready := func(View, View) bool { return f != nil }
				h := l.book.Merge(l.s, into, ready, func(_, _ Tx[int]) error { t.Error("merged"); return nil })
				require.True(t, open(h))
				require.Equal(t, f != nil, l.s.Dump().Merging)
				g.away(l, into)
				require.False(t, open(h))
				require.ErrorIs(t, h.Err(), g.cause)
				var ended *EndedError
				require.ErrorAs(t, h.Err(), &ended)
				require.Equal(t, was, l.s.Fingerprint(), "the source stays whole")
				if f != nil {
					require.NoError(t, f.Abort())
				}
				require.NoError(t, l.flushes().Abort())
				require.NoError(t, l.a.Advance(next(11)))
				l.calm()
			})
		}
	}
}

// The same in the very moment between the two: the merge looks, and the target is gone.
func TestS20_TargetGoesAwayBeforeTheLook(t *testing.T) {
	for at := 1; ; at++ {
		var into *Session[int]
		passes, armed := 0, false
		book := NewBook[int](Options{Gap: func() {
			if passes++; armed && passes == at {
				armed = false
				into.Drop()
			}
		}})
		from, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1, Wanted: None, Payload: 4})
		require.NoError(t, err)
		into, err = book.Open(key("into"), OpenOptions[int]{Partitions: 1, Wanted: None})
		require.NoError(t, err)
		was := from.Fingerprint()
		passes, armed = 0, true
		h := book.Merge(from, into, nil, takePayload)
		fired := !armed
		armed = false
		require.False(t, open(h))
		if !fired { // there were fewer moments
			require.NoError(t, h.Err())
			require.Greater(t, at, 2)
			require.NoError(t, book.Close().Wait(ends()))
			return
		}
		if h.Err() != nil { // else the merge had been done
			if !errors.Is(h.Err(), ErrStaleSession) {
				require.ErrorIs(t, h.Err(), ErrEnded)
			}
			require.ErrorIs(t, h.Err(), ErrDropped)
			require.Equal(t, was, from.Fingerprint())
			require.NoError(t, from.Flush(ends(), stored))
		}
		require.NoError(t, book.Close().Wait(ends()))
	}
}

// Seen red with mutants/S39-one-side.patch.
func TestS39_MergesThatMeet(t *testing.T) {
	type end struct{ from, into string }
	for name, ends2 := range map[string][]end{
		"two into one":         {{"x", "a"}, {"y", "a"}},
		"three into one":       {{"x", "a"}, {"y", "a"}, {"z", "a"}},
		"crosswise":            {{"x", "a"}, {"a", "x"}},
		"in a ring":            {{"x", "a"}, {"a", "y"}, {"y", "x"}},
		"in a chain":           {{"x", "y"}, {"y", "a"}},
		"one into two":         {{"x", "a"}, {"x", "y"}},
		"the same twice":       {{"x", "a"}, {"x", "a"}},
		"the target gets well": {{"x", "a"}},
	} {
		for _, last := range []string{"a flush of the target ends", "the target begins", "a hold on the target ends"} {
			t.Run(name+"/"+last, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				all := map[string]*Session[int]{"a": l.s}
				for _, name := range []string{"x", "y", "z"} {
					s, err := l.book.Open(key(name), OpenOptions[int]{Partitions: 1, Wanted: None, Payload: 1})
					require.NoError(t, err)
					all[name] = s
				}
				var free func() error // the last change is one of the target
				switch last {
				case "a flush of the target ends":
					free = l.flushes().Abort
				case "the target begins":
					require.NoError(t, l.a.End(HandOver))
					free = func() error { return l.tryBegin(Begin{Owner: "B", From: next(10)}) }
				default:
					h, err := all["z"].Hold(l.s)
					require.NoError(t, err)
					free = h.Release
				}
				var handles []*Handle
				for _, e := range ends2 {
					handles = append(handles, l.book.Merge(all[e.from], all[e.into], nil, takePayload))
				}
				if name != "in a chain" && name != "in a ring" && name != "one into two" {
					for _, h := range handles {
						require.True(t, open(h))
					}
				}
				require.NoError(t, free())
				merged := 0
				for i, h := range handles {
					require.False(t, open(h), "%v: all end", ends2[i])
					if h.Err() == nil {
						merged++
					} else {
						require.ErrorIs(t, h.Err(), ErrMerged)
					}
				}
				require.Equal(t, uint64(merged), l.book.Stats().Merged)
				gone := 0
				for _, s := range all {
					require.NoError(t, s.Check())
					if s.Dump().Phase == Gone.String() {
						gone++
						continue
					}
					require.Zero(t, s.Dump().Merges)
					require.False(t, s.Dump().Merging)
				}
				require.Equal(t, merged, gone)
				require.Positive(t, merged)
				l.calm()
			})
		}
	}
}
