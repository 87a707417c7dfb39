package streamstate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ends is a context that has ended: what waits becomes a poll.
func ends() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// world is a session that was brought into a phase, with tokens of it that were made before.
type world struct {
	t     *testing.T
	book  *Book[int]
	s, o  *Session[int] // o is another key's, Active
	claim *Claim[int]
	flush *FlushTicket // running, where the phase can have one
	hold  *Hold        // of s on o
	stop  *Handle
	drop  *Handle
}

func key(name string) Key { return Key{Stream: "maint", Keyspace: name} }

func newWorld(t *testing.T, ph Phase) *world { return newWorldIn(t, NewBook[int](Options{}), ph) }

func newWorldIn(t *testing.T, book *Book[int], ph Phase) *world {
	w := &world{t: t, book: book}
	t.Cleanup(func() {
		if w.flush != nil {
			_ = w.flush.Abort()
		}
		require.NoError(t, w.book.Close().Wait(context.Background()))
	})
	var err error
	w.s, err = w.book.Open(key("a"), OpenOptions[int]{Partitions: 3, Payload: 7, Pending: ph == Opening})
	require.NoError(t, err)
	w.o, err = w.book.Open(key("b"), OpenOptions[int]{Partitions: 2})
	require.NoError(t, err)
	w.claim, err = w.s.Begin(0, Begin{Owner: "me"})
	require.NoError(t, err)
	w.hold, err = w.s.Hold(w.o)
	require.NoError(t, err)
	if ph == Stopping || ph == Closing {
		w.flush, err = w.s.StartFlush()
		require.NoError(t, err)
	}
	switch ph {
	case Opening, Active:
	case Stopping, Stopped:
		w.stop = w.s.Stop(nil)
	case Closing, Gone:
		w.drop = w.s.Drop()
	}
	w.phase(ph)
	return w
}

// phase demands a phase.
func (w *world) phase(want Phase) {
	w.t.Helper()
	require.NoError(w.t, w.s.Check())
	require.Equal(w.t, want.String(), w.s.Dump().Phase)
}

// deny demands a refusal of that kind, and that nothing has changed by it but a count.
func (w *world) deny(kind error, call func() error) {
	w.t.Helper()
	before, counted := w.s.Fingerprint(), w.book.Stats()
	err := call()
	require.ErrorIs(w.t, err, kind)
	require.Equal(w.t, before, w.s.Fingerprint())
	after := w.book.Stats()
	require.Equal(w.t, counted.Refusals()+1, after.Refusals())
	why := slices.Index(reasonErrors[:], kind)
	require.Equal(w.t, counted.Refused[why]+1, after.Refused[why], "counted as %v", kind)
}

