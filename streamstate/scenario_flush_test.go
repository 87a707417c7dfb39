package streamstate

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// Seen red with mutants/S19-hold-of-the-dead.patch.
func TestS19_HoldersThatReleaseAndThatDie(t *testing.T) {
	deaths := map[string]func(l *ledger, s *Session[int]) error{
		"dropped": func(_ *ledger, s *Session[int]) error { return s.Drop().Err() },
		"stopped": func(_ *ledger, s *Session[int]) error { return s.Stop(nil).Err() },
		"drained": func(_ *ledger, s *Session[int]) error { return s.Drain().Err() },
		"dropped by key": func(l *ledger, s *Session[int]) error {
			return l.book.Drop(s.Key()).Err()
		},
		"merged": func(l *ledger, s *Session[int]) error {
			into, err := l.book.Open(key("into"), OpenOptions[int]{Partitions: 1, Wanted: None})
			require.NoError(l.t, err)
			return l.book.Merge(s, into, nil, takePayload).Err()
		},
		"dropped under its own flush": func(l *ledger, s *Session[int]) error {
			f, err := s.StartFlush()
			require.NoError(l.t, err)
			l.t.Cleanup(func() { require.NoError(l.t, f.Abort()) })
			s.Drop()
			return nil
		},
	}
	for name, dies := range deaths {
		for _, order := range []string{"release first", "death first"} {
			t.Run(name+"/"+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLedger(t, false, "Begun")
					var holds []*Hold
					var holders []*Session[int]
					for _, name := range []string{"one", "two"} {
						s, err := l.book.Open(key(name), OpenOptions[int]{Partitions: 1, Wanted: None})
						require.NoError(t, err)
						h, err := s.Hold(l.s)
						require.NoError(t, err)
						holders, holds = append(holders, s), append(holds, h)
					}
					got := make(chan error, 1)
					go func() {
						got <- l.s.Flush(t.Context(), stored)
					}()
					steps := []func() error{holds[0].Release, func() error { return dies(l, holders[1]) }}
					if order == "death first" {
						slices.Reverse(steps)
					}
					synctest.Wait()
					l.deny(ErrHeld, func() error { _, err := l.s.StartFlush(); return err })
					require.NoError(t, steps[0]())
					synctest.Wait()
					require.Empty(t, got, "one is left")
					require.Equal(t, 1, l.s.Dump().Holds)
					require.NoError(t, steps[1]())
					synctest.Wait()
					require.Zero(t, l.s.Dump().Holds, "nobody is left")
					require.Len(t, got, 1, "it does resume")
					require.NoError(t, <-got)
					for _, h := range holds {
						l.deny(ErrStaleHold, h.Release)
					}
					l.calm()
				})
			})
		}
	}
	t.Run("the one that is held ends", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		o, err := l.book.Open(key("o"), OpenOptions[int]{Partitions: 1, Wanted: None})
		require.NoError(t, err)
		h, err := o.Hold(l.s)
		require.NoError(t, err)
		l.reopen()
		require.Zero(t, o.Dump().Taken)
		l.deny(ErrStaleHold, h.Release)
		_, err = o.Hold(l.s)
		require.NoError(t, err)
		l.deny(ErrStaleHold, h.Release) // it is not the new one
		require.Equal(t, 1, l.s.Dump().Holds)
		require.NoError(t, o.Drop().Err())
		l.calm()
	})
}

// Seen red with mutants/S21-any-flush.patch.
func TestS21_FlushAnsweredTwice(t *testing.T) {
	phases := map[string]func(*ledger){
		"active":   func(*ledger) {},
		"stopping": func(l *ledger) { l.s.Stop(errAsked) },
		"draining": func(l *ledger) { l.s.Drain() },
		"closing":  func(l *ledger) { l.s.Drop() },
	}
	for name, enter := range phases {
		for _, first := range slices.Sorted(maps.Keys(flushEnds)) {
			for second, answer := range flushEnds {
				t.Run(name+"/"+first+", "+second, func(t *testing.T) {
					var rec recorder
					l := begunWith(t, Options{OnEvent: rec.add})
					f := l.flushes()
					enter(l)
					require.NoError(t, flushEnds[first](f))
					for range 2 {
						l.deny(ErrSuperseded, func() error { return answer(f) })
					}
					ended := func(e Event) bool { return e.Kind == FlushEnded }
					require.Equal(t, 1, rec.count(ended), "one terminal event")
					if name != "closing" {
						l.present()
						require.Equal(t, first == "done", l.at(0).HasFlushed, "the first wins")
					} else {
						l.open()
					}
					now := l.flushes() // the late answer is none to the next flush
					l.deny(ErrSuperseded, func() error { return answer(f) })
					require.NoError(t, now.Context().Err())
					require.Equal(t, 1, rec.count(ended))
					l.calm()
				})
			}
		}
	}
}

