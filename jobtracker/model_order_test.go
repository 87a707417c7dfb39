package jobtracker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWritesReachTheDiskInOrder says that on each replica the writes of each block are executed in the order of their ids,
// whatever is skipped, replayed and repaired between them, in both order modes; that a read brings what the last write
// before it wrote; and that all replicas are equal in the end. The replicas execute what they have in any order they may,
// also what lies in the sockets of connections that have ended.
//
// Seen red with: no search through what is terminal, when a job waits and when its dependencies are collected; a new job
// that looks at its own dependencies only; what was found clear, what was found dry, or who waits for whom kept when a
// connection ends; spare reads that block nobody; writes that wait for the last write and not for the reads since; only
// what is not dispatched blocking where the tracker orders; everything done taken for vouched.
func TestWritesReachTheDiskInOrder(t *testing.T) {
	runs, steps := uint64(40), 5_000
	if *stress {
		runs, steps = 2_000, 60_000
	}
	var total orderCounts
	for seed := range runs {
		x := newOrderRun(t, seed)
		for range steps {
			x.step()
		}
		x.finish()
		total.add(x.orderCounts)
	}
	t.Logf("%+v", total)
	require.Positive(t, total.repairs)
	require.Positive(t, total.replays)
	require.Positive(t, total.failedReads)
}

type orderCounts struct{ jobs, writes, reads, cuts, replays, faults, repairs, failedReads int }

func (c *orderCounts) add(o orderCounts) {
	c.jobs += o.jobs
	c.writes += o.writes
	c.reads += o.reads
	c.cuts += o.cuts
	c.replays += o.replays
	c.faults += o.faults
	c.repairs += o.repairs
	c.failedReads += o.failedReads
}

// orderRun is a cluster of three of which at most one is not well at a time, so that no write fails.
type orderRun struct {
	orderCounts
	t     *testing.T
	r     *rand.Rand
	about string
	cfg   Config[*orderLoad]
	tr    *Tracker[*orderLoad]
	reps  [3]*orderReplica
	sick  int     // who is not well, or is about to be; -1: nobody
	truth []JobID // each block's last write
}

type orderLoad struct {
	id     JobID
	expect []JobID // of a read
	data   []JobID // of a copy
}

// orderReplica is a replica with its driver.
type orderReplica struct {
	disk       []JobID
	gen, flush uint64
	conn       *Conn[*orderLoad]
	ended      bool // the connection has, and is not quiesced
	box        []*orderReq
	byID       map[JobID]*orderReq
	last       []JobID
	buf        []Dispatch[*orderLoad]
	repair     *Repair[*orderLoad]
	copy       *Job[*orderLoad]
	finishing  bool
}

type orderReq struct {
	d             Dispatch[*orderLoad]
	executed, bad bool
	data          []JobID
}

func newOrderRun(t *testing.T, seed uint64) *orderRun {
	r := rand.New(rand.NewPCG(seed, 7))
	x := &orderRun{t: t, r: r, sick: -1}
	x.cfg = Config[*orderLoad]{
		Replicas: 3, Blocks: 4 + r.Uint64N(20), BlockSize: 1, Order: Order(seed % numOrders), Reads: Reads(seed / 2 % numReads),
		AutoSync: SyncKind(r.IntN(numSyncs - 1)), AutoSyncJobs: 5 + r.IntN(100), MaxJobs: 8 + r.IntN(60), OfflineFor: -1, ReplyTimeout: -1,
	}
	x.cfg.OfflineJobs = x.cfg.MaxJobs
	x.about = fmt.Sprintf("seed %d, order %v, reads %v", seed, x.cfg.Order, x.cfg.Reads)
	x.truth = make([]JobID, x.cfg.Blocks)
	var err error
	x.tr, err = New(x.cfg)
	require.NoError(t, err)
	_, err = x.tr.Activate(ActivateOptions{Generation: 1, Create: true})
	require.NoError(t, err)
	for i := range x.reps {
		x.reps[i] = &orderReplica{disk: make([]JobID, x.cfg.Blocks), buf: make([]Dispatch[*orderLoad], 8)}
		x.connect(i)
	}
	return x
}

func (x *orderRun) phase(i int) ReplicaPhase { return x.tr.Stats().Replicas[i].State.Phase }

