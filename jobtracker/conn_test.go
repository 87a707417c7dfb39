package jobtracker

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestNextBatchTakesWhatIsReady(t *testing.T) {
	tr, conns := running(t, Config[int]{Replicas: 1})
	buf := make([]Dispatch[int], 4)
	got, err := conns[0].NextBatch(ended(), buf)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, got)
	for i := range 6 {
		j, err := tr.Submit(ended(), write(uint64(i), 1), 10+i)
		require.NoError(t, err)
		require.EqualValues(t, i+1, j.ID())
	}
	submit(t, tr, read(0, 1)) // is not ready
	for _, n := range []int{4, 2} {
		got, err = conns[0].NextBatch(ended(), buf)
		require.NoError(t, err)
		require.Len(t, got, n)
		require.Same(t, &buf[0], &got[0])
	}
	require.Equal(t, Dispatch[int]{ID: 6, Kind: Write, Start: 5, Blocks: 1, Payload: 15}, got[1])
}

// TestNextHasNothingOfTheLastCall has a dispatch filled in again: whatever does not hold for the next job is gone.
func TestNextHasNothingOfTheLastCall(t *testing.T) {
	tr, conns := running(t, Config[int]{Replicas: 1, Order: ReplicaOrders, AutoSyncJobs: 1})
	d := Dispatch[int]{
		ID: 9, Kind: Copy, Half: HalfRead, FUA: true, Snapshot: true, Start: 9, Blocks: 9, Number: 9, Generation: 9,
		Deps: []JobID{9, 9}, Payload: 9,
	}
	_, err := tr.Submit(ended(), Op{Kind: Write, Start: 1, Blocks: 2, FUA: true}, 7)
	require.NoError(t, err)
	require.NoError(t, conns[0].Next(ended(), &d))
	require.Equal(t, Dispatch[int]{ID: 1, Kind: Write, FUA: true, Start: 1, Blocks: 2, Deps: []JobID{}, Payload: 7}, d)
	require.NoError(t, conns[0].Complete(1, Result{})) // brings about a flush, which is the tracker's
	require.NoError(t, conns[0].Next(ended(), &d))
	require.Equal(t, Dispatch[int]{ID: 2, Kind: Flush, Number: 1, Generation: 1, Deps: []JobID{}}, d)
	submit(t, tr, Op{Kind: Flush, Snapshot: true})
	require.NoError(t, conns[0].Next(ended(), &d))
	require.Equal(t, Dispatch[int]{ID: 3, Kind: Flush, Snapshot: true, Number: 2, Generation: 1, Deps: []JobID{2}}, d)
}

// TestSendersAreWoken has several senders of one connection wait: as many jobs as become ready wake as many, also when
// some leave with the wake-up on its way; and those that stay are told when the connection ends.
func TestSendersAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{Replicas: 1, AutoSync: SyncOff})
		c := conns[0]
		type result struct {
			id  JobID
			err error
		}
		got := make(chan result, 100)
		send := func(ctx context.Context) {
			var d Dispatch[int]
			err := c.Next(ctx, &d)
			got <- result{d.ID, err}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		for range 4 {
			go send(ctx)
			go send(t.Context())
		}
		synctest.Wait()
		require.Empty(t, got)
		for id := range JobID(2) {
			submit(t, tr, write(uint64(id), 1))
			synctest.Wait()
			require.Equal(t, result{id: id + 1}, <-got)
			require.Empty(t, got)
		}
		cancel(errDep) // those that leave take no wake-up along
		submit(t, tr, write(2, 1))
		synctest.Wait()
		ids, left := map[JobID]bool{}, 0
		for len(got) > 0 {
			if r := <-got; r.err != nil {
				require.ErrorIs(t, r.err, errDep)
				left++
			} else {
				ids[r.id] = true
			}
		}
		require.Equal(t, map[JobID]bool{3: true}, ids)
		require.Equal(t, 5, 8-2-left-1+left, "each has returned or waits")

		waiting := 8 - 2 - left - 1
		for range 3 { // at once: one lock hold makes all ready
			submit(t, tr, Op{Kind: Flush})
		}
		go func() {
			for id := JobID(1); id <= 3; id++ {
				_ = c.Complete(id, Result{})
			}
		}()
		synctest.Wait()
		require.NotEmpty(t, got)
		waiting -= len(got)
		c.Close(errDisk)
		synctest.Wait()
		ended := 0
		for len(got) > 0 {
			if r := <-got; r.err != nil {
				require.ErrorIs(t, r.err, ErrStaleConn)
				require.ErrorIs(t, r.err, errDisk)
				ended++
			}
		}
		require.Equal(t, waiting, ended)
	})
}

// TestManySendersManyReceivers has it all really at once: each job is dispatched once to each replica.
func TestManySendersManyReceivers(t *testing.T) {
	var cfg Config[int]
	h := hear(t, &cfg)
	cfg.Reads, cfg.MaxJobs = ReadAll, 64
	tr, conns := running(t, cfg)
	var mu sync.Mutex
	seen := map[ConnID]map[JobID]bool{}
	var drivers, clients sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, c := range conns {
		seen[c.ID()] = map[JobID]bool{}
		for range 3 {
			drivers.Go(func() {
				buf := make([]Dispatch[int], 3)
				for {
					got, err := c.NextBatch(ctx, buf)
					if err != nil {
						return
					}
					for i := range got {
						mu.Lock()
						if seen[c.ID()][got[i].ID] {
							t.Errorf("job %d was dispatched twice on %d", got[i].ID, c.ID())
						}
						seen[c.ID()][got[i].ID] = true
						mu.Unlock()
						if err := c.Complete(got[i].ID, Result{}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
	jobs := make([][]*Job[int], 4)
	for k := range jobs {
		clients.Go(func() {
			for i := range 100 {
				op := write(uint64((i*7+k)%60), 1+uint64(i%4))
				if i%3 == 0 {
					op.Kind = Read
				}
				j, err := tr.Submit(t.Context(), op, 0)
				if err == nil {
					err = j.Wait(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
				jobs[k] = append(jobs[k], j)
			}
		})
	}
	clients.Wait()
	require.NoError(t, tr.Deactivate().Wait(t.Context()))
	stop()
	drivers.Wait()
	require.NoError(t, tr.Check())
	all := append(append(append(jobs[0], jobs[1]...), jobs[2]...), jobs[3]...)
	require.Len(t, all, 400)
	h.require(all...)
}
