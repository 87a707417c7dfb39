package streamstate

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// seed is the race of MB-37227 with eight goroutines on one key: replies of repair, which look, wait and write, against
// clean-up and reopen in between.
type seed struct {
	book    *Book[*life]
	now     atomic.Pointer[seat]
	replies atomic.Uint64 // that were accepted
	late    atomic.Uint64 // that came after their session
	lives   atomic.Uint64
	bad     atomic.Error
}

// life is the payload of one session.
type life struct{ replies int }

// seat is a session, and the payload that is its alone.
type seat struct {
	s *Session[*life]
	l *life
}

var errForeign = errors.New("the payload of another session")

func (x *seed) fine(err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrStaleSession), errors.Is(err, ErrPhase), errors.Is(err, ErrSuperseded), errors.Is(err, ErrStaleClaim):
		x.late.Inc()
	default:
		if _, ok := errors.AsType[refusal](err); !ok && !errors.Is(err, context.Canceled) && !errors.Is(err, ErrEnded) {
			x.bad.Store(err)
		}
	}
}

// repair answers what is due, then what was due before, and writes down that it did: the reply's handler of the seed.
func (x *seed) repair(r *rand.Rand, old []Work) []Work {
	at := x.now.Load()
	work, err := at.s.NextDue(ended0)
	x.fine(err)
	w := &walk{}
	for _, t := range append(work, old...) {
		x.fine(w.answer(t, r.IntN(6)))
	}
	err = Exchange(
		context.Background(), at.s,
		func(tx ReadTx[*life]) (int, error) {
			l, err := tx.Payload()
			if l != at.l && err == nil {
				err = errForeign
			}
			return r.IntN(12), err
		},
		func(_ context.Context, yields int) (int, error) {
			for range yields { // clean-up runs in this gap
				runtime.Gosched()
			}
			return yields, nil
		},
		func(tx Tx[*life], _ int) error {
			l, err := tx.Payload()
			if err == nil && l != at.l {
				return errForeign
			}
			l.replies++ // a race, if the lock did not guard it
			return err
		},
	)
	if err == nil {
		x.replies.Inc()
	}
	x.fine(err)
	return append(old[:0], work...)
}

// break0 gives repair something to do.
func (x *seed) break0(r *rand.Rand) {
	c, err := x.now.Load().s.Begin(r.IntN(2), Begin{Owner: string(rune('A' + r.IntN(2)))})
	if err != nil {
		x.fine(err)
		return
	}
	if r.IntN(2) == 0 {
		x.fine(c.Fence(nil))
	} else {
		x.fine(c.End(Failed))
	}
}

func (x *seed) flush() {
	f, err := x.now.Load().s.StartFlush()
	x.fine(err)
	if err == nil {
		runtime.Gosched()
		_, err = f.Done()
		x.fine(err)
	}
}

// clean ends the session and begins the next one.
func (x *seed) clean(r *rand.Rand) {
	if r.IntN(4) > 0 { // replies get in between
		runtime.Gosched()
		return
	}
	at, fresh := x.now.Load(), &life{}
	if r.IntN(2) == 0 {
		x.fine(at.s.Stop(nil).Wait(context.Background())) // the running flush, which ends
		s, err := x.book.Reopen(at.s, ReopenOptions[*life]{Carry: func(*life) (*life, error) { return fresh, nil }})
		x.fine(err)
		if err == nil {
			x.lives.Inc()
			x.now.Store(&seat{s, fresh})
		}
		return
	}
	x.fine(at.s.Drop().Wait(context.Background()))
	s, err := x.book.Open(walkKeys[0], OpenOptions[*life]{Partitions: 2, Payload: fresh})
	x.fine(err)
	if err == nil {
		x.lives.Inc()
		x.now.Store(&seat{s, fresh})
	} else { // another has opened it, and perhaps nobody knows the session
		x.fine(x.book.Drop(walkKeys[0]).Wait(context.Background()))
	}
}

// TestSeedStress is the seed of this package under load: no reply is ever written into a session that is not its own, and
// nothing panics or hangs.
//
// Seen red with: an Exchange whose second hold is that of whichever session there is.
func TestSeedStress(t *testing.T) {
	rounds := 2_000 // of each goroutine
	if *stress {
		rounds = 500_000
	}
	x := &seed{book: NewBook[*life](Options{Gap: runtime.Gosched})}
	first := &life{}
	s, err := x.book.Open(walkKeys[0], OpenOptions[*life]{Partitions: 2, Payload: first})
	require.NoError(t, err)
	x.now.Store(&seat{s, first})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			var old []Work
			for range rounds {
				switch i {
				case 0, 1, 2, 3:
					old = x.repair(r, old)
				case 4:
					x.break0(r)
				case 5:
					x.flush()
				default:
					x.clean(r)
				}
			}
		})
	}
	all.Wait()
	require.NoError(t, x.bad.Load())
	require.NoError(t, x.now.Load().s.Check())
	t.Logf("%d rounds, %d lives, %d replies accepted, %d calls came too late", 8*rounds, x.lives.Load(), x.replies.Load(), x.late.Load())
	require.Positive(t, x.replies.Load())
	require.Positive(t, x.late.Load())
	require.NoError(t, x.book.Close().Wait(t.Context()))
}
