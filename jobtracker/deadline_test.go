package jobtracker

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// armed tells whether the tracker has a timer, and for when.
func armed(tr *Tracker[int]) (at time.Duration, on bool) {
	_ = tr.do(nil, asking{}, func(*core) error {
		at, on = armedLocked(tr) // +checklocksignore: the gate holds the lock
		return nil
	})
	return at, on
}

// +checklocks:tr.mu
func armedLocked(tr *Tracker[int]) (at time.Duration, on bool) {
	if !tr.core.deadline().Equal(tr.timerAt) {
		panic("the timer is not for the earliest deadline")
	}
	return time.Until(tr.timerAt), tr.timer != nil
}

// pass has time pass, and what it brings about.
func pass(d time.Duration) {
	time.Sleep(d) //rules:sleep called in bubbles only
	synctest.Wait()
}

func requireIdle(t *testing.T, tr *Tracker[int]) {
	t.Helper()
	_, on := armed(tr)
	require.False(t, on, "a timer is armed with nothing to wait for")
}

// TestReplyTimeout has a replica fall silent: its connection ends between T and 9/8 of T after its last answer, whatever
// the phase of the looks, and others stay.
func TestReplyTimeout(t *testing.T) {
	const timeout = 8 * time.Second
	for _, silent := range []time.Duration{0, 1, time.Second / 2, time.Second, 3 * time.Second / 2, 7 * time.Second, 100 * time.Second} {
		t.Run(silent.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, conns := running(t, Config[int]{ReplyTimeout: timeout})
				owed := []JobID{submit(t, tr, write(0, 1)).ID()}
				requireIdle(t, tr) // nothing was sent
				begin := time.Now()
				end := make(chan time.Duration, 1)
				go func() {
					<-conns[2].Context().Done()
					end <- time.Since(begin)
				}()
				// Replica 2 owes a job all the time and answers one each step, until it falls silent; the others answer all.
				var last time.Duration
				for step := max(silent/100, 1); last < silent; last += step {
					owed = append(owed, submit(t, tr, write(uint64(last/step)%60, 1)).ID())
					serve(t, conns[:2]...)
					take(t, conns[2])
					pass(step)
					require.NoError(t, conns[2].Complete(owed[0], Result{}))
					owed = owed[1:]
				}
				take(t, conns[2])
				pass(timeout)
				require.NoError(t, conns[2].Context().Err(), "%v after its last answer", timeout)
				pass(timeout/8 + 1)
				require.ErrorIs(t, conns[2].Next(t.Context(), new(Dispatch[int])), ErrReplyTimeout)
				took := <-end - last
				require.GreaterOrEqual(t, took, timeout)
				require.LessOrEqual(t, took, timeout*9/8)
				require.Equal(t, ReplicaState{Stopping, HomeOffline}, tr.Stats().Replicas[2].State)
				serve(t, conns[:2]...)
				pass(time.Hour)
				require.NoError(t, conns[0].Context().Err())
				require.NoError(t, conns[1].Context().Err())
				requireIdle(t, tr)
			})
		})
	}
}

// TestReplyTimeoutIdle has nothing measured while nothing is owed: not before the first job, not between jobs.
func TestReplyTimeoutIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{ReplyTimeout: 8 * time.Second, Reads: ReadAll})
		pass(time.Hour)
		for range 3 {
			requireIdle(t, tr)
			j := submit(t, tr, read(0, 1))
			pass(time.Hour) // nobody has taken it
			requireIdle(t, tr)
			for _, c := range conns {
				require.Len(t, take(t, c), 1)
			}
			at, on := armed(tr)
			require.True(t, on)
			require.Equal(t, time.Second, at)
			pass(8 * time.Second) // the deadline counts from when it was sent
			for _, c := range conns {
				require.NoError(t, c.Complete(j.ID(), Result{}))
			}
			pass(time.Second) // one more look finds that nothing is owed
			requireIdle(t, tr)
			pass(time.Hour)
		}
		for _, c := range conns {
			require.NoError(t, c.Context().Err())
		}
	})
}

// TestReplyTimeoutBusy has a replica that is slow but answers.
func TestReplyTimeoutBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{ReplyTimeout: 8 * time.Second, Replicas: 1})
		var ids []JobID
		for range 100 {
			submit(t, tr, write(0, 1))
		}
		for range 100 {
			ids = append(ids, take(t, conns[0])...)
			pass(8 * time.Second)
			require.NoError(t, conns[0].Complete(ids[0], Result{}))
			ids = ids[1:]
		}
		require.NoError(t, conns[0].Context().Err())
		pass(time.Hour)
		requireIdle(t, tr)
	})
}

