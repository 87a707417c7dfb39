package streamstate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/S23-hand-over.patch.
func TestS23_HandOverInEitherOrder(t *testing.T) {
	for name, terms := range map[string][2]uint64{"no terms": {0, 0}, "the same term": {7, 7}, "rising terms": {7, 8}} {
		for _, order := range []string{"begin, end", "end, begin", "end, a pause, begin", "begin, a pause, end"} {
			t.Run(name+"/"+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, false, "Idle")
					old := l.begin(0, Begin{Owner: "old", Term: terms[0], From: next(10)})
					require.NoError(t, old.Advance(next(12)))
					var now *Claim[int]
					begin := func() { now = l.begin(0, Begin{Owner: "new", Term: terms[1], From: l.at(0).Received}) }
					end := func() {
						if terms[1] > terms[0] && now != nil { // it was replaced by the begin
							l.deny(ErrStaleClaim, func() error { return old.End(HandOver) })
							return
						}
						require.NoError(t, old.End(HandOver))
					}
					pause := func() { time.Sleep(20 * time.Second); l.idle() }
					switch order {
					case "begin, end":
						begin()
						end()
					case "end, begin":
						end()
						require.Equal(t, Idle, l.at(0).State)
						begin()
					case "end, a pause, begin":
						end()
						pause()
						begin()
					default:
						begin()
						pause()
						end()
					}
					require.Equal(t, Begun, l.at(0).State)
					require.Equal(t, "new", l.at(0).Claims[0].Owner)
					require.Equal(t, next(12), l.at(0).Received, "the payload has it")
					l.idle()
					time.Sleep(time.Hour)
					l.idle() // no repair, however long
					require.NoError(t, now.Advance(next(13)))
					l.deny(ErrStaleClaim, func() error { return old.Advance(next(14)) })
					l.calm()
				})
			})
		}
	}
}

// Seen red with mutants/S24-silent-end.patch.
func TestS24_EndOfWhoHoldsNoClaim(t *testing.T) {
	ends := func(c *Claim[int]) []func() error {
		return []func() error{
			func() error { return c.End(HandOver) }, func() error { return c.End(Failed) },
			func() error { return c.Release().Err() }, func() error { return c.Fence(nil) },
		}
	}
	for name, tc := range map[string]struct {
		past func(*ledger) error
		kind error
	}{
		"ended":             {func(l *ledger) error { return l.a.End(HandOver) }, ErrStaleClaim},
		"failed":            {func(l *ledger) error { return l.a.End(Failed) }, ErrStaleClaim},
		"released":          {func(l *ledger) error { return l.a.Release().Err() }, ErrStaleClaim},
		"its owner left":    {func(l *ledger) error { l.leaves("A"); return nil }, ErrStaleClaim},
		"given up":          {func(l *ledger) error { return l.s.Unwant(0).Err() }, ErrStaleClaim},
		"replaced":          {func(l *ledger) error { return l.tryBegin(Begin{Owner: "A", Term: 6}) }, ErrStaleClaim},
		"another has begun": {func(l *ledger) error { l.leaves("A"); return l.tryBegin(Begin{Owner: "B"}) }, ErrStaleClaim},
		"two others have begun": {
			func(l *ledger) error {
				l.leaves("A")
				l.begin(0, Begin{Owner: "B"})
				return l.tryBegin(Begin{Owner: "C"})
			}, ErrStaleClaim,
		},
		"before the first begin of a session": {func(l *ledger) error { l.reopen(); return nil }, ErrStaleSession},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, tc.past(l))
			for _, end := range ends(l.a) {
				l.deny(tc.kind, end)
				l.deny(tc.kind, end) // twice
			}
			l.calm()
		})
	}
	t.Run("the end of a listed claim is its shutdown", func(t *testing.T) {
		for _, kind := range []EndKind{HandOver, Failed} {
			l := newLedger(t, false, "Contested")
			require.NoError(t, l.b.Fence(nil))
			shut := take[*ShutDownTicket](l)
			l.deny(ErrStaleClaim, func() error { return l.a.Release().Err() }) // it cannot give up what others may hold
			l.deny(ErrStaleClaim, func() error { return l.a.Fence(nil) })
			require.NoError(t, l.a.End(kind))
			require.Equal(t, Fenced, l.at(0).State, "one is left")
			l.deny(ErrStaleClaim, func() error { return l.a.End(kind) })
			require.NoError(t, l.b.End(kind))
			require.Equal(t, Due, l.at(0).State)
			l.late(shut, ErrSuperseded, ErrMoved)
			l.deny(ErrStaleClaim, func() error { return l.b.End(kind) })
			l.calm()
		}
	})
}

