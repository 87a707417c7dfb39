package repair

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// writeValue writes a value to some blocks, so that two writes can be the same.
func writeValue(t *testing.T, c *jobtest.Cluster, start, blocks, value uint64) {
	t.Helper()
	_, err := c.SubmitContext(t.Context(), jobtest.Write(start, blocks), &jobtest.Payload{Value: value})
	require.NoError(t, err)
	c.Settle()
}

// missed is a cluster whose replica 2 has missed writes of five extents of eight, two blocks each. Three of these left the
// extent as it was.
func missed(t *testing.T, order jobtracker.Order) *jobtest.Cluster {
	t.Helper()
	c := jobtest.New(t, config{Blocks: 16, ExtentBlocks: 2, Order: order})
	writeValue(t, c, 0, 16, 7)
	c.Submit(jobtest.Flush())
	c.Settle()
	require.NoError(t, c.Tracker.Fault(2, errTest))
	writeValue(t, c, 1, 1, 7)
	writeValue(t, c, 6, 4, 7)
	writeValue(t, c, 11, 2, 8)
	c.Replica(2).Reconnect()
	require.Equal(t, 5, left(c, 2))
	return c
}

// What holds the same is not copied, though the target has missed writes of it; no data is moved for it.
func TestLiveComparesByChecksum(t *testing.T) {
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := missed(t, order)
				jobs := c.Tracker.Stats().Submitted
				var last LiveProgress
				result := begin(c, 2, LiveOptions{Checksum: true, OnProgress: func(p LiveProgress) { last = p }})
				settle(c)
				require.NoError(t, result())
				synctest.Wait()
				require.Equal(t, LiveProgress{Kind: LiveEnded, Target: 2, Total: 8, Done: 8, Copied: 2, Same: 3, Bytes: 4 * 512}, last)
				require.Equal(t, uint64(5+2+1), c.Tracker.Stats().Submitted-jobs, "comparisons, copies of what differs, and the last flush")
				c.RequireSame()
				c.RequireRecovery()
			})
		})
	}
}

// The guest writes between the comparison that finds an extent to be the same and the last flush, and between one that
// finds it to differ and its copy: either way the target has it.
func TestR04_WriteAfterTheComparison(t *testing.T) {
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		for at := range 60 {
			inBubble(t, func(t *testing.T) {
				c := missed(t, order)
				result := begin(c, 2, LiveOptions{Checksum: true, Parallel: 2})
				for range at {
					c.Step()
					synctest.Wait()
				}
				w := c.Submit(jobtest.Write(0, 16))
				settle(c)
				require.NoError(t, result())
				require.NoError(t, w.Err())
				for b := range uint64(16) {
					require.Equal(t, uint64(w.ID()), c.Replica(2).Block(b))
				}
				c.RequireRecovery()
			})
		}
	}
}

// A write is skipped on a replica that waits for its repair, and has not been done by the source yet when extents are
// compared by checksum: the source's half waits for it, so that it is not the old contents that are found to be the same.
func TestR24_ComparedBehindASkippedWrite(t *testing.T) {
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		for seed := range uint64(20) {
			inBubble(t, func(t *testing.T) {
				c := missed(t, order)
				c.Seed(seed)
				for _, r := range c.Replicas()[:2] {
					r.StopReading()
				}
				w := c.Submit(jobtest.Write(14, 1)) // extent 7 was clean
				result := begin(c, 2, LiveOptions{Checksum: true, Parallel: 8})
				for _, r := range c.Replicas() {
					r.Heal()
				}
				for c.Step() {
					synctest.Wait()
				}
				settle(c)
				require.NoError(t, result())
				require.Equal(t, uint64(w.ID()), c.Replica(2).Block(14))
				c.RequireRecovery()
			})
		}
	}
}

// A source that cannot say what it holds, and a target that cannot compare, leave it to the copy.
func TestR02_CannotCompare(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := missed(t, jobtracker.TrackerOrders)
		for _, r := range c.Replicas() {
			r.FailHalf(jobtracker.HalfSum, errTest)
			r.FailHalf(jobtracker.HalfCompare, errTest)
		}
		var last LiveProgress
		result := begin(c, 2, LiveOptions{Checksum: true, OnProgress: func(p LiveProgress) { last = p }})
		settle(c)
		require.NoError(t, result())
		synctest.Wait()
		require.Equal(t, 5, last.Copied)
		require.Zero(t, last.Same)
		c.RequireRecovery()
	})
}

// The repair of a replica that missed nothing, by what all remember: nothing is read but metadata.
func TestR08_CleanReplicaReadsMetadataOnly(t *testing.T) {
	for _, checksum := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			const blocks, extents = 1 << 16, 1 << 12
			c := jobtest.New(t, config{Blocks: blocks, ExtentBlocks: blocks / extents})
			c.Submit(jobtest.Write(0, 64))
			c.Submit(jobtest.Flush())
			c.Settle()
			c.Deactivate()
			for _, r := range c.Replicas() {
				require.NoError(t, r.Quiesce())
			}
			c.Activate()
			c.Replica(0).Reconnect()
			c.Replica(1).Reconnect()
			late := c.Replica(2).Hello()
			late.Dirty = true // it does not join as it is
			_, err := c.Replica(2).ConnectWith(late)
			require.NoError(t, err)
			require.Equal(t, extents, left(c, 2), "the tracker knows nothing of it")
			asked, data := 0, 0
			meta := metaFunc(func(context.Context, int) ([]ExtentMeta, error) {
				asked++
				return make([]ExtentMeta, extents), nil
			})
			was := c.Tracker.Stats()
			done := make(chan error, 1)
			go func() {
				done <- Live(t.Context(), c.Tracker, 2, func(jobtracker.Extent) *jobtest.Payload {
					data++ // each copy, and each comparison by checksum, has one
					return &jobtest.Payload{}
				}, LiveOptions{Meta: meta, Checksum: checksum, Parallel: 1})
			}()
			synctest.Wait()
			settle(c)
			require.NoError(t, <-done)
			now := c.Tracker.Stats()
			jobs := now.Submitted - was.Submitted
			require.Zero(t, data)
			require.Equal(t, 2, asked)
			require.Equal(t, uint64(1), jobs, "the last flush")
			t.Logf("%d extents: metadata asked for %d times, %d extents read or compared, %d job (the last flush)", extents, asked, data, jobs)
			c.RequireRecovery()
		})
	}
}
