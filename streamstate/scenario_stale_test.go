package streamstate

import (
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/S01-gate-check.patch.
func TestS01_StateChangesInTheGap(t *testing.T) {
	gaps := map[string]struct {
		gap  func(*ledger)
		kind error
	}{
		"stopped": {func(l *ledger) { require.NoError(l.t, l.s.Stop(errAsked).Err()) }, ErrPhase},
		"dropped": {func(l *ledger) { require.NoError(l.t, l.s.Drop().Wait(ends())) }, ErrStaleSession},
		"dropped by an administrator": {
			func(l *ledger) { require.NoError(l.t, l.book.Drop(key("a")).Wait(ends())) }, ErrStaleSession,
		},
		"reopened":     {(*ledger).reopen, ErrStaleSession},
		"opened again": {(*ledger).openAgain, ErrStaleSession},
	}
	// Each looks at the session, lets go of the lock, and writes what it has found out.
	shapes := map[string]func(l *ledger, c *Claim[int], gap func(), write func(Tx[int]) error) error{
		"exchange": func(l *ledger, _ *Claim[int], gap func(), write func(Tx[int]) error) error {
			call := func(context.Context, int) (int, error) { gap(); return 1, nil }
			return Exchange(t.Context(), l.s, ReadTx[int].Payload, call, func(tx Tx[int], _ int) error { return write(tx) })
		},
		"update": func(l *ledger, _ *Claim[int], gap func(), write func(Tx[int]) error) error {
			s := l.s
			l.payload()
			gap()
			return s.Update(write)
		},
		"when": func(l *ledger, _ *Claim[int], gap func(), write func(Tx[int]) error) error {
			s := l.s
			gap()
			return s.When(ends(), func(View) bool { return true }, write)
		},
		"apply": func(_ *ledger, c *Claim[int], gap func(), write func(Tx[int]) error) error {
			gap()
			return c.Apply(next(50), write)
		},
		"pair": func(l *ledger, _ *Claim[int], gap func(), write func(Tx[int]) error) error {
			s := l.s
			o, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 1})
			require.NoError(l.t, err)
			gap()
			was := o.Fingerprint()
			err = l.book.Pair(o, s, func(_, tx Tx[int]) error { return write(tx) })
			require.Equal(l.t, was, o.Fingerprint())
			return err
		},
		"repair reply": func(l *ledger, _ *Claim[int], gap func(), _ func(Tx[int]) error) error {
			gap()
			return l.rest.Refused()
		},
	}
	for where, g := range gaps {
		for how, shape := range shapes {
			t.Run(where+"/"+how, func(t *testing.T) {
				l := newLedger(t, false, "Due")
				c := l.begin(2, Begin{Owner: "Y"})
				var was uint64
				var counted Stats
				err := shape(l, c, func() {
					g.gap(l)
					was, counted = l.s.Fingerprint(), l.book.Stats()
				}, func(tx Tx[int]) error {
					t.Error("state was handed out")
					return tx.SetPayload(99)
				})
				require.ErrorIs(t, err, g.kind)
				require.Equal(t, was, l.s.Fingerprint(), "nothing is written, in the new session least of all")
				after := l.book.Stats()
				require.Equal(t, counted.Refusals()+1, after.Refusals())
				l.calm()
			})
		}
	}
}

