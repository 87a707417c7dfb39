package jobtracker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// The scenario tests script the replicas by hand, on one goroutine: a peer takes what is ready with a context that has
// ended, executes it on a disk in memory, and answers when it is told to. The rig knows what each read must bring.

// load is a job's payload: what a write writes, and what a read brought.
type load struct {
	value int
	got   []int
}

type rig struct {
	t     *testing.T
	cfg   Config[*load]
	tr    *Tracker[*load]
	peers []*peer
	gen   uint64

	model   map[uint64]int  // what each block holds after the jobs submitted so far
	want    map[JobID][]int // what each read must bring
	tainted bool            // a job failed by the script: contents are not compared with the model
	jobs    []*Job[*load]

	mu       sync.Mutex
	events   []Event
	resolved map[JobID]int
	retired  map[JobID]int
	// +checklocks:mu
	seq   uint64
	loads map[JobID]*load
}

const rigBlocks = 64

// ended is a context that has ended: with it NextBatch and Submit do not wait.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// newRig makes a tracker of blank replicas and activates it. Deadlines never pass unless the configuration has them.
func newRig(t *testing.T, cfg Config[*load]) *rig {
	t.Helper()
	x := idleRig(t, cfg)
	x.activate(ActivateOptions{Create: true})
	for _, p := range x.peers {
		p.connect()
	}
	require.Equal(t, Active, x.tr.Stats().Phase)
	return x
}

// idleRig is a rig that is not activated.
func idleRig(t *testing.T, cfg Config[*load]) *rig {
	t.Helper()
	orDefault := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	orDefault(&cfg.Replicas, 3)
	cfg.Blocks, cfg.BlockSize = rigBlocks, 512
	if cfg.ReplyTimeout == 0 {
		cfg.ReplyTimeout = -1
	}
	if cfg.OfflineFor == 0 {
		cfg.OfflineFor = -1
	}
	x := &rig{
		t: t, model: map[uint64]int{}, want: map[JobID][]int{}, resolved: map[JobID]int{}, retired: map[JobID]int{},
		loads: map[JobID]*load{},
	}
	cfg.OnEvent = func(e Event) { x.note(e.Seq, func() { x.events = append(x.events, e) }) }
	cfg.OnResolve = func(r Resolved[*load]) { x.note(r.Seq, func() { x.resolved[r.Job.ID()]++ }) }
	cfg.OnRetire = func(r Retired[*load]) { x.note(r.Seq, func() { x.retired[r.Job.ID()]++ }) }
	x.cfg = cfg
	var err error
	x.tr, err = New(cfg)
	require.NoError(t, err)
	for r := range cfg.Replicas {
		x.peers = append(x.peers, &peer{rig: x, r: r, disk: map[uint64]int{}, sent: map[JobID]int{}, bad: map[JobID]error{}})
	}
	t.Cleanup(func() {
		require.NoError(t, x.tr.Close().Wait(context.Background()))
		require.NoError(t, x.tr.Check())
	})
	return x
}

func (x *rig) note(seq uint64, fn func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if seq <= x.seq {
		x.t.Errorf("callback %d after %d", seq, x.seq)
	}
	x.seq = seq
	fn()
}

// activate opens the next activation.
func (x *rig) activate(o ActivateOptions) *Handle {
	x.t.Helper()
	x.gen++
	o.Generation = x.gen
	h, err := x.tr.Activate(o)
	require.NoError(x.t, err)
	return h
}

// submit admits a job that must not have to wait.
func (x *rig) submit(op Op, value int) *Job[*load] {
	x.t.Helper()
	pay := &load{value: value}
	j, err := x.tr.Submit(ended(), op, pay)
	require.NoError(x.t, err)
	x.keep(j, op, pay)
	return j
}

// keep notes a job that was admitted.
func (x *rig) keep(j *Job[*load], op Op, pay *load) {
	x.jobs = append(x.jobs, j)
	x.loads[j.ID()] = pay
	for b := op.Start; b < op.Start+op.Blocks; b++ {
		switch op.Kind {
		case Read:
			x.want[j.ID()] = append(x.want[j.ID()], x.model[b])
		case Write:
			x.model[b] = pay.value
		case Zero, Trim:
			x.model[b] = 0
		case Flush, Barrier, Copy:
		}
	}
}

