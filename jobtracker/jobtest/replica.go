package jobtest

import (
	"slices"
	"sync"

	"github.com/staleproof/staleproof/jobtracker"
)

// Replica is a scripted replica: a device in memory, its driver, and the faults it was told to have.
type Replica struct {
	c     *Cluster
	index int

	mu sync.Mutex
	// +checklocks:mu
	disk *disk
	// life is the present connection, or the last one.
	// +checklocks:mu
	life *Life
	// lives counts devices that have stood here.
	// +checklocks:mu
	lives int
	// +checklocks:mu
	f faults
}

// faults are what a replica was told to do wrong.
type faults struct {
	hold    bool // replies stay in hand
	deaf    bool // it takes no jobs
	silent  bool // it takes jobs and does nothing
	delay   uint64
	twice   int
	drop    int
	failing []failure
}

// failure is a rule: the next left jobs that match fail. Negative: all.
type failure struct {
	matches func(*jobtracker.Dispatch[*Payload]) bool
	left    int
	err     error
}

// Index is the replica's number.
func (r *Replica) Index() int { return r.index }

// State is where the tracker has the replica in its lifecycle.
func (r *Replica) State() jobtracker.ReplicaState { return r.c.Tracker.Stats().Replicas[r.index].State }

// Life is the present connection, or the last one; nil if it has never been connected.
func (r *Replica) Life() *Life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life
}

// Connected tells whether the replica has a connection, as far as it knows.
func (r *Replica) Connected() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life != nil && !r.life.over
}

// Block is what a block of the device holds.
func (r *Replica) Block(block uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disk.cells[block].value
}

// Hello is what the replica says of itself: what it remembers.
func (r *Replica) Hello() jobtracker.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	return jobtracker.Hello{
		Device: deviceID(), Replica: r.disk.id, Blocks: r.c.cfg.Blocks, BlockSize: r.c.cfg.BlockSize,
		Generation: r.disk.generation, Flush: r.disk.flush, Dirty: r.disk.dirty,
	}
}

func deviceID() jobtracker.ID { return jobtracker.ID{0xd} }

// Connect opens a connection once, with the replica's Hello, and returns what the tracker said. It quiesces nothing.
func (r *Replica) Connect() (*Life, error) { return r.ConnectWith(r.Hello()) }

