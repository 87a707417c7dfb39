package jobtracker

import (
	"context"
	"errors"
	"slices"

	"pgregory.net/rapid"
)

func (m *mRun) op() Op {
	op := Op{Kind: rapid.SampledFrom([]Kind{Write, Write, Write, Read, Read, Read, Zero, Trim}).Draw(m.t, "kind")}
	op.Blocks = rapid.Uint64Range(1, m.cfg.Blocks).Draw(m.t, "blocks")
	if m.draw("small", 0, 3) > 0 {
		op.Blocks = min(op.Blocks, 2)
	}
	op.Start = rapid.Uint64Range(0, m.cfg.Blocks-op.Blocks).Draw(m.t, "start")
	op.FUA = op.Kind.writes() && m.draw("fua", 0, 4) == 0
	return op
}

func (m *mRun) submit(*rapid.T) { m.submitOp(m.op()) }

func (m *mRun) submitFence(t *rapid.T) {
	op := Op{Kind: rapid.SampledFrom([]Kind{Flush, Flush, Barrier}).Draw(t, "kind")}
	op.Snapshot = op.Kind == Flush && m.draw("snapshot", 0, 3) == 0
	m.submitOp(op)
}

func (m *mRun) submitOp(op Op) {
	pay := &mPay{}
	call := func() error { _, err := m.tr.Submit(mEnded, op, pay); return err }
	switch {
	case m.phase != Active:
		m.refused("Submit", ErrPhase, call)
	case m.mode.ReadOnly && op.Kind.writes():
		m.refused("Submit", ErrReadOnly, call)
	case len(m.waiting) == 0 && m.fits(op):
		j, err := m.tr.Submit(mEnded, op, pay)
		m.must("Submit", err)
		k := m.admit(op, pay)
		if k.handle = j; j.ID() != k.id {
			m.t.Fatalf("Submit returned job %d, want %d", j.ID(), k.id)
		}
		if k.resolved && !j.Resolved() {
			m.t.Fatalf("%v has nowhere to go, and Submit does not say so", k)
		}
	case m.draw("wait", 0, 1) == 0 || len(m.waiting) > 5:
		m.refused("Submit", context.Canceled, call)
	default:
		m.apply(op, pay)
	}
	m.after()
}

// apply starts a Submit that waits.
func (m *mRun) apply(op Op, pay *mPay) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &mApp{op: op, pay: pay, cancel: cancel}
	m.waiting = append(m.waiting, a)
	go func() {
		defer cancel()
		a.job, a.err = m.tr.Submit(ctx, op, pay)
		a.done = true
	}()
	m.wait()
}

func (m *mRun) withdraw(t *rapid.T) {
	a := pick(t, "applicant", m.waiting)
	a.cancel()
	m.wait()
	if !a.done || !errors.Is(a.err, context.Canceled) || a.job != nil {
		t.Fatalf("a Submit whose context ended returned %v, %v, %v", a.done, a.job, a.err)
	}
	for i, b := range m.waiting {
		if a == b {
			m.waiting = append(m.waiting[:i:i], m.waiting[i+1:]...)
			break
		}
	}
	m.after()
}