// write submits a write of one block or more, of the next value there is.
func (x *rig) write(start, blocks uint64) *Job[*load] {
	x.t.Helper()
	return x.submit(Op{Kind: Write, Start: start, Blocks: blocks}, len(x.jobs)+1)
}

func (x *rig) read(start, blocks uint64) *Job[*load] {
	x.t.Helper()
	return x.submit(Op{Kind: Read, Start: start, Blocks: blocks}, 0)
}

func (x *rig) flush() *Job[*load] {
	x.t.Helper()
	return x.submit(Op{Kind: Flush}, 0)
}

// state is where a job stands on a replica; gone tells that it is not in the table.
func (x *rig) state(j *Job[*load], r int) (s State, gone bool) {
	_ = x.tr.do(nil, asking{}, func(k *core) error {
		if sl := k.find(j.ID()); sl != nil {
			s = sl.on(1 << r)
		} else {
			gone = true
		}
		return nil
	})
	return s, gone
}

// requireState demands a job's states on the replicas, in their order.
func (x *rig) requireState(j *Job[*load], want ...State) {
	x.t.Helper()
	var got []State
	for r := range x.peers {
		s, gone := x.state(j, r)
		require.False(x.t, gone, "job %d is gone", j.ID())
		got = append(got, s)
	}
	require.Equal(x.t, want, got, "job %d", j.ID())
}

func (x *rig) requireGone(j *Job[*load]) {
	x.t.Helper()
	_, gone := x.state(j, 0)
	require.True(x.t, gone, "job %d is in the table:\n%v", j.ID(), x.tr.Dump())
}

// replica is a replica's state.
func (x *rig) replica(r int) ReplicaState { return x.tr.Stats().Replicas[r].State }

func (x *rig) requireReplica(r int, phase ReplicaPhase, home Home) {
	x.t.Helper()
	require.Equal(x.t, ReplicaState{phase, home}, x.replica(r), "replica %d", r)
}

// charges is what replica r is charged.
func (x *rig) charges(r int) (jobs int, bytes int64) {
	d := x.tr.Dump().Replicas[r]
	return d.Jobs, d.Bytes
}

// refused demands that a call is refused and has changed nothing.
func (x *rig) refused(call func() error) error {
	x.t.Helper()
	was, stats := x.tr.Fingerprint(), x.tr.Stats()
	err := call()
	require.Error(x.t, err)
	require.Equal(x.t, was, x.tr.Fingerprint(), "a refused call changed something: %v", err)
	now := x.tr.Stats()
	now.Orphans = stats.Orphans
	require.Equal(x.t, stats, now, "a refused call changed a counter")
	require.NoError(x.t, x.tr.Check())
	return err
}

// orphan demands that a completion is refused for a reason, counted by it, and has changed nothing.
func (x *rig) orphan(c *Conn[*load], id JobID, res Result, reason OrphanReason) {
	x.t.Helper()
	require.Error(x.t, x.orphanError(c, id, res, reason))
}

// orphanError is orphan, for a look at the error.
func (x *rig) orphanError(c *Conn[*load], id JobID, res Result, reason OrphanReason) *OrphanError {
	x.t.Helper()
	before := x.tr.Stats().Orphans
	err := x.refused(func() error { return c.Complete(id, res) })
	x.requireOrphan(err, c, id, reason)
	before[reason]++
	require.Equal(x.t, before, x.tr.Stats().Orphans)

	batch := []Completion{{ID: id, Result: res}}
	require.Equal(x.t, err, x.refused(func() error {
		require.Equal(x.t, 1, c.CompleteBatch(batch))
		return batch[0].Err
	}))
	before[reason]++
	require.Equal(x.t, before, x.tr.Stats().Orphans)
	var orphan *OrphanError
	require.ErrorAs(x.t, err, &orphan)
	return orphan
}