// Seen red with mutants/S02-phases.patch.
func TestS02_RepairReplyAroundRecovery(t *testing.T) {
	moments := map[string]struct {
		kind error
		move func(*ledger)
	}{
		"asked, a flush runs": {ErrPhase, func(l *ledger) { l.flushes(); l.s.Stop(errAsked) }},
		"asked, drains":       {ErrPhase, func(l *ledger) { l.flushes(); l.s.Drain() }},
		"running":             {ErrPhase, func(l *ledger) { l.s.Stop(errAsked) }},
		"finished":            {ErrStaleSession, (*ledger).reopen},
		"finished, opening": {ErrStaleSession, func(l *ledger) {
			l.s.Stop(errAsked)
			s, err := l.book.Reopen(l.s, ReopenOptions[int]{Pending: true})
			require.NoError(l.t, err)
			l.s = s
		}},
		"being dropped": {ErrStaleSession, func(l *ledger) { l.flushes(); l.s.Drop() }},
		"dropped":       {ErrStaleSession, func(l *ledger) { l.s.Drop() }},
		"handed out": {ErrSuperseded, func(l *ledger) {
			l.begin(2, Begin{Owner: "R", Term: 9, MustRollBack: true})
			take[*RecoverTicket](l)
		}},
	}
	for kind, out := range ticketed {
		for when, m := range moments {
			if when == "handed out" && (kind == "resubscribe" || kind == "recover") {
				continue // it waits for the session ticket that is out
			}
			t.Run(kind+"/"+when, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				w := out(l)
				ctx := w.Context()
				m.move(l)
				require.ErrorIs(t, context.Cause(ctx), ErrEnded)
				for name, reply := range replies(w) {
					l.deny(m.kind, reply)
					require.NoError(t, l.s.Check(), name)
				}
				if when == "handed out" {
					l.reopen()
				}
				l.calm()
			})
		}
	}
}

// Seen red with mutants/S03-dead-ticket.patch.
func TestS03_ReplyOfAStoppedRepair(t *testing.T) {
	stops := map[string]struct {
		kind  string
		stop  func(*ledger) error
		cause error
	}{
		"begun meanwhile":     {"restart", func(l *ledger) error { return l.tryBegin(Begin{Owner: "C"}) }, ErrBegun},
		"restart given up":    {"restart", func(l *ledger) error { return l.s.Unwant(0).Err() }, ErrGivenUp},
		"restart timed out":   {"restart", ledgerCalls["deadline"], ErrTimeout},
		"restart: resubscr.":  {"restart", ledgerCalls["resubscribe taken"], ErrResubscribed},
		"restart: recover":    {"restart", ledgerCalls["recover taken"], ErrRecovering},
		"shutdown given up":   {"shut down", func(l *ledger) error { return l.s.Unwant(0).Err() }, ErrGivenUp},
		"shutdown timed out":  {"shut down", ledgerCalls["deadline"], ErrTimeout},
		"it ended by itself":  {"shut down", func(l *ledger) error { return l.a.End(Failed) }, ErrMoved},
		"its owner left":      {"shut down", func(l *ledger) error { l.leaves("A"); return nil }, ErrMoved},
		"shutdown: resubscr.": {"shut down", ledgerCalls["resubscribe taken"], ErrResubscribed},
		"resubscr. timed out": {"resubscribe", ledgerCalls["deadline"], ErrTimeout},
		"recover timed out":   {"recover", ledgerCalls["deadline"], ErrTimeout},
	}
	for name, tc := range stops {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			w := ticketed[tc.kind](l)
			ctx := w.Context()
			require.NoError(t, tc.stop(l))
			require.ErrorIs(t, context.Cause(ctx), tc.cause)
			l.late(w, ErrSuperseded, tc.cause)
			require.NoError(t, l.s.Drop().Wait(ends()))
			l.late(w, ErrStaleSession, ErrDropped) // read after clean-up
			l.open()
			l.late(w, ErrStaleSession, ErrDropped)
			l.calm()
		})
	}
	t.Run("answered before", func(t *testing.T) {
		for kind := range ticketed {
			l := newLedger(t, false, "Begun")
			w := ticketed[kind](l)
			require.NoError(t, replies(w)[map[string]string{"restart": "refused"}[kind]+map[bool]string{true: "failed"}[kind != "restart"]]())
			l.late(w, ErrSuperseded, ErrResolved)
		}
	})
	t.Run("a flush that was given up", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		for cause, first := range map[error]func(*FlushTicket) error{
			ErrAborted:  (*FlushTicket).Abort,
			ErrResolved: func(f *FlushTicket) error { _, err := f.Done(); return err },
			ErrFailed:   func(f *FlushTicket) error { return f.Fail(nil) },
		} {
			f := l.flushes()
			require.NoError(t, first(f))
			l.deny(ErrSuperseded, func() error {
				_, err := f.Done()
				require.ErrorIs(t, err, cause)
				return err
			})
		}
		l.calm()
	})
}

