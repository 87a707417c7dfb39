package repair

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// Under full load a repair finishes, guest I/O does not stop, progress only grows and the total never moves.
func TestR08_UnderFullLoad(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := jobtest.New(t, config{Blocks: 256, ExtentBlocks: 4})
		c.Submit(jobtest.Write(0, 256))
		c.Settle()
		require.NoError(t, c.Replica(2).Replace())
		_, err := c.Replica(2).Connect()
		require.NoError(t, err)
		stop := c.Run()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan int)
		for g := range uint64(4) {
			go func() {
				n := 0
				for ; ctx.Err() == nil; n++ {
					op := jobtest.Write((g*61+uint64(n)*7)%250, 1+uint64(n)%6)
					if n%16 == 15 {
						op = jobtest.Flush()
					}
					j, err := c.TrySubmit(op)
					if err != nil || j.Wait(t.Context()) != nil {
						n = -1 << 30
						break
					}
				}
				ended <- n
			}()
		}
		var told []LiveProgress
		require.NoError(t, Live(t.Context(), c.Tracker, 2, payload, LiveOptions{OnProgress: func(p LiveProgress) { told = append(told, p) }}))
		cancel()
		for range 4 {
			require.Positive(t, <-ended)
		}
		stop()
		synctest.Wait()
		require.Equal(t, LiveStarted, told[0].Kind)
		require.Zero(t, told[0].Done, "an empty one: everything")
		for i, p := range told {
			require.Equal(t, 64, p.Total)
			if i > 0 {
				require.GreaterOrEqual(t, p.Done, told[i-1].Done)
				require.GreaterOrEqual(t, p.Copied, told[i-1].Copied)
			}
		}
		last := told[len(told)-1]
		require.Equal(t, 64, last.Done)
		require.Equal(t, 64, last.Copied)
		require.Equal(t, LiveEnded, last.Kind)
		c.RequireRecovery()
	})
}

// A hook that is stuck holds up nothing, and the start and the end reach it all the same.
func TestR09_SlowProgress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		var told []LiveProgress
		stuck := make(chan struct{})
		result := begin(c, 2, LiveOptions{OnProgress: func(p LiveProgress) {
			<-stuck
			told = append(told, p)
		}})
		settle(c)
		require.NoError(t, result())
		require.Empty(t, told)
		close(stuck)
		synctest.Wait()
		require.Equal(t, LiveStarted, told[0].Kind)
		require.Equal(t, 3, told[0].Done)
		require.Equal(t, LiveEnded, told[len(told)-1].Kind)
		require.LessOrEqual(t, len(told), 3, "what it was too slow for is not kept")
		c.RequireRecovery()
	})
}

// A repair that waits for its rate ends with its replica, and never acts for a successor.
func TestR15_ReplacedWhileItWaits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		result := begin(c, 2, LiveOptions{BytesPerSecond: 1})
		settle(c)
		require.Equal(t, 4, left(c, 2))
		began := time.Now()
		require.NoError(t, c.Replica(2).Replace())
		require.ErrorIs(t, result(), jobtracker.ErrReplaced)
		require.Zero(t, time.Since(began))
		_, err := c.Replica(2).Connect()
		require.NoError(t, err)
		jobs := c.Tracker.Stats().Submitted
		time.Sleep(time.Hour) //rules:sleep in a bubble
		synctest.Wait()
		require.Equal(t, jobs, c.Tracker.Stats().Submitted)
		require.Equal(t, 8, left(c, 2))
		c.RequireRecovery()
	})
}

// During a repair a write is done on one full replica and on the target; the other full replica is slow, then the first dies.
func TestR17_TargetNeverVotes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		c.Replica(1).HoldReplies()
		result := begin(c, 2, LiveOptions{})
		w := c.Submit(jobtest.Write(3, 1))
		settle(c)
		require.Equal(t, uint64(w.ID()), c.Replica(0).Block(3))
		require.Equal(t, uint64(w.ID()), c.Replica(2).Block(3))
		require.False(t, w.Resolved(), "done on one voter of two")
		c.Replica(0).Cut()
		settle(c)
		require.False(t, w.Resolved())
		c.Replica(1).ReleaseReplies()
		c.Replica(0).Reconnect()
		settle(c)
		require.NoError(t, w.Err())
		require.True(t, w.Resolved())
		typed(t, c, result())
		c.RequireRecovery()
	})
}

// A copy's write is sent to the target, and the source dies. The copy stays outstanding: nothing overtakes it.
func TestR20_SentCopyIsNotOvertaken(t *testing.T) {
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := small(t, order)
				c.Replica(2).Silence()
				result := begin(c, 2, LiveOptions{Parallel: 1})
				settle(c)
				require.Len(t, c.Replica(2).Life().InSocket(), 1)
				require.NoError(t, c.Tracker.Fault(0, errTest))
				c.Submit(jobtest.Write(0, 2))
				settle(c)
				if order == jobtracker.TrackerOrders {
					require.Len(t, c.Replica(2).Life().InSocket(), 1, "the write waits for the copy")
				}
				c.Replica(2).Heal()
				settle(c)
				require.NoError(t, result())
				c.RequireRecovery() // the order at the disk included
			})
		})
	}
}

