package jobtracker

import (
	"errors"
	"slices"
)

// mReplica is what the model knows of a replica.
type mReplica struct {
	state    ReplicaState
	conn     *mConn // the present connection, or the last one
	named    ID
	said     Hello // the last accepted
	repair   *mRepair
	vouched  JobID  // the last flush whose answer was accepted, or that its hello vouched for
	promised uint64 // the highest number it was given and has confirmed
	disk     *mDisk

	away    [2]int64 // when it went away, at the earliest and at the latest
	owes    [2]int64 // since when it owes an answer and has given none
	sent    int
	expects [][2]ReplicaState
}

// mRepair is a repair as its driver knows it.
type mRepair struct {
	ticket *Repair[*mPay]
	r      int
	final  JobID
	copied []bool
	copies []*mJob
}

// vouch is a flush done on a replica.
func (m *mRun) vouch(r int, f *mJob, told uint64) {
	rep := m.reps[r]
	rep.vouched = max(rep.vouched, f.id)
	rep.promised = max(rep.promised, told)
}

// completed applies an answer.
func (m *mRun) completed(c *mConn, q *mReq, res Result) {
	j, r := q.job, c.r
	rep := m.reps[r]
	q.answered = true
	rep.sent--
	rep.owes = m.now2()
	good := res.Err == nil
	differs := false
	if good && j.op.Kind == Read && res.Digest != 0 && !j.again {
		if j.from != nil && j.digest != 0 && j.digest != res.Digest {
			good, differs = false, true
			m.mismatches++
		}
	}
	if !good {
		m.failed(c, q, differs)
		return
	}
	switch j.op.Kind {
	case Read:
		if j.from == nil {
			j.from, j.answer, j.digest = q, q.data, res.Digest
		}
	case Copy:
		if r == j.source {
			j.sourceDone = true
			j.pay.data = q.data
		} else if j.compares {
			m.compared(j, res.Same)
		}
	case Flush:
		m.vouch(r, j, q.d.Number)
	case Write, Zero, Trim, Barrier:
	}
	j.unsure = j.op.Kind == Copy && r == j.target && m.reps[j.source].state.Phase != Voting
	m.set(j, r, mDone)
	if p := rep.repair; p != nil && p.final == j.id {
		m.finish = append(m.finish, r)
	}
}

// compared is that a target says whether it holds the same. If not, what was copied before is to be copied again.
func (m *mRun) compared(j *mJob, same bool) {
	j.unlike = !same
	p := m.reps[j.target].repair
	if p == nil || !slices.Contains(p.copies, j) {
		return // of an earlier repair
	}
	if p.complete(); !same {
		p.copied[j.op.Start] = false
	}
	if m.batch {
		return // more has happened since
	}
	e, err := p.ticket.Extent(int(j.op.Start))
	m.must("Extent", err)
	good := same && m.reps[j.source].state.Phase == Voting
	if good != (e.State == ExtentCopied) || !same && e.State != ExtentDirty {
		m.t.Fatalf("%v has found that it is the same: %v, and the extent is %v", j, same, e.State)
	}
}

func (m *mRun) failed(c *mConn, q *mReq, differs bool) {
	j, r := q.job, c.r
	if j.op.Kind == Copy && r == j.source {
		m.set(j, r, mFailed)
		m.skip(j, j.target)
		return
	}
	m.set(j, r, mFailed)
	switch {
	case j.compares:
	case j.op.Kind != Read:
		m.fault(r, ErrJobFailed)
	case differs && m.cfg.Mismatch == MismatchFault:
		m.fault(r, ErrMismatch)
	}
}

// fault faults a replica that something is expected of.
func (m *mRun) fault(r int, cause error) {
	s := m.reps[r].state
	home := HomeFaulted
	if s.Home == HomeReplaced {
		home = HomeReplaced
	}
	switch {
	case s.Connected() || s.Phase == Stopping:
		m.move(r, ReplicaState{Stopping, home}, cause)
	case s.Home == HomeOffline:
		m.move(r, ReplicaState{Down, HomeFaulted}, cause)
	}
}

