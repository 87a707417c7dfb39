package repair

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

// asap is the most that a driver takes to ask for what has become due, if it need not pause before: a look of the
// session's timer, and what it gathers.
const asap = look + 20*time.Millisecond

// TestR09_SlowOrGoneSubscribers climbs the whole ladder while the subscriber hangs in its first event: the repair takes no
// longer, its end is not held up, what waits is bounded, and the first and the last event come all the same.
func TestR09_SlowOrGoneSubscribers(t *testing.T) {
	var w *world
	climb := func(t *testing.T, hook func(StreamEvent)) (took time.Duration) {
		w = newWorld(t, 300)
		w.o.OnEvent, w.o.MaxEvents = hook, 16
		w.o.MinBackoff, w.o.MaxBackoff = time.Nanosecond, time.Nanosecond // no chance
		at := time.Now()
		w.drive(t.Context())
		for p := range 300 {
			w.fail(p)
		}
		for _, what := range []string{"restart", "shut-down", "resubscribe"} {
			c := <-w.src.calls
			require.Equal(t, what, c.what)
			c.reply <- ErrRefused
		}
		_ = w.due()
		return time.Since(at)
	}
	synctest.Test(t, func(t *testing.T) {
		var quick []StreamEvent
		took := climb(t, func(e StreamEvent) { quick = append(quick, e) })
		synctest.Wait()
		require.Equal(t, StreamStarted, quick[0].Kind)
		require.Equal(t, StreamEnded, quick[len(quick)-1].Kind)

		var gone []StreamEvent
		hang := make(chan struct{})
		require.Equal(t, took, climb(t, func(e StreamEvent) {
			<-hang
			gone = append(gone, e)
		}), "the repair does not wait for its subscriber")
		close(hang)
		synctest.Wait()
		require.Len(t, gone, 1+16+1, "the one that hung, those that waited, the last")
		require.Equal(t, StreamStarted, gone[0].Kind)
		last := gone[len(gone)-1]
		require.Equal(t, StreamEnded, last.Kind)
		require.ErrorIs(t, last.Err, ErrRecoveryDue)
		require.Positive(t, gone[1].Lost)

		slow := 0
		climb(t, func(e StreamEvent) {
			time.Sleep(time.Hour) //rules:sleep in a bubble
			slow = slow + 1 + e.Lost
		})
		w.sleep(20 * time.Hour)
		require.GreaterOrEqual(t, slow, 4*300, "each event was told or counted as lost")
	})
}

// TestR10_LadderClimbsByDeadline has a source that says nothing: each rung fails in turn, by its deadline.
func TestR10_LadderClimbsByDeadline(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		w.drive(t.Context())
		w.fail(0)
		at := time.Now()
		c := w.asks("restart", 0)
		w.after(at, 20*time.Millisecond, 0)
		at = time.Now().Add(-20 * time.Millisecond) // the ticket was handed out before others were waited for
		shut := w.asks("shut-down", 0)
		w.after(at, deadlines.TicketWithin, asap+time.Second) // it pauses, since this is the second ticket in a row
		require.ErrorIs(t, context.Cause(c.ctx), streamstate.ErrTimeout)
		require.Equal(t, w.claims[0].ID(), shut.shut[0].Claims[0].ID)
		require.Equal(t, "A0", shut.shut[0].Claims[0].Owner)

		at = time.Now()
		c = w.asks("resubscribe", 0, 1)
		w.after(at, deadlines.TicketWithin-time.Second, asap+time.Second)
		require.ErrorIs(t, context.Cause(w.claims[1].Context()), streamstate.ErrResubscribed)
		at = time.Now()
		_ = w.due()
		w.after(at, deadlines.TicketWithin, asap)
		require.ErrorIs(t, context.Cause(c.ctx), streamstate.ErrTimeout)
	})
}