// The same from several goroutines at once.
func TestS21_FlushAnsweredAtOnce(t *testing.T) {
	var rec recorder
	l := begunWith(t, Options{OnEvent: rec.add})
	for range 100 {
		f := l.flushes()
		var won atomic.Int64
		var all sync.WaitGroup
		for _, answer := range flushEnds {
			all.Go(func() {
				if answer(f) == nil {
					won.Inc()
				}
			})
		}
		all.Wait()
		require.Equal(t, int64(1), won.Load())
	}
	require.Equal(t, 100, rec.count(func(e Event) bool { return e.Kind == FlushEnded }))
	require.Equal(t, uint64(200), l.book.Stats().Refused[ReasonSuperseded])
	l.calm()
}

// Seen red with mutants/S22-back.patch.
func TestS22_TargetBelowWhatIsFlushed(t *testing.T) {
	for name, lower := range map[string]func(*ledger){
		"a begin from below": func(l *ledger) {
			require.NoError(t, l.a.End(HandOver))
			l.begin(0, Begin{Owner: "B", From: next(2)})
		},
		"after a failure": func(l *ledger) {
			require.NoError(t, l.a.End(Failed))
			l.begin(0, Begin{Owner: "A", From: next(0)})
		},
		"a contest from below": func(l *ledger) { l.begin(0, Begin{Owner: "B", From: next(2)}) },
		"a higher term":        func(l *ledger) { l.begin(0, Begin{Owner: "B", Term: 9, From: next(2)}) },
		"an owner that left":   func(l *ledger) { l.leaves("A"); l.begin(0, Begin{Owner: "B", From: next(2)}) },
		"a roll-back is asked": func(l *ledger) {
			l.begin(0, Begin{Owner: "B", Term: 9, MustRollBack: true, RollBackTo: next(2)})
		},
		"one of two must roll back": func(l *ledger) {
			l.begin(0, Begin{Owner: "B", MustRollBack: true, RollBackTo: next(2)})
		},
		"delivered again": func(l *ledger) {
			l.leaves("A")
			b := l.begin(0, Begin{Owner: "B", From: next(2)})
			require.NoError(t, b.Advance(next(5)))
			require.NoError(t, b.Apply(next(9), func(Tx[int]) error { t.Error("applied twice"); return nil }))
		},
		"given up and wanted again": func(l *ledger) {
			require.NoError(t, l.s.Unwant(0).Err())
			require.NoError(t, l.s.Want(0))
			l.begin(0, Begin{Owner: "B", From: next(2)})
		},
		"reopened":         (*ledger).reopen,
		"nothing has come": func(*ledger) {},
		"rolled back": func(l *ledger) {
			l.begin(0, Begin{Owner: "B", Term: 9, MustRollBack: true, RollBackTo: next(2)})
			l.reopen()
			require.Equal(t, next(2), l.at(0).Received)
		},
		"rolled back by the caller": func(l *ledger) {
			require.NoError(t, l.s.Stop(nil).Err())
			s, err := l.book.Reopen(l.s, ReopenOptions[int]{Restart: vector1(t, 3, map[int]Position{0: next(1)})})
			require.NoError(t, err)
			l.s = s
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			require.NoError(t, l.s.Flush(ends(), stored))
			require.NoError(t, l.a.Advance(next(15)))
			lower(l)
			was, ok := l.at(0).Flushed, l.at(0).HasFlushed
			f := l.flushes()
			target, _ := f.Target().At(0)
			if ok {
				require.GreaterOrEqual(t, target.Next, was.Next)
			}
			_, err := f.Done()
			require.NoError(t, err)
			require.Equal(t, target, l.at(0).Flushed)
			require.NoError(t, l.s.When(ends(), func(v View) bool { // nobody waits for a number that will not come
				p, _ := v.Received().At(0)
				return p.Next >= target.Next
			}, nothing))
			l.calm()
		})
	}
}

