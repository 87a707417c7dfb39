package jobtracker

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// heard is what callbacks told, in order.
type heard struct {
	t  *testing.T
	mu sync.Mutex
	// +checklocks:mu
	seqs []uint64
	// +checklocks:mu
	resolved map[JobID]int
	// +checklocks:mu
	retired map[JobID]int
	// +checklocks:mu
	payloads map[JobID]int
	// +checklocks:mu
	events []Event
}

// hear has a configuration's callbacks note what they are told, and demands what holds for all.
func hear(t *testing.T, cfg *Config[int]) *heard {
	h := &heard{resolved: map[JobID]int{}, retired: map[JobID]int{}, payloads: map[JobID]int{}, t: t}
	cfg.OnResolve = func(r Resolved[int]) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.seqs = append(h.seqs, r.Seq)
		h.resolved[r.Job.ID()]++
		h.payloads[r.Job.ID()] = r.Payload
		if !r.Job.Resolved() || r.Err != r.Job.Err() { //nolint:errorlint // the very same
			t.Errorf("job %d: %v, but the job says %v", r.Job.ID(), r.Err, r.Job.Err())
		}
	}
	cfg.OnRetire = func(r Retired[int]) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.seqs = append(h.seqs, r.Seq)
		h.retired[r.Job.ID()]++
		if h.resolved[r.Job.ID()] != 1 || h.payloads[r.Job.ID()] != r.Payload {
			t.Errorf("job %d retired with %d, resolved %d times with %d", r.Job.ID(), r.Payload, h.resolved[r.Job.ID()], h.payloads[r.Job.ID()])
		}
	}
	cfg.OnEvent = func(e Event) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.seqs = append(h.seqs, e.Seq)
		h.events = append(h.events, e)
	}
	return h
}

// outcomes is how often each job was resolved.
func (h *heard) outcomes() map[JobID]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.resolved)
}

// told are the events.
func (h *heard) told() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// paid is the payload that a job was resolved with.
func (h *heard) paid(j *Job[int]) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.payloads[j.ID()]
}

// require demands that each of the jobs was resolved and retired once, and nothing else; and that Seq goes up.
func (h *heard) require(jobs ...*Job[int]) {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	want := map[JobID]int{}
	for _, j := range jobs {
		want[j.ID()] = 1
	}
	require.Equal(h.t, want, h.resolved)
	require.Equal(h.t, want, h.retired)
	require.IsIncreasing(h.t, h.seqs)
}

func TestCallbacksOncePerJob(t *testing.T) {
	var cfg Config[int]
	h := hear(t, &cfg)
	cfg.AutoSyncJobs, cfg.WriteBack = 4, true // the tracker's own jobs are told of to nobody
	tr, conns := running(t, cfg)
	var jobs []*Job[int]
	for i := range 10 {
		j, err := tr.Submit(ended(), write(uint64(i%3), 1), 100+i)
		require.NoError(t, err)
		jobs = append(jobs, j, submit(t, tr, read(uint64(i%5), 2)))
		serve(t, conns[:2]...)
	}
	require.NoError(t, tr.Fault(2, errDisk))
	serve(t, conns[:2]...)
	jobs = append(jobs, submit(t, tr, Op{Kind: Barrier}), submit(t, tr, Op{Kind: Flush}), submit(t, tr, write(1, 1)))
	_, err := tr.Submit(ended(), Op{}, 0) // refused: nobody hears of it
	require.Error(t, err)
	require.NoError(t, tr.Disable(errDisk))
	h.require(jobs...)
	require.Equal(t, 109, h.paid(jobs[18]))
	for _, j := range jobs {
		require.Zero(t, j.payload, "a payload is kept alive")
	}

	for _, c := range conns {
		require.NoError(t, c.Quiesced())
	}
	conns = connectAll(t, tr)
	jobs = append(jobs, submit(t, tr, write(1, 1)), submit(t, tr, Op{Kind: Flush}))
	done := tr.Deactivate()
	serve(t, conns...)
	require.NoError(t, done.Wait(ended()))
	h.require(jobs...)
}

