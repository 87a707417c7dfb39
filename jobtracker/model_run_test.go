package jobtracker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// mRun is one run: a tracker, its model, and the replicas.
type mRun struct {
	t      *rapid.T
	cfg    Config[*mPay]
	lim    mLimits
	n      int
	quorum int
	tr     *Tracker[*mPay]
	start  time.Time
	low    int64 // while time passes: the moment before
	batch  bool  // in the middle of a batch of replies

	phase        Activation
	cause        error
	gen          uint64
	mode         ActivateOptions
	top          [2]uint64
	wrote        bool
	flushes      uint64
	device       ID
	syncErr      error
	begin        *Handle
	deactivating *Handle

	reps  []*mReplica
	conns []*mConn // whose sockets may hold something, and some that are over
	ids   byte     // identities given to devices
	base  []JobID  // the blocks' values when the activation began

	next         JobID
	issued       JobID   // by the tracker
	jobs         []*mJob // of the activation, the retired too
	table        []*mJob // not retired
	left         []*mJob // retired since the last check
	retireTo     JobID
	retiredWrite JobID
	retiredCopy  JobID
	lostFrom     JobID
	workJobs     uint64
	workBytes    int64
	waiting      []*mApp
	finish       []int

	lost, mismatches uint64
	orphans          [numReasons]uint64

	// What the tracker has to show for it at the next check.
	decidedApps []*mApp
	ended       []mEnd
	beginWant   []mHandle
	phases      []Activation
	stale       []*Repair[*mPay]

	mu         sync.Mutex // held by callbacks
	seq        uint64     // of the last callback
	real       [MaxReplicas][]Event
	realPhases []Activation
	realLost   uint64
	realMiss   uint64
	broken     error // found in a callback

	actions, dispatches, replies int
}

type mLimits struct {
	maxJobs, offlineJobs         int
	maxBytes, offlineBytes       int64
	autoSyncJobs                 uint64
	autoSyncBytes                int64
	offlineFor, replyTimeout     int64
	offlineForever, replyPatient bool
}

// mApp is a Submit that waits for admission.
type mApp struct {
	op      Op
	pay     *mPay
	cancel  context.CancelFunc
	done    bool // the call has returned
	job     *Job[*mPay]
	err     error
	got     *mJob // by the model
	refused error
}

// id is the job's id, if the call has returned with one.
func (a *mApp) id() JobID {
	if !a.done || a.job == nil {
		return 0
	}
	return a.job.ID()
}

func ended0() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

var mEnded = ended0()

func pick[E any](t *rapid.T, what string, from []E) E {
	if len(from) == 0 {
		t.Skip("no ", what)
	}
	return from[rapid.IntRange(0, len(from)-1).Draw(t, what)]
}

func chance(t *rapid.T, what string, percent int) bool {
	return rapid.IntRange(0, 99).Draw(t, what) < percent
}

func newRun(t *rapid.T) *mRun {
	m := &mRun{t: t, next: 1, start: time.Now()}
	c := &m.cfg
	c.Replicas = rapid.SampledFrom([]int{3, 3, 3, 3, 1, 2, 4, 5}).Draw(t, "replicas")
	c.Blocks = rapid.Uint64Range(2, 16).Draw(t, "blocks")
	c.BlockSize = 10
	c.WriteQuorum = rapid.SampledFrom([]int{0, 0, 0, 1, c.Replicas, rapid.IntRange(1, c.Replicas).Draw(t, "any")}).Draw(t, "quorum")
	c.Order = Order(rapid.IntRange(0, numOrders-1).Draw(t, "order"))
	c.Reads = Reads(rapid.IntRange(0, numReads-1).Draw(t, "reads"))
	c.WriteBack = chance(t, "writeBack", 30)
	c.Mismatch = Mismatch(rapid.IntRange(0, numMismatches-1).Draw(t, "mismatch"))
	c.MaxJobs = rapid.IntRange(4, 16).Draw(t, "maxJobs")
	c.MaxBytes = int64(c.BlockSize) * int64(rapid.IntRange(int(c.Blocks), 8*int(c.Blocks)).Draw(t, "maxBytes"))
	c.OfflineJobs = rapid.SampledFrom([]int{0, 1, 3, c.MaxJobs}).Draw(t, "offlineJobs")
	c.OfflineBytes = rapid.SampledFrom([]int64{0, c.MaxBytes}).Draw(t, "offlineBytes")
	c.AutoSync = rapid.SampledFrom([]SyncKind{SyncFlush, SyncFlush, SyncBarrier, SyncOff}).Draw(t, "autoSync")
	c.AutoSyncJobs = rapid.SampledFrom([]int{0, 2, 5, 30}).Draw(t, "autoSyncJobs")
	c.OfflineFor = rapid.SampledFrom([]time.Duration{-1, 0, 5 * time.Second}).Draw(t, "offlineFor")
	c.ReplyTimeout = rapid.SampledFrom([]time.Duration{-1, 8 * time.Second, 16 * time.Second}).Draw(t, "replyTimeout")
	m.n, m.quorum = c.Replicas, c.WriteQuorum
	if m.quorum == 0 {
		m.quorum = m.n/2 + 1
	}
	m.lim = mLimits{
		maxJobs: c.MaxJobs, maxBytes: c.MaxBytes, offlineJobs: c.OfflineJobs, offlineBytes: c.OfflineBytes,
		autoSyncJobs: uint64(c.AutoSyncJobs),
		offlineFor:   int64(c.OfflineFor), replyTimeout: int64(c.ReplyTimeout),
		offlineForever: c.OfflineFor < 0, replyPatient: c.ReplyTimeout < 0,
	}
	if c.OfflineJobs == 0 {
		m.lim.offlineJobs = c.MaxJobs / 2
	}
	if c.OfflineBytes == 0 {
		m.lim.offlineBytes = c.MaxBytes / 2
	}
	m.lim.autoSyncBytes = max(1, m.lim.offlineBytes/2)
	if c.AutoSyncJobs == 0 {
		m.lim.autoSyncJobs = uint64(max(1, m.lim.offlineJobs/2))
	}
	if c.OfflineFor == 0 {
		m.lim.offlineFor = int64(30 * time.Second)
	}
	if c.ReplyTimeout == 0 {
		m.lim.replyTimeout = int64(10 * time.Second)
	}
	t.Logf("order %v, reads %v, quorum %d, write-back %v, %d jobs, %d bytes, offline %d jobs %d bytes %v, sync %v %d, reply %v", c.Order, c.Reads,
		m.quorum, c.WriteBack, c.MaxJobs, c.MaxBytes, m.lim.offlineJobs, m.lim.offlineBytes, c.OfflineFor, c.AutoSync, m.lim.autoSyncJobs, c.ReplyTimeout)
	m.listen()
	tr, err := New(*c)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	m.tr = tr
	for range m.n {
		m.ids++
		m.reps = append(m.reps, &mReplica{disk: newDisk(c.Blocks, ID{m.ids})})
	}
	m.base = make([]JobID, c.Blocks)
	return m
}

