package jobtracker

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStats(t *testing.T) {
	tr := idle(t, Config[int]{Reads: ReadAll, WriteBack: true, AutoSync: SyncOff})
	require.Equal(t, Stats{Replicas: make([]ReplicaStats, 3)}, tr.Stats())
	conns := connectAll(t, tr)

	w, r := submit(t, tr, write(0, 1)), submit(t, tr, read(1, 1)) // the write is acknowledged at once
	for i, c := range conns {
		require.Len(t, take(t, c), 2)
		require.NoError(t, c.Complete(r.ID(), Result{Digest: Digest(i/2 + 1)})) // the last one differs
	}
	require.NoError(t, conns[2].Complete(w.ID(), Result{}))
	require.NoError(t, conns[0].Complete(w.ID(), Result{Err: errDisk}))
	require.NoError(t, conns[1].Complete(w.ID(), Result{Err: errDisk})) // lost
	f := submit(t, tr, Op{Kind: Flush})                                 // nowhere to go well
	require.Error(t, f.Err())
	for _, id := range []JobID{r.ID(), 0, 99} {
		require.Error(t, conns[2].Complete(id, Result{}))
	}
	require.Error(t, conns[0].Complete(f.ID(), Result{}))

	s := tr.Stats()
	require.Equal(t, Active, s.Phase)
	require.EqualValues(t, 3, s.Submitted)
	require.EqualValues(t, 2, s.Acked)
	require.EqualValues(t, 1, s.Failed)
	require.EqualValues(t, 1, s.Lost)
	require.EqualValues(t, 1, s.Mismatches)
	require.EqualValues(t, tr.Dump().Active, s.Active)
	require.Equal(t, s.Submitted, s.Active+s.Retired)
	require.EqualValues(t, 4, s.Orphaned())
	require.EqualValues(t, 1, s.Orphans[OrphanStaleConn])
	require.EqualValues(t, 2, s.Orphans[OrphanNeverIssued])
	require.EqualValues(t, 1, s.Orphans[OrphanDuplicate]+s.Orphans[OrphanRetired])
	for i, want := range []ReplicaState{{Stopping, HomeFaulted}, {Stopping, HomeFaulted}, {Voting, HomeOffline}} {
		require.Equal(t, want, s.Replicas[i].State)
	}
	require.EqualValues(t, 1, s.Replicas[0].Failed)
	require.EqualValues(t, 1, s.Replicas[2].Failed, "the answer that differed")

	require.NoError(t, tr.Disable(nil))
	s = tr.Stats()
	require.Equal(t, Inactive, s.Phase)
	require.Zero(t, s.Active)
	require.EqualValues(t, 3, s.Retired)
	for _, r := range s.Replicas {
		require.EqualValues(t, 2, r.Dispatched)
		require.EqualValues(t, 2, r.Answered)
	}
}

// TestStatsNeedNoLock has them read while jobs come and go, and from Gap, where the lock is about to be taken.
func TestStatsNeedNoLock(t *testing.T) {
	var tr *Tracker[int]
	tr, conns := running(t, Config[int]{Gap: func() {
		if tr != nil {
			tr.Stats()
		}
	}})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		var last Stats
		for {
			s := tr.Stats()
			if s.Submitted < last.Submitted || s.Acked < last.Acked || s.Retired < last.Retired || s.Active > 1000 {
				t.Errorf("%+v after %+v", s, last)
			}
			last = s
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for i := range 300 {
		submit(t, tr, write(uint64(i%64), 1))
		if i%8 == 0 {
			submit(t, tr, Op{Kind: Flush})
		}
		serve(t, conns...)
	}
	close(stop)
	wg.Wait()
}