// ConnectWith is Connect with another Hello.
func (r *Replica) ConnectWith(h jobtracker.Hello) (*Life, error) {
	var conn *jobtracker.Conn[*Payload]
	err := r.c.call("Connect", func() (err error) {
		conn, err = r.c.Tracker.Connect(r.index, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	l := &Life{
		r: r, conn: conn, out: map[jobtracker.JobID]*request{},
		seen: map[jobtracker.JobID]bool{}, failed: map[jobtracker.JobID]bool{},
		wrote: map[uint64]jobtracker.JobID{}, kick: make(chan struct{}, 1), read: make(chan struct{}, 1),
	}
	r.mu.Lock()
	if r.life != nil {
		r.life.over = true
	}
	l.disk, r.life = r.disk, l
	r.mu.Unlock()
	r.c.connected(l)
	l.note()
	return l, nil
}

// Reconnect quiesces the last connection, cutting it first if it has not ended, and opens another. It fails the test if
// the tracker refuses.
func (r *Replica) Reconnect() *Life {
	r.c.t.Helper()
	l, err := r.TryReconnect()
	if err != nil {
		r.c.fatal("replica %d cannot reconnect: %v", r.index, err)
	}
	return l
}

// TryReconnect is Reconnect, but returns the error.
func (r *Replica) TryReconnect() (*Life, error) {
	if l := r.Life(); l != nil {
		l.end()
		if err := l.Quiesce(); err != nil {
			return nil, err
		}
	}
	return r.Connect()
}

// Cut ends the connection and returns its life: what lies in its socket can be executed until it is quiesced, and its
// replies are in hand. Nil if there has been none.
func (r *Replica) Cut() *Life {
	l := r.Life()
	if l != nil {
		l.end()
	}
	return l
}

// end ends the connection for its driver.
func (l *Life) end() {
	l.r.mu.Lock()
	l.over = true
	l.r.mu.Unlock()
	l.conn.Close(nil)
}

// Quiesce executes what is left in the socket of the connection that has ended and says that it is quiesced.
func (r *Replica) Quiesce() error {
	if l := r.Life(); l != nil {
		return l.Quiesce()
	}
	return nil
}

// Crash ends the connection as a power failure does: what was not flushed is lost, and so is what lay in the socket. Replies that
// were on their way stay in hand. It is quiesced.
func (r *Replica) Crash() *Life {
	l := r.Cut()
	r.mu.Lock()
	r.disk.crash()
	if l != nil {
		l.socket = nil
	}
	r.mu.Unlock()
	if l != nil {
		_ = l.Quiesce() // refused only while the connection lives
	}
	return l
}

// Wipe is Crash, and the device comes back blank, with the identity it had.
func (r *Replica) Wipe() *Life {
	l := r.Crash()
	r.mu.Lock()
	r.disk = newDisk(r.disk.id)
	r.mu.Unlock()
	return l
}

// Replace puts a blank device of another identity in the replica's place. The life of the former one goes on on the former
// device. On error nothing has changed.
func (r *Replica) Replace() error {
	err := r.c.call("Replace", func() error { return r.c.Tracker.Replace(r.index) })
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.life != nil {
		r.life.over = true
	}
	r.lives++
	r.disk = newDisk(replicaID(r.index, r.lives))
	return nil
}

func replicaID(index, life int) jobtracker.ID { return jobtracker.ID{0xe, byte(index + 1), byte(life)} }

// HoldReplies keeps replies in hand until ReleaseReplies or Deliver.
func (r *Replica) HoldReplies() { r.script(func(f *faults) { f.hold = true }) }

// ReleaseReplies lets replies go again, those in hand included, by the next Settle or Step.
func (r *Replica) ReleaseReplies() { r.script(func(f *faults) { f.hold = false }) }

// Deliver hands in the replies to these jobs now, in this order; see [Life.Deliver]. It returns what each was answered.
func (r *Replica) Deliver(ids ...jobtracker.JobID) []error {
	errs := make([]error, 0, len(ids))
	for _, id := range ids {
		errs = append(errs, r.Life().Deliver(id))
	}
	return errs
}

// ShuffleReplies puts the replies in hand into another order, chosen by the cluster's seed.
func (r *Replica) ShuffleReplies() {
	l := r.Life()
	if l == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(l.replies) - 1; i > 0; i-- {
		j := r.c.pick(i + 1)
		l.replies[i], l.replies[j] = l.replies[j], l.replies[i]
	}
}

// Delay has every reply wait for n moves of the cluster. When nothing else moves, Settle and Step let that time pass.
func (r *Replica) Delay(n uint64) { r.script(func(f *faults) { f.delay = n }) }

// Duplicate has the next n replies delivered twice.
func (r *Replica) Duplicate(n int) { r.script(func(f *faults) { f.twice = n }) }

// Drop has the next n replies lost: the jobs are executed, and nobody hears of it before the connection ends.
func (r *Replica) Drop(n int) { r.script(func(f *faults) { f.drop = n }) }

// Silence has the replica take jobs and do nothing with them.
func (r *Replica) Silence() { r.script(func(f *faults) { f.silent = true }) }

// StopReading has the replica take no jobs: its socket is full.
func (r *Replica) StopReading() { r.script(func(f *faults) { f.deaf = true }) }

// FailNext has the replica fail the next n jobs, unexecuted. Nil is [ErrScripted].
func (r *Replica) FailNext(n int, err error) {
	r.fail(n, err, func(*jobtracker.Dispatch[*Payload]) bool { return true })
}

// FailJob has the replica fail one job.
func (r *Replica) FailJob(id jobtracker.JobID, err error) {
	r.fail(1, err, func(d *jobtracker.Dispatch[*Payload]) bool { return d.ID == id })
}

// FailKind has the replica fail all jobs of a kind until Heal.
func (r *Replica) FailKind(kind jobtracker.Kind, err error) {
	r.fail(-1, err, func(d *jobtracker.Dispatch[*Payload]) bool { return d.Kind == kind })
}

// FailHalf has the replica fail all such halves of copies and comparisons until Heal.
func (r *Replica) FailHalf(half jobtracker.Half, err error) {
	r.fail(-1, err, func(d *jobtracker.Dispatch[*Payload]) bool { return d.Half == half })
}

func (r *Replica) fail(n int, err error, matches func(*jobtracker.Dispatch[*Payload]) bool) {
	if err == nil {
		err = ErrScripted
	}
	r.script(func(f *faults) { f.failing = append(f.failing, failure{matches, n, err}) })
}

// Heal ends all faults but those of connections: replies are released, the replica reads, executes and answers.
func (r *Replica) Heal() { r.script(func(f *faults) { *f = faults{} }) }

// script changes what the replica was told to do.
func (r *Replica) script(change func(*faults)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.f)
	if r.life != nil {
		r.life.rouse()
	}
}

// scriptedLocked is the error with which the replica was told to fail the job.
//
// +checklocks:r.mu
func (r *Replica) scriptedLocked(d *jobtracker.Dispatch[*Payload]) error {
	for i := range r.f.failing {
		if f := &r.f.failing[i]; f.left != 0 && f.matches(d) {
			f.left--
			return f.err
		}
	}
	return nil
}

// answerLocked puts a reply on its way.
//
// +checklocks:r.mu
func (r *Replica) answerLocked(l *Life, p reply) {
	if r.f.drop > 0 {
		r.f.drop--
		l.lost = true
		return
	}
	if r.f.twice > 0 {
		r.f.twice--
		p.twice = true
	}
	p.due = r.c.clock.Load() + r.f.delay
	l.replies = append(l.replies, p)
}

// execute executes one job if the replica is to.
func (r *Replica) execute(pick func(int) int) bool {
	l := r.Life()
	return l != nil && l.executeOne(pick)
}

// deliver delivers one reply that is due; which one, pick chooses.
func (r *Replica) deliver(pick func(int) int) bool {
	r.mu.Lock()
	l := r.life
	if l == nil || l.over || r.f.hold || r.f.silent {
		r.mu.Unlock()
		return false
	}
	now := r.c.clock.Load()
	var due []int
	for i := range l.replies {
		if l.replies[i].due <= now {
			due = append(due, i)
			if pick == nil {
				break
			}
		}
	}
	if len(due) == 0 {
		r.mu.Unlock()
		return false
	}
	i := due[0]
	if pick != nil {
		i = due[pick(len(due))]
	}
	p := l.replies[i]
	l.replies = slices.Delete(l.replies, i, i+1)
	r.mu.Unlock()
	_ = l.complete(p) // what it was answered is checked there
	return true
}

// receive takes jobs from the tracker if the replica is to.
func (r *Replica) receive(most int) bool {
	r.mu.Lock()
	l, deaf := r.life, r.f.deaf
	r.mu.Unlock()
	return l != nil && !deaf && l.receive(most) > 0
}

// delayed is when the first reply that waits for time to pass is due; 0 if there is none.
func (r *Replica) delayed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var at uint64
	if l := r.life; l != nil && !l.over && !r.f.hold && !r.f.silent {
		for _, p := range l.replies {
			if at == 0 || p.due < at {
				at = p.due
			}
		}
	}
	return at
}

// violate notes what no tracker and no replica may do.
func (r *Replica) violate(format string, args ...any) {
	r.c.violate("replica %d: "+format, append([]any{r.index}, args...)...)
}

// check finds a block whose last writer is not the highest one.
func (r *Replica) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.disk.check()
}
