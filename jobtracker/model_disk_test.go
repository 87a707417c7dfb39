package jobtracker

import (
	"errors"
	"fmt"

	"pgregory.net/rapid"
)

// The model's replicas: devices that execute in any order they may, keep the order of nothing by themselves, and lose on a
// crash whatever no flush has made durable. A block's value is the id of the job that wrote it last; 0 is blank.

// mDisk is one device.
type mDisk struct {
	id         ID
	gen, flush uint64 // what it remembers
	dirty      bool   // it may hold writes that no numbered flush vouches for
	broken     bool   // it lost what it had vouched for, or lied; whole again when a repair of it is done
	now        []JobID
	saved      []JobID   // what a crash leaves
	since      [][]JobID // a block's values since the last flush, oldest first
}

func newDisk(n uint64, id ID) *mDisk {
	return &mDisk{id: id, now: make([]JobID, n), saved: make([]JobID, n), since: make([][]JobID, n)}
}

func (d *mDisk) put(b uint64, v JobID, durable bool) {
	d.now[b] = v
	d.dirty = true
	if durable {
		d.saved[b], d.since[b] = v, nil
	} else {
		d.since[b] = append(d.since[b], v)
	}
}

func (d *mDisk) sync(number, gen uint64) {
	copy(d.saved, d.now)
	clear(d.since)
	if number != 0 {
		d.gen, d.flush, d.dirty = gen, number, false
	}
}

// crash keeps, of each block, what is durable or anything written since.
func (d *mDisk) crash(t *rapid.T) {
	for b, vs := range d.since {
		if len(vs) == 0 {
			continue
		}
		if k := rapid.IntRange(0, len(vs)).Draw(t, "kept"); k > 0 {
			d.saved[b] = vs[k-1]
		}
		d.now[b], d.since[b] = d.saved[b], nil
	}
}

// become makes the device equal to another, durably, as a reconcile would.
func (d *mDisk) become(o *mDisk, gen, flush uint64) {
	copy(d.now, o.now)
	copy(d.saved, o.now)
	clear(d.since)
	d.gen, d.flush, d.dirty, d.broken = gen, flush, false, false
}

// mReq is a job in the hands of a replica.
type mReq struct {
	job      *mJob
	d        Dispatch[*mPay] // with its own Deps
	executed bool
	bad      bool // executed or refused with an error
	answered bool
	lie      bool    // its answer to a read was made up
	data     []JobID // of a read
}

// spoiled tells whether what it answered was made up.
func (q *mReq) spoiled() bool { return q == nil || q.lie }

// mConn is one life of a connection, as its driver and its replica know it. What lies in its socket can be executed until
// it is quiesced, also when it has ended.
type mConn struct {
	c        *Conn[*mPay]
	r        int
	disk     *mDisk
	live     bool // by the model
	quiesced bool
	cause    error // by the model; nil: not known exactly
	reqs     []*mReq
	byID     map[JobID]*mReq
	last     map[uint64]JobID // the highest job that wrote a block on this connection
	buf      []Dispatch[*mPay]
}

var errReplica = errors.New("the replica failed it")

// ready tells whether the replica may execute a request now.
func (c *mConn) ready(q *mReq) bool {
	if q.executed {
		return false
	}
	for _, d := range q.d.Deps {
		if !c.byID[d].executed {
			return false
		}
	}
	return true
}

// doomed tells whether a dependency failed, so that the replica must fail the request unexecuted.
func (c *mConn) doomed(q *mReq) bool {
	for _, d := range q.d.Deps {
		if c.byID[d].bad {
			return true
		}
	}
	return false
}

// execute has the replica do a request, or fail it. A write that fails may have been done in part or not at all. What is
// wrong with the order is returned.
func (c *mConn) execute(q *mReq, fail, partly bool) error {
	q.executed = true
	if c.doomed(q) {
		q.bad = true
		return nil
	}
	q.bad = fail
	if fail && !partly {
		return nil
	}
	d := &q.d
	switch {
	case d.Kind.writes():
		for b := d.Start; b < d.Start+d.Blocks; b++ {
			if err := c.write(b, d.ID, d.ID, d.FUA); err != nil {
				return err
			}
		}
	case d.Kind == Read || d.Half == HalfRead || d.Half == HalfSum || d.Half == HalfCompare:
		q.data = append([]JobID(nil), c.disk.now[d.Start:d.Start+d.Blocks]...)
	case d.Half == HalfWrite:
		for i, v := range d.Payload.data {
			if err := c.write(d.Start+uint64(i), d.ID, v, false); err != nil {
				return err
			}
		}
	case d.Kind == Flush:
		if !fail {
			c.disk.sync(d.Number, d.Generation)
		}
	}
	return nil
}

func (c *mConn) write(b uint64, id, v JobID, durable bool) error {
	if id <= c.last[b] {
		return fmt.Errorf("replica %d: job %d writes block %d after job %d", c.r, id, b, c.last[b])
	}
	c.last[b] = id
	c.disk.put(b, v, durable)
	return nil
}

// digest is a hash of data, never 0.
func digestOf(data []JobID) Digest {
	h := uint64(14695981039346656037)
	for _, v := range data {
		h = (h ^ uint64(v)) * 1099511628211
	}
	return Digest(h | 1)
}
