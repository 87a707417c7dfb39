package jobtracker

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

func TestJobWait(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	good, bad := submit(t, tr, write(0, 1)), submit(t, tr, read(1, 1))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errDep)
	for _, j := range []*Job[int]{good, bad} {
		require.False(t, j.Resolved())
		require.NoError(t, j.Err())
		require.ErrorIs(t, j.Wait(ended()), context.Canceled)
		require.ErrorIs(t, j.Wait(ctx), errDep, "the cause of the context")
	}
	for range 3 { // a voter after the other fails the read
		for _, c := range conns {
			for _, id := range take(t, c) {
				res := Result{}
				if id == bad.ID() {
					res.Err = errDisk
				}
				require.NoError(t, c.Complete(id, res))
			}
		}
	}
	require.NoError(t, good.Wait(ended()), "the outcome comes before the context's")
	var failed *JobError
	require.ErrorAs(t, bad.Wait(ended()), &failed)
	require.Equal(t, bad.Err(), bad.Wait(t.Context()))
	require.Equal(t, bad.ID(), failed.Job)
	require.Equal(t, 3, failed.Failed)
	require.ErrorIs(t, failed, errDisk)

	require.ErrorIs(t, tr.Do(ended(), write(0, 1), 0), context.Canceled)
	require.EqualValues(t, 3, tr.Stats().Submitted, "the job is left to itself")
}

// TestJobManyWait has many wait for one job; some leave before, and nobody is woken for another job.
func TestJobManyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{})
		jobs := []*Job[int]{submit(t, tr, write(0, 1)), submit(t, tr, write(1, 1))}
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		var stay, left [2]atomic.Int32
		for i, j := range jobs {
			for k := range 30 {
				wg.Go(func() {
					if k%3 == 1 {
						if err := j.Wait(ctx); err != errDep { //nolint:errorlint // the very same
							t.Errorf("left with %v", err)
						}
						left[i].Inc()
						return
					}
					if err := j.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					stay[i].Inc()
				})
			}
		}
		synctest.Wait()
		cancel(errDep)
		synctest.Wait()
		for i := range jobs {
			require.EqualValues(t, 10, left[i].Load())
			require.Zero(t, stay[i].Load())
		}
		for i, j := range jobs {
			for _, c := range conns {
				take(t, c)
				require.NoError(t, c.Complete(j.ID(), Result{}))
			}
			synctest.Wait()
			require.EqualValues(t, 20, stay[i].Load())
			require.Equal(t, i == 1, stay[1].Load() != 0)
		}
		wg.Wait()
		for _, j := range jobs {
			require.Nil(t, j.waiters)
		}
	})
}

// TestJobLeaveWhileWoken has the outcome come between the end of a waiter's context and its leave: the wake-up is on its
// way, and must not be left behind for whoever waits next with the same channel.
func TestJobLeaveWhileWoken(t *testing.T) {
	for _, waits := range []string{"Wait", "Submit"} {
		t.Run(waits, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				adversary := make(chan func(), 1)
				tr, conns := running(t, Config[int]{MaxJobs: 1, AutoSync: SyncOff, Gap: func() {
					select {
					case act := <-adversary:
						act()
					default:
					}
				}})
				j := submit(t, tr, write(0, 1))
				for _, c := range conns {
					take(t, c)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				got := make(chan error, 1)
				go func() {
					if waits == "Wait" {
						got <- j.Wait(ctx)
						return
					}
					next, err := tr.Submit(ctx, write(1, 1), 0)
					if err == nil && next.ID() != 2 {
						t.Errorf("job %d", next.ID())
					}
					got <- err
				}()
				synctest.Wait()
				adversary <- func() { // goes first when it leaves
					for _, c := range conns {
						if err := c.Complete(j.ID(), Result{}); err != nil {
							t.Error(err)
						}
					}
				}
				cancel(errDep)
				synctest.Wait()
				require.NoError(t, <-got, "the outcome was there before it left")
				if waits == "Wait" {
					require.ErrorIs(t, submit(t, tr, write(2, 1)).Wait(ended()), context.Canceled, "woken for another job")
				} else {
					_, err := tr.Submit(ended(), write(2, 1), 0)
					require.ErrorIs(t, err, context.Canceled, "admitted for another")
				}
			})
		})
	}
}

