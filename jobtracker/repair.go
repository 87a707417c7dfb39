package jobtracker

import "context"

// Repair is the ticket of one repair of one replica, the target. It ends when the target votes, or when it is aborted,
// the target's connection ends, or the activation does; then every call on it is refused with [ErrSuperseded]. All
// methods are safe for concurrent use.
type Repair[P any] struct {
	t      *Tracker[P]
	token  repairToken
	ctx    context.Context //nolint:containedctx // it is what the ticket hands to its users
	cancel context.CancelCauseFunc
	ended  *Handle
}

// Repair begins the repair of a replica that is repair-ready: from here on it gets every changing job, but no read and
// no vote. On error nothing has changed: *[ReplicaError], *[PhaseError], *[LifecycleError].
func (t *Tracker[P]) Repair(replica int) (*Repair[P], error) {
	r := &Repair[P]{t: t, ended: newHandle()}
	err := t.do(nil, asking{}, func(k *core) error {
		token, err := k.startRepair(replica)
		if err != nil {
			return err
		}
		r.token = token
		r.ctx, r.cancel = context.WithCancelCause(context.Background())
		t.repairs[replica] = r // +checklocksignore: the gate holds the lock
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Context ends with the repair; its cause is an *[EndedError].
func (r *Repair[P]) Context() context.Context { return r.ctx }

// Ended resolves when the repair ends: nil when the target votes, else with an *[EndedError].
func (r *Repair[P]) Ended() *Handle { return r.ended }

// Copy has blocks read from a source, which must be active, and written to the target, as one job in the order: what
// touches these blocks later waits for it where it is done, everything else goes on. It does not wait for admission. A
// source that fails its half ends the job and nothing else; a target that fails its half is faulted. On error nothing
// has changed: [ErrSuperseded], *[ReplicaError], *[LifecycleError], *[OpError].
func (r *Repair[P]) Copy(source int, start, blocks uint64, payload P) (*Job[P], error) {
	var j *Job[P]
	err := r.t.do(nil, asking{}, func(k *core) error {
		j = r.t.newJobLocked(payload) // +checklocksignore: the gate holds the lock
		id, err := k.addCopy(r.token, source, start, blocks, j)
		if err != nil {
			var none P
			j.payload = none
			return err
		}
		r.t.useJobLocked() // +checklocksignore: the gate holds the lock
		j.id = id
		return nil
	})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Finish says that everything was copied. A last flush is admitted; when the target itself has done it, it votes (R07). A
// copy that was still out and fails ends the repair instead.
func (r *Repair[P]) Finish() error {
	return r.t.do(nil, asking{}, func(k *core) error { return k.finishRepair(r.token) })
}

// Abort ends the repair; the target is repair-ready again. Halves of copies that were not sent are written off; what was
// sent stays outstanding. Nil is [ErrAborted].
func (r *Repair[P]) Abort(cause error) error {
	if cause == nil {
		cause = ErrAborted
	}
	return r.t.do(nil, asking{}, func(k *core) error { return k.abortRepair(r.token, cause) })
}