// Seen red with mutants/S25-not-shut-down.patch.
func TestS25_TwoOwnersAndNeitherEnds(t *testing.T) {
	for _, owners := range [][]string{{"A", "B"}, {"A", "B", "C"}, {"A", "B", "C", "D"}} {
		t.Run(fmt.Sprint(len(owners)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLedger(t, false, "Idle")
				var claims []*Claim[int]
				began := time.Now()
				for i, owner := range owners {
					claims = append(claims, l.begin(0, Begin{Owner: owner}))
					if i == 1 {
						began = time.Now()
					}
					time.Sleep(9 * time.Second) // a third one does not arm it again
				}
				<-claims[0].Context().Done()
				within(t, began, 30*time.Second, 30*time.Second/8)
				require.Equal(t, Fenced, l.at(0).State)
				for _, c := range claims {
					require.ErrorIs(t, context.Cause(c.Context()), ErrFencedOff)
					l.deny(ErrStaleClaim, func() error { return c.Advance(next(20)) })
				}
				refused := func() {
					for _, owner := range append(owners, "new") {
						l.deny(ErrNotShutDown, func() error { return l.tryBegin(Begin{Owner: owner, Term: 9}) })
					}
				}
				refused()
				shut := take[*ShutDownTicket](l)
				require.Len(t, shut.Claims(), len(owners), "all are listed")
				for i, c := range claims {
					require.Equal(t, c.ID(), shut.Claims()[i].ID)
					refused()
					require.NoError(t, shut.Done(c.ID()))
					if i+1 < len(claims) {
						l.deny(ErrSuperseded, func() error { return shut.Done(c.ID()) })
					}
				}
				require.NoError(t, take[*RestartTicket](l).Accepted())
				l.begin(0, Begin{Owner: "A"})
				require.Equal(t, Begun, l.at(0).State)
				l.calm()
			})
		})
	}
}

// Seen red with mutants/S26-any-failure.patch.
func TestS26_BeginThatFailsBesideOneThatSucceeded(t *testing.T) {
	for _, state := range []string{"Begun", "Contested", "Due", "Fenced", "Unwanted", "Listed"} {
		t.Run(state, func(t *testing.T) {
			l := newLedger(t, false, state)
			for _, owner := range []string{"B", "C", "A"} {
				l.deny(ErrUnexpected, func() error { return l.s.BeginFailed(0, owner) })
			}
			require.Equal(t, state == "Begun" || state == "Contested", l.at(0).State.live())
			if state == "Begun" {
				require.NoError(t, l.a.Context().Err())
				require.NoError(t, l.a.Advance(next(11)))
				l.idle()
			}
			l.calm()
		})
	}
	t.Run("in the other order", func(t *testing.T) {
		l := newLedger(t, false, "Idle")
		require.NoError(t, l.s.BeginFailed(0, "B"))
		w := take[*RestartTicket](l)
		a := l.begin(0, Begin{Owner: "A"})
		require.Equal(t, Begun, l.at(0).State)
		l.late(w, ErrSuperseded, ErrBegun)
		l.deny(ErrUnexpected, func() error { return l.s.BeginFailed(0, "B") })
		require.NoError(t, a.Advance(next(3)))
		l.calm()
	})
}