// move is a change of a replica's state with all that the change means for its jobs.
func (m *mRun) move(r int, to ReplicaState, cause error) {
	rep := m.reps[r]
	from := rep.state
	if to == from {
		return
	}
	rep.state = to
	rep.expects = append(rep.expects, [2]ReplicaState{from, to})
	if to.Phase == Down && to.Home == HomeOffline || to.Phase == Stopping && to.Home == HomeOffline && from.Connected() {
		if from.Connected() {
			rep.away = m.now2()
		}
	}
	repair := rep.repair
	if from.Phase == Repairing {
		rep.repair = nil
	}
	switch {
	case from.Connected() && !to.Connected():
		rep.conn.live = false
		rep.conn.cause = cause
		m.cut(r, from.Phase == Voting && to.Home == HomeOffline)
	case from.taker() && !to.taker():
		for _, j := range m.table {
			if j.st[r] == mPending {
				m.skip(j, r)
			}
		}
	case !from.Connected() && from.Home == HomeOffline && to.Phase == Voting:
		m.replay(r)
	}
	if from.Phase == Repairing {
		m.endRepair(r, repair, to.Phase == Voting)
	}
	if to.Phase == Voting {
		m.votes(r)
	}
}

// cut is what the end of a connection means for the jobs of its replica.
func (m *mRun) cut(r int, hold bool) {
	rep := m.reps[r]
	for _, j := range m.table {
		open, sent := j.open(r), j.st[r] == mSent
		if j.op.Kind == Copy && r == j.source && open {
			m.skip(j, r)
			if j.st[j.target] == mPending {
				m.skip(j, j.target)
			}
			continue
		}
		switch {
		case !hold:
			m.skip(j, r)
		case open && j.op.Kind.writes() && j.id < rep.vouched:
			if sent {
				rep.sent--
			}
			m.set(j, r, mDone)
		case open && j.op.Kind == Read && j.decided:
			m.skip(j, r)
		case open && j.op.Kind == Copy:
			m.skip(j, r)
		case open:
			if sent {
				rep.sent--
				j.again = j.again || j.op.Kind == Read
			}
			j.st[r] = mPending
		case j.st[r] == mDone && j.op.Kind.writes() && j.id > rep.vouched:
			j.st[r] = mPending
		}
	}
}

// replay is what the return of a replica means for its jobs: what its hello vouches for is done.
func (m *mRun) replay(r int) {
	rep := m.reps[r]
	if rep.said.Generation == m.gen {
		rep.promised = max(rep.promised, rep.said.Flush)
		for _, j := range m.table {
			if j.op.Kind == Flush && j.number <= rep.said.Flush {
				rep.vouched = max(rep.vouched, j.id)
			}
		}
	}
	for _, j := range m.table {
		if j.st[r] != mPending {
			continue
		}
		if j.op.Kind.writes() && j.id < rep.vouched || j.op.Kind == Flush && j.id <= rep.vouched {
			m.set(j, r, mDone)
		}
	}
}

func (m *mRun) endRepair(r int, p *mRepair, well bool) {
	m.ended = append(m.ended, mEnd{p.ticket, well})
	for _, j := range m.table {
		if j.op.Kind != Copy || j.target != r {
			continue
		}
		for _, half := range []int{j.source, r} {
			if j.st[half] == mPending {
				m.skip(j, half)
			}
		}
	}
	if well {
		m.reps[r].disk.broken = false
	}
}

// mEnd is a repair ticket that ended.
type mEnd struct {
	ticket *Repair[*mPay]
	well   bool
}

func (m *mRun) finishRepairs() (moved bool) {
	for _, r := range m.finish {
		if m.reps[r].state.Phase == Repairing && m.phase == Active {
			m.move(r, ReplicaState{Voting, HomeOffline}, nil)
			moved = true
		}
	}
	m.finish = nil
	return moved
}

// look begins or ends the activation when it is time.
func (m *mRun) look() bool {
	switch m.phase {
	case Activating:
		return m.compare()
	case Active, Deactivating:
		switch {
		case m.mask(ReplicaState.voter) == 0:
			m.end(ErrAllFaulted, ErrAllFaulted, Inactive)
			return true
		case m.phase == Deactivating && len(m.table) == 0:
			m.end(ErrDeactivated, m.syncErr, Inactive)
			return true
		}
	case Inactive, Closed:
	}
	return false
}

