package jobtracker

import (
	"fmt"
	"slices"
)

// The model: what the documents say of jobs, votes, order, retirement, charges and lifecycles, in the most naive way. It
// keeps every job of the activation and looks at all of them each time.

// mPay is a payload.
type mPay struct {
	job               *mJob
	resolved, retired int
	err               error
	data              []JobID // of a copy: what its source answered
}

// mState is where a job stands on a replica. Pending is Queued, Spare and Held: what it is of these follows.
type mState uint8

const (
	mSkipped mState = iota
	mPending
	mSent
	mDone
	mFailed
)

type mJob struct {
	id      JobID
	op      Op
	pay     *mPay // nil: the tracker's own
	handle  *Job[*mPay]
	voters  uint8
	st      [MaxReplicas]mState
	charged uint8
	before  mSet // everything it depends on, directly or not
	index   int  // in mRun.jobs
	number  uint64

	source, target int  // of a copy
	compares       bool // it is a comparison
	unlike         bool // that found its target to differ
	sourceDone     bool
	unsure         bool // when its target was done, its source was no voter: it copied nothing

	decided, bad, resolved, doomed, retired bool
	nowhere                                 bool // failed at admission: no replica ever got it
	again                                   bool // a read that was asked again
	err                                     error
	answer                                  []JobID // the first good answer to a read
	from                                    *mReq
	digest                                  Digest
	on                                      [MaxReplicas]*mDisk // that have done it
}

// mSet is a set of jobs by index.
type mSet []uint64

func (s mSet) has(i int) bool { return i>>6 < len(s) && s[i>>6]>>(i&63)&1 != 0 }

func (s *mSet) add(i int) {
	for len(*s) <= i>>6 {
		*s = append(*s, 0)
	}
	(*s)[i>>6] |= 1 << (i & 63)
}

func (s *mSet) union(o mSet) {
	for len(*s) < len(o) {
		*s = append(*s, 0)
	}
	for i, w := range o {
		(*s)[i] |= w
	}
}

func (j *mJob) conflicts(k *mJob) bool {
	switch {
	case j.op.Kind.fences() || k.op.Kind.fences():
		return true
	case j.op.Kind == Read && k.op.Kind == Read:
		return false
	}
	return j.op.Start < k.op.Start+k.op.Blocks && k.op.Start < j.op.Start+j.op.Blocks
}

func (j *mJob) open(r int) bool { return j.st[r] == mPending || j.st[r] == mSent }

func (j *mJob) terminal() bool {
	for _, s := range j.st {
		if s == mPending || s == mSent {
			return false
		}
	}
	return true
}

func (j *mJob) done() bool {
	for _, s := range j.st {
		if s == mDone {
			return true
		}
	}
	return false
}

func (j *mJob) String() string {
	return fmt.Sprintf("job %d (%v %d+%d)", j.id, j.op.Kind, j.op.Start, j.op.Blocks)
}

func (m *mRun) admit(op Op, pay *mPay) *mJob {
	j := &mJob{id: m.next, op: op, pay: pay, voters: m.mask(ReplicaState.voter), index: len(m.jobs)}
	if pay != nil {
		pay.job = j
	}
	m.next++
	to := m.mask(ReplicaState.taker)
	if op.Kind == Read {
		to = j.voters
	}
	m.order(j)
	for r := range m.n {
		if to>>r&1 != 0 {
			j.st[r] = mPending
		}
	}
	if op.Kind.writes() {
		m.wrote = true
	}
	if op.Kind == Flush {
		m.flushes++
		j.number = m.flushes
		j.doomed = m.lostFrom != 0
	}
	m.charge(j)
	m.decide(j)
	switch {
	case j.bad && (op.Kind.writes() || op.Snapshot):
		j.nowhere = true
		if op.Kind.fences() {
			m.workJobs++ // it retires nothing, not even itself
		}
		for r := range m.n {
			m.skip(j, r)
		}
	case op.Kind.fences():
		m.workJobs, m.workBytes = 0, 0
	case m.cfg.WriteBack && op.Kind.writes() && !op.FUA:
		m.resolve(j, nil)
	}
	return j
}

