package jobtracker

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestEndResolvesEverything has somebody wait for everything there is, and then the end come: each is resolved, once,
// with the typed cause, and nothing is left.
func TestEndResolvesEverything(t *testing.T) {
	for name, tc := range map[string]struct {
		end   func(tr *Tracker[int]) error
		cause error
	}{
		"Close":   {func(tr *Tracker[int]) error { return tr.Close().Err() }, ErrClosed},
		"Disable": {func(tr *Tracker[int]) error { return tr.Disable(errDisk) }, errDisk},
		"nil":     {func(tr *Tracker[int]) error { return tr.Disable(nil) }, ErrDisabled},
		"faults": {func(tr *Tracker[int]) error {
			for r := range 3 {
				_ = tr.Fault(r, errDep)
			}
			return nil
		}, ErrAllFaulted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cfg Config[int]
				h := hear(t, &cfg)
				cfg.MaxJobs = 2
				tr, conns := running(t, cfg)
				rep := startRepair(t, tr, conns, 2)
				var wg sync.WaitGroup
				var mu sync.Mutex
				got := map[string]error{}
				wait := func(name string, call func() error) {
					wg.Go(func() {
						err := call()
						mu.Lock()
						defer mu.Unlock()
						got[name] = err
					})
				}
				jobs := []*Job[int]{submit(t, tr, write(0, 1)), submit(t, tr, write(1, 1))}
				take(t, conns[0])
				wait("Submit", func() error { _, err := tr.Submit(t.Context(), write(2, 1), 0); return err })
				wait("Do", func() error { return tr.Do(t.Context(), read(2, 1), 0) })
				wait("Job.Wait", func() error { return jobs[0].Wait(t.Context()) })
				wait("Job.Wait 2", func() error { return jobs[1].Wait(t.Context()) })
				wait("Next", func() error { return conns[0].Next(t.Context(), new(Dispatch[int])) })
				wait("NextBatch", func() error {
					_, err := conns[0].NextBatch(t.Context(), make([]Dispatch[int], 4))
					return err
				})
				wait("Conn.Context", func() error { <-conns[1].Context().Done(); return context.Cause(conns[1].Context()) })
				wait("Repair.Ended", func() error { return rep.Ended().Wait(t.Context()) })
				wait("Repair.Context", func() error { <-rep.Context().Done(); return context.Cause(rep.Context()) })
				synctest.Wait()
				require.Empty(t, got)

				require.NoError(t, tc.end(tr))
				synctest.Wait() // nobody waits on
				wg.Wait()
				require.Len(t, got, 9)
				for what, err := range got {
					if name != "faults" || what == "Submit" || what == "Do" { // the rest had ended before
						require.ErrorIs(t, err, tc.cause, what)
					}
					require.Error(t, err, what)
				}
				for what, kind := range map[string]error{
					"Submit": ErrEnded, "Do": ErrEnded, "Next": ErrStaleConn, "NextBatch": ErrStaleConn,
					"Conn.Context": ErrEnded, "Repair.Ended": ErrEnded, "Repair.Context": ErrEnded,
				} {
					require.ErrorIs(t, got[what], kind, what)
				}
				h.require(jobs...)
				for _, c := range conns {
					require.Error(t, c.Context().Err())
				}
				require.ErrorIs(t, unchanged(t, tr, func() error { return conns[0].Complete(jobs[0].ID(), Result{}) }), ErrStaleConn)
				d := tr.Dump()
				require.Zero(t, d.Active+d.Waiting+d.Callbacks)
				require.NotEmpty(t, d.Cause)
			})
		})
	}
}