// TestCallbacksEvents has each kind of event, with its facts, and its line in the log.
func TestCallbacksEvents(t *testing.T) {
	var cfg Config[int]
	h := hear(t, &cfg)
	var lines strings.Builder
	cfg.Logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	cfg.Reads, cfg.WriteBack = ReadAll, true
	tr, conns := running(t, cfg)
	r := submit(t, tr, read(0, 1))
	for i, c := range conns {
		take(t, c)
		require.NoError(t, c.Complete(r.ID(), Result{Digest: Digest(1 + i/2)})) // the last one differs
	}
	w := submit(t, tr, write(0, 1))
	take(t, conns[0])
	take(t, conns[1])
	require.NoError(t, conns[0].Complete(w.ID(), Result{Err: errDisk}))
	require.NoError(t, conns[1].Complete(w.ID(), Result{Err: errDisk}))
	require.NoError(t, tr.Disable(errDisk))
	_, err := tr.Activate(ActivateOptions{Generation: 5})
	require.NoError(t, err)
	for i, c := range conns[:2] {
		require.NoError(t, c.Quiesced())
		_, err := tr.Connect(i, Hello{Generation: 1, Flush: uint64(i)})
		require.NoError(t, err)
	}
	require.NoError(t, tr.Close().Wait(t.Context()))

	var kinds [numEventKinds]int
	var phases []Activation
	for _, e := range h.told() {
		kinds[e.Kind]++
		switch e.Kind {
		case ReadMismatch:
			require.Equal(t, Event{Seq: e.Seq, Kind: ReadMismatch, Replica: 2, Other: 0, Job: r.ID()}, e)
		case WriteLost:
			require.Equal(t, w.ID(), e.Job)
			require.ErrorIs(t, e.Cause, ErrQuorum)
		case ActivationChanged:
			phases = append(phases, e.Phase)
		case ReplicaChanged:
			require.NotEqual(t, e.From, e.To)
		case ReconcileNeeded:
			require.Equal(t, Event{Seq: e.Seq, Kind: ReconcileNeeded}, e)
		}
	}
	require.Equal(t, 1, kinds[ReadMismatch])
	require.Equal(t, 1, kinds[WriteLost])
	require.Equal(t, 1, kinds[ReconcileNeeded])
	require.Equal(t, []Activation{Activating, Active, Inactive, Activating, Closed}, phases)
	h.require(r, w)

	require.Len(t, h.told(), strings.Count(lines.String(), "\n"), "a line for each event")
	for _, line := range []string{
		"level=INFO msg=activation seq=1 phase=activating cause=<nil>\n",
		"level=INFO msg=replica seq=2 replica=0 from=new to=fresh conn=1 cause=<nil>\n",
		"level=WARN msg=\"read mismatch\" seq=10 job=1 replica=2 other=0\n",
		"level=ERROR msg=\"write lost\"",
		"level=WARN msg=\"reconcile needed\"",
		"phase=closed cause=\"jobtracker: closed\"\n",
	} {
		require.Contains(t, lines.String(), line)
	}
}

