package jobtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/jobtracker"
)

// Cluster is a tracker and its scripted replicas. See the package doc.
type Cluster struct {
	// Tracker is the tracker. Whatever a test needs can be called on it directly.
	Tracker *jobtracker.Tracker[*Payload]

	t        TB
	cfg      jobtracker.Config[*Payload]
	replicas []*Replica
	clock    atomic.Uint64 // moves made
	trial    *Trial        // nil: no explorer
	live     live
	failed   atomic.Bool // something was reported

	mu sync.Mutex
	// +checklocks:mu
	rng *rand.Rand
	// generation is the highest given.
	// +checklocks:mu
	generation uint64
	// open are jobs that are not known to be resolved.
	// +checklocks:mu
	open []*Job
	// +checklocks:mu
	audit audit
}

// ended is a context that makes a wait a poll.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// New makes a tracker, activates it as a new device and connects all replicas. Zero fields of the configuration are the
// tracker's defaults, but: 3 replicas, 64 blocks of 512 bytes, and ReplyTimeout and OfflineFor are off. At clean-up the
// tracker is closed and checked. On a [Trial] whose adversary has gone, the activation may not have begun.
func New(t TB, cfg jobtracker.Config[*Payload]) *Cluster {
	t.Helper()
	c := NewInactive(t, cfg)
	_, err := c.TryActivate(jobtracker.ActivateOptions{})
	for _, r := range c.replicas {
		if err == nil {
			_, err = r.TryReconnect()
		}
	}
	if phase := c.phase(); (err != nil || phase != jobtracker.Active) && (c.trial == nil || !c.trial.Disturbed()) {
		c.fatal("the activation has not begun: %v, %v", phase, err)
	}
	return c
}

// NewInactive is New without the activation: call [Cluster.Activate], and [Replica.Reconnect] of each.
func NewInactive(t TB, cfg jobtracker.Config[*Payload]) *Cluster {
	t.Helper()
	fill(&cfg)
	c := &Cluster{t: t, cfg: cfg, rng: rand.New(rand.NewPCG(1, 1))}
	if x, ok := t.(*Trial); ok {
		c.trial = x
		cfg.Gap = x.engine.Hook(cfg.Gap)
	}
	c.audit.watch(c, &cfg)
	tr, err := jobtracker.New(cfg)
	if err != nil {
		c.fatal("%v", err)
	}
	c.Tracker = tr
	for i := range cfg.Replicas {
		c.replicas = append(c.replicas, &Replica{c: c, index: i, disk: newDisk(replicaID(i, 0))})
	}
	if c.trial != nil {
		c.trial.adopt(c)
	}
	t.Cleanup(c.close)
	return c
}