// TestEndResolvesHandles has those of Activate and Deactivate.
func TestEndResolvesHandles(t *testing.T) {
	for name, end := range map[string]func(tr *Tracker[int]){
		"Close":   func(tr *Tracker[int]) { tr.Close() },
		"Disable": func(tr *Tracker[int]) { _ = tr.Disable(ErrClosed) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := idle(t, Config[int]{})
			begun, err := tr.Activate(ActivateOptions{Generation: 1, Create: true})
			require.NoError(t, err)
			require.ErrorIs(t, begun.Wait(ended()), context.Canceled)
			end(tr)
			require.ErrorIs(t, begun.Wait(ended()), ErrEnded)
			require.ErrorIs(t, begun.Err(), ErrClosed)

			tr, _ = running(t, Config[int]{})
			submit(t, tr, write(0, 1))
			done := tr.Deactivate()
			require.ErrorIs(t, done.Wait(ended()), context.Canceled)
			end(tr)
			require.ErrorIs(t, done.Wait(ended()), ErrClosed)
		})
	}
}

// TestDeactivateResolvesHandles has it end an activation that has not begun, and one with nothing in it.
func TestDeactivateResolvesHandles(t *testing.T) {
	tr := idle(t, Config[int]{})
	begun, err := tr.Activate(ActivateOptions{Generation: 1, Create: true})
	require.NoError(t, err)
	require.NoError(t, tr.Deactivate().Wait(ended()))
	require.ErrorIs(t, begun.Wait(ended()), ErrDeactivated)
	require.ErrorIs(t, begun.Err(), ErrEnded)

	conns := connectAll(t, tr)
	require.NoError(t, tr.Deactivate().Wait(ended()))
	for _, c := range conns {
		require.ErrorIs(t, c.Next(t.Context(), new(Dispatch[int])), ErrDeactivated)
	}
}

// TestDeactivateRefusesWhoWaits has admission end with the activation's end in sight.
func TestDeactivateRefusesWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, conns := running(t, Config[int]{MaxJobs: 1})
		admitted := submit(t, tr, write(0, 1))
		refused := make(chan error, 1)
		go func() { refused <- tr.Do(t.Context(), write(0, 1), 0) }()
		synctest.Wait()
		done := tr.Deactivate()
		var end *EndedError
		require.ErrorAs(t, <-refused, &end)
		require.Equal(t, &EndedError{What: "admission", Cause: ErrDeactivated}, end)
		serve(t, conns...)
		require.NoError(t, done.Wait(ended()))
		require.NoError(t, admitted.Err(), "what was admitted runs to its end")
	})
}

func TestCloseIsIdempotent(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	first := tr.Close()
	require.NoError(t, first.Wait(ended()))
	was := tr.Fingerprint()
	require.Same(t, first, tr.Close())
	conns[0].Close(nil)
	require.NoError(t, conns[0].Quiesced())
	was2 := tr.Fingerprint()
	require.Same(t, first, tr.Close())
	require.Equal(t, was2, tr.Fingerprint())
	require.NotEqual(t, was, was2, "a peer may still say that it is quiesced")

	fresh := idle(t, Config[int]{})
	require.NoError(t, fresh.Close().Wait(ended()), "one that was never activated")
}

// TestCloseAtOnce has many close, submit and complete at once.
func TestCloseAtOnce(t *testing.T) {
	for range 50 {
		var cfg Config[int]
		h := hear(t, &cfg)
		tr, conns := running(t, cfg)
		var wg sync.WaitGroup
		start := make(chan struct{})
		var mu sync.Mutex
		var jobs []*Job[int]
		for range 4 {
			wg.Go(func() {
				<-start
				j, err := tr.Submit(t.Context(), write(0, 1), 0)
				if err != nil {
					return
				}
				mu.Lock()
				jobs = append(jobs, j)
				mu.Unlock()
				_ = j.Wait(t.Context())
			})
			wg.Go(func() {
				<-start
				if err := tr.Close().Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		for _, c := range conns {
			wg.Go(func() {
				<-start
				var d Dispatch[int]
				for c.Next(t.Context(), &d) == nil {
					_ = c.Complete(d.ID, Result{})
				}
			})
		}
		close(start)
		wg.Wait()
		require.NoError(t, tr.Check())
		h.require(jobs...)
	}
}