// late demands that each answer to a ticket is refused in that way, with that cause, which is never that of an abort.
func (l *ledger) late(w Work, kind, cause error) {
	l.t.Helper()
	for _, reply := range replies(w) {
		l.deny(kind, func() error {
			err := reply()
			require.ErrorIs(l.t, err, cause)
			require.NotErrorIs(l.t, err, ErrAborted)
			return err
		})
	}
}

// lateEvents are what the source, the store or the driver of session n may still say.
func lateEvents(l *ledger, s *Session[int], c *Claim[int], o *Session[int]) map[string]func() error {
	yes := func(View) bool { return true }
	apply := func(tx Tx[int]) error { l.t.Error("applied"); return tx.SetPayload(99) }
	batch := []Advance[int]{{c, next(50)}}
	return map[string]func() error{
		"opened":        s.Opened,
		"open failed":   func() error { return s.OpenFailed(nil) },
		"begin":         func() error { _, err := s.Begin(0, Begin{Owner: "A", Term: 9}); return err },
		"begin failed":  func() error { return s.BeginFailed(0, "A") },
		"owner gone":    func() error { _, err := s.OwnerGone("A"); return err },
		"end":           func() error { return c.End(HandOver) },
		"end, failed":   func() error { return c.End(Failed) },
		"release":       func() error { return c.Release().Err() },
		"fence":         func() error { return c.Fence(nil) },
		"advance":       func() error { return c.Advance(next(50)) },
		"apply":         func() error { return c.Apply(next(50), apply) },
		"advance batch": func() error { return s.AdvanceBatch(batch) },
		"apply batch": func() error {
			return s.ApplyBatch(batch, func(tx Tx[int], _ []Advance[int]) error { return apply(tx) })
		},
		"want":        func() error { return s.Want(0) },
		"unwant":      func() error { return s.Unwant(0).Err() },
		"next due":    func() error { _, err := s.NextDue(ends()); return err },
		"start flush": func() error { _, err := s.StartFlush(); return err },
		"flush":       func() error { return s.Flush(ends(), stored) },
		"hold":        func() error { _, err := s.Hold(o); return err },
		"be held":     func() error { _, err := o.Hold(s); return err },
		"merge":       func() error { return l.book.Merge(s, o, nil, takePayload).Err() },
		"be merged":   func() error { return l.book.Merge(o, s, nil, takePayload).Err() },
		"read":        func() error { return s.Read(func(ReadTx[int]) error { return nil }) },
		"update":      func() error { return s.Update(apply) },
		"when":        func() error { return s.When(ends(), yes, apply) },
		"pair":        func() error { return l.book.Pair(s, o, func(x, _ Tx[int]) error { return apply(x) }) },
		"timestamp":   func() error { _, err := s.Timestamp(); return err },
		"stop":        func() error { return s.Stop(nil).Err() },
		"drain":       func() error { return s.Drain().Err() },
		"reopen":      func() error { _, err := l.book.Reopen(s, ReopenOptions[int]{}); return err },
		"by its id":   func() error { _, err := l.book.Session(key("a"), s.ID()); return err },
	}
}

// Seen red with mutants/S06-session-check.patch.
func TestS06_EventsOfSessionNInTheNext(t *testing.T) {
	for how, follow := range succeed {
		t.Run(how, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			o, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 1, Wanted: None})
			require.NoError(t, err)
			hold, err := l.s.Hold(o)
			require.NoError(t, err)
			f := l.flushes()
			_, err = f.Done() // a flush ends before its session does
			require.NoError(t, err)
			old, c, ctx := l.s, l.a, l.a.Context()
			follow(l)
			a := l.begin(0, Begin{Owner: "A", Term: 5, From: next(10)}) // what they are said of looks alike in n+1
			require.NotEqual(t, old.ID(), l.s.ID())
			require.ErrorIs(t, context.Cause(ctx), ErrEnded)

			was := o.Fingerprint()
			for name, call := range lateEvents(l, old, c, o) {
				l.deny(ErrStaleSession, func() error {
					err := call()
					var stale *StaleError
					require.ErrorAs(t, err, &stale, name)
					require.Equal(t, old.ID(), stale.Session, name)
					if how == "reopened" {
						require.Equal(t, l.s.ID(), stale.Current, name)
					}
					return err
				})
			}
			l.deny(ErrStaleHold, hold.Release)
			l.deny(ErrSuperseded, f.Abort)
			l.deny(ErrSuperseded, func() error { return f.Fail(nil) })
			l.deny(ErrSuperseded, func() error { _, err := f.Done(); return err })
			require.Equal(t, was, o.Fingerprint())
			require.NoError(t, a.Advance(next(11)), "its own claim is as it was")
			l.calm()
		})
		for kind, out := range ticketed {
			t.Run(how+"/"+kind, func(t *testing.T) {
				l := newLedger(t, false, "Begun")
				w := out(l)
				follow(l)
				l.late(w, ErrStaleSession, map[string]error{"reopened": ErrReopened, "opened again": ErrDropped}[how])
				if kind == "restart" { // the same ticket is out in n+1
					l.a = l.begin(0, Begin{Owner: "A", Term: 5, From: next(10)})
					now := out(l)
					l.late(w, ErrStaleSession, map[string]error{"reopened": ErrReopened, "opened again": ErrDropped}[how])
					require.NoError(t, now.Context().Err())
				}
				l.calm()
			})
		}
	}
}

