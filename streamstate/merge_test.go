package streamstate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMergeWaitsForEach has one thing at a time in the way, on either side, that then goes, without more to come (S16).
func TestMergeWaitsForEach(t *testing.T) {
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
				unblock()
				require.False(t, open(h), "it goes ahead by itself")
				require.NoError(t, h.Err())
				require.Equal(t, "gone", sides["from"].s.Dump().Phase)
				require.NoError(t, sides["into"].s.Check())
			})
		}
	}
}
