package jobtracker

import (
	"errors"
	"slices"
)

// after follows a change to its end, and compares everything that can be seen with the model.
func (m *mRun) after() {
	m.wait()
	m.settle()
	m.check()
}

// refused is refusal for those who need no more of it.
func (m *mRun) refused(what string, want error, call func() error) { _ = m.refusal(what, want, call) }

// refusal makes a call that has to be refused: with an error of this kind, and with nothing changed.
func (m *mRun) refusal(what string, want error, call func() error) error {
	before := m.tr.Fingerprint()
	err := call()
	if !errors.Is(err, want) {
		m.t.Fatalf("%s: got %v, want %v", what, err, want)
	}
	if after := m.tr.Fingerprint(); after != before {
		m.t.Fatalf("%s was refused (%v) and changed the state", what, err)
	}
	return err
}

// must makes a call that has to succeed.
func (m *mRun) must(what string, err error) {
	if err != nil {
		m.t.Fatalf("%s: %v", what, err)
	}
}

func (m *mRun) check() {
	m.actions++
	if m.broken != nil {
		m.t.Fatal(m.broken)
	}
	if err := m.tr.Check(); err != nil {
		m.t.Fatal(err)
	}
	m.checkReplicas()
	m.checkTable()
	m.checkJobs()
	m.checkHandles()
	m.checkStats()
}

func (m *mRun) checkReplicas() {
	for r, rep := range m.reps {
		for i, want := range rep.expects {
			if i >= len(m.real[r]) {
				m.t.Fatalf("replica %d: no event of %v to %v\n%v", r, want[0], want[1], m.tr.Dump())
			}
			if e := m.real[r][i]; e.From != want[0] || e.To != want[1] {
				m.t.Fatalf("replica %d: went from %v to %v (%v), want %v to %v\n%v", r, e.From, e.To, e.Cause, want[0], want[1], m.tr.Dump())
			}
		}
		if extra := m.real[r][len(rep.expects):]; len(extra) > 0 {
			m.t.Fatalf("replica %d: went from %v to %v (%v), and should not", r, extra[0].From, extra[0].To, extra[0].Cause)
		}
		rep.expects, m.real[r] = nil, nil
		if c := rep.conn; c != nil && (c.c.Context().Err() == nil) != c.live {
			m.t.Fatalf("replica %d: connection %d: context %v, live %v", r, c.c.ID(), c.c.Context().Err(), c.live)
		}
	}
	if !slices.Equal(m.phases, m.realPhases) {
		m.t.Fatalf("activation went %v, want %v", m.realPhases, m.phases)
	}
	m.phases, m.realPhases = nil, nil
}

func (m *mRun) checkTable() {
	d := m.tr.Dump()
	if d.Phase != m.phase.String() || d.Next != m.next || d.Waiting != len(m.waiting) || d.Active != len(m.table) || d.Callbacks != 0 {
		m.t.Fatalf("is %v, next %d, %d waiting, %d active, %d callbacks; want %v, %d, %d, %d, 0\n%v", d.Phase, d.Next, d.Waiting, d.Active, d.Callbacks,
			m.phase, m.next, len(m.waiting), len(m.table), d)
	}
	for r, rep := range m.reps {
		jobs, bytes := m.charges(r)
		if got := d.Replicas[r]; got.State != rep.state.String() || got.Jobs != jobs || got.Bytes != bytes || got.Sent != rep.sent {
			m.t.Fatalf("replica %d is %v with %d jobs, %d bytes, %d sent; want %v, %d, %d, %d\n%v", r, got.State, got.Jobs, got.Bytes, got.Sent,
				rep.state, jobs, bytes, rep.sent, d)
		}
	}
	for i := range d.Jobs {
		got, want := &d.Jobs[i], m.table[i]
		if got.ID != want.id || got.Kind != want.kindName() || got.Resolved != want.resolved || got.Auto != (want.pay == nil) {
			m.t.Fatalf("table has %+v, want %v, resolved %v, own %v\n%v", *got, want, want.resolved, want.pay == nil, d)
		}
		asked := 0
		for r, rep := range m.reps {
			s := got.States[r]
			if s != "spare" && want.open(r) {
				asked++
			}
			if !slices.Contains(want.columns(r, rep.state.Connected(), m.cfg.Reads), s) {
				m.t.Fatalf("%v is %s on replica %d, want %v\n%v", want, s, r, want.columns(r, rep.state.Connected(), m.cfg.Reads), d)
			}
		}
		if want.op.Kind == Read && m.cfg.Reads == ReadOne && !want.decided && asked != 1 {
			m.t.Fatalf("%v is asked of %d replicas\n%v", want, asked, d)
		}
	}
}

