package repair

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

type config = jobtracker.Config[*jobtest.Payload]

// small is a cluster of which replica 2 has missed five of eight extents, with two blocks each.
func small(t jobtest.TB, order jobtracker.Order) *jobtest.Cluster {
	t.Helper()
	c := jobtest.New(t, config{Blocks: 16, ExtentBlocks: 2, Order: order})
	c.Submit(jobtest.Write(0, 16))
	c.Submit(jobtest.Flush())
	c.Settle()
	require.NoError(t, c.Tracker.Fault(2, errTest))
	c.Submit(jobtest.Write(1, 1))
	c.Submit(jobtest.Write(5, 6))
	c.Settle()
	c.Replica(2).Reconnect()
	require.Equal(t, 5, left(c, 2))
	return c
}

// atEachStep begins a repair, with guest I/O on copied, copying and other extents, lets the cluster make n moves and has
// something happen, for every n until the repair is done before; in both modes of order.
func atEachStep(t *testing.T, happen func(c *jobtest.Cluster), check func(t *testing.T, c *jobtest.Cluster, err error)) {
	t.Helper()
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			steps := 0
			for done := false; !done; steps++ {
				inBubble(t, func(t *testing.T) {
					c := small(t, order)
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					result := beginIn(ctx, c, 2, LiveOptions{Parallel: 2})
					for i := range steps {
						if i%9 == 4 {
							_, _ = c.TrySubmit(jobtest.Write(uint64(i%14), 3))
						}
						if i == 20 {
							_, _ = c.TrySubmit(jobtest.Flush())
						}
						c.Step()
						synctest.Wait()
					}
					if done = c.Replica(2).State().Phase == jobtracker.Voting; !done {
						happen(c)
					}
					settle(c)
					cancel()
					if err := result(); done {
						require.NoError(t, err)
					} else {
						check(t, c, err)
					}
					c.RequireRecovery()
				})
			}
			require.Greater(t, steps, 20)
		})
	}
}

// typed demands that a repair has ended well, or with an error of a kind.
func typed(t *testing.T, c *jobtest.Cluster, err error) {
	t.Helper()
	if err != nil {
		require.True(t, jobtest.Typed(err) || errors.Is(err, ErrCopy), "%v", err)
		require.NotEqual(t, jobtracker.Repairing, c.Replica(2).State().Phase)
	}
}

// again demands that the next repair goes well.
func again(t *testing.T, c *jobtest.Cluster, err error) {
	t.Helper()
	typed(t, c, err)
	for _, r := range c.Replicas() {
		r.Heal()
		if !r.State().Connected() {
			r.Reconnect()
		}
	}
	settle(c)
	if c.Replica(2).State().Phase == jobtracker.Voting {
		return
	}
	if c.Replica(2).State().Phase == jobtracker.Repairing || !c.Replica(2).Connected() {
		c.Replica(2).Reconnect()
	}
	result := begin(c, 2, LiveOptions{})
	settle(c)
	require.NoError(t, result())
}

func TestR01_TargetFailsAtEachStep(t *testing.T) {
	for name, happen := range map[string]func(r *jobtest.Replica){
		"drops":   func(r *jobtest.Replica) { r.Cut() },
		"crashes": func(r *jobtest.Replica) { r.Crash() },
		"fails":   func(r *jobtest.Replica) { r.FailNext(1, errTest) },
		"returns": func(r *jobtest.Replica) { r.Reconnect() },
	} {
		t.Run(name, func(t *testing.T) { atEachStep(t, func(c *jobtest.Cluster) { happen(c.Replica(2)) }, again) })
	}
}

func TestR02_SourceFailsAtEachStep(t *testing.T) {
	for name, happen := range map[string]func(c *jobtest.Cluster){
		"drops":   func(c *jobtest.Cluster) { c.Replica(0).Cut() },
		"crashes": func(c *jobtest.Cluster) { c.Replica(1).Crash() },
		"fails":   func(c *jobtest.Cluster) { c.Replica(0).FailNext(1, errTest) },
		"faulted": func(c *jobtest.Cluster) { _ = c.Tracker.Fault(0, errTest) }, // it is connected
		"returns": func(c *jobtest.Cluster) { c.Replica(1).Reconnect() },
	} {
		t.Run(name, func(t *testing.T) {
			atEachStep(t, happen, func(t *testing.T, c *jobtest.Cluster, err error) {
				require.NoError(t, err, "there is another source")
				again(t, c, err)
			})
		})
	}
}

// A source that cannot read fails the copy and nothing else, and another one is tried.
func TestR02_SourceCannotRead(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		c.Replica(0).FailKind(jobtracker.Copy, errTest)
		result := begin(c, 2, LiveOptions{})
		settle(c)
		require.NoError(t, result())
		require.Equal(t, jobtracker.Voting, c.Replica(0).State().Phase)
		require.NoError(t, c.Tracker.Fault(2, errTest))
		c.Submit(jobtest.Write(0, 1))
		c.Replica(2).Reconnect()
		c.Replica(1).FailKind(jobtracker.Copy, errTest)
		result = begin(c, 2, LiveOptions{})
		settle(c)
		var failed *CopyError
		require.ErrorAs(t, result(), &failed)
		require.Zero(t, failed.Extent)
		require.ErrorIs(t, failed, errTest)
		require.ErrorIs(t, failed, ErrCopy)
		require.Equal(t, jobtracker.RepairReady, c.Replica(2).State().Phase)
		c.RequireRecovery()
	})
}