// Seen red with mutants/S27-all-owners.patch.
func TestS27_OwnerLeaves(t *testing.T) {
	l := newLedger(t, false, "Contested") // A and B in 0, X in 1 and 2
	c := l.begin(2, Begin{Owner: "A"})
	x, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	elsewhere, err := x.Begin(0, Begin{Owner: "A"})
	require.NoError(t, err)
	was := x.Fingerprint()
	b := l.b.Context()

	ended, err := l.s.OwnerGone("A")
	require.NoError(t, err)
	require.Equal(t, 2, ended)
	require.ErrorIs(t, context.Cause(l.a.Context()), ErrOwnerGone)
	require.ErrorIs(t, context.Cause(c.Context()), ErrOwnerGone)
	require.NoError(t, b.Err(), "others' stay")
	require.NoError(t, l.b.Advance(next(12)))
	for p := range 3 {
		require.Equal(t, Begun, l.at(p).State)
		require.Len(t, l.at(p).Claims, 1)
		require.NotEqual(t, "A", l.at(p).Claims[0].Owner)
	}
	require.Equal(t, was, x.Fingerprint(), "it is said of one session")
	require.NoError(t, elsewhere.Advance(next(1)))
	for _, owner := range []string{"A", "nobody"} {
		l.unchanged(nil, func() error {
			n, err := l.s.OwnerGone(owner)
			require.Zero(t, n)
			return err
		})
	}

	require.NoError(t, l.b.Fence(nil)) // who has left is not asked to shut down
	l.leaves("B")
	require.Equal(t, Due, l.at(0).State)
	require.NoError(t, take[*RestartTicket](l).Refused())
	take[*ResubscribeTicket](l)
	l.reopen()
	l.calm()
}

// Seen red with mutants/S28-from-zero.patch.
func TestS28_ManyKeysOpenSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		book := NewBook[int](Options{})
		check := func(s *Session[int], want error) { // the missing-begin check
			work, err := s.NextDue(ends())
			require.ErrorIs(t, err, want, "%v", work)
		}
		var all []*Session[int]
		for i := range n {
			s, err := book.Open(key(fmt.Sprint(i)), OpenOptions[int]{Partitions: 1, Pending: i%2 == 0})
			require.NoError(t, err)
			all = append(all, s)
			time.Sleep(10 * time.Millisecond) // 100 s for all
			if i%2 == 1 {                     // it is open at once, and its begin comes soon
				_, err = s.Begin(0, Begin{Owner: "A"})
				require.NoError(t, err)
			}
		}
		for i := 0; i < n; i += 2 {
			require.NoError(t, all[i].Opened())
			time.Sleep(time.Millisecond)
		}
		for _, s := range all { // at once
			check(s, context.Canceled)
		}
		time.Sleep(24 * time.Second) // 29 s since the first was armed
		for i, s := range all {
			check(s, context.Canceled)
			if i%4 == 0 {
				_, err := s.Begin(0, Begin{Owner: "A"})
				require.NoError(t, err)
			}
		}
		time.Sleep(10 * time.Second)
		for i, s := range all {
			if i%4 == 2 {
				check(s, nil) // but what is missing is found
			} else {
				check(s, context.Canceled)
			}
		}
		require.NoError(t, book.Close().Wait(t.Context()))
	})
}

// The same of the partitions of one key that become wanted one after the other.
func TestS28_ManyPartitionsAreWantedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{world: &world{t: t, book: NewBook[int](Options{})}}
		s, err := l.book.Open(key("a"), OpenOptions[int]{Partitions: 1000, Wanted: None})
		require.NoError(t, err)
		l.s = s
		for p := range 1000 {
			require.NoError(t, s.Want(p))
			time.Sleep(time.Second)
			l.idle()
			if p >= 25 {
				l.begin(p-25, Begin{Owner: "A"}) // 26 s after it was wanted
			}
		}
		time.Sleep(34 * time.Second)
		work, err := s.NextDue(ends())
		require.NoError(t, err)
		require.Len(t, work, 25)
		l.calm()
		require.NoError(t, l.book.Close().Wait(t.Context()))
	})
}