var calls = map[Op]func(*world) error{
	OpOpen: func(w *world) error {
		_, err := w.book.Open(key("a"), OpenOptions[int]{Partitions: 1})
		return err
	},
	OpOpened:      func(w *world) error { return w.s.Opened() },
	OpOpenFailed:  func(w *world) error { return w.s.OpenFailed(errors.New("no")) },
	OpBegin:       func(w *world) error { _, err := w.s.Begin(1, Begin{Owner: "me"}); return err },
	OpBeginFailed: func(w *world) error { return w.s.BeginFailed(1, "me") },
	OpOwnerGone:   func(w *world) error { _, err := w.s.OwnerGone("nobody"); return err },
	OpEnd:         func(w *world) error { return w.claim.End(HandOver) },
	OpRelease:     func(w *world) error { return w.claim.Release().Err() },
	OpFence:       func(w *world) error { return w.claim.Fence(nil) },
	OpApply:       func(w *world) error { return w.claim.Apply(Position{Next: 1}, func(Tx[int]) error { return nil }) },
	OpAdvance:     func(w *world) error { return w.claim.Advance(Position{Next: 1}) },
	OpWant:        func(w *world) error { return w.s.Want(2) },
	OpUnwant:      func(w *world) error { return w.s.Unwant(1).Err() },
	OpNextDue: func(w *world) error {
		if w.s.Dump().Phase == Active.String() {
			require.NoError(w.t, w.s.BeginFailed(1, "me"))
		}
		_, err := w.s.NextDue(ends())
		return err
	},
	OpReply: func(w *world) error {
		if w.s.Dump().Phase == Active.String() {
			require.NoError(w.t, w.s.BeginFailed(1, "me"))
			work, err := w.s.NextDue(ends())
			require.NoError(w.t, err)
			return work[0].(*RestartTicket).Refused()
		}
		return (&RestartTicket{workTicket{&w.s.e.record, w.s.n, &ticket{id: 99}}}).Refused()
	},
	OpStartFlush: func(w *world) error {
		f, err := w.s.StartFlush()
		if err == nil {
			w.flush = f
		}
		return err
	},
	OpFlush: func(w *world) error {
		return w.s.Flush(ends(), func(context.Context, Timestamp) error { return nil })
	},
	OpFlushReply: func(w *world) error {
		if w.flush == nil && w.s.Dump().Phase == Active.String() {
			w.flush, _ = w.s.StartFlush()
		}
		if w.flush == nil {
			w.flush = &FlushTicket{&w.s.e.record, &flush{id: 99}}
		}
		_, err := w.flush.Done()
		return err
	},
	OpHold:        func(w *world) error { _, err := w.s.Hold(w.o); return err },
	OpReleaseHold: func(w *world) error { return w.hold.Release() },
	OpMerge: func(w *world) error {
		h := w.book.Merge(w.s, w.o, nil, func(_, _ Tx[int]) error { return nil })
		if err := h.Err(); err != nil {
			return err
		}
		if w.s.Dump().Phase == Opening.String() {
			return h.Wait(ends()) // it waits
		}
		return nil // it waits for begins and for the hold
	},
	OpRead:   func(w *world) error { return w.s.Read(func(ReadTx[int]) error { return nil }) },
	OpUpdate: func(w *world) error { return w.s.Update(func(tx Tx[int]) error { return tx.SetPayload(8) }) },
	OpExchange: func(w *world) error {
		ask := func(context.Context, int) (int, error) { return 1, nil }
		return Exchange(context.Background(), w.s, ReadTx[int].Payload, ask, func(Tx[int], int) error { return nil })
	},
	OpPair: func(w *world) error { return w.book.Pair(w.o, w.s, func(_, _ Tx[int]) error { return nil }) },
	OpWhen: func(w *world) error {
		return w.s.When(ends(), func(View) bool { return true }, func(Tx[int]) error { return nil })
	},
	OpStop:   func(w *world) error { return w.sameOrNew(w.s.Stop(nil), w.stop) },
	OpDrain:  func(w *world) error { return w.sameOrNew(w.s.Drain(), w.stop) },
	OpReopen: func(w *world) error { _, err := w.book.Reopen(w.s, ReopenOptions[int]{}); return err },
	OpDrop: func(w *world) error {
		if err := w.sameOrNew(w.book.Drop(key("a")), nil); err != nil {
			return err
		}
		return w.sameOrNew(w.s.Drop(), w.drop)
	},
	OpSession: func(w *world) error {
		s, err := w.book.Session(key("a"), w.s.ID())
		if err == nil {
			require.Same(w.t, w.s, s)
		}
		return err
	},
	opLook: func(w *world) error { return w.s.Check() },
}

// sameOrNew demands the handle that there was, if there was one.
func (w *world) sameOrNew(h, was *Handle) error {
	w.t.Helper()
	if h.Err() != nil {
		return h.Err()
	}
	if was != nil {
		require.Same(w.t, was, h)
	}
	return nil
}

// TestPhaseTableIsTheAPI calls every operation in every phase.
func TestPhaseTableIsTheAPI(t *testing.T) {
	head, rows := parseTable(t, phaseRows)
	for op, r := range rows {
		for i, want := range r.cells {
			ph := Phase(slices.Index(phaseNames[:], strings.ToLower(head.cells[i])))
			t.Run(r.label+"/"+ph.String(), func(t *testing.T) {
				w := newWorld(t, ph)
				call := func() error { return calls[Op(op)](w) }
				switch want {
				case "ok", "same", "resolved":
					if op == int(OpFlush) && ph == Active {
						require.NoError(t, call())
						break
					}
					require.NoError(t, call())
				case "waits":
					require.ErrorIs(t, call(), context.Canceled)
				default:
					if op == int(OpDrop) {
						t.Fatal("a drop is never refused")
					}
					kind := reasonErrors[slices.IndexFunc(reasonErrors[:], func(e error) bool {
						return e != nil && errName(Reason(slices.Index(reasonErrors[:], e))) == want
					})]
					w.deny(kind, call)
				}
				require.NoError(t, w.s.Check())
			})
		}
	}
}