// columns are the ways a dump may show the job on a replica.
func (j *mJob) columns(r int, live bool, reads Reads) []string {
	switch j.st[r] {
	case mSkipped:
		return []string{"skip"}
	case mSent:
		return []string{"sent"}
	case mDone:
		return []string{"done"}
	case mFailed:
		return []string{"ERR"}
	case mPending:
	}
	switch {
	case j.op.Kind == Copy && r == j.target && !j.sourceDone:
		return []string{"spare"}
	case j.op.Kind == Read && reads == ReadOne && live:
		return []string{"new", "spare"}
	case j.op.Kind == Read && reads == ReadOne:
		return []string{"held", "spare"}
	case live:
		return []string{"new"}
	}
	return []string{"held"}
}

// checkJobs looks at what callers see of their jobs.
func (m *mRun) checkJobs() {
	for _, a := range m.decidedApps {
		switch {
		case !a.done:
			m.t.Fatalf("a Submit of %v was decided and did not return\n%v", a.op, m.tr.Dump())
		case a.got != nil && (a.err != nil || a.job.ID() != a.got.id):
			m.t.Fatalf("a Submit that waited returned %v, %v, want job %d", a.job, a.err, a.got.id)
		case a.got != nil:
			a.got.handle = a.job
		case !errors.Is(a.err, ErrEnded) || !errors.Is(a.err, a.refused):
			m.t.Fatalf("a Submit that waited returned %v, want %v", a.err, a.refused)
		}
	}
	m.decidedApps = nil
	for _, j := range m.table {
		m.checkJob(j)
	}
	for _, j := range m.left {
		m.checkJob(j)
	}
	m.left = nil
}

func (m *mRun) checkJob(j *mJob) {
	if j.pay == nil {
		return
	}
	resolved, retired := 0, 0
	if j.resolved {
		resolved = 1
	}
	if j.retired {
		retired = 1
	}
	if j.pay.resolved != resolved || j.pay.retired != retired || j.handle.Resolved() != j.resolved || j.handle.ID() != j.id {
		m.t.Fatalf("%v: OnResolve %d times, OnRetire %d times, Resolved %v; want %d, %d\n%v", j, j.pay.resolved, j.pay.retired, j.handle.Resolved(),
			resolved, retired, m.tr.Dump())
	}
	if !j.resolved {
		return
	}
	var e *JobError
	switch err := j.handle.Err(); {
	case j.err == nil && err != nil, j.err != nil && !errors.Is(err, j.err):
		m.t.Fatalf("%v resolved with %v, want %v\n%v", j, err, j.err, m.tr.Dump())
	case j.err != nil && (!errors.As(err, &e) || e.Job != j.id || e.Kind != j.op.Kind):
		m.t.Fatalf("%v resolved with %#v", j, err)
	}
}

func (m *mRun) checkHandles() {
	for _, h := range m.beginWant {
		select {
		case <-h.h.Done():
		default:
			m.t.Fatalf("a handle is not resolved")
		}
		if err := h.h.Err(); (err == nil) != (h.err == nil) || h.err != nil && !errors.Is(err, h.err) || h.ended && !errors.Is(err, ErrEnded) {
			m.t.Fatalf("a handle is resolved with %v, want %v", err, h.err)
		}
	}
	m.beginWant = nil
	for _, e := range m.ended {
		select {
		case <-e.ticket.Ended().Done():
		default:
			m.t.Fatalf("a repair is not ended")
		}
		if err := e.ticket.Ended().Err(); e.well != (err == nil) || !e.well && !errors.Is(err, ErrEnded) || e.ticket.Context().Err() == nil {
			m.t.Fatalf("a repair ended with %v, well %v", err, e.well)
		}
		m.stale = append(m.stale, e.ticket)
	}
	m.ended = nil
}

func (m *mRun) checkStats() {
	s := m.tr.Stats()
	if s.Orphans != m.orphans || s.Lost != m.lost || s.Mismatches != m.mismatches || m.realLost != m.lost || m.realMiss != m.mismatches {
		m.t.Fatalf("counted orphans %v, lost %d (%d events), mismatches %d (%d); want %v, %d, %d", s.Orphans, s.Lost, m.realLost, s.Mismatches, m.realMiss,
			m.orphans, m.lost, m.mismatches)
	}
	if s.Active != uint64(len(m.table)) || s.Phase != m.phase || s.Submitted != s.Acked+s.Failed+m.unresolved() {
		m.t.Fatalf("stats %+v, want %d active, %d unresolved", s, len(m.table), m.unresolved())
	}
}

func (m *mRun) unresolved() (n uint64) {
	for _, j := range m.table {
		if !j.resolved {
			n++
		}
	}
	return n
}