// order puts a job behind all that it depends on.
func (m *mRun) order(j *mJob) {
	for i, k := range slices.Backward(m.jobs) {
		if !j.before.has(i) && j.conflicts(k) {
			j.before.union(k.before)
			j.before.add(i)
		}
	}
	m.jobs = append(m.jobs, j)
	m.table = append(m.table, j)
}

func (m *mRun) charge(j *mJob) {
	for r := range m.n {
		if j.open(r) {
			j.charged |= 1 << r
		}
	}
}

// taker and voter of the model.
func (m *mRun) mask(is func(ReplicaState) bool) (mask uint8) {
	for r, rep := range m.reps {
		if is(rep.state) {
			mask |= 1 << r
		}
	}
	return mask
}

func (m *mRun) size(op Op) int64 {
	if op.Kind == Read || op.Kind == Write || op.Kind == Copy {
		return int64(op.Blocks) * int64(m.cfg.BlockSize)
	}
	return 0
}

// charges are a replica's.
func (m *mRun) charges(r int) (jobs int, bytes int64) {
	for _, j := range m.table {
		if j.charged>>r&1 != 0 {
			jobs++
			bytes += m.size(j.op)
		}
	}
	return jobs, bytes
}

func (m *mRun) fits(op Op) bool {
	who := m.mask(ReplicaState.taker)
	if op.Kind == Read {
		who = m.mask(ReplicaState.voter)
	}
	for r := range m.n {
		if who>>r&1 == 0 || !m.reps[r].state.Connected() {
			continue
		}
		if jobs, bytes := m.charges(r); jobs+1 > m.lim.maxJobs || bytes+m.size(op) > m.lim.maxBytes {
			return false
		}
	}
	return true
}

// decide is the table of acks.
func (m *mRun) decide(j *mJob) {
	if j.decided {
		return
	}
	done, good := 0, 0
	for r := range m.n {
		if j.voters>>r&1 == 0 {
			continue
		}
		switch j.st[r] {
		case mDone:
			done++
			good++
		case mPending, mSent:
			good++
		case mFailed, mSkipped:
		}
	}
	bad := m.n - good // no vote, failed or skipped
	var acked, failed bool
	switch j.op.Kind {
	case Read, Copy:
		acked, failed = done >= 1, good == 0
	case Write, Zero, Trim:
		acked, failed = done >= m.quorum, bad > m.n-m.quorum
	case Flush:
		acked, failed = done >= m.quorum, bad > m.n-m.quorum
		if j.op.Snapshot {
			acked, failed = done == m.n, bad > 0
		}
	case Barrier:
		failed = bad > m.n-m.quorum
		acked = !failed && done == good
	}
	if !acked && !failed {
		return
	}
	j.decided, j.bad = true, !acked
	switch {
	case j.bad && j.resolved: // acked early
		m.lost++
		m.lostFrom = m.next
		for _, f := range m.table {
			if f.op.Kind == Flush && f.id > j.id && !f.resolved {
				f.doomed = true
			}
		}
	case j.bad && !j.doomed:
		m.resolve(j, ErrQuorum)
	case j.doomed:
		m.resolve(j, ErrLostWrite)
		m.reported(j)
	default:
		m.resolve(j, nil)
	}
	if !j.op.Kind.fences() {
		m.workJobs++
		m.workBytes += m.size(j.op)
	}
	if j.op.Kind == Read {
		for r, rep := range m.reps {
			if j.st[r] == mPending && (m.cfg.Reads == ReadOne || !rep.state.Connected()) {
				m.skip(j, r)
			}
		}
	}
}

// reported forgets lost writes when a caller's flush, admitted after they were known, has failed for them.
func (m *mRun) reported(f *mJob) {
	if f.doomed && f.pay != nil && m.lostFrom != 0 && f.id >= m.lostFrom {
		m.lostFrom = 0
	}
}

func (m *mRun) resolve(j *mJob, err error) {
	if j.resolved {
		return
	}
	j.resolved, j.err = true, err
	if j.pay == nil && err != nil && m.phase == Deactivating {
		m.syncErr = err
	}
	m.acked(j)
}

// skip writes a job off on a replica.
func (m *mRun) skip(j *mJob, r int) {
	if !j.open(r) {
		return
	}
	if j.st[r] == mSent {
		m.reps[r].sent--
	}
	m.set(j, r, mSkipped)
}

