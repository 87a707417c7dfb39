package jobtracker

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireDeactivated demands that a deactivation has ended, and left nothing.
func (x *rig) requireDeactivated(h *Handle) {
	x.t.Helper()
	require.Equal(x.t, Inactive, x.tr.Stats().Phase, "%v", x.tr.Dump())
	select {
	case <-h.Done():
	default:
		require.Fail(x.t, "not resolved")
	}
	x.requireEmpty()
	require.NoError(x.t, x.tr.Check())
	for _, p := range x.peers {
		require.False(x.t, x.replica(p.r).Connected())
		require.ErrorIs(x.t, context.Cause(p.conn.Context()), ErrEnded)
	}
}

// again activates once more and demands that all is well.
func (x *rig) again() {
	x.t.Helper()
	x.activate(ActivateOptions{})
	for _, p := range x.peers {
		p.comeBack()
	}
	require.Equal(x.t, Active, x.tr.Stats().Phase, "%v", x.tr.Dump())
	require.Zero(x.t, x.tr.Dump().Active, "the table is empty")
	x.finish()
}

// Seen red with mutants/J14-deactivate-away.patch.
func TestJ14_DeactivateBesideOneThatIsAway(t *testing.T) {
	leave := map[string]func(x *rig) error{
		"offline":       func(x *rig) error { x.peers[2].cut(); return nil },
		"faulted":       func(x *rig) error { return x.tr.Fault(2, errDisk) },
		"fails a write": func(x *rig) error { x.peers[2].fail(x.jobs[0]); return nil },
		"replaced":      func(x *rig) error { return x.tr.Replace(2) },
	}
	for name, leave := range leave {
		for _, when := range []string{"before", "meanwhile"} {
			t.Run(name+" "+when, func(t *testing.T) {
				eachMode(t, func(t *testing.T, cfg Config[*load]) {
					x := newRig(t, cfg)
					w, r := x.write(5, 1), x.read(9, 1)
					for _, p := range x.peers {
						p.take()
					}
					if when == "before" {
						require.NoError(t, leave(x))
					}
					h := x.tr.Deactivate()
					require.Same(t, h, x.tr.Deactivate(), "a second call gets the same handle")
					require.Equal(t, Deactivating, x.tr.Stats().Phase)
					for _, call := range []func() error{
						func() error { _, err := x.tr.Submit(t.Context(), opOf(Read), nil); return err },
						func() error { _, err := x.tr.Connect(2, Hello{}); return err },
						func() error { _, err := x.tr.Activate(ActivateOptions{Generation: 99}); return err },
					} {
						require.ErrorIs(t, x.refused(call), ErrPhase)
					}
					if when == "meanwhile" {
						require.NoError(t, leave(x))
					}
					require.NotEqual(t, HomeOffline, x.replica(2).Home, "nobody waits for it")
					require.False(t, x.replica(2).Connected())
					x.settle()
					x.requireDeactivated(h)
					require.NoError(t, h.Err())
					require.NoError(t, w.Err())
					require.NoError(t, r.Err())
					require.Equal(t, uint64(1), x.peers[0].num, "it was made durable")
					err := x.tr.Deactivate().Err()
					require.Equal(t, &PhaseError{Call: "deactivate", Phase: Inactive, Cause: ErrDeactivated}, err)
					if name == "replaced" {
						x.peers[2].id = ID{7}
					}
					x.again()
				})
			})
		}
	}
}

// The jobs admitted before run to their end, in order, with what was still queued.
func TestJ14_DeactivateRunsWhatWasAdmitted(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		for i := range uint64(20) {
			x.write(i%5, 2)
			x.read(i%7, 3)
		}
		h := x.tr.Deactivate()
		require.NoError(t, h.Err())
		x.settle()
		x.requireDeactivated(h)
		for _, j := range x.jobs {
			require.NoError(t, j.Err())
		}
		x.again()
	})
}

// With too few replicas left the last flush fails, and the deactivation says so; with none it says that.
func TestJ14_DeactivateThatCannotBeDurable(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		x.tainted = true
		x.write(5, 1)
		x.settle()
		x.peers[1].cut()
		x.peers[2].cut()
		h := x.tr.Deactivate()
		x.settle()
		x.requireDeactivated(h)
		require.ErrorIs(t, h.Err(), ErrQuorum)

		x = newRig(t, cfg)
		w := x.write(5, 1)
		for _, p := range x.peers {
			p.cut()
		}
		h = x.tr.Deactivate()
		x.requireDeactivated(h)
		require.ErrorIs(t, h.Err(), ErrAllFaulted)
		require.Error(t, w.Err())
		require.ErrorIs(t, w.Err(), ErrQuorum)
	})
}