// TestR10_LadderClimbsByWhatDoesNotFollow has a source that accepts everything, and of which nothing begins.
func TestR10_LadderClimbsByWhatDoesNotFollow(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		w.drive(t.Context())
		w.fail(0)
		w.asks("restart", 0).reply <- nil
		at := time.Now()
		w.asks("shut-down", 0).reply <- nil
		w.after(at, deadlines.BeginWithin, asap+time.Second)
		w.asks("restart", 0).reply <- nil // shut down and restart
		at = time.Now()
		w.asks("resubscribe", 0, 1).reply <- nil
		w.after(at, deadlines.BeginWithin, asap)
		w.begin(1, "B", 10)
		at = time.Now()
		due := w.due()
		w.after(at, deadlines.BeginWithin, asap)
		_, ok := due.Restart.At(0)
		require.False(t, ok, "nothing was flushed")
	})
}

// TestR10_LadderClimbsByRefusal goes as fast as the source says no.
func TestR10_LadderClimbsByRefusal(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		w.drive(t.Context())
		require.NoError(t, w.s.Flush(t.Context(), func(context.Context, streamstate.Timestamp) error { return nil }))
		at := time.Now()
		w.fail(0)
		w.asks("restart", 0).reply <- ErrRefused
		w.asks("shut-down", 0).reply <- errors.Join(ErrRefused, errSource)
		w.asks("resubscribe", 0).reply <- ErrRefused
		due := w.due()
		w.after(at, 0, time.Second)
		pos, ok := due.Restart.At(0)
		require.True(t, ok)
		require.Equal(t, next(10), pos)

		w.drive(t.Context()) // it cannot be begun: it is due again after a while
		w.quiet(time.Second)
		require.NoError(t, due.Ticket.Failed())
		at = time.Now()
		again := w.due()
		w.after(at, deadlines.RetryAfter, asap)
		require.NotEqual(t, due.Ticket.Ticket(), again.Ticket.Ticket())
	})
}

// TestR10_ClaimsEndTheLadder where one accepted data or lived long enough; what begins and ends at once climbs (S42), with
// a pause that grows.
func TestR10_ClaimsEndTheLadder(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		w.drive(t.Context())
		var last time.Duration
		for n := range 12 { // it sends a little each time: it does not climb
			w.fail(0)
			at := time.Now()
			c := w.asks("restart", 0)
			last = c.at.Sub(at)
			w.begin(0, "A0", 10+uint64(n))
			c.reply <- nil
			require.NoError(t, w.claims[0].Advance(next(11+uint64(n))))
		}
		require.GreaterOrEqual(t, last, deadlines.TicketWithin/16, "it is asked more and more seldom")
		w.sleep(deadlines.StableAfter + look)
		at := time.Now()
		w.fail(0)
		c := w.asks("restart", 0)
		w.after(at, 0, 20*time.Millisecond)
		w.begin(0, "A0", 22)
		c.reply <- nil

		for _, rung := range []streamstate.Rung{streamstate.RungShutDown, streamstate.RungResubscribe} {
			w.fail(0) // this one does not last at all
			require.Equal(t, rung, w.view(0).Rung)
			if rung == streamstate.RungShutDown {
				c = w.asks("restart", 0)
				w.begin(0, "A0", 22)
				c.reply <- nil
			}
		}
		w.asks("resubscribe", 0)
	})
}

// TestR11_FailsAgainBeforeTheReply has a partition begin and fail again while the source still answers for the first
// time: the answer, whatever it is, does not advance the second repair.
func TestR11_FailsAgainBeforeTheReply(t *testing.T) {
	for name, reply := range map[string]error{"accepted": nil, "refused": ErrRefused, "pending": ErrPending, "error": errSource} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 2, func(t *testing.T, w *world) {
				w.drive(t.Context())
				w.fail(0, 1)
				slow := w.asks("restart", 0, 1)
				w.begin(0, "C", 10)
				require.NoError(t, w.claims[0].Advance(next(11)))
				w.fail(0)
				again := w.asks("restart", 0)
				require.Equal(t, next(11), again.from[0])
				require.NoError(t, slow.ctx.Err(), "it goes on for the other one")
				before := w.view(0)
				slow.reply <- PartitionErrors{0: reply}
				synctest.Wait()
				require.Equal(t, before, w.view(0))
				require.NoError(t, again.ctx.Err())
				again.reply <- errSource
				w.asks("restart", 0).reply <- nil // the second repair is at its second attempt, and no further
				w.begin(0, "C", 11)
				w.begin(1, "A1", 10)
				w.quiet(time.Hour)
			})
		})
	}
}

