package jobtracker

import (
	"context"
	"slices"

	"pgregory.net/rapid"
)

func (m *mRun) repairStart(t *rapid.T) {
	var ready []int
	for r, rep := range m.reps {
		if rep.state.Phase == RepairReady && m.phase == Active || m.draw("any", 0, 19) == 0 {
			ready = append(ready, r)
		}
	}
	m.startRepair(pick(t, "target", ready))
	m.after()
}

func (m *mRun) startRepair(r int) {
	rep := m.reps[r]
	if rep.state.Phase != RepairReady || m.phase != Active {
		want := ErrLifecycle
		if m.phase != Active {
			want = ErrPhase
		}
		m.refused("Repair", want, func() error { _, err := m.tr.Repair(r); return err })
		return
	}
	ticket, err := m.tr.Repair(r)
	m.must("Repair", err)
	m.move(r, ReplicaState{Repairing, rep.state.Home}, nil)
	rep.repair = &mRepair{ticket: ticket, r: r, copied: make([]bool, m.cfg.Blocks)}
	if ticket.Context().Err() != nil {
		m.t.Fatalf("a new repair is over: %v", context.Cause(ticket.Context()))
	}
}

func (m *mRun) repairs() (ps []*mRepair) {
	for _, rep := range m.reps {
		if rep.repair != nil {
			ps = append(ps, rep.repair)
		}
	}
	return ps
}

func (m *mRun) copySome(t *rapid.T) {
	p := pick(t, "repair", m.repairs())
	source := m.draw("source", 0, m.n)
	start := rapid.Uint64Range(0, m.cfg.Blocks-1).Draw(t, "start")
	m.copyBlocks(p, source, start, rapid.Uint64Range(1, m.cfg.Blocks-start).Draw(t, "blocks"))
	m.after()
}

// copyAll copies all that has not been copied yet.
func (m *mRun) copyAll(t *rapid.T) {
	p := pick(t, "repair", m.repairs())
	source := m.draw("source", 0, m.n-1)
	for p.final == 0 && m.reps[source].state.Phase == Voting && m.reps[p.r].repair == p {
		p.complete()
		b := slices.Index(p.copied, false)
		for _, j := range p.copies {
			if b >= 0 && !j.decided && uint64(b) >= j.op.Start && uint64(b) < j.op.Start+j.op.Blocks {
				b = -1 // on its way
			}
		}
		if b < 0 {
			break
		}
		if m.draw("compare", 0, 2) == 0 {
			m.compareExtent(p, source, b)
			break // it may be found to differ
		}
		m.copyBlocks(p, source, uint64(b), min(m.cfg.Blocks-uint64(b), uint64(m.cfg.MaxBytes)/uint64(m.cfg.BlockSize)))
		m.after()
	}
	m.after()
}

// nurse carries a repair on, towards its end.
func (m *mRun) nurse(t *rapid.T) {
	p := pick(t, "repair", m.repairs())
	if !p.complete() {
		m.copyAll(t)
	}
	for range m.draw("steps", 1, 12) {
		for r, rep := range m.reps {
			if c := rep.conn; c != nil && c.live && (r == p.r || rep.state.Phase == Voting) {
				m.dispatch(c, 4)
				m.after()
			}
		}
		if can := m.answerable(); len(can) > 0 {
			m.reply(pick(t, "request", can))
			m.after()
		}
	}
	if m.reps[p.r].repair == p && p.final == 0 && p.complete() {
		m.finishOne(p)
		m.after()
	}
}

func (m *mRun) copyBlocks(p *mRepair, source int, start, blocks uint64) {
	pay := &mPay{}
	call := func() error { _, err := p.ticket.Copy(source, start, blocks, pay); return err }
	switch {
	case source >= m.n:
		m.refused("Copy", ErrReplica, call)
	case m.reps[source].state.Phase != Voting:
		m.refused("Copy", ErrLifecycle, call)
	case p.final != 0:
		m.refused("Copy", ErrSuperseded, call)
	default:
		if m.draw("too far", 0, 20) == 0 {
			m.refused("Copy", ErrOp, func() error { _, err := p.ticket.Copy(source, m.cfg.Blocks, 1, pay); return err })
		}
		h, err := p.ticket.Copy(source, start, blocks, pay)
		m.must("Copy", err)
		m.addCopy(p, h, source, start, blocks, pay)
	}
}