// An activation that has not begun ends at once, and tells who waits for it to begin.
func TestJ14_DeactivateWhileActivating(t *testing.T) {
	x := idleRig(t, Config[*load]{})
	begun := x.activate(ActivateOptions{Create: true})
	x.peers[0].connect()
	require.NoError(t, x.tr.Deactivate().Wait(ended()))
	require.Equal(t, &EndedError{What: "activation", Cause: ErrDeactivated}, begun.Err())
	require.Equal(t, Inactive, x.tr.Stats().Phase)
	x.activate(ActivateOptions{Create: true})
	for _, p := range x.peers {
		if p.conn != nil {
			p.quiesce()
		}
		p.connect()
	}
	x.finish()
}

// A deactivation that Close or Disable cuts short was not one: its handle says so.
func TestJ14_DeactivationCutShort(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(x *rig) error
		want error
	}{
		"close":   {func(x *rig) error { return x.tr.Close().Wait(context.Background()) }, ErrClosed},
		"disable": {func(x *rig) error { return x.tr.Disable(errDisk) }, errDisk},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, Config[*load]{})
			w := x.write(5, 1)
			h := x.tr.Deactivate()
			require.NoError(t, tc.end(x))
			require.ErrorIs(t, h.Wait(ended()), tc.want)
			require.ErrorIs(t, w.Err(), tc.want)
			require.ErrorIs(t, w.Err(), ErrEnded)
			x.requireEmpty()
		})
	}
}

// Seen red with mutants/J34-away-at-once.patch.
func TestJ34_DeactivateWhileAConnectionIsEnding(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		w := x.write(5, 1)
		for _, p := range x.peers {
			p.take()
		}
		p := x.peers[2]
		p.close()
		x.requireReplica(2, Stopping, HomeOffline)
		h := x.tr.Deactivate()
		x.requireReplica(2, Stopping, HomeFaulted)
		s, _ := x.state(w, 2)
		require.Equal(t, StateSkipped, s)
		x.settle()
		x.requireDeactivated(h) // it never said Quiesced
		require.NoError(t, h.Err())
		require.NoError(t, w.Err())
		x.requireReplica(2, Stopping, HomeNew)
		x.orphan(p.conn, w.ID(), Result{}, OrphanStaleConn)
		x.again()
	})
}

// Seen red with mutants/J15-late-timer.patch.
func TestJ15_DisableThenATimerOrADeferredWriteFires(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.MaxJobs, cfg.OfflineJobs = 4, 4
			cfg.ReplyTimeout, cfg.OfflineFor = 8*time.Second, 10*time.Second
			x := newRig(t, cfg)
			x.flush()
			x.settle()
			x.tainted = true
			jobs := x.fill()
			x.peers[0].take() // owes answers from here on
			x.peers[1].close()
			x.requireReplica(1, Stopping, HomeOffline) // for ten seconds
			deferred := x.apply(t.Context(), 9)
			require.True(t, deferred.waits())
			sleep(7 * time.Second)
			next := x.tr.Dump().Next
			require.NoError(t, x.tr.Disable(errDisk))
			<-deferred.done
			require.Equal(t, &EndedError{What: "admission", Cause: errDisk}, deferred.err)
			for _, j := range jobs {
				require.True(t, j.Resolved())
				require.ErrorIs(t, j.Err(), ErrEnded)
				require.ErrorIs(t, j.Err(), errDisk)
			}
			x.requireEmpty()
			for _, p := range x.peers {
				require.ErrorIs(t, context.Cause(p.conn.Context()), ErrEnded)
				x.orphan(p.conn, jobs[0].ID(), Result{}, OrphanStaleConn)
			}
			err := x.refused(func() error { _, err := x.tr.Submit(t.Context(), opOf(Write), nil); return err })
			require.Equal(t, &PhaseError{Call: "submit", Phase: Inactive, Cause: errDisk}, err)
			require.ErrorIs(t, x.refused(func() error { return x.tr.Disable(nil) }), ErrPhase)

			x.activate(ActivateOptions{})
			for _, p := range x.peers {
				p.box = nil
				p.comeBack()
			}
			require.Equal(t, Active, x.tr.Stats().Phase)
			require.Zero(t, x.tr.Dump().Active)
			w := x.write(1, 1)
			require.Equal(t, next, w.ID(), "ids go on")
			for _, p := range x.peers {
				for _, j := range jobs {
					x.orphan(p.conn, j.ID(), Result{}, OrphanRetired)
				}
				p.takeAnswer(w)
			}
			sleep(time.Hour) // the deadlines of the former activation have passed
			for r := range x.peers {
				x.requireReplica(r, Voting, HomeOffline)
			}
			for b := range uint64(rigBlocks) { // what was under way when it was disabled may be anywhere
				for _, p := range x.peers {
					p.disk[b] = 0
				}
			}
			x.finish()
		})
	})
}

