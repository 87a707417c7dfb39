package jobtest

import (
	"errors"
	"slices"

	"github.com/staleproof/staleproof/jobtracker"
)

// ErrScripted is the error of a job that a replica was told to fail.
var ErrScripted = errors.New("jobtest: scripted failure")

// ErrDependency is the error of a job that a replica failed, unexecuted, since it had failed one that it depends on.
var ErrDependency = errors.New("jobtest: depends on a failed job")

// Life is one life of a replica's connection: the token, what lies in the socket unexecuted, and the replies that were
// not delivered. After the connection has ended it goes on as a real one does: what is in the socket can still be
// executed, until it is quiesced, and replies can still be handed in.
type Life struct {
	r    *Replica
	conn *jobtracker.Conn[*Payload]

	// All below is guarded by r.mu.
	disk      *disk
	socket    []*request
	replies   []reply
	out       map[jobtracker.JobID]*request // not answered
	seen      map[jobtracker.JobID]bool     // received, from floor on
	floor     jobtracker.JobID              // the last fence executed
	failed    map[jobtracker.JobID]bool
	wrote     map[uint64]jobtracker.JobID // the last writer of each block in this life
	receiving bool
	lost      bool // a reply was dropped
	noted     bool // the activation's generation
	over      bool // the connection has ended, as far as the replica knows
	last      *reply
	kick      chan struct{} // live mode: there may be something to execute or deliver
	read      chan struct{} // live mode: there may be something to receive
}

// request is a job in the socket.
type request struct {
	d        jobtracker.Dispatch[*Payload]
	executed bool
}

// reply is an answer on its way.
type reply struct {
	id      jobtracker.JobID
	res     jobtracker.Result
	payload *Payload
	due     uint64 // by the cluster's count of moves
	twice   bool
	forged  bool // the replica never gave it
}

// Conn is the tracker's connection.
func (l *Life) Conn() *jobtracker.Conn[*Payload] { return l.conn }

// InHand are the jobs whose replies were not delivered, in the order of the replies.
func (l *Life) InHand() []jobtracker.JobID {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	ids := make([]jobtracker.JobID, 0, len(l.replies))
	for _, p := range l.replies {
		ids = append(ids, p.id)
	}
	return ids
}

// InSocket are the jobs that were received and not executed, in the order in which they came.
func (l *Life) InSocket() []jobtracker.JobID {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	ids := make([]jobtracker.JobID, 0, len(l.socket))
	for _, q := range l.socket {
		ids = append(ids, q.d.ID)
	}
	return ids
}

// Receive takes what the tracker has for the connection into the socket, and tells how much it was. A poll.
func (l *Life) Receive() int { return l.receive(batchSize) }

// ReceiveOne is Receive for one job.
func (l *Life) ReceiveOne() int { return l.receive(1) }

const batchSize = 16

func (l *Life) receive(most int) int {
	r := l.r
	r.mu.Lock()
	if l.over || l.receiving {
		r.mu.Unlock()
		return 0
	}
	l.receiving = true
	r.mu.Unlock()
	l.note()
	var got []jobtracker.Dispatch[*Payload]
	err := l.poll(most, &got)
	r.mu.Lock()
	defer r.mu.Unlock()
	l.receiving = false
	l.takeLocked(got)
	l.over = l.over || errors.Is(err, jobtracker.ErrStaleConn)
	return len(got)
}

// poll asks the tracker for jobs: for one with Next, for more with NextBatch.
func (l *Life) poll(most int, got *[]jobtracker.Dispatch[*Payload]) error {
	if most > 1 {
		return l.r.c.call("NextBatch", func() (err error) {
			*got, err = l.conn.NextBatch(ended, make([]jobtracker.Dispatch[*Payload], most))
			return err
		})
	}
	return l.r.c.call("Next", func() error {
		var d jobtracker.Dispatch[*Payload]
		err := l.conn.Next(ended, &d)
		if err == nil {
			*got = append(*got, d)
		}
		return err
	})
}

// takeLocked puts jobs into the socket, and checks that they may be there.
//
// +checklocks:l.r.mu
func (l *Life) takeLocked(got []jobtracker.Dispatch[*Payload]) {
	for _, d := range got {
		d.Deps = slices.Clone(d.Deps)
		if l.seen[d.ID] || d.ID < l.floor {
			l.r.violate("job %d (%v) was dispatched again, or behind fence %d, on connection %d", d.ID, d.Kind, l.floor, l.conn.ID())
		}
		for _, dep := range d.Deps {
			if dep >= d.ID || !l.seen[dep] && dep >= l.floor {
				l.r.violate("job %d (%v) depends on job %d, which connection %d was never sent", d.ID, d.Kind, dep, l.conn.ID())
			}
		}
		if l.r.c.cfg.Order == jobtracker.TrackerOrders {
			for _, q := range l.out {
				if conflict(&q.d, &d) {
					l.r.violate("job %d (%v) was dispatched while job %d (%v) was outstanding on connection %d", d.ID, d.Kind, q.d.ID, q.d.Kind, l.conn.ID())
				}
			}
		}
		q := &request{d: d}
		l.seen[d.ID] = true
		l.out[d.ID] = q
		l.socket = append(l.socket, q)
	}
}

