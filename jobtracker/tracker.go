package jobtracker

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/internal/callbacks"
)

// Tracker keeps every I/O job of a device with n replicas. All methods are safe for concurrent use. None blocks but
// [Tracker.Submit] and [Tracker.Do], which wait for admission at most as long as their context. See the package doc for
// what holds for all of them.
type Tracker[P any] struct {
	cfg   Config[P] // immutable after New
	stats counters  // read without the lock
	idle  sync.Pool // of *waitCh

	lagging atomic.Bool // core.behind, for the drainer

	mu sync.Mutex
	// +checklocks:mu
	core core
	// +checklocks:mu
	calls callbacks.Queue[call[P]]
	seq   uint64 // of the last callback run; the drainer's
	// conns are the present connections.
	// +checklocks:mu
	conns [MaxReplicas]*Conn[P]
	// +checklocks:mu
	repairs [MaxReplicas]*Repair[P]
	// +checklocks:mu
	agreement *Reconciliation[P]
	// begin, finish and closed resolve who waits for the activation to begin, to end, and for the tracker to be closed.
	// +checklocks:mu
	begin *Handle
	// +checklocks:mu
	finish *Handle
	// +checklocks:mu
	closed *Handle
	// slab is where the next jobs come from. A job is never used again.
	// +checklocks:mu
	slab []Job[P]
	// +checklocks:mu
	timer *time.Timer
	// +checklocks:mu
	timerAt time.Time
	// timerNo tells timers apart: one that has fired may come late, when there is another.
	// +checklocks:mu
	timerNo uint64
	// ticks counts timers that have not run to their end.
	// +checklocks:mu
	ticks int
	// cancels are contexts to be cancelled after the hold.
	// +checklocks:mu
	cancels []cancel
}

// cancel is a context that ends.
type cancel struct {
	f     context.CancelCauseFunc
	cause error
}

// New makes an inactive tracker, or returns a *[ConfigError] that names the field that cannot work.
func New[P any](cfg Config[P]) (*Tracker[P], error) {
	lim, err := cfg.limits()
	if err != nil {
		return nil, err
	}
	t := &Tracker[P]{cfg: cfg}
	t.core = newCore(lim, &t.stats)
	return t, nil
}

// asking is what a call asks for, which decides how the gate refuses it. The zero value is any call but a completion.
type asking struct {
	completion bool
	job        JobID // that it is for
}

// do is the gate: the only place where the tracker's lock is acquired. It checks the caller's connection, if there is
// one, in the same hold in which fn gets the state. When the hold is over it does what the change asks for: wakes first,
// then callbacks, in order, by one goroutine at a time.
func (t *Tracker[P]) do(c *Conn[P], what asking, fn func(*core) error) error {
	if t.cfg.Gap != nil {
		t.cfg.Gap()
	}
	t.mu.Lock()
	var err error
	switch {
	case c == nil || t.core.current(c.token):
		err = fn(&t.core)
	case what.completion:
		err = t.core.late(c.token, what.job, c.cause)
	default:
		err = t.core.stale(c.token, c.cause)
	}
	if t.core.fx.due == 0 {
		t.mu.Unlock()
		return err
	}
	drain := t.takeLocked()
	t.restLocked()
	if len(t.cancels) == 0 {
		t.mu.Unlock()
	} else {
		cancels := t.cancels
		t.cancels = nil
		t.mu.Unlock()
		for _, c := range cancels {
			c.f(c.cause)
		}
	}
	if drain {
		t.drain()
	}
	return err
}