// Seen red with mutants/S35-any-claim.patch.
func TestS35_PartitionTakenAwayAndGivenBack(t *testing.T) {
	for name, away := range map[string]func(*ledger) error{
		"given up":       func(l *ledger) error { return l.s.Unwant(0).Err() },
		"released":       func(l *ledger) error { return l.a.Release().Err() },
		"handed over":    func(l *ledger) error { return l.a.End(HandOver) },
		"its owner left": func(l *ledger) error { l.leaves("A"); return nil },
		"failed":         func(l *ledger) error { return l.a.End(Failed) },
		"replaced":       func(*ledger) error { return nil },
		"fenced":         func(l *ledger) error { return errors.Join(l.a.Fence(nil), l.a.End(HandOver)) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, l.a.Advance(next(15)))
			old := l.a
			require.NoError(t, away(l))
			require.NoError(t, l.s.Want(0))
			now := l.begin(0, Begin{Owner: "A", Term: 6, From: next(5)}) // the same owner
			gone := name == "given up" || name == "released"
			received := next(15)
			if gone {
				received = next(5)
			}
			require.Equal(t, received, l.at(0).Received)
			for _, pos := range []uint64{0, 5, 6, 15, 16, 99} {
				l.deny(ErrStaleClaim, func() error { return old.Advance(next(pos)) })
				l.deny(ErrStaleClaim, func() error { return old.Apply(next(pos), nothing) })
				l.deny(ErrStaleClaim, func() error { return l.s.AdvanceBatch([]Advance[int]{{old, next(pos)}}) })
			}
			l.deny(ErrStaleClaim, func() error { return old.End(HandOver) })
			require.Equal(t, received, l.at(0).Received, "neither back nor forth")
			applied := false
			require.NoError(t, now.Apply(next(6), func(Tx[int]) error { applied = true; return nil }))
			require.Equal(t, gone, applied, "what the payload does not have is not jumped over")
			l.deny(ErrPosition, func() error { return now.Advance(next(4)) })
			l.calm()
		})
	}
	t.Run("handles resolved twice", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		f := l.flushes()
		h := l.s.Unwant(0)
		require.NoError(t, f.Abort())
		require.NoError(t, h.Err())
		l.deny(ErrSuperseded, f.Abort)
		require.NoError(t, l.s.Want(0))
		l.begin(0, Begin{Owner: "A", From: next(5)})
		l.deny(ErrSuperseded, func() error { _, err := f.Done(); return err })
		require.False(t, l.at(0).HasFlushed)
		require.NoError(t, h.Wait(ends()))
		l.calm()
	})
}