// listen notes what the callbacks say.
func (m *mRun) listen() {
	seen := func(seq uint64) {
		if seq <= m.seq && m.broken == nil {
			m.broken = errors.New("callback out of order")
		}
		m.seq = seq
	}
	m.cfg.OnResolve = func(r Resolved[*mPay]) {
		m.mu.Lock()
		defer m.mu.Unlock()
		seen(r.Seq)
		r.Payload.resolved++
		r.Payload.err = r.Err
		if (r.Payload.retired > 0 || !errors.Is(r.Job.Err(), r.Err)) && m.broken == nil {
			m.broken = errors.New("resolved after it was retired, or with another error than the job has")
		}
	}
	m.cfg.OnRetire = func(r Retired[*mPay]) {
		m.mu.Lock()
		defer m.mu.Unlock()
		seen(r.Seq)
		r.Payload.retired++
		if r.Payload.resolved == 0 && m.broken == nil {
			m.broken = errors.New("retired before it was resolved")
		}
	}
	m.cfg.OnEvent = func(e Event) {
		m.mu.Lock()
		defer m.mu.Unlock()
		seen(e.Seq)
		switch e.Kind {
		case ReplicaChanged:
			m.real[e.Replica] = append(m.real[e.Replica], e)
		case ActivationChanged:
			m.realPhases = append(m.realPhases, e.Phase)
		case ReadMismatch:
			m.realMiss++
		case WriteLost:
			m.realLost++
		case ReconcileNeeded:
		}
	}
}

// now2 is between when and when it is now.
func (m *mRun) now2() [2]int64 {
	now := int64(time.Since(m.start))
	if m.low != 0 {
		return [2]int64{m.low, now}
	}
	return [2]int64{now, now}
}

// hint is where the tracker says that a replica went, beyond what the model has followed.
func (m *mRun) hint(r int) *Event {
	if i := len(m.reps[r].expects); i < len(m.real[r]) {
		return &m.real[r][i]
	}
	return nil
}

// enforceOffline faults replicas that are away and have missed too much. Who of several that are away would be asked for
// a read is the tracker's choice.
func (m *mRun) enforceOffline() (moved bool) {
	for r, rep := range m.reps {
		if rep.state.Connected() || rep.state.Home != HomeOffline {
			continue
		}
		var jobs, maybeJobs int
		var bytes, maybeBytes int64
		for _, j := range m.table {
			if j.st[r] != mPending {
				continue
			}
			size := m.size(j.op)
			if j.op.Kind != Read || m.cfg.Reads == ReadAll {
				jobs++
				bytes += size
				continue
			}
			here := false
			for o, other := range m.reps {
				here = here || o != r && (j.st[o] == mSent || j.st[o] == mPending && (other.state.Connected() || o < r))
			}
			other := false
			for o := range m.reps {
				other = other || o != r && j.open(o)
			}
			switch {
			case !other:
				jobs++
				bytes += size
			case !here:
				maybeJobs++
				maybeBytes += size
			}
		}
		maybeJobs, maybeBytes = maybeJobs+jobs, maybeBytes+bytes
		must := jobs > m.lim.offlineJobs || bytes > m.lim.offlineBytes
		may := maybeJobs > m.lim.offlineJobs || maybeBytes > m.lim.offlineBytes
		if h := m.hint(r); must || may && h != nil && errors.Is(h.Cause, ErrOfflineLimit) {
			m.fault(r, ErrOfflineLimit)
			moved = true
		}
	}
	return moved
}

