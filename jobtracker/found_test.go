package jobtracker

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
)

// These were found by somebody who set out to break the tracker. Each was seen red with its protection taken out.

// TestFailedSnapshotsLeaveAutoSyncOn has snapshots that fail at once: they are done by nobody and retire nothing, so they
// must not count as a sync (J26).
func TestFailedSnapshotsLeaveAutoSyncOn(t *testing.T) {
	for writes := range 4 {
		tr, conns := running(t, Config[int]{MaxJobs: 8, AutoSyncJobs: 8})
		require.NoError(t, tr.Fault(2, nil))
		for range 200 {
			for range writes {
				submit(t, tr, write(0, 1))
			}
			require.Error(t, submit(t, tr, Op{Kind: Flush, Snapshot: true}).Err())
			serve(t, conns[:2]...)
		}
		require.Less(t, tr.Stats().Active, uint64(100))
	}
}

// loseWrite has a write that was acknowledged early fail on two of three replicas.
func loseWrite(t *testing.T, tr *Tracker[int], conns []*Conn[int]) {
	t.Helper()
	require.True(t, submit(t, tr, write(0, 1)).Resolved())
	for r, c := range conns {
		var err error
		if r > 0 {
			err = errors.New("bad disk")
		}
		require.NoError(t, c.Complete(take(t, c)[0], Result{Err: err}))
	}
	require.EqualValues(t, 1, tr.Stats().Lost)
}

// TestDeactivateReportsALostWrite has a lost write that no flush of the caller's has reported (J18).
func TestDeactivateReportsALostWrite(t *testing.T) {
	tr, conns := running(t, Config[int]{WriteBack: true, AutoSyncJobs: 1})
	loseWrite(t, tr, conns)
	serve(t, conns[0]) // the automatic flush, which reports to nobody
	require.Zero(t, tr.Stats().Active)
	h := tr.Deactivate()
	serve(t, conns[0])
	require.ErrorIs(t, h.Wait(ended()), ErrLostWrite)
}

// TestLostWriteIsNamed has the first flush after a loss fail for want of a quorum as well: it names the lost write, since
// it is the one that reports it (J18).
func TestLostWriteIsNamed(t *testing.T) {
	tr, conns := running(t, Config[int]{WriteBack: true})
	loseWrite(t, tr, conns)
	f := submit(t, tr, Op{Kind: Flush})
	serve(t, conns[0])
	require.ErrorIs(t, f.Err(), ErrLostWrite)
	require.ErrorIs(t, f.Err(), ErrQuorum)
}

// TestRefusedPayloadIsLetGo has the payloads of jobs that were not admitted collected.
func TestRefusedPayloadIsLetGo(t *testing.T) {
	type payload = [1 << 20]byte
	tr, err := New(Config[*payload]{Replicas: 1, Blocks: 64, BlockSize: 512, MaxJobs: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, tr.Close().Wait(context.Background())) }()
	begun, err := tr.Activate(ActivateOptions{Generation: 1, Create: true})
	require.NoError(t, err)
	_, err = tr.Connect(0, Hello{})
	require.NoError(t, err)
	require.NoError(t, begun.Wait(ended()))
	_, err = tr.Submit(ended(), write(0, 1), nil)
	require.NoError(t, err)
	var kept []weak.Pointer[payload]
	for range 8 {
		p := new(payload)
		kept = append(kept, weak.Make(p))
		_, err = tr.Submit(ended(), write(0, 1), p)
		require.ErrorIs(t, err, context.Canceled)
	}
	runtime.GC()
	runtime.GC()
	for _, w := range kept {
		require.Nil(t, w.Value())
	}
}

// TestSubmitWaitsForNobodyWhoIsAway has a replica away that holds as much as it may: a job that does not fit beside that
// does not wait for it (J13).
func TestSubmitWaitsForNobodyWhoIsAway(t *testing.T) {
	for name, cfg := range map[string]Config[int]{
		"bytes": {MaxBytes: 10 * 512},
		"jobs":  {MaxJobs: 4, OfflineJobs: 4, AutoSyncJobs: 100},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.OfflineFor = -1
			tr, conns := running(t, cfg)
			conns[2].Close(nil)
			for range 4 {
				submit(t, tr, write(0, 1))
				serve(t, conns[:2]...)
			}
			_, err := tr.Submit(ended(), write(0, 10), 0)
			require.NoError(t, err)
			require.Equal(t, HomeFaulted, tr.Stats().Replicas[2].State.Home)
		})
	}
}

// TestReconcileIsNotNeededWhileMoreMayCome has equal, clean replicas connect one by one, all of them needed.
func TestReconcileIsNotNeededWhileMoreMayCome(t *testing.T) {
	tr := idle(t, Config[int]{Replicas: 3, WriteQuorum: 3, OnEvent: func(e Event) {
		require.NotEqual(t, ReconcileNeeded, e.Kind)
	}})
	_, err := tr.Activate(ActivateOptions{Generation: 5})
	require.NoError(t, err)
	for r := range 3 {
		_, err = tr.Connect(r, Hello{Generation: 4, Flush: 3})
		require.NoError(t, err)
	}
	require.Equal(t, Active, tr.Stats().Phase)
}

// told is an error whose text is the caller's code.
type told func()

func (f told) Error() string { f(); return "told" }

// TestCausesAreReadWithoutTheLock has the caller's error look whether the lock is free when it is asked what it says.
func TestCausesAreReadWithoutTheLock(t *testing.T) {
	tr, _ := running(t, Config[int]{})
	asked := 0
	require.NoError(t, tr.Fault(0, told(func() {
		asked++
		if !tr.mu.TryLock() {
			t.Error("the caller's code under the lock")
			return
		}
		tr.mu.Unlock() // +checklocksignore: TryLock took it
	})))
	require.Contains(t, tr.Dump().Replicas[0].Cause, "told")
	tr.Fingerprint()
	require.GreaterOrEqual(t, asked, 2)
}

// TestReadsGoToWhoAnswers has a silent replica get no more reads than the others.
func TestReadsGoToWhoAnswers(t *testing.T) {
	tr, conns := running(t, Config[int]{MaxJobs: 16, AutoSyncJobs: 1000})
	for range 100 {
		_, err := tr.Submit(ended(), read(0, 1), 0)
		require.NoError(t, err, "two of three replicas are idle")
		serve(t, conns[1:]...)
	}
}

// TestFinishBeforeACopyFails has a driver say too early that everything was copied.
func TestFinishBeforeACopyFails(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	require.NoError(t, tr.Fault(2, nil))
	require.NoError(t, conns[2].Quiesced())
	target, err := tr.Connect(2, Hello{})
	require.NoError(t, err)
	rep, err := tr.Repair(2)
	require.NoError(t, err)
	j, err := rep.Copy(0, 0, 8, 0)
	require.NoError(t, err)
	require.Equal(t, []JobID{j.ID()}, take(t, conns[0]))
	require.ErrorIs(t, unchanged(t, tr, rep.Finish), ErrUnrepaired)
	require.NoError(t, conns[0].Complete(j.ID(), Result{Err: errors.New("cannot read")}))
	serve(t, conns[0], conns[1], target)
	require.Error(t, j.Err())
	require.ErrorIs(t, unchanged(t, tr, rep.Finish), ErrUnrepaired, "it would vote without the blocks")
	require.Equal(t, Repairing, tr.Stats().Replicas[2].State.Phase)
}