// orphan is why a completion cannot be applied, or false if it can.
func (m *mRun) orphan(c *mConn, id JobID, kind Kind) (OrphanReason, bool) {
	if !c.live {
		return OrphanStaleConn, true
	}
	if id == 0 || id >= m.next {
		return OrphanNeverIssued, true
	}
	var j *mJob
	for _, k := range m.table {
		if k.id == id {
			j = k
		}
	}
	q := c.byID[id]
	switch {
	case j == nil:
		return OrphanRetired, true
	case j.st[c.r] == mSkipped:
		return OrphanSkipped, true
	case q == nil:
		return OrphanNotSent, true
	case q.answered:
		return OrphanDuplicate, true
	case kind != 0 && kind != j.op.Kind:
		return OrphanKindMismatch, true
	}
	return 0, false
}

var mReasons = [numReasons]error{ErrStaleConn, ErrNeverIssued, ErrRetired, ErrSkipped, ErrNotSent, ErrDuplicate, ErrKindMismatch}

// complete hands in a reply, whatever it is worth.
func (m *mRun) complete(c *mConn, id JobID, res Result) {
	reason, refuse := m.orphan(c, id, res.Kind)
	if !refuse {
		m.must("Complete", c.c.Complete(id, res))
		m.completed(c, c.byID[id], res)
		m.replies++
		return
	}
	err := m.refusal("Complete", mReasons[reason], func() error { return c.c.Complete(id, res) })
	m.orphans[reason]++
	m.checkOrphan(err, c, id, res, reason)
}

func (m *mRun) checkOrphan(err error, c *mConn, id JobID, res Result, reason OrphanReason) {
	var e *OrphanError
	if !errors.As(err, &e) || !errors.Is(err, ErrOrphan) || !errors.Is(err, mReasons[reason]) {
		m.t.Fatalf("replica %d, job %d: refused with %#v, want an orphan, %v", c.r, id, err, reason)
	}
	var current ConnID
	if now := m.reps[c.r].conn; now.live {
		current = now.c.ID()
	}
	if e.Reason != reason || e.Job != id || e.Conn != c.c.ID() || int(e.Replica) != c.r || e.Current != current ||
		reason == OrphanKindMismatch && (e.Kind != c.byID[id].job.op.Kind || e.GotKind != res.Kind) {
		m.t.Fatalf("replica %d, job %d: got %+v, want %v, connection %d, current %d\n%v", c.r, id, *e, reason, c.c.ID(), current, m.tr.Dump())
	}
	if (e.Cause != nil) != (reason == OrphanStaleConn) || c.cause != nil && reason == OrphanStaleConn && !errors.Is(err, c.cause) {
		m.t.Fatalf("replica %d, job %d: orphan %v with cause %v, want %v", c.r, id, reason, e.Cause, c.cause)
	}
}

// dispatch takes at most most jobs that are ready for a replica and looks at each.
func (m *mRun) dispatch(c *mConn, most int) (n int) {
	if len(c.buf) < most {
		c.buf = append(c.buf, make([]Dispatch[*mPay], most-len(c.buf))...)
	}
	got, err := c.c.NextBatch(mEnded, c.buf[:most])
	switch {
	case !c.live:
		if !errors.Is(err, ErrStaleConn) || len(got) > 0 {
			m.t.Fatalf("NextBatch on an ended connection: %d jobs, %v", len(got), err)
		}
		return 0
	case len(got) == 0:
		if !errors.Is(err, mEnded.Err()) {
			m.t.Fatalf("NextBatch: %v", err)
		}
		m.noneReady(c)
		return 0
	case err != nil:
		m.t.Fatalf("NextBatch: %d jobs and %v", len(got), err)
	}
	for i := range got {
		m.dispatched(c, &got[i])
	}
	return len(got)
}