// takeLocked does what the core asks for: it wakes who waits and queues what calls the user. It tells whether the caller
// is to run the callbacks.
//
// +checklocks:t.mu
func (t *Tracker[P]) takeLocked() (drain bool) {
	if t.core.behind {
		t.catchUpLocked()
	}
	fx := &t.core.fx
	if fx.due&dueRare != 0 {
		t.takeRareLocked(fx)
	}
	for i := range fx.resolved {
		r := &fx.resolved[i]
		j := r.handle.(*Job[P])
		if t.cfg.OnResolve != nil {
			t.calls.Push(call[P]{what: callResolve, job: j, payload: j.payload})
		}
		j.settle(r.err)
	}
	for _, h := range fx.retired {
		j := h.(*Job[P])
		if t.cfg.OnRetire != nil {
			t.calls.Push(call[P]{what: callRetire, job: j, payload: j.payload})
		}
		var none P
		j.payload = none
	}
	for m := fx.wake; m != 0; m &= m - 1 {
		if c := t.conns[first(m)]; c != nil {
			c.rouse()
		}
	}
	fx.reset()
	drain = t.calls.Start()
	t.lagLocked()
	return drain
}

// takeRareLocked is the part of takeLocked that has to do with lifecycles and deadlines.
//
// +checklocks:t.mu
func (t *Tracker[P]) takeRareLocked(fx *effects) {
	for _, a := range fx.admitted {
		a.handle.(*Job[P]).admit(a.id, a.err)
	}
	for _, e := range fx.ended {
		if c := t.conns[e.replica]; c != nil && c.token.conn == e.conn {
			c.cause = e.cause
			t.conns[e.replica] = nil
			t.cancels = append(t.cancels, cancel{c.cancel, &EndedError{What: "connection", Cause: e.cause}})
		}
	}
	for _, e := range fx.repairs {
		if r := t.repairs[e.replica]; r != nil && r.token.ticket == e.ticket {
			t.repairs[e.replica] = nil
			resolve(r.ended, e.err)
			cause := e.err
			if cause == nil {
				cause = &EndedError{What: "repair", Cause: ErrRepaired}
			}
			t.cancels = append(t.cancels, cancel{r.cancel, cause})
		}
	}
	for _, e := range fx.agreements {
		t.endAgreementLocked(e)
	}
	for _, e := range fx.events {
		if t.cfg.OnEvent != nil || t.cfg.Logger != nil {
			t.calls.Push(call[P]{what: callEvent, event: &e})
		}
	}
	for _, e := range fx.phases {
		t.takePhaseLocked(e)
	}
	if fx.arm {
		t.core.arm(time.Now())
	}
	t.setTimerLocked(t.core.deadline())
}

// +checklocks:t.mu
func (t *Tracker[P]) takePhaseLocked(e phaseEnd) {
	if e.begun {
		resolve(t.begin, nil)
		return
	}
	resolve(t.begin, &EndedError{What: "activation", Cause: e.cause})
	resolve(t.finish, e.err)
	t.finish = nil
}

// setTimerLocked has the tracker's one timer fire at the earliest deadline.
//
// +checklocks:t.mu
func (t *Tracker[P]) setTimerLocked(at time.Time) {
	if at.Equal(t.timerAt) {
		return
	}
	if t.timer != nil && t.timer.Stop() {
		t.ticks--
	}
	t.timer, t.timerAt = nil, at
	if !at.IsZero() {
		t.ticks++
		t.timerNo++
		no := t.timerNo
		t.timer = time.AfterFunc(time.Until(at), func() { t.tick(no) })
	}
}

// tick is the timer: it carries nothing, it has the core look at the time.
func (t *Tracker[P]) tick(no uint64) {
	_ = t.do(nil, asking{}, func(k *core) error { // no error is possible
		t.tickedLocked(no) // +checklocksignore: the gate holds the lock
		k.tick(time.Now())
		k.fx.time()
		return nil
	})
}

// +checklocks:t.mu
func (t *Tracker[P]) tickedLocked(no uint64) {
	t.ticks--
	if no == t.timerNo {
		t.timer, t.timerAt = nil, noTime
	}
}

// drain runs callbacks until there are none. If one panics, what is left is run on the next call.
func (t *Tracker[P]) drain() {
	done := false
	defer func() {
		if !done {
			t.mu.Lock()
			t.abandonLocked()
			t.mu.Unlock()
		}
	}()
	for t.calls.Run(t.run) { // +checklocksignore: Run is the drainer's, with no lock held
		t.mu.Lock()
		t.calls.Take()
		t.mu.Unlock()
		t.drained()
	}
	done = true
	t.drained()
}