// compare begins an activation: n-W+1 replicas that have something, W of them equal, newest and clean.
func (m *mRun) compare() bool {
	var fresh, counted []int
	for r, rep := range m.reps {
		if rep.state.Phase == Fresh {
			fresh = append(fresh, r)
			if rep.said.Generation > 0 && rep.state.Home != HomeReplaced {
				counted = append(counted, r)
			}
		}
	}
	join := map[int]bool{}
	switch {
	case m.mode.Create:
		for _, r := range fresh {
			if m.reps[r].said.Generation == 0 {
				join[r] = true
			}
		}
		if len(join) < m.n {
			return false
		}
	case len(counted) < m.n-m.quorum+1:
		return false
	default:
		top := [2]uint64{}
		for _, r := range counted {
			v := [2]uint64{m.reps[r].said.Generation, m.reps[r].said.Flush}
			if v[0] > top[0] || v[0] == top[0] && v[1] > top[1] {
				top = v
			}
		}
		m.top = top
		for _, r := range counted {
			h := &m.reps[r].said
			if [2]uint64{h.Generation, h.Flush} == top && !h.Dirty {
				join[r] = true
			}
		}
		if len(join) == 0 || len(join) < m.quorum && !m.mode.ReadOnly {
			return false // a reconcile is needed
		}
	}
	m.phase = Active
	m.phases = append(m.phases, Active)
	for _, r := range fresh {
		if join[r] {
			m.move(r, ReplicaState{Voting, HomeOffline}, nil)
		} else {
			home := HomeFaulted
			if m.reps[r].state.Home == HomeReplaced {
				home = HomeReplaced
			}
			m.move(r, ReplicaState{RepairReady, home}, nil)
		}
	}
	m.began()
	return true
}

// end ends the activation: everything of it is resolved.
func (m *mRun) end(cause, result error, to Activation) {
	m.wait()
	for len(m.waiting) > 0 && m.waiting[0].id() != 0 {
		a := m.waiting[0] // it was admitted first
		m.waiting = m.waiting[1:]
		a.got = &mJob{id: a.id(), op: a.op, pay: a.pay, resolved: true, err: ErrEnded}
		if errors.Is(a.job.Err(), ErrQuorum) {
			a.got.err = ErrQuorum
		}
		m.decidedApps = append(m.decidedApps, a)
		m.gone(a.got)
		m.next = max(m.next, a.id()+1)
	}
	m.refuseWaiting(cause)
	if m.cfg.AutoSync != SyncOff {
		m.next = max(m.next, m.issued) // automatic syncs came first
	}
	for _, j := range m.table {
		if !j.resolved {
			j.resolved, j.err = true, ErrEnded
		}
		m.gone(j)
	}
	m.table, m.jobs = nil, nil
	m.lostFrom, m.retireTo, m.retiredWrite, m.retiredCopy, m.workJobs, m.workBytes = 0, 0, 0, 0, 0, 0
	for r, rep := range m.reps {
		s := ReplicaState{Down, HomeNew}
		if rep.state.Phase != Down {
			s.Phase = Stopping
		}
		if rep.state.Home == HomeReplaced {
			s.Home = HomeReplaced
		}
		m.move(r, s, cause)
		rep.vouched, rep.promised, rep.sent = 0, 0, 0
	}
	m.finish = nil
	m.cause = cause
	m.phase = to
	m.phases = append(m.phases, to)
	if m.begin != nil {
		m.beginWant, m.begin = append(m.beginWant, mHandle{m.begin, cause, true}), nil
	}
	if m.deactivating != nil {
		m.beginWant, m.deactivating = append(m.beginWant, mHandle{m.deactivating, result, false}), nil
	}
}

// mHandle is a handle that has to be resolved by now.
type mHandle struct {
	h     *Handle
	err   error
	ended bool // err is wrapped in an *EndedError
}
