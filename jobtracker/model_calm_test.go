package jobtracker

// calm is the liveness half: faults stop, everybody comes back, and everything has to come to its end.
func (m *mRun) calm() {
	if m.phase == Deactivating {
		m.drain()
		m.after()
		if m.phase != Inactive {
			m.t.Fatalf("a deactivation does not end\n%v", m.tr.Dump())
		}
	}
	if m.phase == Inactive {
		m.reconcile()
		m.activateWith(ActivateOptions{Generation: m.gen + 1})
		m.after()
	}
	m.comeBack()
	if m.phase != Active {
		// Too few are left of an activation that had not begun.
		m.deactivateNow()
		m.after()
		m.reconcile()
		for _, rep := range m.reps {
			rep.disk.broken = false
		}
		m.activateWith(ActivateOptions{Generation: m.gen + 1, Create: m.allReplaced()})
		m.after()
		m.comeBack()
	}
	if m.phase != Active {
		m.t.Fatalf("everybody is here, and the activation does not begin\n%v", m.tr.Dump())
	}
	m.heal()
	m.finishAll()
}

// allReplaced tells whether no replica is left that counts; then only a new device can be made, of blank replicas.
func (m *mRun) allReplaced() bool {
	counted := 0
	for _, rep := range m.reps {
		if rep.state.Home != HomeReplaced {
			counted++
		}
	}
	if counted >= max(m.n-m.quorum+1, m.quorum) {
		return false
	}
	for _, rep := range m.reps {
		rep.disk.gen, rep.disk.flush = 0, 0
	}
	return true
}

// comeBack quiesces and connects everybody.
func (m *mRun) comeBack() {
	for range 3 {
		m.connectAll()
		m.drain()
	}
}

// drain has everybody execute and answer everything, and says that nothing is left that could be.
func (m *mRun) drain() {
	for moved := true; moved; {
		moved = false
		for _, c := range m.alive() {
			for m.dispatch(c, 4) > 0 {
				moved = true
			}
		}
		for {
			can := m.answerable()
			if len(can) == 0 {
				break
			}
			w := can[m.draw("request", 0, len(can)-1)]
			if !w.q.executed {
				m.executeOne(w, false, false)
			}
			res := Result{}
			if w.q.bad {
				res.Err = errReplica
			} else if w.q.job.op.Kind == Read {
				res.Digest = digestOf(w.q.data)
			}
			m.complete(w.c, w.q.d.ID, res)
			m.after()
			moved = true
		}
		for _, a := range m.alive() {
			moved = moved || m.dispatch(a, 4) > 0
		}
	}
}

// heal repairs who needs it.
func (m *mRun) heal() {
	for range 4 {
		m.drain()
		m.connectAll()
		m.drain()
		for r, rep := range m.reps {
			if m.phase != Active {
				m.t.Fatalf("the activation ended by itself: %v\n%v", m.cause, m.tr.Dump())
			}
			if rep.state.Phase == RepairReady {
				m.startRepair(r)
				m.after()
			}
			if p := rep.repair; p != nil && p.final == 0 {
				source := -1
				for s, o := range m.reps {
					if o.state.Phase == Voting {
						source = s
					}
				}
				most := uint64(m.cfg.MaxBytes) / uint64(m.cfg.BlockSize)
				for b := uint64(0); b < m.cfg.Blocks; b += most {
					m.copyBlocks(p, source, b, min(most, m.cfg.Blocks-b))
					m.after()
				}
				m.drain()
				if rep.repair == p && p.complete() {
					m.finishOne(p)
					m.after()
				}
			}
			m.drain()
		}
	}
	for r, rep := range m.reps {
		if rep.state.Phase != Voting {
			m.t.Fatalf("replica %d does not become active\n%v", r, m.tr.Dump())
		}
	}
}

// finishAll says that nothing is left behind, and ends the activation.
func (m *mRun) finishAll() {
	m.drain()
	if len(m.waiting) > 0 || m.unresolved() > 0 {
		m.t.Fatalf("%d wait for admission, %d jobs are not resolved\n%v", len(m.waiting), m.unresolved(), m.tr.Dump())
	}
	for range 2 { // the first one may fail for a write that was lost
		m.submitOp(Op{Kind: Flush})
		m.drain()
	}
	if len(m.table) > 0 {
		m.t.Fatalf("the table is not empty after a flush\n%v", m.tr.Dump())
	}
	for r, rep := range m.tr.Dump().Replicas {
		if rep.Jobs != 0 || rep.Bytes != 0 || rep.Held != 0 || rep.Sent != 0 || rep.Ready != 0 {
			m.t.Fatalf("replica %d keeps %+v", r, rep)
		}
	}
	for b := range m.cfg.Blocks {
		for r, rep := range m.reps {
			if v := rep.disk.now[b]; v != m.reps[0].disk.now[b] || !m.allowed(b, m.next, v, false) {
				m.t.Fatalf("block %d is job %d's on replica %d and job %d's on replica 0", b, v, r, m.reps[0].disk.now[b])
			}
			if rep.disk.saved[b] != rep.disk.now[b] {
				m.t.Fatalf("block %d on replica %d is not durable after a flush", b, r)
			}
		}
	}
	m.deactivateNow()
	h := m.deactivating
	m.after()
	m.drain()
	m.after()
	if m.phase != Inactive || h != nil && h.Err() != nil {
		m.t.Fatalf("the deactivation does not end, or not well\n%v", m.tr.Dump())
	}
	closed := m.tr.Close()
	m.end(ErrClosed, nil, Closed)
	m.wait()
	select {
	case <-closed.Done():
	default:
		m.t.Fatalf("the tracker is not closed\n%v", m.tr.Dump())
	}
	m.check()
}