// Disable while activating, deactivating, and with a repair; and never when there is nothing to disable.
func TestJ15_DisableInEachPhase(t *testing.T) {
	x := idleRig(t, Config[*load]{})
	require.ErrorIs(t, x.refused(func() error { return x.tr.Disable(nil) }), ErrPhase)
	begun := x.activate(ActivateOptions{Create: true})
	x.peers[0].connect()
	require.NoError(t, x.tr.Disable(nil))
	require.Equal(t, &EndedError{What: "activation", Cause: ErrDisabled}, begun.Err())
	require.ErrorIs(t, context.Cause(x.peers[0].conn.Context()), ErrDisabled)

	x = newRig(t, Config[*load]{})
	x.tainted = true
	require.NoError(t, x.tr.Fault(2, errDisk))
	x.peers[2].comeBack()
	rep, err := x.tr.Repair(2)
	require.NoError(t, err)
	j, err := rep.Copy(0, 0, 8, &load{})
	require.NoError(t, err)
	x.jobs = append(x.jobs, j)
	h := x.tr.Deactivate()
	require.Equal(t, &EndedError{What: "repair", Cause: ErrDeactivated}, rep.Ended().Err())
	require.NoError(t, x.tr.Disable(errDisk))
	require.ErrorIs(t, h.Err(), errDisk)
	require.True(t, j.Resolved())
	require.ErrorIs(t, x.refused(rep.Finish), ErrSuperseded)
	x.requireEmpty()
	require.NoError(t, x.tr.Close().Wait(t.Context()))
	require.ErrorIs(t, x.refused(func() error { return x.tr.Disable(nil) }), ErrPhase)
}

// Seen red with mutants/J20-close-resolves.patch.
func TestJ20_CloseWithHundredsInFlight(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.MaxJobs = 400
			cfg.ReplyTimeout, cfg.OfflineFor = time.Minute, time.Minute
			x := newRig(t, cfg)
			jobs := x.fill()
			require.Len(t, jobs, 400)
			x.peers[0].take()
			x.answerAll(x.peers[1])
			x.peers[2].close()
			waits := make(chan error, len(jobs))
			for _, j := range jobs {
				go func() { waits <- j.Wait(t.Context()) }()
			}
			sender := make(chan error, 1)
			var d Dispatch[*load]
			c := x.peers[0].conn
			go func() { sender <- c.Next(t.Context(), &d) }()
			a := x.apply(t.Context(), 1)
			start := time.Now()
			closed := x.tr.Close()
			require.Same(t, closed, x.tr.Close(), "idempotent")
			require.NoError(t, closed.Wait(t.Context()))
			require.Zero(t, time.Since(start), "promptly")
			for _, j := range jobs {
				require.True(t, j.Resolved(), "job %d", j.ID())
			}
			for range jobs {
				err := <-waits
				require.ErrorIs(t, err, ErrEnded)
				require.ErrorIs(t, err, ErrClosed)
				_, ok := errors.AsType[*JobError](err)
				require.True(t, ok)
			}
			require.ErrorIs(t, <-sender, ErrStaleConn)
			<-a.done
			require.Equal(t, &EndedError{What: "admission", Cause: ErrClosed}, a.err)
			x.requireEmpty()

			for name, call := range map[string]func() error{
				"Submit":     func() error { _, err := x.tr.Submit(t.Context(), opOf(Read), nil); return err },
				"Do":         func() error { return x.tr.Do(t.Context(), opOf(Flush), nil) },
				"Connect":    func() error { _, err := x.tr.Connect(0, Hello{}); return err },
				"Activate":   func() error { _, err := x.tr.Activate(ActivateOptions{Generation: 9}); return err },
				"Deactivate": func() error { return x.tr.Deactivate().Wait(t.Context()) },
				"Disable":    func() error { return x.tr.Disable(nil) },
				"Replace":    func() error { return x.tr.Replace(0) },
				"Fault":      func() error { return x.tr.Fault(0, nil) },
				"Repair":     func() error { _, err := x.tr.Repair(0); return err },
			} {
				err := x.refused(call)
				require.ErrorIs(t, err, ErrPhase, name)
				require.ErrorIs(t, err, ErrClosed, name)
			}
			x.orphan(c, jobs[0].ID(), Result{}, OrphanStaleConn)
			require.NoError(t, c.Quiesced())
			c.Close(errDisk)
			require.NoError(t, closed.Err())
		})
	})
}

// A callback may close the tracker; it does not wait for itself.
func TestJ20_CloseInACallback(t *testing.T) {
	timed(t, func(t *testing.T) {
		var tr *Tracker[int]
		done := 0
		tr, err := New(Config[int]{
			Replicas: 1, Blocks: 8, BlockSize: 512,
			OnResolve: func(Resolved[int]) { done++; tr.Close() },
		})
		require.NoError(t, err)
		_, err = tr.Activate(ActivateOptions{Generation: 1, Create: true})
		require.NoError(t, err)
		c, err := tr.Connect(0, Hello{})
		require.NoError(t, err)
		for i := range uint64(3) {
			_, err := tr.Submit(t.Context(), Op{Kind: Write, Start: i, Blocks: 1}, 0)
			require.NoError(t, err)
		}
		got, err := c.NextBatch(t.Context(), make([]Dispatch[int], 3))
		require.NoError(t, err)
		require.NoError(t, c.Complete(got[0].ID, Result{}))
		require.NoError(t, tr.Close().Wait(t.Context()))
		require.Equal(t, 3, done, "each job is told of once")
	})
}
