package jobtracker

import (
	"context"
	"errors"
	"slices"

	"github.com/stretchr/testify/require"
)

// peer is a scripted replica: a driver and a disk.
type peer struct {
	rig  *rig
	r    int
	id   ID
	conn *Conn[*load]
	disk map[uint64]int
	gen  uint64 // what it remembers: the generation and number of the last flush
	num  uint64

	batch [4]Dispatch[*load]
	box   []Dispatch[*load] // taken and not answered, in the order of dispatch
	sent  map[JobID]int     // how often each job was dispatched to it, in all lives
	bad   map[JobID]error   // jobs that it will fail

	// Of the present connection.
	ran   map[JobID]Result
	reads map[JobID]bool   // these of them only read: what depends on them does not fail with them
	last  map[uint64]JobID // the last job that changed a block
}

var errDisk = errors.New("disk error")

// errDep is how a replica that orders fails what depends on a failed job that was to change something.
var errDep = errors.New("not executed: it depends on a failed job")

func (p *peer) hello() Hello {
	return Hello{Replica: p.id, Blocks: rigBlocks, BlockSize: 512, Generation: p.gen, Flush: p.num}
}

// connect opens a connection, which must work.
func (p *peer) connect() *Conn[*load] {
	p.rig.t.Helper()
	c, err := p.rig.tr.Connect(p.r, p.hello())
	require.NoError(p.rig.t, err)
	p.conn, p.box = c, nil
	p.ran, p.reads, p.last = map[JobID]Result{}, map[JobID]bool{}, map[uint64]JobID{}
	return c
}

// close ends the connection and lets the jobs taken drop: they were never executed.
func (p *peer) close() *Conn[*load] {
	p.conn.Close(nil)
	p.box = nil
	return p.conn
}

func (p *peer) quiesce() {
	p.rig.t.Helper()
	require.NoError(p.rig.t, p.conn.Quiesced())
}

// cut ends the connection and says that it is quiesced.
func (p *peer) cut() *Conn[*load] {
	p.rig.t.Helper()
	p.close()
	p.quiesce()
	return p.conn
}

// comeBack connects again, if there is no connection.
func (p *peer) comeBack() {
	p.rig.t.Helper()
	if p.rig.replica(p.r).Phase == Stopping {
		p.quiesce()
	}
	if p.rig.replica(p.r).Phase == Down {
		p.connect()
	}
}

// repair copies everything from a voter and finishes.
func (p *peer) repair() {
	x := p.rig
	x.t.Helper()
	rep, err := x.tr.Repair(p.r)
	require.NoError(x.t, err)
	src := slices.IndexFunc(x.tr.Stats().Replicas, func(r ReplicaStats) bool { return r.State.Phase == Voting })
	require.GreaterOrEqual(x.t, src, 0)
	pay := &load{}
	j, err := rep.Copy(src, 0, rigBlocks, pay)
	require.NoError(x.t, err)
	x.jobs = append(x.jobs, j)
	x.loads[j.ID()] = pay
	x.settle()
	require.NoError(x.t, j.Err())
	require.NoError(x.t, rep.Finish())
	x.settle()
	require.NoError(x.t, rep.Ended().Err())
	x.requireReplica(p.r, Voting, HomeOffline)
}

// take takes all that is ready and returns the ids.
func (p *peer) take() (ids []JobID) {
	x := p.rig
	x.t.Helper()
	for {
		got, err := p.conn.NextBatch(ended(), p.batch[:])
		if len(got) == 0 {
			require.ErrorIs(x.t, err, context.Canceled)
			return ids
		}
		require.NoError(x.t, err)
		for _, d := range got {
			if len(p.inBox(d.ID)) > 0 {
				require.Fail(x.t, "dispatched twice", "job %d", d.ID)
			}
			if x.cfg.Order == TrackerOrders && len(d.Deps) > 0 || slices.ContainsFunc(d.Deps, func(dep JobID) bool { return dep >= d.ID }) {
				require.Fail(x.t, "bad dependencies", "job %d depends on %d", d.ID, d.Deps)
			}
			d.Deps = slices.Clone(d.Deps) // the batch is used again
			p.box = append(p.box, d)
			p.sent[d.ID]++
			ids = append(ids, d.ID)
		}
	}
}

func (p *peer) inBox(id JobID) []Dispatch[*load] {
	i := slices.IndexFunc(p.box, func(d Dispatch[*load]) bool { return d.ID == id })
	if i < 0 {
		return nil
	}
	return p.box[i : i+1]
}