func (m *mRun) submitBad(t *rapid.T) {
	big := uint64(m.cfg.MaxBytes)/uint64(m.cfg.BlockSize) + 1
	op := rapid.SampledFrom([]Op{
		{},
		{Kind: Copy, Blocks: 1},
		{Kind: numKinds, Blocks: 1},
		{Kind: Read},
		{Kind: Write},
		{Kind: Write, Start: m.cfg.Blocks, Blocks: 1},
		{Kind: Read, Start: 1, Blocks: m.cfg.Blocks},
		{Kind: Zero, Start: 1 << 63, Blocks: 1 << 63},
		{Kind: Trim, Start: ^uint64(0), Blocks: 1},
		{Kind: Write, Blocks: big},
		{Kind: Read, Blocks: big},
		{Kind: Trim, Blocks: m.cfg.Blocks + 1},
		{Kind: Flush, Start: 1},
		{Kind: Flush, Blocks: 1},
		{Kind: Barrier, Blocks: 2},
		{Kind: Read, Blocks: 1, FUA: true},
		{Kind: Flush, FUA: true},
		{Kind: Barrier, Snapshot: true},
		{Kind: Write, Blocks: 1, Snapshot: true},
	}).Draw(t, "op")
	err := m.refusal("Submit", ErrOp, func() error { _, err := m.tr.Submit(context.Background(), op, &mPay{}); return err })
	var e *OpError
	if !errors.As(err, &e) || e.Field == "" {
		t.Fatalf("%+v refused with %#v", op, err)
	}
	m.after()
}

// alive are the live connections.
func (m *mRun) alive() (cs []*mConn) {
	for _, rep := range m.reps {
		if rep.conn != nil && rep.conn.live {
			cs = append(cs, rep.conn)
		}
	}
	return cs
}

// known are connections worth a call: live ones, and now and then others.
func (m *mRun) known() []*mConn {
	if m.draw("dead too", 0, 9) > 0 {
		return m.alive()
	}
	return m.conns
}

func (m *mRun) takeSome(t *rapid.T) {
	m.dispatch(pick(t, "connection", m.known()), m.draw("most", 1, 6))
	m.after()
}

func (m *mRun) takeAll(*rapid.T) {
	for _, c := range m.alive() {
		for m.dispatch(c, 4) > 0 {
		}
	}
	m.after()
}

// executable are the requests that replicas may execute now, also those in the sockets of connections that have ended.
func (m *mRun) executable() (all []mWork) {
	for _, c := range m.conns {
		if c.quiesced {
			continue
		}
		for _, q := range c.reqs {
			if c.ready(q) {
				all = append(all, mWork{c, q})
			}
		}
	}
	return all
}

type mWork struct {
	c *mConn
	q *mReq
}

func (m *mRun) executeOne(w mWork, fail, partly bool) {
	if err := w.c.execute(w.q, fail, partly); err != nil {
		m.t.Fatalf("%v\n%v", err, m.tr.Dump())
	}
}

func (m *mRun) executeSome(t *rapid.T) {
	m.executeOne(pick(t, "request", m.executable()), false, false)
}

func (m *mRun) failOne(t *rapid.T) {
	m.spare(t)
	w := pick(t, "request", m.executable())
	m.executeOne(w, true, m.draw("partly", 0, 1) == 0)
	m.reply(w)
	m.after()
}

// answerable are the requests whose replies can come in on a live connection now.
func (m *mRun) answerable() (all []mWork) {
	for _, c := range m.alive() {
		for _, q := range c.reqs {
			if !q.answered && (q.executed || c.ready(q)) {
				all = append(all, mWork{c, q})
			}
		}
	}
	return all
}

// result is the reply to a request, which is executed if it was not.
func (m *mRun) result(w mWork) Result {
	if !w.q.executed {
		m.executeOne(w, false, false)
	}
	res := Result{}
	if m.draw("name the kind", 0, 1) == 0 {
		res.Kind = w.q.job.op.Kind
	}
	switch {
	case w.q.bad:
		res.Err = errReplica
	case w.q.job.op.Kind == Read:
		res.Digest = digestOf(w.q.data)
		if m.draw("lie", 0, 30) == 0 {
			w.q.lie = true
			res.Digest += 2
		}
	case w.q.d.Half == HalfCompare: // a checksum may say that it differs: it is copied then
		res.Same = slices.Equal(w.q.data, w.q.d.Payload.data) && m.draw("differs", 0, 7) > 0
	}
	return res
}

func (m *mRun) reply(w mWork) { m.complete(w.c, w.q.d.ID, m.result(w)) }

