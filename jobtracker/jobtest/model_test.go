package jobtest_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// checkCluster plays random jobs, steps and faults on a cluster; then it must recover. The cluster checks the rest.
func checkCluster(t *rapid.T) {
	n := rapid.IntRange(1, 4).Draw(t, "replicas")
	c := jobtest.New(t, config{
		Replicas:  n,
		Order:     rapid.SampledFrom([]jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders}).Draw(t, "order"),
		Reads:     rapid.SampledFrom([]jobtracker.Reads{jobtracker.ReadOne, jobtracker.ReadAll}).Draw(t, "reads"),
		WriteBack: rapid.Bool().Draw(t, "write-back"),
		AutoSync:  rapid.SampledFrom([]jobtracker.SyncKind{jobtracker.SyncFlush, jobtracker.SyncBarrier, jobtracker.SyncOff}).Draw(t, "sync"),
		MaxJobs:   16, OfflineJobs: 12, AutoSyncJobs: 6, Blocks: 8,
	})
	c.Seed(rapid.Uint64().Draw(t, "seed"))
	replica := func() *jobtest.Replica { return c.Replica(rapid.IntRange(0, n-1).Draw(t, "replica")) }
	submit := func(op jobtracker.Op) { _, _ = c.TrySubmit(op) }
	blocks := func(op func(start, blocks uint64) jobtracker.Op) func(t *rapid.T) {
		return func(t *rapid.T) {
			start := rapid.Uint64Range(0, 7).Draw(t, "start")
			submit(op(start, rapid.Uint64Range(1, 8-start).Draw(t, "blocks")))
		}
	}
	var old []*jobtest.Life
	t.Repeat(map[string]func(*rapid.T){
		"read":     blocks(jobtest.Read),
		"write":    blocks(jobtest.Write),
		"write2":   blocks(jobtest.Write),
		"fua":      blocks(jobtest.FUA),
		"zero":     blocks(jobtest.Zero),
		"trim":     blocks(jobtest.Trim),
		"flush":    func(*rapid.T) { submit(jobtest.Flush()) },
		"snapshot": func(*rapid.T) { submit(jobtest.Snapshot()) },
		"barrier":  func(*rapid.T) { submit(jobtest.Barrier()) },
		"step": func(t *rapid.T) {
			for range rapid.IntRange(1, 12).Draw(t, "steps") {
				c.Step()
			}
		},
		"settle":     func(*rapid.T) { c.Settle() },
		"hold":       func(*rapid.T) { replica().HoldReplies() },
		"release":    func(*rapid.T) { replica().ReleaseReplies() },
		"shuffle":    func(*rapid.T) { replica().ShuffleReplies() },
		"delay":      func(t *rapid.T) { replica().Delay(rapid.Uint64Range(0, 9).Draw(t, "moves")) },
		"duplicate":  func(*rapid.T) { replica().Duplicate(2) },
		"drop":       func(*rapid.T) { replica().Drop(1) },
		"silence":    func(*rapid.T) { replica().Silence() },
		"stop":       func(*rapid.T) { replica().StopReading() },
		"fail":       func(*rapid.T) { replica().FailNext(1, nil) },
		"fail reads": func(*rapid.T) { replica().FailKind(jobtracker.Read, nil) },
		"heal":       func(*rapid.T) { replica().Heal() },
		"cut": func(*rapid.T) {
			if l := replica().Cut(); l != nil {
				old = append(old, l)
			}
		},
		"late": func(t *rapid.T) {
			for _, l := range old {
				for _, id := range append(l.InHand(), 1) {
					require.ErrorIs(t, l.Deliver(id), jobtracker.ErrStaleConn)
				}
			}
			old = nil
		},
		"reconnect": func(*rapid.T) { _, _ = replica().TryReconnect() },
		"crash":     func(*rapid.T) { replica().Crash() },
		"fault":     func(*rapid.T) { _ = c.Tracker.Fault(replica().Index(), nil) },
		"replace":   func(*rapid.T) { _ = replica().Replace() },
		"repair": func(*rapid.T) {
			if r := replica(); r.State().Phase == jobtracker.RepairReady {
				_ = r.Repair() // a source may be away
			}
		},
		"reactivate": func(*rapid.T) {
			if c.Tracker.Stats().Phase != jobtracker.Inactive {
				return
			}
			for _, r := range c.Replicas() {
				r.Heal()
				r.Cut()
				_ = r.Quiesce()
			}
			c.Reconcile()
			c.Activate()
			for _, r := range c.Replicas() {
				r.Reconnect()
			}
		},
		"": func(t *rapid.T) {
			require.NoError(t, c.Tracker.Check())
		},
	})
	c.RequireRecovery()
}

func TestClusterModel(t *testing.T) { rapid.Check(t, checkCluster) }

func FuzzClusterModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkCluster)) }

// TestLive runs everything at once, for the race detector.
func TestLive(t *testing.T) {
	for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
		t.Run(order.String(), func(t *testing.T) {
			c := jobtest.New(t, config{Replicas: 3, Order: order, MaxJobs: 64, OfflineJobs: 64, AutoSyncJobs: 32, Blocks: 16})
			stop := c.Run()
			var users sync.WaitGroup
			for u := range 4 {
				users.Go(func() {
					for i := range 200 {
						op := jobtest.Write(uint64(u+i)%16, 1)
						switch i % 10 {
						case 3, 4:
							op = jobtest.Read(uint64(u+i)%16, 1)
						case 9:
							op = jobtest.Flush()
						}
						j, err := c.TrySubmit(op)
						if err == nil && i%4 == 0 {
							err = j.Wait(t.Context())
						}
						if err != nil {
							t.Errorf("%v: %v", op, err)
							return
						}
					}
				})
			}
			r := c.Replica(2)
			for range 20 {
				r.Delay(3)
				r.Duplicate(1)
				old := r.Cut()
				for _, id := range old.InHand() {
					require.ErrorIs(t, old.Deliver(id), jobtracker.ErrStaleConn)
				}
				r.Reconnect()
				r.Heal()
			}
			users.Wait()
			stop()
			c.RequireRecovery()
			c.Deactivate()
		})
	}
}

// TestSilence has a replica never answer: its connection ends by the reply deadline, and the others go on.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := jobtest.New(t, config{Replicas: 3, ReplyTimeout: time.Second})
		c.Replica(0).Silence()
		j := c.Submit(jobtest.Write(0, 1))
		b := c.Submit(jobtest.Barrier())
		c.Settle()
		require.True(t, j.Resolved())
		require.False(t, b.Resolved())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, jobtracker.Stopping, c.Replica(0).State().Phase)
		c.RequireRecovery()
		require.NoError(t, b.Err())
	})
}