func (x *orderRun) connect(i int) {
	p := x.reps[i]
	c, err := x.tr.Connect(i, Hello{Generation: p.gen, Flush: p.flush})
	require.NoError(x.t, err, x.about)
	p.conn, p.ended, p.box = c, false, nil
	p.byID, p.last = map[JobID]*orderReq{}, make([]JobID, x.cfg.Blocks)
	if c.Plan() == PlanReplay {
		x.replays++
	}
}

// step does one thing.
func (x *orderRun) step() {
	i := x.r.IntN(len(x.reps))
	switch k := x.r.IntN(1000); {
	case k < 250:
		x.submit()
	case k < 450:
		x.take(i)
	case k < 550:
		x.execute(i)
	case k < 930:
		for range 1 + x.r.IntN(4) {
			x.answer(i, false)
		}
	case k < 940:
		if x.sick < 0 {
			x.sick = i
			x.answer(i, true)
		}
	case k < 945:
		x.hurt(i)
	default:
		x.nurse()
	}
}

func (x *orderRun) submit() {
	kind := []Kind{Write, Write, Write, Write, Zero, Trim, Read, Read, Read, Read, Read, Read, Flush, Barrier}[x.r.IntN(14)]
	op, load := Op{Kind: kind}, &orderLoad{}
	if !kind.fences() {
		op.Blocks = 1 + x.r.Uint64N(min(3, x.cfg.Blocks))
		op.Start = x.r.Uint64N(x.cfg.Blocks - op.Blocks + 1)
	} else if x.r.IntN(4) > 0 {
		return
	}
	j, err := x.tr.Submit(mEnded, op, load)
	if err != nil {
		return // there is no room
	}
	x.jobs++
	load.id = j.ID()
	span := x.truth[op.Start : op.Start+op.Blocks]
	if kind == Read {
		load.expect = slices.Clone(span)
	}
	for b := range span {
		if kind.writes() {
			span[b] = j.ID()
		}
	}
}

func (x *orderRun) take(i int) (n int) {
	p := x.reps[i]
	got, err := p.conn.NextBatch(mEnded, p.buf[:1+x.r.IntN(len(p.buf))])
	require.True(x.t, err == nil || len(got) == 0, x.about)
	for _, d := range got {
		q := &orderReq{d: d}
		q.d.Deps = slices.Clone(d.Deps)
		require.Nil(x.t, p.byID[d.ID], "%s: job %d is dispatched twice", x.about, d.ID)
		p.byID[d.ID] = q
		p.box = append(p.box, q)
	}
	return len(got)
}

// ready tells whether the replica may execute a request.
func (p *orderReplica) ready(q *orderReq) bool {
	for _, d := range q.d.Deps {
		if !p.byID[d].executed {
			return false
		}
	}
	return !q.executed
}

// execute has a replica execute any request that it may.
func (x *orderRun) execute(i int) {
	p := x.reps[i]
	if n := len(p.box); n > 0 {
		if q := p.box[x.r.IntN(n)]; p.ready(q) {
			x.run(i, q, false)
		}
	}
}

func (x *orderRun) run(i int, q *orderReq, fail bool) {
	p, d := x.reps[i], &q.d
	q.executed, q.bad = true, fail
	for _, dep := range d.Deps {
		q.bad = q.bad || p.byID[dep].bad
	}
	if q.bad {
		return
	}
	write := func(b uint64, v JobID) {
		if d.ID <= p.last[b] {
			x.t.Fatalf("%s: replica %d: job %d writes block %d after job %d\n%v", x.about, i, d.ID, b, p.last[b], x.tr.Dump())
		}
		p.last[b], p.disk[b] = d.ID, v
		x.writes++
	}
	for b := d.Start; b < d.Start+d.Blocks; b++ {
		switch {
		case d.Kind.writes():
			write(b, d.ID)
		case d.Half == HalfWrite:
			write(b, d.Payload.data[b-d.Start])
		default:
			q.data = append(q.data, p.disk[b])
		}
	}
	if d.Kind == Flush && d.Number != 0 {
		p.gen, p.flush = d.Generation, d.Number
	}
}