// conflict tells whether two jobs must not be outstanding together where the tracker orders.
func conflict[P any](a, b *jobtracker.Dispatch[P]) bool {
	fence := func(k jobtracker.Kind) bool { return k == jobtracker.Flush || k == jobtracker.Barrier }
	if fence(a.Kind) || fence(b.Kind) {
		return true
	}
	if a.Kind == jobtracker.Read && b.Kind == jobtracker.Read {
		return false
	}
	return a.Start < b.Start+b.Blocks && b.Start < a.Start+a.Blocks
}

// Execute executes all that is in the socket, in the order in which it came, and tells how much it was.
func (l *Life) Execute() int {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	n := 0
	for l.executeSomeLocked(nil) {
		n++
	}
	return n
}

// executeOne executes one job if the replica is to.
func (l *Life) executeOne(pick func(n int) int) bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return !l.over && !l.r.f.silent && l.executeSomeLocked(pick)
}

// executeSomeLocked executes one job that can be, the first, or the one that pick chooses.
//
// +checklocks:l.r.mu
func (l *Life) executeSomeLocked(pick func(n int) int) bool {
	var able []int
	for i, q := range l.socket {
		if !slices.ContainsFunc(q.d.Deps, func(dep jobtracker.JobID) bool { p := l.out[dep]; return p != nil && !p.executed }) {
			able = append(able, i)
			if pick == nil {
				break
			}
		}
	}
	if len(able) == 0 {
		return false
	}
	i := able[0]
	if pick != nil {
		i = able[pick(len(able))]
	}
	q := l.socket[i]
	l.socket = slices.Delete(l.socket, i, i+1)
	q.executed = true
	res := jobtracker.Result{Kind: q.d.Kind}
	if res.Err = l.refuseLocked(q); res.Err == nil {
		l.performLocked(q, &res)
	} else {
		l.failed[q.d.ID] = true
	}
	l.r.answerLocked(l, reply{id: q.d.ID, res: res, payload: q.d.Payload})
	return true
}

func dependsOnFailed() error { return ErrDependency }

// refuseLocked is why the replica fails the job, unexecuted.
//
// +checklocks:l.r.mu
func (l *Life) refuseLocked(q *request) error {
	if slices.ContainsFunc(q.d.Deps, func(dep jobtracker.JobID) bool { return l.failed[dep] }) {
		return dependsOnFailed()
	}
	return l.r.scriptedLocked(&q.d)
}

// performLocked does the job on the disk.
//
// +checklocks:l.r.mu
func (l *Life) performLocked(q *request, res *jobtracker.Result) {
	d, p := &q.d, q.d.Payload
	switch d.Kind {
	case jobtracker.Read:
		data := l.disk.read(d.Start, d.Blocks)
		res.Digest = digest(data)
		p.found(l.r.index, data)
	case jobtracker.Write:
		value := uint64(d.ID)
		if p != nil && p.Value != 0 {
			value = p.Value
		}
		l.writeLocked(d, func(uint64) uint64 { return value })
	case jobtracker.Zero, jobtracker.Trim:
		l.writeLocked(d, func(uint64) uint64 { return 0 })
	case jobtracker.Copy:
		l.copyLocked(d, res)
	case jobtracker.Flush:
		l.disk.sync(d.Generation, d.Number)
		l.passLocked(d.ID)
	case jobtracker.Barrier:
		l.passLocked(d.ID)
	}
}

// copyLocked does a half of a copy or a comparison.
//
// +checklocks:l.r.mu
func (l *Life) copyLocked(d *jobtracker.Dispatch[*Payload], res *jobtracker.Result) {
	p := d.Payload
	switch d.Half {
	case jobtracker.HalfRead, jobtracker.HalfSum: // what is kept is its own checksum
		p.setCopied(l.disk.read(d.Start, d.Blocks))
		return
	case jobtracker.HalfNone, jobtracker.HalfWrite, jobtracker.HalfCompare:
	}
	data := p.getCopied()
	if uint64(len(data)) != d.Blocks {
		l.r.violate("job %d (copy, %v) came before its source has answered", d.ID, d.Half)
		return
	}
	if d.Half == jobtracker.HalfCompare {
		res.Same = slices.Equal(data, l.disk.read(d.Start, d.Blocks))
		return
	}
	l.writeLocked(d, func(i uint64) uint64 { return data[i] })
}