// Seen red with mutants/S07-boot.patch.
func TestS07_SessionOfAFormerProcess(t *testing.T) {
	seen := make(map[SessionID]int)
	var was SessionID
	for life := range 64 {
		book := NewBook[int](Options{})
		var now *Session[int]
		for i := range 4 { // each life does the same
			s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
			require.NoError(t, err)
			require.NotContains(t, seen, s.ID(), "life %d, session %d", life, i)
			seen[s.ID()] = life
			if now = s; i < 3 {
				require.NoError(t, s.Drop().Wait(ends()))
			}
		}
		before := now.Fingerprint()
		_, err := book.Session(key("a"), was)
		var stale *StaleError
		require.ErrorAs(t, err, &stale)
		require.Equal(t, StaleError{Key: stale.Key, Session: was, Current: now.ID()}, *stale)
		require.Equal(t, before, now.Fingerprint())
		require.Equal(t, uint64(1), book.Stats().Refused[ReasonStaleSession])
		found, err := book.Session(key("a"), now.ID())
		require.NoError(t, err)
		require.Same(t, now, found)
		was = now.ID()
		require.NoError(t, book.Close().Wait(ends()))
	}
}

// Seen red with mutants/S08-ended-claim.patch.
func TestS08_DataOutsideOfAClaim(t *testing.T) {
	ways := map[string]struct {
		end  func(*ledger) error
		kind error
	}{
		"ended":           {func(l *ledger) error { return l.a.End(HandOver) }, ErrStaleClaim},
		"failed":          {func(l *ledger) error { return l.a.End(Failed) }, ErrStaleClaim},
		"released":        {func(l *ledger) error { return l.a.Release().Err() }, ErrStaleClaim},
		"fenced":          {func(l *ledger) error { return l.a.Fence(nil) }, ErrStaleClaim},
		"given up":        {func(l *ledger) error { return l.s.Unwant(0).Err() }, ErrStaleClaim},
		"owner left":      {func(l *ledger) error { l.leaves("A"); return nil }, ErrStaleClaim},
		"replaced":        {func(l *ledger) error { return l.tryBegin(Begin{Owner: "C", Term: 9}) }, ErrStaleClaim},
		"resubscribed":    {ledgerCalls["resubscribe taken"], ErrStaleClaim},
		"session stopped": {func(l *ledger) error { return l.s.Stop(errAsked).Err() }, ErrPhase},
		"session dropped": {func(l *ledger) error { return l.s.Drop().Err() }, ErrStaleSession},
		"before the first begin of the next session": {func(l *ledger) error { l.reopen(); return nil }, ErrStaleSession},
		"before the first begin of another life":     {func(l *ledger) error { l.openAgain(); return nil }, ErrStaleSession},
	}
	data := map[string]Position{
		"data":                      next(11),
		"a marker":                  {Next: 10, SnapStart: 10, SnapEnd: 20},
		"data in a marked snapshot": {Next: 12, SnapStart: 10, SnapEnd: 20},
		"from the beginning":        next(0),
	}
	for name, tc := range ways {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			s := l.s
			require.NoError(t, tc.end(l))
			for what, pos := range data {
				for how, call := range map[string]func() error{
					"advance":       func() error { return l.a.Advance(pos) },
					"apply":         func() error { return l.a.Apply(pos, func(Tx[int]) error { return errors.New("applied") }) },
					"advance batch": func() error { return s.AdvanceBatch([]Advance[int]{{l.a, pos}}) },
				} {
					l.deny(tc.kind, func() error {
						err := call()
						if e, ok := errors.AsType[*PartitionError](err); ok {
							require.Equal(t, l.a.ID(), e.Claim, "%s, %s", what, how)
							require.Error(t, e.Cause)
						}
						return err
					})
				}
			}
			if name == "resubscribed" {
				l.reopen()
			}
			l.calm()
		})
	}
	t.Run("a claim of another key", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		o, err := l.book.Open(key("other"), OpenOptions[int]{Partitions: 3})
		require.NoError(t, err)
		l.deny(ErrArgument, func() error { return o.AdvanceBatch([]Advance[int]{{l.a, next(11)}}) })
		l.deny(ErrArgument, func() error { return l.s.AdvanceBatch([]Advance[int]{{nil, next(11)}}) })
		l.calm()
	})
}