// gone is what the end of a replica's connection leads to.
func (m *mRun) loseConn(r int, cause error) {
	rep := m.reps[r]
	s := rep.state
	if s.Phase != Voting {
		m.move(r, ReplicaState{Stopping, s.Home}, cause)
		return
	}
	home := HomeFaulted
	if m.phase == Active && rep.vouched >= m.retiredWrite {
		home = HomeOffline
		// A copy that a barrier retired is nothing that this replica may have lost; to be careful is allowed.
		if h := m.hint(r); rep.vouched < m.retiredCopy && h != nil && h.To.Home == HomeFaulted {
			home = HomeFaulted
		}
	}
	m.move(r, ReplicaState{Stopping, home}, cause)
}

// began notes the contents with which an activation begins: those who join hold the same.
func (m *mRun) began() {
	if m.begin != nil {
		m.beginWant, m.begin = append(m.beginWant, mHandle{m.begin, nil, false}), nil
	}
	var first *mDisk
	for _, rep := range m.reps {
		if rep.state.Phase != Voting {
			continue
		}
		if first == nil {
			first = rep.disk
			copy(m.base, first.now)
		}
		if !slices.Equal(first.now, rep.disk.now) {
			m.t.Fatalf("activated with unequal contents: %v and %v", first.now, rep.disk.now)
		}
	}
}

// votes is called when a replica becomes a voter.
func (m *mRun) votes(r int) {
	rep := m.reps[r]
	if rep.said.Replica != (ID{}) {
		rep.named = rep.said.Replica
	}
	if rep.disk.broken {
		m.t.Fatalf("replica %d votes, but it has lost what it vouched for", r)
	}
}

// allowed tells whether v may be what a block holds for an operation behind everything before id: what the last write
// submitted before it wrote. One that failed may have been done or not.
func (m *mRun) allowed(b uint64, id JobID, v JobID, newer bool) bool {
	for _, j := range slices.Backward(m.jobs) {
		if !j.op.Kind.writes() || j.nowhere || b < j.op.Start || b >= j.op.Start+j.op.Blocks {
			continue
		}
		if j.id > id {
			if newer && v == j.id {
				return true
			}
			continue
		}
		if v == j.id {
			return true
		}
		if !j.bad {
			return false
		}
	}
	return v == m.base[b]
}

// acked is called when the model resolves a job: now its promise has to hold on the devices.
func (m *mRun) acked(j *mJob) {
	if j.err != nil {
		return
	}
	switch {
	case j.op.Kind == Read && !j.from.spoiled():
		newer := j.again && m.cfg.Order == ReplicaOrders
		for i, v := range j.answer {
			if b := j.op.Start + uint64(i); !m.allowed(b, j.id, v, newer) {
				m.t.Fatalf("%v read job %d at block %d", j, v, b)
			}
		}
	case j.op.Kind == Flush:
		for r := range m.n {
			if j.st[r] == mDone && j.voters>>r&1 != 0 {
				m.durable(r, j)
			}
		}
	case j.op.FUA:
		for r, rep := range m.reps {
			if j.st[r] != mDone || rep.disk.broken || rep.disk != j.on[r] {
				continue
			}
			for b := j.op.Start; b < j.op.Start+j.op.Blocks; b++ {
				if rep.disk.saved[b] < j.id {
					m.t.Fatalf("%v acknowledged, but block %d on replica %d would be job %d's after a crash", j, b, r, rep.disk.saved[b])
				}
			}
		}
	}
}

// durable says that replica r, which has done a flush, holds all before it whatever happens.
func (m *mRun) durable(r int, f *mJob) {
	d := m.reps[r].disk
	if d != f.on[r] || d.broken {
		return
	}
	for b := range m.cfg.Blocks {
		for i := f.index - 1; i >= 0; i-- {
			j := m.jobs[i]
			if !j.op.Kind.writes() || j.nowhere || j.bad || b < j.op.Start || b >= j.op.Start+j.op.Blocks {
				continue
			}
			if d.saved[b] < j.id {
				m.t.Fatalf("%v acknowledged, but after a crash block %d on replica %d would be job %d's, not %d's", f, b, r, d.saved[b], j.id)
			}
			break
		}
	}
}

// wait lets every other goroutine come to rest.
func (m *mRun) wait() {
	m.mu.Lock()   // callbacks may come from a timer: what happened before happens before them
	m.mu.Unlock() //nolint:staticcheck // see above
	synctest.Wait()
}