// dispatched looks at one job that was dispatched.
func (m *mRun) dispatched(c *mConn, d *Dispatch[*mPay]) {
	r, rep := c.r, m.reps[c.r]
	i := slices.IndexFunc(m.table, func(j *mJob) bool { return j.id == d.ID })
	if i < 0 {
		m.t.Fatalf("replica %d: job %d was dispatched and is not in the table", r, d.ID)
	}
	j := m.table[i]
	if j.st[r] != mPending || c.byID[d.ID] != nil {
		m.t.Fatalf("replica %d: %v was dispatched, is %d, before %v", r, j, j.st[r], c.byID[d.ID] != nil)
	}
	half, number := HalfNone, uint64(0)
	if j.op.Kind == Copy {
		if half = HalfRead; r == j.target {
			half = HalfWrite
		}
		if j.compares {
			half += HalfSum - HalfRead
		}
		if r == j.target && !j.sourceDone {
			m.t.Fatalf("%v is to be written and was not read", j)
		}
	}
	// A flush is numbered for who votes, and for a repair from its last flush on.
	if j.op.Kind == Flush && (rep.state.Phase == Voting || rep.repair != nil && rep.repair.final != 0 && j.id >= rep.repair.final) {
		number = j.number
	}
	if d.Kind != j.op.Kind || d.Half != half || d.FUA != j.op.FUA || d.Snapshot != j.op.Snapshot || d.Start != j.op.Start ||
		d.Blocks != j.op.Blocks || d.Payload != j.pay || d.Number != number || (number != 0) != (d.Generation != 0) || number != 0 && d.Generation != m.gen {
		m.t.Fatalf("replica %d: dispatched %+v, want %v, half %v, number %d, generation %d", r, *d, j, half, number, m.gen)
	}
	if j.op.Kind == Read {
		if rep.state.Phase != Voting || j.voters>>r&1 == 0 {
			m.t.Fatalf("replica %d: %v dispatched to one that has no vote", r, j)
		}
		for o := range m.n {
			if m.cfg.Reads == ReadOne && j.st[o] == mSent {
				m.t.Fatalf("%v dispatched to %d and to %d", j, o, r)
			}
		}
	}
	q := &mReq{job: j, d: *d}
	q.d.Deps = append([]JobID(nil), d.Deps...)
	m.checkOrder(c, j, q.d.Deps)
	c.byID[d.ID] = q
	c.reqs = append(c.reqs, q)
	j.st[r] = mSent
	if rep.sent++; rep.sent == 1 {
		rep.owes = m.now2()
	}
	m.dispatches++
}

// checkOrder says that a dispatch lets nothing overtake what it depends on, directly or not.
func (m *mRun) checkOrder(c *mConn, j *mJob, deps []JobID) {
	if m.cfg.Order == TrackerOrders {
		if b := m.blocker(c, j); b != nil || len(deps) > 0 {
			m.t.Fatalf("replica %d: %v dispatched with %v outstanding there, dependencies %v\n%v", c.r, j, b, deps, m.tr.Dump())
		}
		return
	}
	if b := m.blocker(c, j); b != nil {
		m.t.Fatalf("replica %d: %v dispatched before %v\n%v", c.r, j, b, m.tr.Dump())
	}
	var reach mSet
	for i, d := range deps {
		q := c.byID[d]
		if q == nil || q.answered || q.job.st[c.r] != mSent || !j.before.has(q.job.index) || i > 0 && deps[i-1] >= d {
			m.t.Fatalf("replica %d: %v dispatched with dependencies %v, which %d is not\n%v", c.r, j, deps, d, m.tr.Dump())
		}
		reach.add(q.job.index)
		reach.union(q.job.before)
	}
	for _, k := range m.table {
		if k.st[c.r] == mSent && k.id < j.id && j.before.has(k.index) && !reach.has(k.index) && !m.proven(c, k, j) {
			m.t.Fatalf("replica %d: %v dispatched with dependencies %v, without %v, which is outstanding\n%v", c.r, j, deps, k, m.tr.Dump())
		}
	}
}

// proven tells whether something between two jobs, which depends on the first and on which the second depends, has been
// answered well on the connection on which the first was sent: then the replica has executed the first. A read or
// fence that retirement has passed like that orders nothing when it is asked again: what a read answers may be newer.
func (m *mRun) proven(c *mConn, k, j *mJob) bool {
	if (k.op.Kind == Read || k.op.Kind.fences()) && k.id <= m.retireTo {
		return true
	}
	for _, q := range c.reqs {
		if q.answered && !q.bad && j.before.has(q.job.index) && q.job.before.has(k.index) && c.byID[k.id] != nil {
			return true
		}
	}
	return false
}

// blocker is a job that keeps j from being dispatched on a connection, or nil.
func (m *mRun) blocker(c *mConn, j *mJob) *mJob {
	for _, k := range m.table {
		if k.id >= j.id {
			break
		}
		blocks := k.st[c.r] == mPending || k.st[c.r] == mSent && m.cfg.Order == TrackerOrders
		if blocks && j.before.has(k.index) {
			return k
		}
	}
	return nil
}

func (j *mJob) kindName() string {
	if j.compares {
		return "compare"
	}
	return j.op.Kind.String()
}

// noneReady says that a replica with nothing to dispatch has nothing ready: no job waits for what will not come.
func (m *mRun) noneReady(c *mConn) {
	for _, j := range m.table {
		if j.st[c.r] != mPending || j.op.Kind == Read && m.cfg.Reads == ReadOne || j.op.Kind == Copy && c.r == j.target && !j.sourceDone {
			continue
		}
		if m.blocker(c, j) == nil {
			m.t.Fatalf("replica %d: nothing is dispatched, but %v waits for nothing\n%v", c.r, j, m.tr.Dump())
		}
	}
}
