package jobtracker

import (
	"context"

	"go.uber.org/atomic"
)

// Job is one I/O operation on all replicas. It is made by [Tracker.Submit] and never used again for another. All methods
// are safe for concurrent use.
type Job[P any] struct {
	t        *Tracker[P]
	id       JobID     // set before Submit returns
	payload  P         // guarded by t.mu, zero after retirement
	err      *JobError // set before resolved
	waiters  *waitCh   // guarded by t.mu
	resolved atomic.Bool
}

// waitCh is somebody who waits for a job; pooled.
type waitCh struct {
	ch      chan struct{} // one slot
	next    *waitCh
	refusal error // set before it is woken: why an application was refused
}

// waiter takes one from the tracker's pool. The pool is not shared by trackers: a channel belongs to the synctest bubble in
// which it was made.
func (t *Tracker[P]) waiter() *waitCh {
	if w, ok := t.idle.Get().(*waitCh); ok {
		w.refusal = nil
		return w
	}
	return &waitCh{ch: make(chan struct{}, 1)}
}

// ID is the job's id.
func (j *Job[P]) ID() JobID { return j.id }

// Resolved tells whether the outcome is known.
func (j *Job[P]) Resolved() bool { return j.resolved.Load() }

// Err is the outcome of a resolved job: nil, or a *[JobError]. It is nil before. It stays readable after retirement.
func (j *Job[P]) Err() error {
	if !j.resolved.Load() {
		return nil
	}
	return j.outcome()
}

// outcome is that of a resolved job.
func (j *Job[P]) outcome() error {
	if j.err == nil {
		return nil // not a nil *JobError
	}
	return j.err
}

// Wait waits for the outcome and returns it. The context bounds only the wait; its cause is returned.
func (j *Job[P]) Wait(ctx context.Context) error {
	if j.resolved.Load() {
		return j.outcome()
	}
	w := j.t.waiter()
	defer j.t.idle.Put(w)
	_ = j.t.do(nil, asking{}, func(*core) error { // no error is possible
		j.join(w)
		return nil
	})
	select {
	case <-w.ch:
		return j.outcome()
	case <-ctx.Done():
	}
	if !j.leave(w) {
		return j.outcome()
	}
	return context.Cause(ctx)
}

// join adds a waiter, or wakes it if there is nothing to wait for. Under the lock.
func (j *Job[P]) join(w *waitCh) {
	if j.resolved.Load() {
		w.ch <- struct{}{}
		return
	}
	w.next, j.waiters = j.waiters, w
}

// leave takes back a waiter; false means that it was woken, and its channel is empty again.
func (j *Job[P]) leave(w *waitCh) (waits bool) {
	_ = j.t.do(nil, asking{}, func(*core) error { // no error is possible
		for at := &j.waiters; *at != nil; at = &(*at).next {
			if *at == w {
				*at, w.next = w.next, nil
				waits = true
				return nil
			}
		}
		return nil
	})
	if !waits {
		<-w.ch
	}
	return waits
}

// wake wakes all waiters. Under the lock.
func (j *Job[P]) wake() {
	for w := j.waiters; w != nil; {
		next := w.next
		w.next = nil
		w.ch <- struct{}{} // one slot, and nobody is woken twice
		w = next
	}
	j.waiters = nil
}

// settle gives the job its outcome. Under the lock.
func (j *Job[P]) settle(err *JobError) {
	j.err = err
	j.resolved.Store(true)
	j.wake()
}

// admit ends an application for the job: it is in the table, or refused. Under the lock.
func (j *Job[P]) admit(id JobID, err error) {
	j.id = id
	if err != nil {
		var none P
		j.payload = none
	}
	if j.waiters != nil { // its only one is who applied
		j.waiters.refusal = err
	}
	j.wake()
}

// newJobLocked is the next job of the slab; it is taken by useJobLocked.
//
// +checklocks:t.mu
func (t *Tracker[P]) newJobLocked(payload P) *Job[P] {
	if len(t.slab) == 0 {
		t.slab = make([]Job[P], slabJobs)
	}
	j := &t.slab[0]
	j.t, j.payload = t, payload
	return j
}

// slabJobs is how many jobs are made at a time.
const slabJobs = 64

// useJobLocked keeps the job that newJobLocked gave.
//
// +checklocks:t.mu
func (t *Tracker[P]) useJobLocked() { t.slab = t.slab[1:] }

// Submit admits a job. It waits while a replica that the job would be outstanding on is at its limits, first come, first
// served; ctx bounds that wait only. A job that has nowhere to go is resolved when Submit returns. On error no job
// exists and nothing has changed: *[OpError], *[PhaseError], [ErrReadOnly], *[EndedError] if the activation ended while
// it waited, or the context's cause. The order of jobs is that in which Submit admits them; of two calls that do not
// overlap, the first comes first.
func (t *Tracker[P]) Submit(ctx context.Context, op Op, payload P) (*Job[P], error) {
	var j *Job[P]
	var w *waitCh
	var seq uint64
	err := t.do(nil, asking{}, func(k *core) error {
		j = t.newJobLocked(payload) // +checklocksignore: the gate holds the lock
		id, application, err := k.submit(op, j)
		if err != nil {
			var none P
			j.payload = none
			return err
		}
		t.useJobLocked() // +checklocksignore: the gate holds the lock
		j.id = id
		if seq = application; seq != 0 {
			w = t.waiter()
			j.join(w)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if w != nil {
		if err := j.await(ctx, w, seq); err != nil {
			return nil, err
		}
	}
	return j, nil
}

// await waits for admission.
func (j *Job[P]) await(ctx context.Context, w *waitCh, seq uint64) error {
	defer j.t.idle.Put(w)
	select {
	case <-w.ch:
		return w.refusal
	case <-ctx.Done():
	}
	_ = j.t.do(nil, asking{}, func(k *core) error { // no error is possible
		if k.withdraw(seq) {
			var none P
			j.payload = none // the slab outlives it
		}
		return nil
	})
	if j.leave(w) {
		return context.Cause(ctx)
	}
	return w.refusal // it was decided before it could be taken back
}

// Do submits a job and waits for its outcome. An error of the context after admission leaves the job to itself.
func (t *Tracker[P]) Do(ctx context.Context, op Op, payload P) error {
	j, err := t.Submit(ctx, op, payload)
	if err != nil {
		return err
	}
	return j.Wait(ctx)
}