// drained goes on with what waited for callbacks to be run: admission, or who closes.
func (t *Tracker[P]) drained() {
	if t.lagging.Load() || t.stats.phase.Load() == uint32(Closed) {
		_ = t.do(nil, asking{}, func(*core) error { // no error is possible
			t.drainedLocked() // +checklocksignore: the gate holds the lock
			return nil
		})
	}
}

// +checklocks:t.mu
func (t *Tracker[P]) drainedLocked() {
	t.catchUpLocked()
	t.restLocked()
}

// abandonLocked ends the draining because a callback panicked. The next call, whatever it is, looks at what is left.
//
// +checklocks:t.mu
func (t *Tracker[P]) abandonLocked() {
	t.calls.Abandon()
	t.core.fx.due |= dueJobs
	t.restLocked()
}

// catchUpLocked ends the wait for callbacks to be run.
//
// +checklocks:t.mu
func (t *Tracker[P]) catchUpLocked() {
	if t.core.behind && t.calls.Len() < t.core.lim.maxCallbacks {
		t.core.behind = false
		t.lagging.Store(false)
		t.core.todo |= todoAdmit
		t.core.settle()
	}
}

// lagLocked has admission wait when too many callbacks have not been run; see catchUpLocked.
//
// +checklocks:t.mu
func (t *Tracker[P]) lagLocked() {
	limit := t.core.lim.maxCallbacks
	if !t.core.behind && t.calls.Len() >= limit {
		t.lagging.Store(true)
		// The drainer may have run the last one just before it could see that somebody waits: look once more.
		t.core.behind = t.calls.Len() >= limit
		t.lagging.Store(t.core.behind)
	}
}

// restLocked resolves who waits for the tracker to be closed, when nothing of it runs any more.
//
// +checklocks:t.mu
func (t *Tracker[P]) restLocked() {
	if t.core.phase == Closed && t.ticks == 0 && t.calls.Len() == 0 {
		resolve(t.closed, nil)
	}
}