// TestPhases is what the table's cells say beside yes and no.
func TestPhases(t *testing.T) {
	t.Run("an open request that succeeds arms the begins", func(t *testing.T) {
		w := newWorld(t, Opening)
		require.NoError(t, w.s.Opened())
		w.phase(Active)
	})
	t.Run("one that fails stops, with the cause", func(t *testing.T) {
		w := newWorld(t, Opening)
		cause := errors.New("no such collection")
		require.NoError(t, w.s.OpenFailed(cause))
		w.phase(Stopped)
		require.ErrorIs(t, context.Cause(w.s.Context()), ErrOpenFailed)
		require.ErrorIs(t, context.Cause(w.s.Context()), cause)
	})
	t.Run("stop ends all but a running flush", func(t *testing.T) {
		w := newWorld(t, Active)
		ctx := w.claim.Context()
		f, err := w.s.StartFlush()
		require.NoError(t, err)
		cause := errors.New("recovery asked")
		h := w.s.Stop(cause)
		w.phase(Stopping)
		require.ErrorIs(t, context.Cause(ctx), cause)
		require.ErrorIs(t, context.Cause(f.Context()), ErrStopped)
		require.ErrorIs(t, w.hold.Release(), ErrStaleHold)
		w.deny(ErrPhase, func() error { return w.claim.Advance(Position{Next: 3}) })
		require.NoError(t, f.Fail(nil))
		require.NoError(t, h.Wait(ends()))
		w.phase(Stopped)
	})
	t.Run("drain leaves the flush, a stop after it does not", func(t *testing.T) {
		w := newWorld(t, Active)
		f, err := w.s.StartFlush()
		require.NoError(t, err)
		h := w.s.Drain()
		require.NoError(t, f.Context().Err())
		require.Same(t, h, w.s.Drain())
		require.NoError(t, f.Context().Err())
		require.Same(t, h, w.s.Stop(nil))
		require.Error(t, f.Context().Err())
		_, err = f.Done()
		require.NoError(t, err)
		require.NoError(t, h.Wait(ends()))
	})
	t.Run("a drop while stopping cancels the flush and ends the stop", func(t *testing.T) {
		w := newWorld(t, Active)
		f, err := w.s.StartFlush()
		require.NoError(t, err)
		h := w.s.Drain()
		d := w.s.Drop()
		w.phase(Closing)
		require.ErrorIs(t, h.Wait(ends()), ErrDropped)
		require.Error(t, f.Context().Err())
		require.Same(t, d, w.book.Drop(key("a")))
		require.ErrorIs(t, d.Wait(ends()), context.Canceled)
		require.NoError(t, f.Abort())
		require.NoError(t, d.Wait(ends()))
		w.phase(Gone)
		w.deny(ErrSuperseded, f.Abort)
	})
	t.Run("reopen supersedes", func(t *testing.T) {
		w := newWorld(t, Stopped)
		next, err := w.book.Reopen(w.s, ReopenOptions[int]{Carry: func(old int) (int, error) { return old + 1, nil }})
		require.NoError(t, err)
		require.NoError(t, next.Read(func(tx ReadTx[int]) error {
			p, err := tx.Payload()
			require.Equal(t, 8, p)
			return err
		}))
		var stale *StaleError
		require.ErrorAs(t, w.s.Stop(nil).Err(), &stale)
		require.Equal(t, next.ID(), stale.Current)
		require.NoError(t, w.s.Drop().Wait(ends()), "it drops the record, whichever session it is in")
		w.phase(Gone)
	})
	t.Run("a failed carry changes nothing", func(t *testing.T) {
		w := newWorld(t, Stopped)
		no, before := errors.New("no"), w.s.Fingerprint()
		_, err := w.book.Reopen(w.s, ReopenOptions[int]{Carry: func(int) (int, error) { return 0, no }})
		require.ErrorIs(t, err, no)
		require.Equal(t, before, w.s.Fingerprint())
	})
	t.Run("a late drop does not hit the successor", func(t *testing.T) {
		w := newWorld(t, Gone)
		s, err := w.book.Open(key("a"), OpenOptions[int]{Partitions: 1})
		require.NoError(t, err)
		require.NoError(t, w.s.Drop().Wait(ends()))
		require.Equal(t, "active", s.Dump().Phase)
	})
}