// TestOfflineFor has a replica away too long: it is faulted just then; one that is back in time is not, and leaves no
// timer behind.
func TestOfflineFor(t *testing.T) {
	const away = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{OfflineFor: away})
		requireIdle(t, tr)
		state := func() ReplicaState { return tr.Stats().Replicas[1].State }
		leave := func() {
			conns[1].Close(nil)
			at, on := armed(tr)
			require.True(t, on)
			require.Equal(t, away, at)
			pass(away / 2)
			require.NoError(t, conns[1].Quiesced()) // counts on
			at, _ = armed(tr)
			require.Equal(t, away/2, at)
		}
		leave()
		pass(away/2 - 1)
		c, err := tr.Connect(1, Hello{})
		require.NoError(t, err)
		require.NotEqual(t, PlanRepair, c.Plan())
		conns[1] = c
		requireIdle(t, tr)
		pass(time.Hour)
		require.Equal(t, ReplicaState{Voting, HomeOffline}, state())

		leave()
		pass(away/2 - 1)
		require.Equal(t, ReplicaState{Down, HomeOffline}, state())
		pass(1)
		require.Equal(t, ReplicaState{Down, HomeFaulted}, state())
		require.Equal(t, "jobtracker: offline limit exceeded: replica 1", tr.Dump().Replicas[1].Cause)
		requireIdle(t, tr)

		// Whatever ends the wait otherwise disarms.
		for name, end := range map[string]func(){
			"fault":   func() { require.NoError(t, tr.Fault(0, errDisk)) },
			"replace": func() { require.NoError(t, tr.Replace(2)) },
		} {
			r := map[string]int{"fault": 0, "replace": 2}[name]
			conns[r].Close(nil)
			_, on := armed(tr)
			require.True(t, on, name)
			end()
			requireIdle(t, tr)
		}
	})
}

// TestEndDisarms has no timer outlive the activation or the tracker, and goes without any when deadlines are off.
func TestEndDisarms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, end := range []func(tr *Tracker[int]){
			func(tr *Tracker[int]) { require.NoError(t, tr.Disable(nil)) },
			func(tr *Tracker[int]) { require.NoError(t, tr.Close().Wait(t.Context())) },
		} {
			tr, conns := running(t, Config[int]{ReplyTimeout: time.Second, OfflineFor: time.Second})
			submit(t, tr, write(0, 1))
			take(t, conns[0])
			conns[1].Close(nil)
			_, on := armed(tr)
			require.True(t, on)
			end(tr)
			requireIdle(t, tr)
			pass(time.Hour)
		}
		tr, conns := running(t, Config[int]{})
		submit(t, tr, write(0, 1))
		take(t, conns[0])
		conns[1].Close(nil)
		requireIdle(t, tr)
		pass(1000 * time.Hour)
		require.NoError(t, conns[0].Context().Err())
		require.Equal(t, HomeOffline, tr.Stats().Replicas[1].State.Home)
	})
}

// TestEarliestDeadlineFirst has several deadlines and one timer.
func TestEarliestDeadlineFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{Replicas: 5, ReplyTimeout: 80 * time.Second, OfflineFor: 7 * time.Second})
		submit(t, tr, write(0, 1))
		take(t, conns[0]) // looked at each 10 s
		pass(time.Second)
		conns[1].Close(nil) // 8
		pass(time.Second)
		conns[2].Close(nil) // 9
		at, _ := armed(tr)
		require.Equal(t, 6*time.Second, at)
		homes := func() (h []Home) {
			for _, r := range tr.Stats().Replicas[:3] {
				h = append(h, r.State.Home)
			}
			return h
		}
		pass(6 * time.Second)
		require.Equal(t, []Home{HomeOffline, HomeFaulted, HomeOffline}, homes())
		at, _ = armed(tr)
		require.Equal(t, time.Second, at)
		pass(time.Second)
		require.Equal(t, []Home{HomeOffline, HomeFaulted, HomeFaulted}, homes())
		at, _ = armed(tr)
		require.Equal(t, time.Second, at)
		pass(81 * time.Second)
		require.ErrorIs(t, conns[0].Next(t.Context(), new(Dispatch[int])), ErrReplyTimeout)
	})
}

// TestLateTickLeavesNoTimer has a timer fire just when its deadline is taken away and a later one set: the tick that comes
// late must not lose the new timer, or Close would wait until that has fired.
func TestLateTickLeavesNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		adversary, reconnected := make(chan func(), 1), make(chan error, 1)
		tr, conns := running(t, Config[int]{OfflineFor: 10 * time.Second, Gap: func() {
			select {
			case act := <-adversary:
				act()
			default:
			}
		}})
		conns[0].Close(nil)
		require.NoError(t, conns[0].Quiesced())
		pass(5 * time.Second)
		conns[1].Close(nil)
		require.NoError(t, conns[1].Quiesced())
		pass(5*time.Second - 1)
		adversary <- func() { // before the tick's hold
			_, err := tr.Connect(0, Hello{})
			reconnected <- err
		}
		pass(1)
		require.NoError(t, <-reconnected)
		at, on := armed(tr)
		require.True(t, on)
		require.Equal(t, 5*time.Second, at)
		require.NoError(t, tr.Close().Wait(ended()), "a timer was left behind")
	})
}