// set makes a job terminal on a replica; a charge is returned once.
func (m *mRun) set(j *mJob, r int, s mState) {
	j.st[r] = s
	if s == mDone {
		j.on[r] = m.reps[r].disk
	}
	j.charged &^= 1 << r
	m.decide(j)
}

// settle looks at everything again until nothing moves.
//
// In which order the tracker does that within one hold is its own affair. It shows only in whether an automatic sync comes
// before a job that waited for admission, or before the end of the activation: the model follows.
func (m *mRun) settle() {
	_ = m.tr.do(nil, asking{}, func(k *core) error {
		m.issued = k.next
		return nil
	})
	defer func() {
		if !m.batch && m.syncDue() {
			m.t.Fatalf("after %d jobs, %d bytes no automatic %v was inserted\n%v", m.workJobs, m.workBytes, m.cfg.AutoSync, m.tr.Dump())
		}
	}()
	for again := true; again; {
		again = m.enforceOffline()
		again = m.finishRepairs() || again
		m.retire()
		again = m.look() || again
		again = m.sync() || again
		again = m.admitWaiting() || again
	}
}

// retire passes everything up to the last fence that is terminal everywhere and that somebody has done. It stops before
// what is outstanding on a replica where the fence does not say that it was executed: only what was sent on the connection
// on which the fence was answered is known to be. That is a straggler, and goes when it has ended.
func (m *mRun) retire() {
	var fence *mJob
	for _, j := range m.table {
		if j.op.Kind.fences() && j.decided && j.terminal() && j.done() {
			fence = j
		}
	}
	if fence != nil {
		to := fence.id
		for _, j := range m.table {
			for r, rep := range m.reps {
				if j.id < fence.id && j.id > m.retireTo && j.open(r) && (j.st[r] == mPending || fence.st[r] != mDone || rep.conn.byID[fence.id] == nil) {
					to = min(to, j.id-1)
				}
			}
		}
		m.retireTo = max(m.retireTo, to)
	}
	keep := m.table[:0:0]
	for _, j := range m.table {
		if j.id <= m.retireTo {
			m.passed(j)
		}
		if j.id <= m.retireTo && j.decided && j.terminal() {
			m.gone(j)
		} else {
			keep = append(keep, j)
		}
	}
	m.table = keep
}

func (m *mRun) gone(j *mJob) {
	j.retired = true
	m.left = append(m.left, j)
	m.passed(j)
}

// passed notes what is not ordered any more: without a flush after it, it cannot be replayed.
func (m *mRun) passed(j *mJob) {
	if j.op.Kind.writes() {
		m.retiredWrite = max(m.retiredWrite, j.id)
	}
	if j.op.Kind == Copy && !j.compares {
		m.retiredCopy = max(m.retiredCopy, j.id)
	}
}

func (m *mRun) syncDue() bool {
	return m.phase == Active && m.cfg.AutoSync != SyncOff && (m.workJobs >= m.lim.autoSyncJobs || m.workBytes >= m.lim.autoSyncBytes)
}

// sync inserts the flush or barrier without which the table would only grow.
func (m *mRun) sync() bool {
	if !m.syncDue() || m.next == m.issued {
		return false
	}
	if len(m.waiting) > 0 && m.waiting[0].id() == m.next {
		return false // it was admitted first, which is as good
	}
	kind := Flush
	if m.cfg.AutoSync == SyncBarrier || m.mode.ReadOnly {
		kind = Barrier
	}
	m.admit(Op{Kind: kind}, nil)
	return true
}

// admitWaiting admits who waits, first come first served.
func (m *mRun) admitWaiting() (moved bool) {
	for len(m.waiting) > 0 && m.phase == Active && m.fits(m.waiting[0].op) {
		a := m.waiting[0]
		m.waiting = m.waiting[1:]
		a.got = m.admit(a.op, a.pay)
		m.decidedApps = append(m.decidedApps, a)
		moved = true
	}
	return moved
}

func (m *mRun) refuseWaiting(cause error) {
	for _, a := range m.waiting {
		a.refused = cause
		m.decidedApps = append(m.decidedApps, a)
	}
	m.waiting = nil
}