// Activate opens an activation. It begins when replicas that together have everything flushed have connected with equal
// contents: n-W+1 of them, W of them equal; with Create all n, all blank. The handle resolves when it has begun, or with
// an *[EndedError] if it ends before. On error nothing has changed: *[PhaseError], *[GenerationError].
func (t *Tracker[P]) Activate(o ActivateOptions) (*Handle, error) {
	h := newHandle()
	err := t.do(nil, asking{}, func(k *core) error {
		if err := k.activate(o); err != nil {
			return err
		}
		t.begin = h // +checklocksignore: the gate holds the lock
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// Deactivate ends the activation when everything admitted has run to its end and was made durable by a last flush. From
// here on jobs are refused, and nobody waits for a replica whose connection has ended or ends. The handle resolves when
// the activation has ended, with the flush's error if it failed; a second call gets the same handle. While inactive the
// handle is resolved with a *[PhaseError]. A sender or replica that never lets go of a job is limited by
// [Config.ReplyTimeout]; [Tracker.Disable] is the force.
func (t *Tracker[P]) Deactivate() *Handle {
	var h *Handle
	err := t.do(nil, asking{}, func(k *core) error {
		h = t.finishLocked() // +checklocksignore: the gate holds the lock
		return k.deactivate()
	})
	if err != nil {
		return resolvedHandle(err)
	}
	return h
}

// finishLocked is the handle of who waits for the activation to end; nil if there is none.
//
// +checklocks:t.mu
func (t *Tracker[P]) finishLocked() *Handle {
	if t.finish == nil && t.core.phase != Inactive && t.core.phase != Closed {
		t.finish = newHandle()
	}
	return t.finish
}

// Disable ends the activation at once: every job that is not resolved fails with [ErrEnded] and the cause, every
// connection and repair ends. It may be activated again; nothing of the former activation reaches the next.
// Nil is [ErrDisabled].
func (t *Tracker[P]) Disable(cause error) error {
	if cause == nil {
		cause = ErrDisabled
	}
	return t.do(nil, asking{}, func(k *core) error { return k.disable(cause) })
}

// Close disables the tracker for good. It is idempotent. The handle resolves when the last callback has returned and
// the timer has stopped: a callback may call Close but not wait for it.
func (t *Tracker[P]) Close() *Handle {
	var h *Handle
	_ = t.do(nil, asking{}, func(k *core) error { // no error is possible
		h = t.closedLocked() // +checklocksignore: the gate holds the lock
		k.close()
		return nil
	})
	return h
}

// closedLocked is the handle of who waits for the tracker to be closed.
//
// +checklocks:t.mu
func (t *Tracker[P]) closedLocked() *Handle {
	if t.closed == nil {
		t.closed = newHandle()
	}
	return t.closed
}

// Connect opens a connection for a replica whose former one has ended and is quiesced. The replica's driver keeps the
// Conn, and with each reply the Conn it came in on, however long decoding takes. On error nothing has changed:
// *[ReplicaError], *[PhaseError], *[LifecycleError] (also [ErrNotQuiesced]), *[HelloError].
func (t *Tracker[P]) Connect(replica int, hello Hello) (*Conn[P], error) {
	c := &Conn[P]{t: t, wake: make(chan struct{}, 1)}
	err := t.do(nil, asking{}, func(k *core) error {
		id, plan, err := k.connect(replica, hello)
		if err != nil {
			return err
		}
		c.token, c.plan = connToken{replica: replica, conn: id}, plan
		c.ctx, c.cancel = context.WithCancelCause(context.Background())
		t.conns[replica] = c // +checklocksignore: the gate holds the lock
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Replace says that another device stands in a replica's place. Its connection ends, its jobs are written off, and the
// next one to connect may have any identity; it needs a repair of everything and does not count at activation. It is the
// way out of a peer that never quiesces. On error nothing has changed: *[ReplicaError], and *[PhaseError] once closed.
func (t *Tracker[P]) Replace(replica int) error {
	return t.do(nil, asking{}, func(k *core) error { return k.replaceReplica(replica) })
}

// Fault faults a replica: its connection ends, its jobs are written off, and it needs a repair. One that nothing is
// expected of is left as it is; while activating, when nothing was written yet, it may connect again and is compared.
// Nil is [ErrFaulted]. On error nothing has changed: *[ReplicaError], and *[PhaseError] while inactive or closed.
func (t *Tracker[P]) Fault(replica int, cause error) error {
	if cause == nil {
		cause = ErrFaulted
	}
	return t.do(nil, asking{}, func(k *core) error {
		return k.faultReplica(replica, &FaultError{Replica: replica, Err: cause})
	})
}

// Stats reads the counters without the lock.
func (t *Tracker[P]) Stats() Stats { return t.stats.snapshot(t.cfg.Replicas) }

// dumpJobs is how many jobs a dump shows at most.
const dumpJobs = 256

// Dump is the state at one moment, with at most 256 jobs, the oldest.
func (t *Tracker[P]) Dump() Dump {
	var d Dump
	var why causes
	_ = t.do(nil, asking{}, func(k *core) error { // no error is possible
		d, why = k.dump(dumpJobs), k.causes()
		d.Callbacks = t.calls.Len() // +checklocksignore: the gate holds the lock
		return nil
	})
	d.Cause = text(why.activation)
	for r := range d.Replicas {
		d.Replicas[r].Cause = text(why.replicas[r])
	}
	return d
}

// Fingerprint is a hash of the whole state but the counters. It is equal before and after every refused call, which is
// what tests use it for; it takes the time of a walk through the table.
func (t *Tracker[P]) Fingerprint() uint64 {
	h := fnv.New64a()
	var why causes
	_ = t.do(nil, asking{}, func(k *core) error { // no error is possible
		why = k.causes()
		_, err := h.Write(k.appendState(nil))
		return err
	})
	for _, err := range why.replicas {
		_, _ = h.Write([]byte(text(err) + "\x00")) // a hash does not fail
	}
	return h.Sum64()
}

// Check verifies the tracker's invariants. An error is a bug in this package; it is meant for tests.
func (t *Tracker[P]) Check() error {
	return t.do(nil, asking{}, func(k *core) error { return k.check() })
}