func (x *rig) requireOrphan(err error, c *Conn[*load], id JobID, reason OrphanReason) {
	x.t.Helper()
	var orphan *OrphanError
	require.ErrorAs(x.t, err, &orphan)
	require.Equal(x.t, reason, orphan.Reason, "%v", err)
	require.ErrorIs(x.t, err, ErrOrphan)
	for k, sentinel := range reasonErrors {
		require.Equal(x.t, OrphanReason(k) == reason, errors.Is(err, sentinel), "%v", sentinel)
	}
	require.Equal(x.t, id, orphan.Job)
	require.Equal(x.t, c.ID(), orphan.Conn)
	require.EqualValues(x.t, c.Replica(), orphan.Replica)
	var live ConnID
	if s := x.replica(c.Replica()); s.Connected() {
		live = x.peers[c.Replica()].conn.ID()
	}
	require.Equal(x.t, live, orphan.Current)
	if reason != OrphanStaleConn {
		require.NoError(x.t, orphan.Cause)
	}
}

// step lets every connected peer take what is ready and answer all it has; it tells whether anything moved.
func (x *rig) step() (moved bool) {
	x.t.Helper()
	for _, p := range x.peers {
		if !x.replica(p.r).Connected() {
			continue
		}
		moved = len(p.take()) > 0 || moved
		for len(p.box) > 0 && x.replica(p.r).Connected() {
			p.answer(p.box[0].ID)
			moved = true
		}
	}
	return moved
}

// settle goes on until nothing moves.
func (x *rig) settle() {
	x.t.Helper()
	for x.step() {
		require.NoError(x.t, x.tr.Check())
	}
}

// heal brings every replica back, by a repair where it needs one.
func (x *rig) heal() {
	x.t.Helper()
	for _, p := range x.peers {
		p.comeBack()
		x.settle()
	}
	for _, p := range x.peers {
		if x.replica(p.r).Phase == RepairReady {
			p.repair()
		}
	}
}

// finish is the liveness half: faults stop, replicas come back, and everything resolves, retires and is returned; contents
// are equal, and what they should be.
func (x *rig) finish() {
	x.t.Helper()
	require.Equal(x.t, Active, x.tr.Stats().Phase)
	x.heal()
	x.settle()
	f := x.flush()
	x.settle()
	require.True(x.t, f.Resolved(), "%v", x.tr.Dump())
	require.NoError(x.t, x.tr.Check())
	x.requireEmpty()
	for _, p := range x.peers {
		x.requireReplica(p.r, Voting, HomeOffline)
		for b := range uint64(rigBlocks) {
			require.Equal(x.t, x.peers[0].disk[b], p.disk[b], "replica %d, block %d", p.r, b)
			if !x.tainted {
				require.Equal(x.t, x.model[b], p.disk[b], "replica %d, block %d", p.r, b)
			}
		}
	}
}

// requireEmpty demands that every job has resolved and retired once, the table is empty and nothing is charged.
func (x *rig) requireEmpty() {
	x.t.Helper()
	d := x.tr.Dump()
	require.Zero(x.t, d.Active, "%v", d)
	require.Zero(x.t, d.Waiting)
	for r, rep := range d.Replicas {
		require.Zero(x.t, rep.Jobs+rep.Held+rep.Sent+rep.Ready+int(rep.Bytes), "replica %d:\n%v", r, d)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, j := range x.jobs {
		require.True(x.t, j.Resolved(), "job %d", j.ID())
		require.Equal(x.t, 1, x.resolved[j.ID()], "job %d resolved", j.ID())
		require.Equal(x.t, 1, x.retired[j.ID()], "job %d retired", j.ID())
	}
}

// count is how many events match.
func (x *rig) count(match func(Event) bool) (n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.events {
		if match(e) {
			n++
		}
	}
	return n
}

// eachOrder runs a scenario in both order modes.
func eachOrder(t *testing.T, f func(t *testing.T, cfg Config[*load])) {
	t.Helper()
	for o := range Order(numOrders) {
		t.Run(fmt.Sprint(o, "-orders"), func(t *testing.T) { f(t, Config[*load]{Order: o}) })
	}
}

// eachMode runs a scenario in both order modes and both read modes.
func eachMode(t *testing.T, f func(t *testing.T, cfg Config[*load])) {
	t.Helper()
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		for m := range Reads(numReads) {
			t.Run(fmt.Sprint("read-", m), func(t *testing.T) {
				cfg := cfg
				cfg.Reads = m
				f(t, cfg)
			})
		}
	})
}