// What a source has read that stops voting before the target is done is not relied on.
func TestR02_SourceIsLookedAtAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		c.Replica(2).Silence()
		result := begin(c, 2, LiveOptions{Parallel: 1})
		settle(c)
		require.Len(t, c.Replica(2).Life().InSocket(), 1)
		copies := c.Tracker.Stats().Submitted
		require.NoError(t, c.Tracker.Fault(0, errTest))
		c.Replica(2).Heal()
		settle(c)
		require.NoError(t, result())
		require.Equal(t, uint64(5+1), c.Tracker.Stats().Submitted-copies, "the one that was out is copied again, four more, and a flush")
		c.RequireRecovery()
	})
}

func TestR03_EndedByTheCallerAtEachStep(t *testing.T) {
	for name, happen := range map[string]func(c *jobtest.Cluster){
		"deactivate": func(c *jobtest.Cluster) { c.Tracker.Deactivate() },
		"disable":    func(c *jobtest.Cluster) { _ = c.Tracker.Disable(errTest) }, // it is active
		"replace": func(c *jobtest.Cluster) {
			_ = c.Replica(2).Replace() // not closed
			_, _ = c.Replica(2).Connect()
		},
		"fault": func(c *jobtest.Cluster) { _ = c.Tracker.Fault(2, errTest) },
	} {
		t.Run(name, func(t *testing.T) {
			outlived := 0
			first := func(c *jobtest.Cluster) {
				if happen(c); c.Replica(2).State().Phase == jobtracker.Repairing {
					outlived++
				}
			}
			atEachStep(t, first, func(t *testing.T, c *jobtest.Cluster, err error) {
				require.Zero(t, outlived, "the repair ends in the hold of what ends it")
				if name == "replace" || name == "fault" {
					again(t, c, err)
					return
				}
				typed(t, c, err)
				require.Equal(t, jobtracker.Inactive, c.Tracker.Stats().Phase, "the repair has ended, and then that")
			})
		})
	}
}

// A write spans copied, copying and uncopied extents; a flush and another write follow. When the target has lost what it had
// not flushed, nothing that the flush vouches for is missing.
func TestR04_WriteAcrossTheFront(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		result := begin(c, 2, LiveOptions{Parallel: 1})
		for left(c, 2) > 3 {
			c.Step()
			synctest.Wait()
		}
		c.Replica(2).Silence()
		settle(c)
		require.NotEmpty(t, c.Replica(2).Life().InSocket(), "a copy is out")
		all, flush, late := c.Submit(jobtest.Write(0, 16)), c.Submit(jobtest.Flush()), c.Submit(jobtest.Write(6, 1))
		c.Replica(2).Heal()
		settle(c)
		require.NoError(t, result())
		require.NoError(t, flush.Err())
		require.NoError(t, late.Err())
		c.RequireSame()
		c.Replica(2).Crash()
		for b := range uint64(16) {
			if b != 6 {
				require.Equal(t, uint64(all.ID()), c.Replica(2).Block(b), "block %d", b)
			}
		}
		c.Replica(2).Reconnect()
		c.RequireRecovery()
	})
}

// A reply of an aborted repair arrives in the next one: on the same connection it ends the old copy and proves nothing; on
// an older one it is an orphan.
func TestR06_ReplyOfTheFormerRepair(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		ctx, cancel := context.WithCancelCause(t.Context())
		c.Replica(2).HoldReplies()
		first := beginIn(ctx, c, 2, LiveOptions{Parallel: 1})
		settle(c)
		hand := c.Replica(2).Life().InHand()
		require.Len(t, hand, 1)
		cancel(errTest)
		require.ErrorIs(t, first(), errTest)
		require.Equal(t, 5, left(c, 2))
		c.Submit(jobtest.Write(0, 2)) // missed: the copy's data is old now
		c.Settle()
		second := begin(c, 2, LiveOptions{Parallel: 1})
		require.NoError(t, c.Replica(2).Life().Deliver(hand[0]))
		synctest.Wait()
		require.Equal(t, 5, left(c, 2), "it proves nothing")
		settle(c)
		hand = c.Replica(2).Life().InHand()
		require.Len(t, hand, 1)
		old := c.Replica(2).Cut()
		require.ErrorIs(t, second(), jobtracker.ErrEnded)
		c.Replica(2).Heal()
		c.Replica(2).Reconnect()
		third := begin(c, 2, LiveOptions{})
		require.ErrorIs(t, old.Deliver(hand[0]), jobtracker.ErrStaleConn)
		settle(c)
		require.NoError(t, third())
		c.RequireRecovery()
	})
}

// The last flush is acknowledged by the others: the target votes only when it has done it itself.
func TestR07_TargetFlushesItself(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := small(t, jobtracker.TrackerOrders)
		was := c.Replica(2).Hello()
		result := begin(c, 2, LiveOptions{})
		for left(c, 2) > 0 {
			c.Step()
			synctest.Wait()
		}
		c.Replica(2).HoldReplies()
		for range 8 {
			settle(c)
		}
		f := c.Submit(jobtest.Flush())
		settle(c)
		require.NoError(t, f.Err())
		require.True(t, f.Resolved(), "a quorum has done everything")
		require.Equal(t, jobtracker.Repairing, c.Replica(2).State().Phase)
		require.Greater(t, c.Replica(2).Hello().Flush, was.Flush, "what it remembers goes with the last flush")
		c.Replica(2).ReleaseReplies()
		settle(c)
		require.NoError(t, result())
		require.Equal(t, jobtracker.Voting, c.Replica(2).State().Phase)
		c.RequireRecovery()
	})
}