// answer has the reply to any request that was executed, or can be, come in; with fail it is a read, and fails.
func (x *orderRun) answer(i int, fail bool) {
	p := x.reps[i]
	if p.ended || len(p.box) == 0 {
		return
	}
	at := x.r.IntN(len(p.box))
	q := p.box[at]
	switch {
	case fail && (q.d.Kind != Read || !p.ready(q)):
		return
	case !q.executed && !p.ready(q):
		return
	case !q.executed:
		x.run(i, q, fail)
	}
	p.box = slices.Delete(p.box, at, at+1)
	res := Result{Kind: q.d.Kind}
	if q.bad {
		res.Err = errReplica
		x.failedReads += b2i(q.d.Kind == Read)
	} else if q.d.Kind == Read {
		res.Digest = digestOf(q.data)
		x.check(i, q)
	} else if q.d.Half == HalfRead {
		q.d.Payload.data = q.data
	}
	require.NoError(x.t, p.conn.Complete(q.d.ID, res), x.about)
	if p.conn.Context().Err() != nil { // it failed what depended on a read that it failed
		p.ended = true
		x.faults++
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// check says that a read brings what the last write before it wrote. Where the replica orders, one that was asked again may
// bring what is newer.
func (x *orderRun) check(i int, q *orderReq) {
	x.reads++
	want := q.d.Payload.expect
	for b, v := range q.data {
		if v != want[b] && (v < want[b] || x.cfg.Order == TrackerOrders) {
			x.t.Fatalf("%s: replica %d: read %d of block %d brought job %d's data, want job %d's", x.about, i, q.d.ID, q.d.Start+uint64(b), v, want[b])
		}
	}
}

// hurt cuts or faults a replica if all are well.
func (x *orderRun) hurt(i int) {
	if x.sick >= 0 {
		return
	}
	x.sick = i
	p := x.reps[i]
	if x.r.IntN(3) == 0 {
		require.NoError(x.t, x.tr.Fault(i, errFault))
		x.faults++
	} else {
		p.conn.Close(nil)
		x.cuts++
	}
	p.ended = true
}

// nurse carries the one that is not well on.
func (x *orderRun) nurse() {
	if x.sick < 0 {
		return
	}
	i := x.sick
	p := x.reps[i]
	switch x.phase(i) {
	case Stopping:
		for range x.r.IntN(2 * (len(p.box) + 1)) { // the rest is never executed
			x.execute(i)
		}
		require.NoError(x.t, p.conn.Quiesced())
	case Down:
		x.connect(i)
	case RepairReady:
		var err error
		p.repair, err = x.tr.Repair(i)
		require.NoError(x.t, err, x.about)
		p.finishing = false
		p.copy, err = p.repair.Copy((i+1)%len(x.reps), 0, x.cfg.Blocks, &orderLoad{})
		require.NoError(x.t, err, x.about)
	case Repairing:
		switch {
		case !p.copy.Resolved() || p.finishing:
		case p.copy.Err() != nil:
			require.NoError(x.t, p.repair.Abort(nil))
		default:
			require.NoError(x.t, p.repair.Finish())
			p.finishing = true
			x.repairs++
		}
		if x.r.IntN(40) == 0 && !p.finishing { // leaves a copy behind
			require.NoError(x.t, p.repair.Abort(nil))
		}
	case Voting:
		for _, q := range p.box {
			if q.bad || slices.ContainsFunc(q.d.Deps, func(d JobID) bool { return p.byID[d].bad }) {
				return // it is still to fail what depends on a read that it failed
			}
		}
		x.sick = -1
	case Fresh:
	}
}

// finish has everything end, and compares.
func (x *orderRun) finish() {
	flush := func() *Job[*orderLoad] {
		f, err := x.tr.Submit(mEnded, Op{Kind: Flush}, nil)
		require.NoError(x.t, err, x.about)
		return f
	}
	var f *Job[*orderLoad]
	for round := 0; ; round++ {
		require.Less(x.t, round, 10_000, "%s: it does not end\n%v", x.about, x.tr.Dump())
		idle := true
		for i := range x.reps {
			idle = x.take(i) == 0 && idle
			for range 4 * len(x.reps[i].box) {
				x.answer(i, false)
			}
			idle = idle && len(x.reps[i].box) == 0
		}
		x.nurse()
		if idle && x.sick < 0 {
			if f != nil {
				break
			}
			f = flush()
		}
	}
	require.NoError(x.t, f.Err(), x.about)
	for i, p := range x.reps {
		require.Equal(x.t, x.truth, p.disk, "%s: replica %d", x.about, i)
	}
	require.Zero(x.t, x.tr.Dump().Active, "%s\n%v", x.about, x.tr.Dump())
	x.tr.Close()
}