// TestR12_PendingWaitsLonger than for a begin that was promised, and then climbs.
func TestR12_PendingWaitsLonger(t *testing.T) {
	inWorld(t, 2, func(t *testing.T, w *world) {
		w.drive(t.Context())
		w.fail(0, 1)
		w.asks("restart", 0, 1).reply <- ErrPending
		at := time.Now()
		w.quiet(deadlines.PendingWithin - look)
		w.begin(1, "A1", 10)
		w.asks("shut-down", 0)
		w.after(at, deadlines.PendingWithin, asap+time.Second)
		require.Equal(t, streamstate.Begun, w.view(1).State)
	})
}

// TestR13_RollbackWaitsForTheOthers has a partition that must roll back, and another that is being repaired: recovery is
// due once all have begun, with where to go back to; at once if that is zero.
func TestR13_RollbackWaitsForTheOthers(t *testing.T) {
	for name, to := range map[string]uint64{"later": 5, "at once": 0} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, 3, func(t *testing.T, w *world) {
				require.NoError(t, w.s.Flush(t.Context(), func(context.Context, streamstate.Timestamp) error { return nil }))
				w.drive(t.Context())
				w.fail(0, 1)
				w.asks("restart", 0, 1).reply <- nil
				_, err := w.s.Begin(0, streamstate.Begin{Owner: "B", MustRollBack: true, RollBackTo: next(to)})
				require.NoError(t, err)
				if to > 0 {
					synctest.Wait()
					require.Empty(t, w.done)
					w.asks("shut-down", 1).reply <- nil
					w.asks("restart", 1).reply <- nil
					require.Empty(t, w.done, "another is being repaired")
					w.begin(1, "A1", 10)
				}
				at := time.Now()
				due := w.due()
				w.after(at, 0, 0)
				for p, want := range []uint64{to, 10, 10} {
					pos, ok := due.Restart.At(p)
					require.True(t, ok)
					require.Equal(t, want, pos.Next, "partition %d", p)
				}
			})
		})
	}
}

// TestR14_NeverSucceeds asks a bounded number of times, with pauses that grow and are jittered, and goes to the next rung
// long before the ticket's deadline.
func TestR14_NeverSucceeds(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		w.drive(t.Context())
		w.fail(0)
		start := time.Now()
		at := make([]time.Time, 5)
		for n := range at {
			c := w.asks("restart", 0)
			at[n] = c.at
			c.reply <- errSource
		}
		for n := 1; n < len(at); n++ {
			most := 250 * time.Millisecond << (n - 1)
			require.LessOrEqual(t, at[n].Sub(at[n-1]), most)
			require.GreaterOrEqual(t, at[n].Sub(at[n-1]), most/2)
			require.NotZero(t, at[n].Sub(at[n-1])%time.Millisecond, "jitter")
		}
		for range 5 {
			w.asks("shut-down", 0).reply <- errSource
		}
		w.after(start, 0, deadlines.TicketWithin)
		for range 5 {
			w.asks("resubscribe", 0).reply <- errSource
		}
		_ = w.due()
	})
}

// TestR14_CanBeDropped while it is retried.
func TestR14_CanBeDropped(t *testing.T) {
	inWorld(t, 1, func(t *testing.T, w *world) {
		w.o.Attempts = 1 << 30
		w.drive(t.Context())
		w.fail(0)
		for range 7 {
			w.asks("restart", 0).reply <- errSource
		}
		require.NoError(t, w.s.Drop().Wait(t.Context()))
		err := <-w.done
		require.ErrorIs(t, err, streamstate.ErrStaleSession)
		require.ErrorIs(t, err, streamstate.ErrDropped)
		w.quiet(time.Hour)
	})
}

