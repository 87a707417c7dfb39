package streamstate

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// storm is eight goroutines on two keys: workers, a driver of repair, flushes, holds, merges, clean-up and reopen. They
// share only what a service would: the present session of each key.
type storm struct {
	book    *Book[*uint64]
	now     [2]atomic.Pointer[Session[*uint64]]
	stop    context.Context //nolint:containedctx // of the whole test
	applied atomic.Uint64
	bad     atomic.Error
}

func (s *storm) session(r *rand.Rand) *Session[*uint64] { return s.now[r.IntN(2)].Load() }

// fine notes an error that is none of this package's refusals and endings.
func (s *storm) fine(err error) {
	_, refused := errors.AsType[refusal](err)
	if err != nil && !refused && !errors.Is(err, ErrEnded) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		s.bad.Store(err)
	}
}

func (s *storm) work(r *rand.Rand) {
	ss, p := s.session(r), r.IntN(4)
	c, err := ss.Begin(p, Begin{Owner: string(rune('A' + r.IntN(3))), Term: r.Uint64N(3)})
	if err != nil {
		s.fine(err)
		return
	}
	done := c.Context()
	for n := uint64(1); n < 20; n++ {
		err = c.Apply(Position{Next: n}, func(tx Tx[*uint64]) error {
			count, err := tx.Payload()
			if err == nil {
				*count++ // a race, if the lock did not guard it
			}
			return err
		})
		if err != nil {
			s.fine(err)
			if errors.Is(err, ErrStaleClaim) || errors.Is(err, ErrPhase) || errors.Is(err, ErrStaleSession) {
				select { // it ends at once, but after the hold in which the claim did
				case <-done.Done():
				case <-time.After(10 * time.Second):
					s.bad.Store(errors.New("refused, and its context lives"))
				}
			}
			return
		}
		s.applied.Inc()
	}
	if r.IntN(2) == 0 {
		s.fine(c.End(EndKind(r.IntN(2))))
	} else {
		s.fine(c.Fence(nil))
	}
}

func (s *storm) repair(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.stop, time.Millisecond)
	defer cancel()
	work, err := s.session(r).NextDue(ctx)
	s.fine(err)
	w := &walk{}
	for _, t := range work {
		s.fine(w.answer(t, r.IntN(6)))
	}
}

func (s *storm) flush(r *rand.Rand) {
	ctx, cancel := context.WithTimeout(s.stop, time.Millisecond)
	defer cancel()
	s.fine(s.session(r).Flush(ctx, func(ctx context.Context, _ Timestamp) error { return ctx.Err() }))
}

func (s *storm) change(r *rand.Rand) {
	ss, o, p := s.session(r), s.session(r), r.IntN(4)
	switch r.IntN(6) {
	case 0:
		_ = ss.Unwant(p) // it resolves by itself
	case 1:
		s.fine(ss.Want(p))
	case 2:
		if h, err := ss.Hold(o); err == nil {
			s.fine(h.Release())
		}
	case 3:
		h := s.book.Merge(ss, o, nil, func(_, _ Tx[*uint64]) error { return nil })
		_ = h.Err()
	case 4:
		ctx, cancel := context.WithTimeout(s.stop, time.Millisecond)
		defer cancel()
		s.fine(ss.When(ctx, View.Healthy, func(Tx[*uint64]) error { return nil }))
	default:
		_, err := ss.Timestamp()
		s.fine(err)
		_ = ss.Dump()
	}
}

// clean drops or reopens one key.
func (s *storm) clean(r *rand.Rand) {
	i := r.IntN(2)
	ss := s.now[i].Load()
	if r.IntN(2) == 0 {
		h := ss.Stop(nil)
		s.fine(h.Wait(s.stop))
		if next, err := s.book.Reopen(ss, ReopenOptions[*uint64]{Carry: func(n *uint64) (*uint64, error) { return n, nil }}); err == nil {
			s.now[i].CompareAndSwap(ss, next)
			return
		}
	}
	s.fine(ss.Drop().Wait(s.stop))
	wanted := []Wanted{All, None}[r.IntN(2)] // without any, it is healthy
	next, err := s.book.Open(walkKeys[i], OpenOptions[*uint64]{Partitions: 4, Wanted: wanted, Payload: new(uint64)})
	if err == nil {
		s.now[i].Store(next)
	}
	s.fine(err)
}

func TestStorm(t *testing.T) {
	length := 300 * time.Millisecond
	if *stress {
		length = time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var events atomic.Uint64
	s := &storm{stop: ctx, book: NewBook[*uint64](Options{
		BeginWithin: time.Millisecond, HandOverWithin: time.Millisecond, TicketWithin: time.Millisecond, RetryAfter: time.Millisecond,
		OnEvent: func(Event) { events.Inc() },
	})}
	for i := range s.now {
		ss, err := s.book.Open(walkKeys[i], OpenOptions[*uint64]{Partitions: 4, Payload: new(uint64)})
		require.NoError(t, err)
		s.now[i].Store(ss)
	}
	var all sync.WaitGroup
	for i, act := range []func(*rand.Rand){s.work, s.work, s.work, s.repair, s.flush, s.change, s.change, s.clean} {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for ctx.Err() == nil {
				act(r)
			}
		})
	}
	all.Wait()
	require.NoError(t, s.bad.Load())
	for i := range s.now {
		require.NoError(t, s.now[i].Load().Check())
	}
	require.NoError(t, s.book.Close().Wait(t.Context()))
	stats := s.book.Stats()
	t.Logf("%d applied, %d events, %d opened, %d reopened, %d merged, %d refused", s.applied.Load(), events.Load(), stats.Opened,
		stats.Reopened, stats.Merged, stats.Refusals())
}