// TestJobWaitersComeAndGo has waiters leave while their wake-up is on its way, many times, really at once.
func TestJobWaitersComeAndGo(t *testing.T) {
	tr, conns := running(t, Config[int]{Replicas: 1, AutoSync: SyncOff})
	var wg sync.WaitGroup
	for range 300 {
		j := submit(t, tr, write(0, 1))
		ctx, cancel := context.WithCancelCause(t.Context())
		for range 4 {
			wg.Go(func() {
				if err := j.Wait(ctx); err != nil && err != errDep { //nolint:errorlint // the very same
					t.Error(err)
				} else if err == nil && !j.Resolved() {
					t.Error("woken before the outcome is there")
				}
			})
		}
		wg.Go(func() { cancel(errDep) })
		take(t, conns[0])
		runtime.Gosched()
		require.NoError(t, conns[0].Complete(j.ID(), Result{}))
		require.NoError(t, j.Wait(t.Context()))
		wg.Wait()
	}
}

// TestSubmitWaits has admission wait in order; who leaves makes room for the next, and takes no room.
func TestSubmitWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{Replicas: 1, MaxJobs: 2, MaxBytes: 4 * 512})
		submit(t, tr, write(0, 3))
		type entry struct {
			ctx    context.Context //nolint:containedctx // of one call
			cancel context.CancelCauseFunc
			done   chan error
			job    *Job[int]
		}
		apply := func(op Op) *entry {
			e := &entry{done: make(chan error, 1)}
			e.ctx, e.cancel = context.WithCancelCause(t.Context())
			go func() {
				var err error
				e.job, err = tr.Submit(e.ctx, op, 0)
				e.done <- err
			}()
			synctest.Wait()
			return e
		}
		large, small := apply(write(4, 2)), apply(write(8, 1)) // the small one would fit
		was := tr.Fingerprint()
		for range 100 {
			_, err := tr.Submit(ended(), write(9, 1), 0)
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, was, tr.Fingerprint())
		require.Equal(t, 2, tr.Dump().Waiting)
		require.Empty(t, small.done, "nobody is overtaken")
		large.cancel(errDep)
		require.ErrorIs(t, <-large.done, errDep)
		require.Nil(t, large.job)
		require.NoError(t, <-small.done)
		require.EqualValues(t, 2, small.job.ID())
		require.Zero(t, tr.Dump().Waiting)

		third := apply(Op{Kind: Flush})
		fourth := apply(write(8, 1))
		serve(t, conns...)
		synctest.Wait()
		require.NoError(t, <-third.done)
		require.NoError(t, <-fourth.done)
		require.Less(t, third.job.ID(), fourth.job.ID())
	})
}

// TestJobIsNeverUsedAgain has the outcome and id of a job stay, whatever comes after.
func TestJobIsNeverUsedAgain(t *testing.T) {
	tr, conns := running(t, Config[int]{Replicas: 1})
	first := submit(t, tr, write(0, 1))
	require.Len(t, take(t, conns[0]), 1)
	require.NoError(t, tr.Disable(errDisk))
	was := first.Err()
	require.ErrorIs(t, was, errDisk)
	require.NoError(t, conns[0].Quiesced())
	conns = connectAll(t, tr)
	for i := range 3 * slabJobs {
		j := submit(t, tr, write(0, 1))
		require.NotSame(t, first, j)
		require.EqualValues(t, i+2, j.ID())
		serve(t, conns...)
		require.NoError(t, j.Err())
	}
	require.EqualValues(t, 1, first.ID())
	require.Equal(t, was, first.Err())
}
