package repair

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

var errTest = errors.New("a test says so")

func payload(jobtracker.Extent) *jobtest.Payload { return &jobtest.Payload{} }

// away is a running cluster with something on its disks, and replica 2 faulted, behind and back.
func away(t jobtest.TB, cfg jobtracker.Config[*jobtest.Payload]) *jobtest.Cluster {
	c := jobtest.New(t, cfg)
	for b := range uint64(64) {
		c.Submit(jobtest.Write(b, 1))
		c.Settle()
	}
	c.Submit(jobtest.Flush())
	c.Settle()
	require.NoError(t, c.Tracker.Fault(2, errTest))
	for b := range uint64(16) {
		c.Submit(jobtest.Write(4*b, 1))
	}
	c.Settle()
	c.Replica(2).Reconnect()
	return c
}

// require.NoError and the like take what Errorf and FailNow have.
var _ require.TestingT = jobtest.TB(nil)

// begin runs Live on a goroutine of its own; it has got as far as it can when begin returns.
func begin(c *jobtest.Cluster, target int, o LiveOptions) (result func() error) {
	return beginIn(context.Background(), c, target, o)
}

func beginIn(ctx context.Context, c *jobtest.Cluster, target int, o LiveOptions) (result func() error) {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = Live(ctx, c.Tracker, target, payload, o)
	}()
	synctest.Wait()
	return func() error {
		<-done
		return err
	}
}

// settle has cluster and driver take turns until nothing moves.
func settle(c *jobtest.Cluster) {
	for {
		before := c.Tracker.Fingerprint()
		c.Settle()
		synctest.Wait()
		if c.Tracker.Fingerprint() == before {
			return
		}
	}
}

// inBubble runs a test with a clock of its own.
func inBubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func left(c *jobtest.Cluster, r int) int { return c.Tracker.Dump().Replicas[r].Left }

func TestLiveCopiesWhatWasMissed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := away(t, jobtracker.Config[*jobtest.Payload]{})
		require.Equal(t, 16, left(c, 2))
		var told []LiveProgress
		result := begin(c, 2, LiveOptions{OnProgress: func(p LiveProgress) { told = append(told, p) }})
		settle(c)
		require.NoError(t, result())
		synctest.Wait()
		first, last := told[0], told[len(told)-1]
		require.Equal(t, LiveProgress{Target: 2, Total: 64, Done: 48}, first)
		require.Equal(t, LiveProgress{Kind: LiveEnded, Target: 2, Total: 64, Done: 64, Copied: 16, Bytes: 16 * 512}, last)
		require.Equal(t, jobtracker.Voting, c.Replica(2).State().Phase)
		c.RequireRecovery()
	})
}

func TestLiveOptions(t *testing.T) {
	c := away(t, jobtracker.Config[*jobtest.Payload]{})
	for field, o := range map[string]LiveOptions{
		"Parallel": {Parallel: -1}, "BytesPerSecond": {BytesPerSecond: -1}, "Attempts": {Attempts: -1},
	} {
		err := Live(t.Context(), c.Tracker, 2, payload, o)
		var bad *OptionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, OptionError{Field: field, Got: -1}, *bad)
		require.ErrorIs(t, err, ErrOption)
		require.Equal(t, "repair: bad option: "+field+" is -1", err.Error())
	}
	require.ErrorIs(t, Live(t.Context(), c.Tracker, 1, payload, LiveOptions{}), jobtracker.ErrLifecycle, "it needs none")
	for field, err := range map[string]error{
		"payload":  Live(t.Context(), c.Tracker, 2, nil, LiveOptions{}),
		"tr":       Live[*jobtest.Payload](t.Context(), nil, 2, payload, LiveOptions{}),
		"replicas": Reconcile(t.Context(), c.Tracker, nil, ReconcileOptions{}),
	} {
		require.Equal(t, &OptionError{Field: field}, err)
		require.Equal(t, "repair: bad option: "+field+" is nil", err.Error())
	}
	require.Equal(t, jobtracker.RepairReady, c.Replica(2).State().Phase)
}

// The rate is that of what extents hold, whatever the replicas can.
func TestLiveRate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := away(t, jobtracker.Config[*jobtest.Payload]{})
		c.Run()
		began := time.Now()
		var last LiveProgress
		require.NoError(t, Live(t.Context(), c.Tracker, 2, payload, LiveOptions{
			BytesPerSecond: 512, OnProgress: func(p LiveProgress) {
				if last = p; p.Kind == LiveCopying && p.Copied == 8 {
					require.InDelta(t, 8*512/p.Elapsed.Seconds(), p.Rate, 0.001)
					require.InDelta(t, 7, p.Left.Seconds(), 0.1, "8 extents at 512 bytes in 7 s")
				}
			},
		}))
		require.Equal(t, 15*time.Second, time.Since(began), "16 extents of 512 bytes, the first at once")
		synctest.Wait()
		require.Equal(t, 16, last.Copied)
	})
}

type metaFunc func(ctx context.Context, replica int) ([]ExtentMeta, error)

func (f metaFunc) Extents(ctx context.Context, replica int) ([]ExtentMeta, error) {
	return f(ctx, replica)
}

// What replicas remember decides where the tracker knows nothing, and the repair of a clean replica reads metadata only.
func TestLiveComparesMetadata(t *testing.T) {
	for name, dirty := range map[string]map[int][]int{"clean": {}, "source": {0: {3, 9}}, "target": {2: {3}}, "both": {0: {3}, 2: {9, 10}}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := jobtest.New(t, jobtracker.Config[*jobtest.Payload]{})
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
				late.Dirty = true // it cannot join as it is
				_, err := c.Replica(2).ConnectWith(late)
				require.NoError(t, err)
				asked := map[int]int{}
				meta := metaFunc(func(_ context.Context, r int) ([]ExtentMeta, error) {
					asked[r]++
					m := make([]ExtentMeta, 64)
					for _, i := range dirty[r] {
						m[i].Dirty = true
					}
					return m, nil
				})
				jobs := c.Tracker.Stats().Submitted
				result := begin(c, 2, LiveOptions{Meta: meta})
				settle(c)
				require.NoError(t, result())
				want := map[int]bool{}
				for _, is := range dirty {
					for _, i := range is {
						want[i] = true
					}
				}
				require.Equal(t, map[int]int{0: 1, 2: 1}, asked)
				require.Equal(t, uint64(len(want)+1), c.Tracker.Stats().Submitted-jobs, "a copy of each that is dirty, and the last flush")
				c.RequireRecovery()
			})
		})
	}
}

func TestLiveMetaThatFails(t *testing.T) {
	c := away(t, jobtracker.Config[*jobtest.Payload]{})
	for want, meta := range map[error]metaFunc{
		errTest: func(context.Context, int) ([]ExtentMeta, error) { return nil, errTest },
		ErrMeta: func(context.Context, int) ([]ExtentMeta, error) { return make([]ExtentMeta, 63), nil },
	} {
		require.ErrorIs(t, Live(t.Context(), c.Tracker, 2, payload, LiveOptions{Meta: meta}), want)
		require.Equal(t, jobtracker.RepairReady, c.Replica(2).State().Phase)
	}
	c.RequireRecovery()
}