// Seen red with mutants/S33-zero.patch.
func TestS33_NeverZeroAndRolledBack(t *testing.T) {
	flush := func(l *ledger) {
		require.NoError(t, l.s.Flush(ends(), stored))
	}
	type flushed struct {
		has bool
		at  uint64
	}
	of := func(has bool, at Position) flushed { return flushed{has, at.Next} }
	for name, tc := range map[string]struct {
		do    func(l *ledger)
		now   flushed // what is flushed of partition 0, and
		later flushed // where the next session starts
	}{
		"never flushed":   {func(l *ledger) { require.NoError(t, l.a.Advance(next(15))) }, flushed{}, flushed{}},
		"never received":  {func(l *ledger) { require.NoError(t, l.s.Unwant(0).Err()); require.NoError(t, l.s.Want(0)) }, flushed{}, flushed{}},
		"flushed to zero": {func(l *ledger) { zero(l); flush(l) }, flushed{true, 0}, flushed{true, 0}},
		"flushed":         {flush, flushed{true, 10}, flushed{true, 10}},
		"rolled back to zero": {func(l *ledger) {
			flush(l)
			l.begin(0, Begin{Owner: "R", Term: 9, MustRollBack: true})
		}, flushed{true, 10}, flushed{true, 0}},
		"rolled back to zero, and never flushed": {func(l *ledger) {
			l.begin(0, Begin{Owner: "R", Term: 9, MustRollBack: true})
		}, flushed{}, flushed{true, 0}},
		"rolled back to above what is flushed": {func(l *ledger) {
			flush(l)
			l.begin(0, Begin{Owner: "R", Term: 9, MustRollBack: true, RollBackTo: next(12)})
		}, flushed{true, 10}, flushed{true, 10}},
		"rolled back to a number, and never flushed": {func(l *ledger) {
			l.begin(0, Begin{Owner: "R", Term: 9, MustRollBack: true, RollBackTo: next(4)})
		}, flushed{}, flushed{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			tc.do(l)
			v := l.at(0)
			require.Equal(t, tc.now, of(v.HasFlushed, v.Flushed))
			l.answerAll() // a roll-back makes recovery due; it says where to start from
			l.reopen()
			v = l.at(0)
			require.Equal(t, tc.later, of(v.HasReceived, v.Received))
			require.Equal(t, tc.later, of(v.HasFlushed, v.Flushed))
			at, err := l.s.Timestamp()
			require.NoError(t, err)
			pos, ok := at.At(0)
			require.Equal(t, tc.later, of(ok, pos))
			l.calm()
		})
	}
}

// zero has the partition begin from zero.
func zero(l *ledger) {
	require.NoError(l.t, l.s.Unwant(0).Err())
	require.NoError(l.t, l.s.Want(0))
	l.begin(0, Begin{Owner: "A"})
}

// Seen red with mutants/S41-vouches.patch.
func TestS41_GivenUpUnderAFlush(t *testing.T) {
	gives := map[string]func(*ledger) *Handle{
		"unwanted": func(l *ledger) *Handle { return l.s.Unwant(0) },
		"released": func(l *ledger) *Handle { return l.a.Release() },
		"unwanted twice": func(l *ledger) *Handle {
			l.s.Unwant(0)
			return l.s.Unwant(0)
		},
		"unwanted while it drains": func(l *ledger) *Handle { l.s.Drain(); return l.s.Unwant(0) },
		"unwanted while it stops":  func(l *ledger) *Handle { l.s.Stop(nil); return l.s.Unwant(0) },
	}
	for name, give := range gives {
		for how, end := range flushEnds {
			t.Run(name+"/"+how, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				f := l.flushes()
				h := give(l)
				require.True(t, open(h), "its payload must stay")
				require.ErrorIs(t, h.Wait(ends()), context.Canceled)
				if l.s.Dump().Phase == Active.String() {
					l.deny(ErrReleasing, func() error { return l.s.Want(0) })
					l.deny(ErrUnwanted, func() error { return l.tryBegin(Begin{Owner: "B", From: next(3)}) })
				}
				if how == "done" {
					returned, err := f.Done()
					require.NoError(t, err)
					require.Equal(t, []int{0}, returned)
				} else {
					require.NoError(t, end(f))
				}
				require.False(t, open(h))
				require.NoError(t, h.Err())
				l.present()
				require.Equal(t, PartitionView{}, l.at(0), "the flush does not vouch for it")
				require.NoError(t, l.s.Want(0))
				b := l.begin(0, Begin{Owner: "B", From: next(3)})
				require.False(t, l.at(0).HasFlushed, "nor for the next claim")
				applied := false
				require.NoError(t, b.Apply(next(4), func(Tx[int]) error { applied = true; return nil }))
				require.True(t, applied)
				l.calm()
			})
		}
	}
}
