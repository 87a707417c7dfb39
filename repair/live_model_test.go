package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/staleproof/staleproof/jobtracker"
)

const (
	mBlocks  = 12
	mExtent  = 2
	mExtents = mBlocks / mExtent
	mStill   = 400 // moves within which everything ends well when faults have stopped
)

// io is a job's payload.
type mIO struct {
	value uint32
	same  bool     // what a comparison has found
	data  []uint32 // of a copy; of a comparison its own checksum
}

// mWrite is a write to one block, in the order of submission.
type mWrite struct {
	value   uint32
	job     *jobtracker.Job[*mIO] // nil: certain
	flushed bool                  // a flush behind it was acknowledged
}

// mNode is a replica: a device that loses what it has not flushed, and what it remembers, which is durable.
type mNode struct {
	data, disk [mBlocks]uint32
	generation uint64
	flush      uint64
	equal      bool
	dirty      []bool

	conn    *jobtracker.Conn[*mIO]
	socket  []jobtracker.Dispatch[*mIO] // sent and not executed
	replies []jobtracker.Dispatch[*mIO] // executed and not answered
	fails   bool                        // its next job fails
	span    [2]jobtracker.JobID         // flushes done as a voter, from..to
	ticket  *jobtracker.Repair[*mIO]
	copies  []*jobtracker.Job[*mIO]
}

// mWorld is a front end and its replicas. It keeps the rules of "What replicas remember".
type mWorld struct {
	draw       func(n int) int
	n, w       int
	nodes      []*mNode
	tr         *jobtracker.Tracker[*mIO]
	begun      *jobtracker.Handle
	generation uint64
	newest     [mExtents]jobtracker.JobID
	history    [mBlocks][]mWrite
	flushes    []mFlush
	values     uint32
	reconcile  bool // asked for by the tracker
	events     int
}

type mFlush struct {
	job  *jobtracker.Job[*mIO]
	upTo [mBlocks]int // how many writes of each block it is behind
}