// Seen red with mutants/S09-flush-after-drop.patch.
func TestS09_FlushOfADroppedKey(t *testing.T) {
	order := func(l *ledger) {
		l.deny(ErrStaleSession, func() error { _, err := l.s.StartFlush(); return err })
		l.deny(ErrStaleSession, func() error {
			return l.s.Flush(ends(), func(context.Context, Timestamp) error { return errors.New("started") })
		})
	}
	t.Run("the order starts", func(t *testing.T) {
		l := newLedger(t, false, "Begun")
		require.NoError(t, l.s.Drop().Wait(ends()))
		order(l)
		require.Empty(t, keysOf(l.book))
		l.calm()
	})
	ends3 := map[string]func(*FlushTicket) error{
		"done":  func(f *FlushTicket) error { _, err := f.Done(); return err },
		"fail":  func(f *FlushTicket) error { return f.Fail(nil) },
		"abort": (*FlushTicket).Abort,
	}
	for name, end := range ends3 {
		t.Run("its "+name+" arrives", func(t *testing.T) {
			l := newLedger(t, false, "Begun")
			f := l.flushes()
			h := l.s.Drop()
			require.ErrorIs(t, context.Cause(f.Context()), ErrDropped)
			order(l) // behind the one that runs
			l.phase(Closing)
			require.NoError(t, end(f), "it is what the drop waits for")
			require.NoError(t, h.Wait(ends()))
			l.phase(Gone)
			require.Empty(t, keysOf(l.book), "nothing is revived")
			order(l)
			for _, again := range ends3 {
				l.deny(ErrSuperseded, func() error { return again(f) })
			}
			l.open()
			for _, again := range ends3 { // nor does it touch the successor
				l.deny(ErrSuperseded, func() error { return again(f) })
			}
			require.False(t, l.at(0).HasFlushed)
			l.calm()
		})
	}
}

// Seen red with mutants/S10-reopen-gone.patch.
func TestS10_NothingButOpenMakesARecord(t *testing.T) {
	for op, call := range maps.All(calls) {
		if op == OpOpen {
			continue
		}
		t.Run(op.String(), func(t *testing.T) {
			w := newWorld(t, Gone)
			was, counted := w.s.Fingerprint(), w.book.Stats()
			err := call(w)
			after := w.book.Stats()
			require.Equal(t, []Key{key("b")}, keysOf(w.book))
			require.Len(t, w.book.Dump(), 1)
			require.Equal(t, was, w.s.Fingerprint())
			require.Equal(t, uint64(2), after.Opened)
			require.Zero(t, after.Reopened)
			if rule := phaseTable[op][Gone]; rule.lets() { // a drop, and the library's own looks
				require.NoError(t, err)
				require.Equal(t, counted, after)
			} else {
				require.Error(t, err)
				require.Equal(t, counted.Refusals()+1, after.Refusals())
			}
			w.phase(Gone)
			l := ledger{world: w}
			l.calm()
		})
	}
}