// Seen red with mutants/S36-old-term.patch.
func TestS36_TermsOfABegin(t *testing.T) {
	l := newLedger(t, false, "Begun") // A has 0 with term 5, X has 1 with 5 and 2 with none
	for p := range 3 {
		for _, owner := range []string{"A", "X", "new"} {
			l.deny(ErrStaleTerm, func() error { // 5 was seen in the session, if not in this partition
				_, err := l.s.Begin(p, Begin{Owner: owner, Term: 4})
				var e *PartitionError
				require.ErrorAs(t, err, &e)
				require.Equal(t, []uint64{4, 5}, []uint64{e.Given, e.Want})
				return err
			})
		}
	}
	l.deny(ErrDuplicate, func() error { return l.tryBegin(Begin{Owner: "A", Term: 5}) })
	l.deny(ErrDuplicate, func() error { return l.tryBegin(Begin{Owner: "A"}) })
	l.deny(ErrDuplicate, func() error { _, err := l.s.Begin(2, Begin{Owner: "X"}); return err })
	l.deny(ErrDuplicate, func() error { _, err := l.s.Begin(2, Begin{Owner: "X", Term: 7}); return err }) // none is not lower

	b := l.begin(0, Begin{Owner: "B", Term: 5}) // equal, or none: by owner
	require.Equal(t, Contested, l.at(0).State)
	c := l.begin(0, Begin{Owner: "C"})
	require.Len(t, l.at(0).Claims, 3)
	a, bc, cc := l.a.Context(), b.Context(), c.Context()
	d := l.begin(0, Begin{Owner: "D", Term: 6}) // higher: it replaces what has a term
	require.ErrorIs(t, context.Cause(a), ErrReplaced)
	require.ErrorIs(t, context.Cause(bc), ErrReplaced)
	require.NoError(t, cc.Err())
	require.Equal(t, Contested, l.at(0).State)
	require.NoError(t, c.End(HandOver))
	require.Equal(t, Begun, l.at(0).State)
	l.deny(ErrStaleTerm, func() error { _, err := l.s.Begin(1, Begin{Owner: "new", Term: 5}); return err })
	dc := d.Context()
	l.begin(0, Begin{Owner: "D", Term: 7}) // the same owner's
	require.ErrorIs(t, context.Cause(dc), ErrReplaced)
	require.Equal(t, Begun, l.at(0).State)

	l.reopen() // terms are of a session
	l.begin(0, Begin{Owner: "A", Term: 1})
	l.deny(ErrStaleSession, func() error { return d.End(HandOver) })
	l.calm()
}

// Seen red with mutants/S40-late-apply.patch.
func TestS40_LateApply(t *testing.T) {
	var order []string
	cases := map[string]func(*ledger) error{}
	add := func(name string, end func(*ledger) error) { order, cases[name] = append(order, name), end }
	add("handed over", func(l *ledger) error { return l.a.End(HandOver) })
	add("failed", func(l *ledger) error { return l.a.End(Failed) })
	add("fenced", func(l *ledger) error { return l.a.Fence(nil) })
	add("released", func(l *ledger) error { return l.a.Release().Err() })
	add("given up", func(l *ledger) error { return l.s.Unwant(0).Err() })
	add("its owner left", func(l *ledger) error { l.leaves("A"); return nil })
	add("replaced", func(l *ledger) error { return l.tryBegin(Begin{Owner: "B", Term: 9}) })
	add("resubscribed", ledgerCalls["resubscribe taken"])
	add("stopped", func(l *ledger) error { return l.s.Stop(nil).Err() })
	for _, name := range order {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, l.s.Update(func(tx Tx[int]) error { return tx.SetPayload(7) }))
			s, b := l.s, l.begin(2, Begin{Owner: "Y"})
			var leaked Tx[int]
			require.NoError(t, l.a.Apply(next(11), func(tx Tx[int]) error { leaked = tx; return tx.SetPayload(8) }))
			require.NoError(t, cases[name](l))
			kind := map[bool]error{true: ErrPhase, false: ErrStaleClaim}[name == "stopped"]
			write := func(tx Tx[int]) error { t.Error("called"); return tx.SetPayload(99) }
			l.deny(kind, func() error { return l.a.Apply(next(50), write) })
			live := next(1)
			both := []Advance[int]{{b, live}, {l.a, next(50)}}
			if name != "resubscribed" { // else its own claim has ended as well
				l.deny(kind, func() error {
					return s.ApplyBatch(both, func(tx Tx[int], _ []Advance[int]) error { return write(tx) })
				})
			}
			require.ErrorIs(t, leaked.SetPayload(99), ErrTxDone, "nor by a transaction that was kept")
			require.Equal(t, 8, l.payload())
			if name == "resubscribed" {
				l.reopen()
			}
			l.calm()
		})
	}
}