func (m *mRun) addCopy(p *mRepair, h *Job[*mPay], source int, start, blocks uint64, pay *mPay) *mJob {
	j := &mJob{
		id: m.next, op: Op{Kind: Copy, Start: start, Blocks: blocks}, pay: pay, handle: h, index: len(m.jobs), source: source, target: p.r,
		voters: 1 << p.r,
	}
	pay.job = j
	m.next++
	m.order(j)
	j.st[source], j.st[p.r] = mPending, mPending
	m.charge(j)
	p.copies = append(p.copies, j)
	return j
}

// compareOne compares an extent, which has one block.
func (m *mRun) compareOne(t *rapid.T) {
	p := pick(t, "repair", m.repairs())
	m.compareExtent(p, m.draw("source", 0, m.n), m.draw("extent", 0, int(m.cfg.Blocks)-1))
	m.after()
}

func (m *mRun) compareExtent(p *mRepair, source, extent int) {
	pay := &mPay{}
	call := func() error { _, err := p.ticket.Compare(source, extent, pay); return err }
	switch {
	case source >= m.n:
		m.refused("Compare", ErrReplica, call)
	case m.reps[source].state.Phase != Voting:
		m.refused("Compare", ErrLifecycle, call)
	case p.final != 0:
		m.refused("Compare", ErrSuperseded, call)
	default:
		if m.draw("too far", 0, 20) == 0 {
			m.refused("Compare", ErrOp, func() error { _, err := p.ticket.Compare(source, int(m.cfg.Blocks), pay); return err })
		}
		h, err := p.ticket.Compare(source, extent, pay)
		m.must("Compare", err)
		m.addCopy(p, h, source, uint64(extent), 1, pay).compares = true
	}
}

// copied tells whether a repair has everything: what its copies that went well have copied.
func (p *mRepair) complete() bool {
	open := false
	was := p.copies
	p.copies = nil
	for _, j := range was {
		if !j.decided {
			open = true
			p.copies = append(p.copies, j)
			continue
		}
		if !j.bad && !j.unsure && !j.unlike {
			for b := j.op.Start; b < j.op.Start+j.op.Blocks; b++ {
				p.copied[b] = true
			}
		}
	}
	for _, done := range p.copied {
		if !done {
			return false
		}
	}
	return !open
}

func (m *mRun) repairFinish(t *rapid.T) {
	var ps []*mRepair
	for _, p := range m.repairs() {
		if p.complete() || p.final != 0 {
			ps = append(ps, p)
		}
	}
	m.finishOne(pick(t, "repair", ps))
	m.after()
}

func (m *mRun) finishOne(p *mRepair) {
	if p.final != 0 {
		m.refused("Finish", ErrLifecycle, p.ticket.Finish)
		return
	}
	m.must("Finish", p.ticket.Finish())
	p.final = m.next
	m.admit(Op{Kind: Flush}, nil)
}

func (m *mRun) repairAbort(t *rapid.T) {
	p := pick(t, "repair", m.repairs())
	m.must("Abort", p.ticket.Abort(errLost))
	m.move(p.r, ReplicaState{RepairReady, m.reps[p.r].state.Home}, errLost)
	m.after()
}

func (m *mRun) superseded(t *rapid.T) {
	p := pick(t, "ticket", m.stale)
	m.refused("Copy", ErrSuperseded, func() error { _, err := p.Copy(0, 0, 1, nil); return err })
	m.refused("Finish", ErrSuperseded, p.Finish)
	m.refused("Abort", ErrSuperseded, func() error { return p.Abort(nil) })
	m.after()
}