// TestCallbacksMayCallAnything has a callback call every method there is, each on a tracker of its own (S31).
func TestCallbacksMayCallAnything(t *testing.T) {
	type world struct {
		tr    *Tracker[int]
		conns []*Conn[int]
		job   *Job[int]
		rep   *Repair[int]
		h     *Handle
	}
	poll := ended()
	// An error is as good as none: what counts is that it returns.
	methods := map[string]func(w *world){
		"Tracker.Activate":    func(w *world) { _, _ = w.tr.Activate(ActivateOptions{Generation: 9}) },
		"Tracker.Check":       func(w *world) { require.NoError(t, w.tr.Check()) },
		"Tracker.Close":       func(w *world) { w.tr.Close() },
		"Tracker.Connect":     func(w *world) { _, _ = w.tr.Connect(0, Hello{}) },
		"Tracker.Deactivate":  func(w *world) { w.tr.Deactivate() },
		"Tracker.Disable":     func(w *world) { _ = w.tr.Disable(errDisk) },
		"Tracker.Do":          func(w *world) { _ = w.tr.Do(poll, read(0, 1), 0) },
		"Tracker.Dump":        func(w *world) { _ = w.tr.Dump().String() },
		"Tracker.Fault":       func(w *world) { _ = w.tr.Fault(1, errDisk) },
		"Tracker.Fingerprint": func(w *world) { w.tr.Fingerprint() },
		"Tracker.Repair":      func(w *world) { _, _ = w.tr.Repair(1) },
		"Tracker.Replace":     func(w *world) { _ = w.tr.Replace(1) },
		"Tracker.Stats":       func(w *world) { w.tr.Stats() },
		"Tracker.Submit":      func(w *world) { _, _ = w.tr.Submit(poll, Op{Kind: Flush}, 0) },
		"Conn.Close":          func(w *world) { w.conns[1].Close(nil) },
		"Conn.Complete":       func(w *world) { _ = w.conns[0].Complete(w.job.ID(), Result{}) },
		"Conn.CompleteBatch":  func(w *world) { w.conns[0].CompleteBatch([]Completion{{ID: w.job.ID()}, {ID: 99}}) },
		"Conn.Context":        func(w *world) { _ = w.conns[0].Context().Err() },
		"Conn.ID":             func(w *world) { w.conns[0].ID() },
		"Conn.Next":           func(w *world) { _ = w.conns[0].Next(poll, new(Dispatch[int])) },
		"Conn.NextBatch":      func(w *world) { _, _ = w.conns[0].NextBatch(poll, make([]Dispatch[int], 1)) },
		"Conn.Plan":           func(w *world) { w.conns[0].Plan() },
		"Conn.Quiesced":       func(w *world) { _ = w.conns[0].Quiesced() },
		"Conn.Replica":        func(w *world) { w.conns[0].Replica() },
		"Job.Err":             func(w *world) { _ = w.job.Err() },
		"Job.ID":              func(w *world) { w.job.ID() },
		"Job.Resolved":        func(w *world) { w.job.Resolved() },
		"Job.Wait":            func(w *world) { _ = w.job.Wait(poll) },
		"Handle.Done":         func(w *world) { w.h.Done() },
		"Handle.Err":          func(w *world) { _ = w.h.Err() },
		"Handle.Wait":         func(w *world) { _ = w.h.Wait(poll) },
		"Tracker.Reconcile":   func(w *world) { _, _ = w.tr.Reconcile() },
		"Repair.Abort":        func(w *world) { _ = w.rep.Abort(nil) },
		"Repair.Compare":      func(w *world) { _, _ = w.rep.Compare(0, 0, 0) },
		"Repair.Context":      func(w *world) { _ = w.rep.Context().Err() },
		"Repair.Copy":         func(w *world) { _, _ = w.rep.Copy(0, 0, 1, 0) },
		"Repair.Ended":        func(w *world) { _ = w.rep.Ended().Err() },
		"Repair.Extent":       func(w *world) { _, _ = w.rep.Extent(0) },
		"Repair.Extents":      func(w *world) { _, _ = w.rep.Extents() },
		"Repair.Next":         func(w *world) { _, _, _ = w.rep.Next(0) },
		"Repair.Same":         func(w *world) { _ = w.rep.Same(0) },
		"Repair.Finish":       func(w *world) { _ = w.rep.Finish() },
	}
	for _, typ := range []reflect.Type{
		reflect.TypeFor[*Tracker[int]](), reflect.TypeFor[*Conn[int]](), reflect.TypeFor[*Job[int]](), reflect.TypeFor[*Handle](), reflect.TypeFor[*Repair[int]](),
	} {
		for m := range typ.Methods() {
			kind, _, _ := strings.Cut(typ.Elem().Name(), "[")
			require.Contains(t, methods, kind+"."+m.Name)
		}
	}
	for name, method := range methods {
		t.Run(name, func(t *testing.T) {
			var w world
			var call func()
			calls := 0
			run := func() {
				if f := call; f != nil {
					call = nil // not the callbacks that this one brings about
					calls++
					f()
				}
			}
			w.tr, w.conns = running(t, Config[int]{
				OnResolve: func(Resolved[int]) { run() },
				OnRetire:  func(Retired[int]) { run() },
				OnEvent:   func(Event) { run() },
			})
			w.rep = startRepair(t, w.tr, w.conns, 2)
			w.job = submit(t, w.tr, write(0, 1))
			w.h = newHandle()
			call = func() { method(&w) }
			serve(t, w.conns...) // OnResolve
			require.Equal(t, 1, calls)
			call = func() { method(&w) }
			if w.tr.Disable(nil) == nil { // OnEvent, OnRetire
				require.Equal(t, 2, calls)
			}
		})
	}
}