func (m *mRun) replySome(t *rapid.T) {
	m.reply(pick(t, "request", m.answerable()))
	m.after()
}

// replyBatch hands in several replies in one hold; a failure among them may end the connection for the rest.
func (m *mRun) replyBatch(t *rapid.T) {
	c := pick(t, "connection", m.alive())
	var batch []Completion
	fails := m.draw("failures", 0, 3) == 0
	for range m.draw("replies", 1, 5) {
		if m.draw("junk", 0, 9) == 0 {
			if id := m.anyID(); c.byID[id] == nil || c.byID[id].answered {
				batch = append(batch, Completion{ID: id})
			}
			continue
		}
		var can []mWork
		for _, q := range c.reqs {
			if !q.answered && (q.executed || c.ready(q)) {
				can = append(can, mWork{c, q})
			}
		}
		if len(can) == 0 {
			break
		}
		w := pick(t, "request", can)
		if fails && !w.q.executed {
			m.executeOne(w, m.draw("fail", 0, 1) == 0, false)
		}
		batch = append(batch, Completion{ID: w.q.d.ID, Result: m.result(w)})
	}
	if len(batch) == 0 {
		t.Skip("nothing to answer")
	}
	refused := c.c.CompleteBatch(batch)
	m.wait()
	m.batch = true
	for _, b := range batch {
		// The model takes one at a time: what one changes, the next one meets. Only what has settled by then differs: a
		// retirement comes with the completion that allows it in either case.
		reason, refuse := m.orphan(c, b.ID, b.Result.Kind)
		if refuse != (b.Err != nil) {
			t.Fatalf("job %d in a batch: %v, want orphan %v (%v)\n%v", b.ID, b.Err, refuse, reason, m.tr.Dump())
		}
		if refuse {
			refused--
			m.orphans[reason]++
			if !errors.Is(b.Err, mReasons[reason]) || !errors.Is(b.Err, ErrOrphan) {
				t.Fatalf("job %d in a batch: %v, want %v", b.ID, b.Err, reason)
			}
			continue
		}
		m.completed(c, c.byID[b.ID], b.Result)
		m.settle()
		m.replies++
	}
	m.batch = false
	if refused != 0 {
		t.Fatalf("CompleteBatch counted %d refusals too many", refused)
	}
	m.after()
}

// anyID is an id of some kind: of the table, of the past, of the future.
func (m *mRun) anyID() JobID {
	switch m.draw("whose id", 0, 3) {
	case 0:
		return JobID(m.draw("id", 0, int(m.next)+1))
	case 1:
		return m.next + JobID(m.draw("beyond", 0, 3))
	}
	if len(m.table) == 0 {
		return 0
	}
	return m.table[m.draw("job", 0, len(m.table)-1)].id
}

// orphanReply hands in a reply that may be anything: late, twice, of another connection, never asked for. One that would
// be accepted is not handed in.
func (m *mRun) orphanReply(t *rapid.T) {
	c := pick(t, "connection", m.conns)
	id := m.anyID()
	if len(c.reqs) > 0 && m.draw("its own", 0, 1) == 0 {
		id = pick(t, "request", c.reqs).d.ID
	}
	res := Result{Kind: Kind(m.draw("kind", 0, numKinds))}
	if m.draw("bad", 0, 3) == 0 {
		res.Err = errReplica
	}
	if _, refuse := m.orphan(c, id, res.Kind); !refuse {
		t.Skip("it is no orphan")
	}
	m.complete(c, id, res)
	m.after()
}

// work has everybody do a good deal of what there is.
func (m *mRun) work(t *rapid.T) {
	for range m.draw("steps", 1, 10) {
		if cs := m.alive(); len(cs) > 0 {
			m.dispatch(pick(t, "connection", cs), 4)
		}
		if can := m.answerable(); len(can) > 0 {
			m.reply(pick(t, "request", can))
		}
		m.after()
	}
}
