package jobtracker

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// lagging is a tracker whose first callback, of the event that a call to start brings about, runs inside. Callbacks
// beyond four have admission wait.
func lagging(t *testing.T, inside func(tr *Tracker[int], n int)) (tr *Tracker[int], start func()) {
	var armed bool
	n := 0
	tr, _ = running(t, Config[int]{MaxJobs: 1, OnEvent: func(Event) {
		if armed {
			n++
			inside(tr, n)
		}
	}})
	return tr, func() {
		armed = true
		require.NoError(t, tr.Fault(2, errDisk))
	}
}

// TestCallbacksFullAdmissionWaits has too many callbacks queued: admission waits, whatever the limits allow, and goes on
// when they have been run, with nothing else happening (level-triggered).
func TestCallbacksFullAdmissionWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leave := make(chan struct{})
		tr, start := lagging(t, func(_ *Tracker[int], n int) {
			if n == 1 {
				<-leave
			}
		})
		go start()
		synctest.Wait()
		for range 4 { // an event each
			require.NoError(t, tr.Replace(2))
			_ = tr.Fault(1, errDisk)
			_, _ = tr.Connect(2, Hello{})
		}
		require.GreaterOrEqual(t, tr.Dump().Callbacks, 4)
		_, err := tr.Submit(ended(), write(0, 1), 0)
		require.ErrorIs(t, err, context.Canceled)
		admitted := make(chan error, 1)
		go func() {
			_, err := tr.Submit(t.Context(), write(0, 1), 0)
			admitted <- err
		}()
		synctest.Wait()
		require.Empty(t, admitted)
		require.Equal(t, 1, tr.Dump().Waiting)
		close(leave)
		synctest.Wait()
		require.Len(t, admitted, 1, "it is stuck")
		require.NoError(t, <-admitted)
		require.Zero(t, tr.Dump().Waiting)
	})
}

// TestCallbacksDrainedInPartsAdmissionGoesOn has the drainer take callbacks in three parts. In the middle of the last,
// another call finds the queue short. Who waited for it to be so must not be forgotten, whoever finds it.
func TestCallbacksDrainedInPartsAdmissionGoesOn(t *testing.T) {
	for _, also := range []string{"nothing", "another call", "another call blocks"} {
		t.Run(also, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				admitted := make(chan error, 1)
				event := func(tr *Tracker[int]) { // one each
					if _, err := tr.Connect(2, Hello{}); err != nil {
						require.NoError(t, tr.Replace(2))
					}
				}
				_, start := lagging(t, func(tr *Tracker[int], n int) {
					switch n {
					case 1: // the first part: fills the second
						require.NoError(t, tr.Replace(2))
						for range 6 {
							event(tr)
						}
						go func() {
							_, err := tr.Submit(t.Context(), write(0, 1), 0)
							admitted <- err
						}()
						synctest.Wait()
						require.Empty(t, admitted)
					case 8: // the last of the second part: makes the third
						event(tr)
					case 9:
						require.Equal(t, 1, tr.Dump().Callbacks)
						switch also {
						case "another call":
							event(tr)
						case "another call blocks":
							synctest.Wait()
							require.Len(t, admitted, 1, "admission waits for no callback that runs, but for too many")
						}
					}
				})
				start()
				synctest.Wait()
				require.Len(t, admitted, 1, "it is stuck")
				require.NoError(t, <-admitted)
			})
		})
	}
}