// TestCallbackBlocksOthersGoOn has a callback block: all else goes on, and the other callbacks come when it returns (S31).
func TestCallbackBlocksOthersGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cfg Config[int]
		h := hear(t, &cfg)
		inside, leave := make(chan struct{}), make(chan struct{})
		note := cfg.OnResolve
		cfg.OnResolve = func(r Resolved[int]) {
			if r.Job.ID() == 1 {
				close(inside)
				<-leave
			}
			note(r)
		}
		tr, conns := running(t, cfg)
		jobs := []*Job[int]{submit(t, tr, write(0, 1))}
		for _, c := range conns[:2] {
			require.Len(t, take(t, c), 1)
		}
		go func() { // the second completion runs the callback
			for _, c := range conns[:2] {
				if err := c.Complete(1, Result{}); err != nil {
					t.Error(err)
				}
			}
		}()
		<-inside
		synctest.Wait()
		for range 20 {
			jobs = append(jobs, submit(t, tr, write(1, 1)))
			serve(t, conns[0], conns[1])
			require.NoError(t, jobs[len(jobs)-1].Wait(t.Context()))
		}
		require.NoError(t, tr.Fault(2, errDisk))
		require.ErrorIs(t, context.Cause(conns[2].Context()), errDisk)
		require.Positive(t, tr.Dump().Callbacks)
		require.Empty(t, h.outcomes())
		closing := tr.Close()
		require.ErrorIs(t, closing.Wait(ended()), context.Canceled, "a callback has not returned")
		close(leave)
		require.NoError(t, closing.Wait(t.Context()))
		h.require(jobs...)
		require.Zero(t, tr.Dump().Callbacks)
	})
}

// TestCallbackPanics has callbacks panic and somebody above recover: the rest is run on the next call, whatever it is.
func TestCallbackPanics(t *testing.T) {
	for name, next := range map[string]func(tr *Tracker[int]){
		"Stats and Dump": func(tr *Tracker[int]) { tr.Stats(); tr.Dump() },
		"a refused call": func(tr *Tracker[int]) { _ = tr.Do(ended(), Op{}, 0) },
		"a waiter":       func(tr *Tracker[int]) { _ = tr.Check() },
	} {
		t.Run(name, func(t *testing.T) {
			var cfg Config[int]
			h := hear(t, &cfg)
			bad := JobID(0)
			note := cfg.OnResolve
			cfg.OnResolve = func(r Resolved[int]) {
				note(r)
				if r.Job.ID() == bad {
					panic("foreign")
				}
			}
			tr, conns := running(t, cfg)
			jobs := []*Job[int]{submit(t, tr, write(0, 1)), submit(t, tr, write(1, 1)), submit(t, tr, write(2, 1))}
			bad = jobs[1].ID()
			require.PanicsWithValue(t, "foreign", func() { _ = tr.Disable(nil) })
			require.Equal(t, map[JobID]int{1: 1, 2: 1}, h.outcomes())
			require.Equal(t, Inactive, tr.Stats().Phase, "what was done is done")
			for _, j := range jobs {
				require.ErrorIs(t, j.Err(), ErrDisabled)
			}
			require.Error(t, conns[0].Context().Err())
			next(tr)
			h.require(jobs...)
			require.Zero(t, tr.Dump().Callbacks)
			require.NoError(t, tr.Check())
		})
	}
}

// TestCallbackPanicWhileClosing has callbacks panic while the tracker closes: its handle resolves all the same, at once
// if nothing is left, else after the next call.
func TestCallbackPanicWhileClosing(t *testing.T) {
	for _, bad := range []int{1, 2, 3, 4} { // of three replicas and the activation
		events := 0
		armed := false
		tr, err := New(Config[int]{Replicas: 3, Blocks: 1, BlockSize: 1, OnEvent: func(Event) {
			if armed {
				if events++; events == bad {
					panic("foreign")
				}
			}
		}})
		require.NoError(t, err)
		connectAll(t, tr)
		armed = true
		require.PanicsWithValue(t, "foreign", func() { tr.Close() })
		require.Equal(t, bad, events)
		closing := tr.Close()
		require.NoError(t, closing.Wait(ended()), "bad event %d", bad)
		require.Equal(t, 4, events)
	}
}

// TestCallbackMayClose has a callback close the tracker: it may not wait, but who called may.
func TestCallbackMayClose(t *testing.T) {
	var tr *Tracker[int]
	var closing *Handle
	after := 0
	tr, conns := running(t, Config[int]{OnResolve: func(r Resolved[int]) {
		if r.Job.ID() == 1 {
			closing = tr.Close()
			require.ErrorIs(t, closing.Wait(ended()), context.Canceled, "this callback has not returned")
			require.Same(t, closing, tr.Close())
			return
		}
		require.ErrorIs(t, r.Err, ErrClosed)
		after++
	}})
	for range 3 {
		submit(t, tr, write(0, 1))
	}
	serve(t, conns...)
	require.NoError(t, closing.Wait(ended()))
	require.Equal(t, 2, after)
}
