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
// source that fails its half ends the job and nothing else; a target that fails its half is faulted. The extents that it
// covers are copied when it is done and its source still votes. On error nothing
// has changed: [ErrSuperseded], *[ReplicaError], *[LifecycleError], *[OpError].
func (r *Repair[P]) Copy(source int, start, blocks uint64, payload P) (*Job[P], error) {
	return r.add(payload, func(k *core, j *Job[P]) (JobID, error) { return k.addCopy(r.token, source, start, blocks, j) })
}

// Compare has an extent compared by checksum, as one job in the order, like Copy: the source says what the extent holds
// ([HalfSum]), and the target whether it holds the same ([HalfCompare]), with no write of the guest's in between. What the
// checksum is, and how it gets from one half to the other with the payload, is the caller's; it must be one that does not
// collide for whoever writes to the device. No data need move.
//
// If the target answers that it is the same, and its source still votes then, the extent is as good as copied, also one that
// the tracker knows to be dirty; if not, it is dirty. A half that fails ends the job and nothing else, and leaves the
// extent to be copied. The job's outcome says that both have answered; [Repair.Extent] what came of it. On error nothing
// has changed: as Copy.
func (r *Repair[P]) Compare(source, extent int, payload P) (*Job[P], error) {
	return r.add(payload, func(k *core, j *Job[P]) (JobID, error) { return k.addCompare(r.token, source, extent, j) })
}

// add admits a job of the repair.
func (r *Repair[P]) add(payload P, admit func(k *core, j *Job[P]) (JobID, error)) (*Job[P], error) {
	var j *Job[P]
	err := r.t.do(nil, asking{}, func(k *core) error {
		j = r.t.newJobLocked(payload) // +checklocksignore: the gate holds the lock
		id, err := admit(k, j)
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

// Extent is a part of the device as a repair sees it.
type Extent struct {
	Index  int
	Start  uint64 // its first block
	Blocks uint64
	State  ExtentState // what is known of it on the target
}

// Extents are the extents of a repair's target, counted by state.
type Extents struct {
	Total     int
	Bytes     uint64 // of an extent; the last one may be shorter
	BlockSize uint64 // bytes
	State     [numExtentStates]int
}

// Left is how many are neither copied nor found equal nor clean.
func (e *Extents) Left() int {
	return e.State[ExtentUnknown] + e.State[ExtentDirty] + e.State[ExtentCopying]
}

// Extents counts the target's extents; total never moves and, while the repair lives, Left grows only by copies of
// extents that were not left. [ErrSuperseded] when it has ended.
func (r *Repair[P]) Extents() (Extents, error) {
	var e Extents
	err := r.do(func(t *extentTable, k *core) error {
		e = Extents{Total: t.total(), Bytes: t.size * k.lim.blockSize, BlockSize: k.lim.blockSize, State: t.counts}
		return nil
	})
	return e, err
}

// Next is the first extent from index from on that is unknown or dirty; false when there is none. [ErrSuperseded] when
// the repair has ended.
func (r *Repair[P]) Next(from int) (e Extent, ok bool, err error) {
	err = r.do(func(t *extentTable, _ *core) error {
		if i := t.next(max(from, 0)); i >= 0 {
			e, ok = t.extent(i), true
		}
		return nil
	})
	return e, ok, err
}

// Extent is one extent. [ErrSuperseded] when the repair has ended, *[OpError].
func (r *Repair[P]) Extent(i int) (e Extent, err error) {
	err = r.do(func(t *extentTable, _ *core) error {
		if i < 0 || i >= t.total() {
			return &OpError{Field: "extent", Got: uint64(i), Max: uint64(t.total() - 1)}
		}
		e = t.extent(i)
		return nil
	})
	return e, err
}

// do looks at the target's extents while the repair lives.
func (r *Repair[P]) do(fn func(*extentTable, *core) error) error {
	return r.t.do(nil, asking{}, func(k *core) error {
		if !k.repairing(r.token) {
			return ErrSuperseded
		}
		return fn(&k.reps[r.token.replica].extents, k)
	})
}

// Same says that an extent holds on the target what it holds on the voters: the caller has compared what both remember
// of it, since this repair began. An extent that the tracker knows to be dirty is refused with an *[UnrepairedError],
// whatever it looks like: a change that was written off on the target may not have been dispatched elsewhere (R24). On
// error nothing has changed: [ErrSuperseded], *[OpError], *[UnrepairedError].
func (r *Repair[P]) Same(extent int) error {
	return r.t.do(nil, asking{}, func(k *core) error { return k.sameExtent(r.token, extent) })
}

// Finish says that nothing is left to do. A last flush is admitted; when the target itself has done it, it votes (R07).
// It is refused with an *[UnrepairedError] while an extent is left. On error nothing has changed: also [ErrSuperseded],
// *[LifecycleError].
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