func fill(cfg *jobtracker.Config[*Payload]) {
	if cfg.Replicas == 0 {
		cfg.Replicas = 3
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = 64
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.ReplyTimeout == 0 {
		cfg.ReplyTimeout = -1
	}
	if cfg.OfflineFor == 0 {
		cfg.OfflineFor = -1
	}
}

// Seed seeds the source that Step and ShuffleReplies choose by.
func (c *Cluster) Seed(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rng = rand.New(rand.NewPCG(seed, seed))
}

func (c *Cluster) pick(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

// Replica is the replica of that number.
func (c *Cluster) Replica(i int) *Replica { return c.replicas[i] }

// Replicas are all replicas.
func (c *Cluster) Replicas() []*Replica { return c.replicas }

// Activate opens an activation of a new generation: as a new device if all replicas are blank. It fails the test if
// the tracker refuses.
func (c *Cluster) Activate() *jobtracker.Handle {
	c.t.Helper()
	h, err := c.TryActivate(jobtracker.ActivateOptions{})
	if err != nil {
		c.fatal("activate: %v", err)
	}
	return h
}

// TryActivate is Activate with options; the generation and Create are filled in where they are zero.
func (c *Cluster) TryActivate(o jobtracker.ActivateOptions) (*jobtracker.Handle, error) {
	blank := true
	for _, r := range c.replicas {
		blank = blank && r.Hello().Generation == 0
	}
	c.mu.Lock()
	if o.Generation == 0 {
		o.Generation = c.generation + 1
	}
	c.generation = max(c.generation, o.Generation)
	c.mu.Unlock()
	o.Create = o.Create || blank
	var h *jobtracker.Handle
	err := c.call("Activate", func() (err error) {
		h, err = c.Tracker.Activate(o)
		return err
	})
	return h, err
}

// Submit admits a job. While it is not admitted at once it has the cluster go on, one step after the other, and it fails
// the test if that does not help, or if the tracker refuses. In live mode it waits.
func (c *Cluster) Submit(op jobtracker.Op) *Job {
	c.t.Helper()
	for {
		j, err := c.TrySubmit(op)
		if err == nil {
			return j
		}
		if !errors.Is(err, context.Canceled) || !c.live.on.Load() && !c.Step() {
			c.fatal("submit %v: %v\n%v", op.Kind, err, c.Tracker.Dump())
		}
	}
}

// TrySubmit submits a job once. One that is not admitted at once is refused with [context.Canceled]; in live mode it
// waits.
func (c *Cluster) TrySubmit(op jobtracker.Op) (*Job, error) {
	ctx := ended
	if c.live.on.Load() {
		ctx = context.Background()
	}
	return c.SubmitContext(ctx, op, &Payload{})
}

// SubmitContext submits a job with its payload and a context, once, and returns what the tracker said.
func (c *Cluster) SubmitContext(ctx context.Context, op jobtracker.Op, p *Payload) (*Job, error) {
	j := &Job{Op: op, Payload: p}
	err := c.call("Submit", func() (err error) {
		j.Job, err = c.Tracker.Submit(ctx, op, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.keep(j)
	return j, nil
}

// keep remembers a job that was admitted.
func (c *Cluster) keep(j *Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.audit.submitted.add(j.ID()) {
		c.audit.violate("job id %d was issued twice", j.ID())
	}
	if len(c.open) == cap(c.open) {
		n := 0
		for _, o := range c.open {
			if !o.Resolved() {
				c.open[n] = o
				n++
			}
		}
		clear(c.open[n:])
		c.open = c.open[:n]
	}
	c.open = append(c.open, j)
}

// Settle moves everything until nothing is left to do: each replica takes what the tracker has for it, executes it and
// answers, in order, as far as it was told not to do otherwise.
func (c *Cluster) Settle() {
	c.t.Helper()
	for n := 0; ; n++ {
		moved := false
		for _, r := range c.replicas {
			if r.receive(batchSize) {
				moved = true
			}
			for r.execute(nil) {
				moved = true
			}
			for r.deliver(nil) {
				moved = true
				c.clock.Inc()
			}
		}
		if !moved && !c.pass() {
			return
		}
		if n > 1<<20 {
			c.fatal("the cluster does not settle\n%v", c.Tracker.Dump())
		}
	}
}

// pass lets time pass until a delayed reply is due.
func (c *Cluster) pass() bool {
	var at uint64
	for _, r := range c.replicas {
		if d := r.delayed(); d != 0 && (at == 0 || d < at) {
			at = d
		}
	}
	if at == 0 || at <= c.clock.Load() {
		return false
	}
	c.clock.Store(at)
	return true
}

// Step makes one move, chosen by the seed: a replica takes some jobs, executes one, or has one reply delivered, in any
// order that it may. It returns false if nothing is left to do.
func (c *Cluster) Step() bool {
	for {
		moves := 3 * len(c.replicas)
		first := c.pick(moves)
		for i := range moves {
			m := (first + i) % moves
			if c.move(c.replicas[m/3], m%3) {
				c.clock.Inc()
				return true
			}
		}
		if !c.pass() {
			return false
		}
	}
}

func (c *Cluster) move(r *Replica, what int) bool {
	switch what {
	case 0:
		return r.receive(1 + c.pick(4))
	case 1:
		return r.execute(c.pick)
	default:
		return r.deliver(c.pick)
	}
}

// Deactivate ends the activation, settles, and fails the test if it has not ended then, or not well.
func (c *Cluster) Deactivate() {
	c.t.Helper()
	h := c.Tracker.Deactivate()
	c.Settle()
	if err := h.Wait(ended); err != nil {
		c.fatal("deactivate: %v\n%v", err, c.Tracker.Dump())
	}
}

// Reconcile makes all devices equal to the one with the highest generation and flush number, as the repair between two
// activations does. No replica may be connected.
func (c *Cluster) Reconcile() {
	best := c.replicas[0]
	for _, r := range c.replicas[1:] {
		if h, b := r.Hello(), best.Hello(); h.Generation > b.Generation || h.Generation == b.Generation && h.Flush > b.Flush {
			best = r
		}
	}
	source := best.snapshot()
	for _, r := range c.replicas {
		r.mu.Lock()
		r.disk.copyOf(source)
		r.mu.Unlock()
	}
}

// call makes a call of the tracker. Under an explorer a refusal is checked to have changed nothing.
func (c *Cluster) call(name string, f func() error) error {
	if c.trial == nil {
		return f()
	}
	return c.trial.Call(name, f)
}

// callAll is call for a batch.
func (c *Cluster) callAll(name string, batch []jobtracker.Completion, f func()) {
	_ = c.call(name, func() error { // each error is looked at by the caller
		f()
		for _, b := range batch {
			if b.Err == nil {
				return nil // something was applied
			}
		}
		if len(batch) == 0 {
			return nil
		}
		return batch[0].Err
	})
}

// violate notes what no tracker and no replica may do; it is reported by the Require methods and at clean-up.
func (c *Cluster) violate(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.audit.violate(format, args...)
}

// close ends everything, at clean-up.
func (c *Cluster) close() {
	c.t.Helper()
	c.stopLive()
	h := c.Tracker.Close()
	if c.trial == nil {
		_ = h.Wait(context.Background()) // it resolves with nil
	} else if h.Wait(ended) != nil {
		c.errorf("close has not ended\n%v", c.Tracker.Dump())
	}
	for _, r := range c.replicas {
		if l := r.Life(); l != nil {
			if err := l.Quiesce(); err != nil {
				c.errorf("replica %d: quiesced after close: %v", r.index, err)
			}
		}
	}
	c.checkResolved()
	c.checkEmpty()
	c.checkAudit(true)
}

// String is the tracker's dump.
func (c *Cluster) String() string { return fmt.Sprint(c.Tracker.Dump()) }