// steps are how far the repair of partition 0 has got, with the call that runs, if any.
var steps = map[string]func(*world) *call{
	"waits for others": func(*world) *call { return nil },
	"is asked for":     func(w *world) *call { return w.asks("restart", 0) },
	"waits to be asked for again": func(w *world) *call {
		w.asks("restart", 0).reply <- errSource
		return nil
	},
	"is accepted": func(w *world) *call {
		w.asks("restart", 0).reply <- nil
		return nil
	},
	"is shut down": func(w *world) *call {
		w.asks("restart", 0).reply <- ErrRefused
		return w.asks("shut-down", 0)
	},
	"is resubscribed": func(w *world) *call {
		w.asks("restart", 0).reply <- ErrRefused
		w.asks("shut-down", 0).reply <- ErrRefused
		return w.asks("resubscribe", 0, 1)
	},
}

var replies = map[string]error{"done": nil, "refused": ErrRefused, "error": errSource}

// TestR15_KeyTakenAway takes the key away at each step of a repair. The driver ends with its session, asks for nothing any
// more, and what the source still answers leaves the successor as it is.
func TestR15_KeyTakenAway(t *testing.T) {
	ends := map[string]struct {
		end  func(*world)
		kind error // nil: of the phase, if the driver saw it before the next session began
	}{
		"stopped": {func(w *world) { w.s.Stop(nil) }, streamstate.ErrPhase},
		"dropped": {func(w *world) { w.s.Drop() }, streamstate.ErrStaleSession},
		"dropped and opened again": {func(w *world) {
			w.s.Drop()
			w.open(2)
		}, streamstate.ErrStaleSession},
		"reopened": {func(w *world) {
			w.s.Stop(nil)
			var err error
			w.s, err = w.book.Reopen(w.s, streamstate.ReopenOptions[int]{})
			require.NoError(w.t, err)
			w.begin(0, "A0", 10)
			w.begin(1, "A1", 10)
		}, nil},
	}
	for at, step := range steps {
		for how, away := range ends {
			for answer, reply := range replies {
				t.Run(at+"/"+how+"/"+answer, func(t *testing.T) {
					inWorld(t, 2, func(t *testing.T, w *world) {
						w.src.deaf = true // its answers come although nobody waits for them
						w.drive(t.Context())
						w.fail(0)
						c := step(w)
						synctest.Wait()
						away.end(w)
						before := w.s.Fingerprint()
						synctest.Wait()
						require.Empty(t, w.src.calls, "asked for although it has ended")
						if c != nil {
							require.Error(t, c.ctx.Err(), "nobody waits for it")
							require.Empty(t, w.done, "the driver has not ended before its calls")
							c.reply <- reply
						}
						err := <-w.done
						if away.kind != nil || !errors.Is(err, streamstate.ErrPhase) {
							require.ErrorIs(t, err, orStale(away.kind))
						}
						require.Equal(t, before, w.s.Fingerprint(), "it acts for a successor")
						w.quiet(time.Hour)
					})
				})
			}
		}
	}
}

// TestR15_PartitionTakenAway gives the partition up and takes it again, at each step of its repair but a resubscribe, which
// is the session's: the driver goes on and asks for nothing of the former life.
func TestR15_PartitionTakenAway(t *testing.T) {
	for at, step := range steps {
		if at == "is resubscribed" {
			continue
		}
		for answer, reply := range replies {
			t.Run(at+"/"+answer, func(t *testing.T) {
				inWorld(t, 2, func(t *testing.T, w *world) {
					w.src.deaf = true
					w.drive(t.Context())
					w.fail(0)
					c := step(w)
					synctest.Wait()
					require.NoError(t, w.s.Unwant(0).Err())
					_, err := w.s.OwnerGone("A0") // or it is still to be shut down
					require.NoError(t, err)
					require.NoError(t, w.s.Want(0))
					w.begin(0, "A0", 20)
					before := w.s.Fingerprint()
					if c != nil {
						synctest.Wait()
						require.Error(t, c.ctx.Err(), "nobody waits for it")
						c.reply <- reply
					}
					w.quiet(time.Hour)
					require.Equal(t, before, w.s.Fingerprint(), "it acts for a successor")
					w.fail(0)
					require.Equal(t, next(20), w.asks("restart", 0).from[0])
				})
			})
		}
	}
}

func orStale(kind error) error {
	if kind == nil {
		return streamstate.ErrStaleSession
	}
	return kind
}