// A target does a flush of the guest's. It remembers what it did before, until its last flush.
func TestR21_TargetKeepsItsNumber(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		was := c.Replica(2).Hello()
		result := begin(c, 2, LiveOptions{BytesPerSecond: 1024})
		f := c.Submit(jobtest.Flush())
		settle(c)
		require.NoError(t, f.Err())
		require.Equal(t, was.Flush, c.Replica(2).Hello().Flush)
		require.Equal(t, was.Generation, c.Replica(2).Hello().Generation)
		require.Less(t, was.Flush, c.Replica(0).Hello().Flush)
		for left(c, 2) > 0 {
			time.Sleep(time.Second) //rules:sleep in a bubble
			settle(c)
		}
		require.NoError(t, result())
		require.Equal(t, c.Replica(0).Hello().Flush, c.Replica(2).Hello().Flush)
		c.RequireRecovery()
	})
}

// A write is skipped on a replica that waits for repair and is not yet dispatched elsewhere; then extents are compared, and
// look the same.
func TestR24_SkippedIsDirtyWhateverIsCompared(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		w := c.Submit(jobtest.Write(14, 1)) // extent 7 was clean
		alike := metaFunc(func(context.Context, int) ([]ExtentMeta, error) { return make([]ExtentMeta, 8), nil })
		result := begin(c, 2, LiveOptions{Meta: alike})
		settle(c)
		require.NoError(t, result())
		require.Equal(t, uint64(w.ID()), c.Replica(2).Block(14))
		c.RequireSame()
		c.RequireRecovery()
	})
}

// The target crashes after copies and before its flush: they are made again. What a flush covers is not.
func TestR25_CrashBeforeTheFlush(t *testing.T) {
	for _, flush := range []bool{false, true} {
		t.Run(fmt.Sprint("flush=", flush), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := small(t, jobtracker.TrackerOrders)
				result := begin(c, 2, LiveOptions{BytesPerSecond: 1024})
				for range 2 {
					time.Sleep(time.Second) //rules:sleep in a bubble
					settle(c)
				}
				require.Equal(t, 2, left(c, 2))
				if flush {
					c.Submit(jobtest.Flush())
					settle(c)
				}
				c.Replica(2).Crash()
				require.ErrorIs(t, result(), jobtracker.ErrEnded)
				want := 5
				if flush {
					want = 2
				}
				require.Equal(t, want, left(c, 2))
				c.Replica(2).Reconnect()
				require.Equal(t, want, left(c, 2))
				result = begin(c, 2, LiveOptions{})
				settle(c)
				require.NoError(t, result())
				c.RequireSame()
				c.RequireRecovery()
			})
		})
	}
}

// A flush is acknowledged by two; one of these is replaced by a blank, and the third comes back: that is no quorum that has
// everything.
func TestR26_BlankDoesNotCount(t *testing.T) {
	c := jobtest.New(t, config{})
	c.Replica(2).Cut()
	w := c.Submit(jobtest.Write(0, 1))
	f := c.Submit(jobtest.Flush())
	c.Settle()
	require.NoError(t, w.Err())
	require.NoError(t, f.Err())
	require.NoError(t, c.Tracker.Disable(nil))
	require.NoError(t, c.Replica(1).Replace())
	for _, r := range c.Replicas() {
		require.NoError(t, r.Quiesce())
	}
	h := c.Activate()
	c.Replica(1).Reconnect()
	c.Replica(2).Reconnect()
	c.Settle()
	require.False(t, isDone(h), "the flush would be lost")
	require.Equal(t, jobtracker.Activating, c.Tracker.Stats().Phase)
	_, err := c.Tracker.Reconcile()
	require.ErrorIs(t, err, jobtracker.ErrTooFew)
}

func isDone(h *jobtracker.Handle) bool {
	select {
	case <-h.Done():
		return true
	default:
		return false
	}
}

// A write of the former activation is still in a replica's socket when the next one begins: it does not count before it is
// drained, and then it counts with what was in there.
func TestR27_HelloOnlyAfterTheDrain(t *testing.T) {
	c := jobtest.New(t, config{})
	c.Replica(0).Silence()
	w := c.Submit(jobtest.Write(0, 1))
	c.Settle()
	require.NoError(t, w.Err())
	require.NoError(t, c.Tracker.Disable(nil))
	h := c.Activate()
	_, err := c.Replica(0).Connect()
	require.ErrorIs(t, err, jobtracker.ErrNotQuiesced)
	require.NoError(t, c.Replica(0).Quiesce())
	require.Equal(t, uint64(w.ID()), c.Replica(0).Block(0), "it was executed before it says anything")
	require.True(t, c.Replica(0).Hello().Dirty)
	c.Replica(0).Heal()
	c.Replica(0).Reconnect()
	require.False(t, isDone(h))
}