func newFront(draw func(int) int) *mWorld {
	w := &mWorld{draw: draw, n: 3, w: 2}
	if draw(3) == 0 {
		w.n, w.w = 5, 3
	}
	for range w.n {
		w.nodes = append(w.nodes, &mNode{dirty: make([]bool, mExtents)})
	}
	for b := range w.history {
		w.history[b] = []mWrite{{flushed: true}}
	}
	w.start(jobtracker.ActivateOptions{Create: true})
	for r := range w.nodes {
		w.connect(r)
	}
	for _, n := range w.nodes {
		n.generation = w.generation // a device is made when all have it
	}
	return w
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// start is a new front end that activates.
func (w *mWorld) start(o jobtracker.ActivateOptions) {
	var err error
	w.reconcile = false
	w.tr, err = jobtracker.New(jobtracker.Config[*mIO]{
		Replicas: w.n, WriteQuorum: w.w, Blocks: mBlocks, BlockSize: 512, ExtentBlocks: mExtent, ReplyTimeout: -1, OfflineFor: -1,
		OfflineJobs: 6, MaxJobs: 64,
		OnEvent: func(e jobtracker.Event) {
			if e.Kind == jobtracker.ReconcileNeeded {
				w.reconcile = true
			}
			if e.Kind == jobtracker.ReplicaChanged && e.To.Home != jobtracker.HomeOffline {
				w.nodes[e.Replica].span = [2]jobtracker.JobID{} // it does not vote
			}
		},
	})
	must(err)
	w.generation++ // ordered and never reused (R23)
	o.Generation = w.generation
	w.begun, err = w.tr.Activate(o)
	must(err)
	w.newest = [mExtents]jobtracker.JobID{}
}

func (w *mWorld) phase(r int) jobtracker.ReplicaPhase { return w.tr.Stats().Replicas[r].State.Phase }

func (n *mNode) blank() bool { return n.generation == 0 }

func (w *mWorld) connect(r int) {
	n := w.nodes[r]
	if p := w.tr.Stats().Phase; w.phase(r) != jobtracker.Down || p != jobtracker.Active && p != jobtracker.Activating {
		return
	}
	hello := jobtracker.Hello{Generation: n.generation, Flush: n.flush}
	for _, d := range n.dirty {
		hello.Dirty = hello.Dirty || d && !n.equal
	}
	if n.blank() {
		hello = jobtracker.Hello{}
	}
	var err error
	n.conn, err = w.tr.Connect(r, hello)
	must(err)
}

// cut ends a connection and drains it: what is in the socket is executed, or, after a power failure, lost.
func (w *mWorld) cut(r int, power bool) {
	n := w.nodes[r]
	if n.conn == nil {
		return
	}
	n.conn.Close(nil)
	w.drain(n, power)
	must(n.conn.Quiesced())
	n.conn = nil
}

func (w *mWorld) drain(n *mNode, power bool) {
	for len(n.socket) > 0 && (!power || w.draw(2) == 0) {
		w.execute(n)
	}
	if power {
		for b := range n.data {
			if w.draw(2) == 0 {
				n.data[b] = n.disk[b]
			}
			n.disk[b] = n.data[b]
		}
	}
	n.socket, n.replies, n.ticket, n.copies, n.fails = nil, nil, nil, nil, false
}

// remember has a voter remember the generation.
func (w *mWorld) remember(r int) {
	n := w.nodes[r]
	if w.tr.Stats().Phase == jobtracker.Active && w.phase(r) == jobtracker.Voting && n.generation != w.generation {
		n.generation, n.flush, n.equal = w.generation, 0, false
	}
}

// take has a node be sent a job. What it must remember before is durable first.
func (w *mWorld) take(r int) bool {
	n := w.nodes[r]
	if n.conn == nil {
		return false
	}
	w.remember(r)
	var d jobtracker.Dispatch[*mIO]
	if n.conn.Next(gone, &d) != nil {
		return false
	}
	if d.Kind == jobtracker.Write || d.Half == jobtracker.HalfWrite {
		n.equal = false
		for b := d.Start; b < d.Start+d.Blocks; b++ {
			n.dirty[b/mExtent] = true // R18
		}
	}
	n.socket = append(n.socket, d)
	return true
}

var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// execute has a node do one of the jobs that were sent to it.
func (w *mWorld) execute(n *mNode) bool {
	if len(n.socket) == 0 {
		return false
	}
	i := w.draw(len(n.socket))
	d := n.socket[i]
	n.socket = append(n.socket[:i:i], n.socket[i+1:]...)
	for b := d.Start; b < d.Start+d.Blocks; b++ {
		switch {
		case d.Kind == jobtracker.Write:
			n.data[b] = d.Payload.value
		case d.Half == jobtracker.HalfWrite:
			n.data[b] = d.Payload.data[b-d.Start]
		}
	}
	switch {
	case d.Half == jobtracker.HalfRead || d.Half == jobtracker.HalfSum:
		d.Payload.data = append([]uint32(nil), n.data[d.Start:d.Start+d.Blocks]...)
	case d.Half == jobtracker.HalfCompare:
		d.Payload.same = slices.Equal(d.Payload.data, n.data[d.Start:d.Start+d.Blocks])
	case d.Kind == jobtracker.Flush:
		n.disk = n.data
	}
	n.replies = append(n.replies, d)
	return true
}

// deliver hands in a reply. A number is remembered before it counts, and only on the live connection (R22).
func (w *mWorld) deliver(r int) bool {
	n := w.nodes[r]
	if n.conn == nil || len(n.replies) == 0 {
		return false
	}
	i := w.draw(len(n.replies))
	d := n.replies[i]
	n.replies = append(n.replies[:i:i], n.replies[i+1:]...)
	if n.conn.Context().Err() != nil {
		w.cut(r, false)
		return true
	}
	res := jobtracker.Result{Same: d.Half == jobtracker.HalfCompare && d.Payload.same}
	if n.fails {
		n.fails, res.Err = false, errTest
	} else if d.Number != 0 {
		n.generation, n.flush = d.Generation, d.Number
	}
	voting := w.phase(r) == jobtracker.Voting
	must(n.conn.Complete(d.ID, res))
	if d.Kind == jobtracker.Flush && res.Err == nil && voting && w.phase(r) == jobtracker.Voting {
		if n.span[0] == 0 {
			n.span[0] = d.ID
		}
		n.span[1] = max(n.span[1], d.ID)
	}
	return true
}

// tidy clears the bits of extents that no change has come to since a flush that all replicas have done as voters (R19).
func (w *mWorld) tidy(r int) {
	first, last := jobtracker.JobID(0), ^jobtracker.JobID(0)
	for _, n := range w.nodes {
		if n.span[0] == 0 {
			return
		}
		first, last = max(first, n.span[0]), min(last, n.span[1])
	}
	if n := w.nodes[r]; last >= first && n.conn != nil {
		for e := range n.dirty {
			if w.newest[e] < last {
				n.dirty[e] = false
			}
		}
	}
}

func (w *mWorld) submit() {
	if w.tr.Stats().Phase != jobtracker.Active || w.tr.Dump().Active > 40 {
		return
	}
	if w.draw(4) == 0 {
		f := mFlush{}
		for b := range w.history {
			f.upTo[b] = len(w.history[b])
		}
		var err error
		f.job, err = w.tr.Submit(gone, jobtracker.Op{Kind: jobtracker.Flush}, nil)
		must(err)
		w.flushes = append(w.flushes, f)
		return
	}
	w.values++
	start := uint64(w.draw(mBlocks))
	op := jobtracker.Op{Kind: jobtracker.Write, Start: start, Blocks: 1 + uint64(w.draw(min(5, mBlocks-int(start))))}
	j, err := w.tr.Submit(gone, op, &mIO{value: w.values})
	must(err)
	for b := op.Start; b < op.Start+op.Blocks; b++ {
		w.history[b] = append(w.history[b], mWrite{value: w.values, job: j})
		w.newest[b/mExtent] = j.ID()
	}
}

// note takes note of what flushes have made certain.
func (w *mWorld) note() {
	keep := w.flushes[:0]
	for _, f := range w.flushes {
		if !f.job.Resolved() {
			keep = append(keep, f)
			continue
		}
		if f.job.Err() != nil {
			continue
		}
		for b, n := range f.upTo {
			for i := range w.history[b][:min(n, len(w.history[b]))] {
				if h := &w.history[b][i]; h.job == nil || h.job.Resolved() && h.job.Err() == nil {
					h.flushed = true
				}
			}
		}
	}
	w.flushes = keep
}

// allowed tells whether a block may hold a value: after a crash whatever came after the last write that a flush covers.
func (w *mWorld) allowed(b int, value uint32, crashed bool) bool {
	for _, h := range slices.Backward(w.history[b]) {
		if h.value == value {
			return true
		}
		if crashed && h.flushed || !crashed && (h.job == nil || h.job.Resolved() && h.job.Err() == nil) {
			return false
		}
	}
	return false
}

// check demands that the active replicas hold the same, and what they may.
func (w *mWorld) check(crashed bool) error {
	w.note()
	var first *mNode
	for r, n := range w.nodes {
		if w.phase(r) != jobtracker.Voting {
			continue
		}
		if first == nil {
			first = n
		}
		for b := range n.data {
			if n.data[b] != first.data[b] {
				return fmt.Errorf("replica %d, block %d: %d, another has %d\n%v", r, b, n.data[b], first.data[b], w.tr.Dump())
			}
			if !w.allowed(b, n.data[b], crashed) {
				return fmt.Errorf("replica %d, block %d: %d is lost: %v\n%v", r, b, n.data[b], w.history[b], w.tr.Dump())
			}
		}
	}
	if crashed && first != nil {
		for b := range w.history {
			w.history[b] = []mWrite{{value: first.data[b], flushed: true}}
		}
	}
	return w.tr.Check()
}

// repair takes one step of the repair of a node, as Live does.
func (w *mWorld) repair(r int) {
	n := w.nodes[r]
	switch p := w.phase(r); {
	case p == jobtracker.RepairReady:
		var err error
		n.ticket, err = w.tr.Repair(r)
		must(err)
		n.copies = nil
		if source := w.voter(); source >= 0 && !n.blank() {
			for e := range mExtents {
				have, want := ExtentMeta{Dirty: n.dirty[e]}, ExtentMeta{Dirty: w.nodes[source].dirty[e]}
				if !want.Same(have) {
					continue
				}
				if err := n.ticket.Same(e); err != nil && !errors.Is(err, jobtracker.ErrUnrepaired) {
					panic(err)
				}
			}
		}
	case p != jobtracker.Repairing || n.ticket == nil:
	case n.ticket.Finish() == nil: // refused while anything is left
	default:
		e, ok, err := n.ticket.Next(w.draw(mExtents))
		if err == nil && !ok {
			e, ok, err = n.ticket.Next(0)
		}
		if source := w.voter(); ok && err == nil && source >= 0 && w.draw(2) == 0 {
			_, err := n.ticket.Compare(source, e.Index, &mIO{})
			must(err)
		} else if ok && err == nil && source >= 0 {
			j, err := n.ticket.Copy(source, e.Start, e.Blocks, &mIO{})
			must(err)
			w.newest[e.Index] = j.ID()
		}
		if w.draw(60) == 0 {
			_ = n.ticket.Abort(errTest) // it may have ended
		}
	}
}

// voter is a replica to copy from; -1 if none is here.
func (w *mWorld) voter() int {
	for i := range w.n {
		if r := (i + w.draw(w.n)) % w.n; w.phase(r) == jobtracker.Voting {
			return r
		}
	}
	for r := range w.n {
		if w.phase(r) == jobtracker.Voting {
			return r
		}
	}
	return -1
}