// writeLocked writes the job's blocks and checks the order in which it reaches them.
//
// +checklocks:l.r.mu
func (l *Life) writeLocked(d *jobtracker.Dispatch[*Payload], value func(i uint64) uint64) {
	for i := range d.Blocks {
		block := d.Start + i
		if before := l.wrote[block]; before > d.ID {
			l.r.violate("job %d (%v) reached block %d after job %d on connection %d", d.ID, d.Kind, block, before, l.conn.ID())
		}
		l.wrote[block] = d.ID
		l.disk.write(block, value(i), d.ID, d.FUA)
	}
}

// passLocked forgets what can come no more when a fence was executed.
//
// +checklocks:l.r.mu
func (l *Life) passLocked(fence jobtracker.JobID) {
	l.floor = max(l.floor, fence)
	for id := range l.seen {
		if id < l.floor {
			delete(l.seen, id)
		}
	}
}

// note remembers the activation's generation once the replica is active, before the first job is executed.
func (l *Life) note() {
	r := l.r
	r.mu.Lock()
	done := l.noted || l.over
	r.mu.Unlock()
	if done || r.State().Phase != jobtracker.Voting {
		return
	}
	dump := r.c.Tracker.Dump()
	if d := dump.Replicas[r.index]; d.Conn != l.conn.ID() || d.State != jobtracker.Voting.String() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.noted = true; l.disk.generation < dump.Generation {
		l.disk.generation, l.disk.flush = dump.Generation, 0
	}
}

// Deliver hands in the reply to a job and returns what Complete said. One that is still in the socket is executed first,
// if it can be; of a job that the connection was never sent, or that was answered, it forges a good reply.
func (l *Life) Deliver(id jobtracker.JobID) error { return l.complete(l.takeReply(id)) }

// takeReply takes the reply out of hand, or forges it.
func (l *Life) takeReply(id jobtracker.JobID) reply {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	for q := l.out[id]; q != nil && !q.executed && l.executeSomeLocked(nil); {
		continue
	}
	for i, p := range l.replies {
		if p.id == id {
			l.replies = slices.Delete(l.replies, i, i+1)
			return p
		}
	}
	return reply{id: id, forged: true}
}

// DeliverAll hands in all replies in one batch, in their order, and returns what each was answered, by job.
func (l *Life) DeliverAll() map[jobtracker.JobID]error {
	l.r.mu.Lock()
	replies := l.replies
	l.replies = nil
	batch := make([]jobtracker.Completion, 0, len(replies))
	for _, p := range replies {
		delete(l.out, p.id)
		batch = append(batch, jobtracker.Completion{ID: p.id, Result: p.res})
	}
	l.r.mu.Unlock()
	errs := make(map[jobtracker.JobID]error, len(batch))
	l.r.c.callAll("CompleteBatch", batch, func() { l.conn.CompleteBatch(batch) })
	for i, b := range batch {
		l.settled(replies[i], b.Err)
		errs[b.ID] = b.Err
	}
	return errs
}

// complete hands in a reply.
func (l *Life) complete(p reply) error {
	l.r.mu.Lock()
	delete(l.out, p.id)
	l.r.mu.Unlock()
	err := l.r.c.call("Complete", func() error { return l.conn.Complete(p.id, p.res) })
	l.settled(p, err)
	if p.twice {
		again := l.r.c.call("Complete", func() error { return l.conn.Complete(p.id, p.res) })
		if again == nil {
			l.r.violate("job %d was completed twice on connection %d", p.id, l.conn.ID())
		}
	}
	return err
}

// settled takes note of how a reply was taken.
func (l *Life) settled(p reply, err error) {
	if err == nil {
		if p.res.Err == nil {
			p.payload.accept(l.r.index)
		}
		if p.forged {
			l.r.violate("a forged reply to job %d was taken on connection %d", p.id, l.conn.ID())
		}
	} else if !p.forged && !errors.Is(err, jobtracker.ErrStaleConn) {
		l.r.violate("the reply to job %d was refused on connection %d: %v", p.id, l.conn.ID(), err)
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.last = &p
	l.over = l.over || errors.Is(err, jobtracker.ErrStaleConn)
}

// Quiesce has the replica execute what is left in the socket, as one does whose connection is half-closed, and says that
// nothing sent on it can be executed any more. Replies stay in hand.
func (l *Life) Quiesce() error {
	l.Execute()
	return l.r.c.call("Quiesced", l.conn.Quiesced)
}