// deps are what travelled with a job that was taken.
func (p *peer) deps(j *Job[*load]) []JobID {
	p.rig.t.Helper()
	d := p.inBox(j.ID())
	require.NotEmpty(p.rig.t, d, "replica %d has not got job %d", p.r, j.ID())
	return slices.Clone(d[0].Deps)
}

// run executes a job that was taken, after what it depends on.
func (p *peer) run(id JobID) Result {
	x := p.rig
	x.t.Helper()
	if res, ok := p.ran[id]; ok {
		return res
	}
	in := p.inBox(id)
	if len(in) == 0 {
		require.Fail(x.t, "not dispatched", "replica %d has not got job %d", p.r, id)
	}
	d := in[0]
	res := Result{Kind: d.Kind}
	p.reads[id] = d.Kind == Read || d.Half == HalfRead
	for _, dep := range d.Deps {
		if p.run(dep).Err != nil && !p.reads[dep] {
			res.Err = errDep
		}
	}
	if err := p.bad[id]; err != nil {
		res.Err = err
	}
	if res.Err == nil {
		p.execute(&d)
	}
	p.ran[id] = res
	return res
}

// execute does a job on the disk.
func (p *peer) execute(d *Dispatch[*load]) {
	x := p.rig
	var got []int
	for b := d.Start; b < d.Start+d.Blocks; b++ {
		changes := d.Kind.writes() || d.Half == HalfWrite
		if changes {
			if p.last[b] >= d.ID {
				require.Fail(x.t, "written out of order", "replica %d, block %d: %d after %d", p.r, b, d.ID, p.last[b])
			}
			p.last[b] = d.ID
		}
		switch {
		case d.Kind == Write:
			p.disk[b] = d.Payload.value
		case d.Kind == Zero, d.Kind == Trim:
			p.disk[b] = 0
		case d.Half == HalfWrite:
			p.disk[b] = d.Payload.got[b-d.Start]
		default:
			got = append(got, p.disk[b])
		}
	}
	switch {
	case d.Kind == Read && !x.tainted:
		require.Equal(x.t, x.want[d.ID], got, "replica %d: read %d", p.r, d.ID)
		d.Payload.got = got
	case d.Kind == Read || d.Half == HalfRead:
		d.Payload.got = got
	case d.Kind == Flush && d.Number != 0:
		require.Positive(x.t, d.Generation)
		p.gen, p.num = d.Generation, d.Number
	}
}

// answer executes a job that was taken and hands in the answer, which must be applied.
func (p *peer) answer(id JobID) {
	p.rig.t.Helper()
	res := p.run(id)
	if err := p.conn.Complete(id, res); err != nil {
		require.NoError(p.rig.t, err)
	}
	p.drop(id)
}

// drop forgets a job that was taken.
func (p *peer) drop(id JobID) {
	p.box = slices.DeleteFunc(p.box, func(d Dispatch[*load]) bool { return d.ID == id })
}

// takeAnswer takes what is ready and answers these jobs.
func (p *peer) takeAnswer(jobs ...*Job[*load]) {
	p.rig.t.Helper()
	p.take()
	for _, j := range jobs {
		p.answer(j.ID())
	}
}

// fail has a job that was taken fail on this replica.
func (p *peer) fail(j *Job[*load]) {
	p.rig.t.Helper()
	p.bad[j.ID()] = errDisk
	if j != nil && len(p.inBox(j.ID())) == 0 {
		p.take()
	}
	require.NoError(p.rig.t, p.conn.Complete(j.ID(), p.run(j.ID())))
	p.drop(j.ID())
}

// has tells whether a job is in the peer's hands.
func (p *peer) has(j *Job[*load]) bool { return len(p.inBox(j.ID())) > 0 }

// failLate fails a job that the peer executed, but has not answered.
func (p *peer) failLate(j *Job[*load]) {
	p.rig.t.Helper()
	require.NoError(p.rig.t, p.conn.Complete(j.ID(), Result{Err: errDisk}))
	p.drop(j.ID())
}

// askedFor answers what a read waits for, one replica at a time, until one has the read; that one has answered, the
// others have not.
func (x *rig) askedFor(r *Job[*load], before ...*Job[*load]) *peer {
	x.t.Helper()
	for _, p := range x.peers {
		if s, _ := x.state(r, p.r); s == StateQueued || s == StateSent {
			p.takeAnswer(before...)
			p.take()
			require.True(x.t, p.has(r))
			return p
		}
	}
	require.Fail(x.t, "nobody is asked")
	return nil
}
