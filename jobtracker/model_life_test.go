package jobtracker

import (
	"errors"
	"time"

	"pgregory.net/rapid"
)

// activateAll makes a new device and connects everybody.
func (m *mRun) activateAll() {
	m.activateWith(ActivateOptions{Generation: m.gen + 1, Create: true})
	m.after()
	for r := range m.n {
		m.connectWith(r, m.hello(r))
	}
}

func (m *mRun) activateWith(o ActivateOptions) {
	h, err := m.tr.Activate(o)
	m.must("Activate", err)
	m.phase, m.gen, m.mode, m.wrote, m.flushes = Activating, o.Generation, o, false, 0
	m.top, m.syncErr, m.begin = [2]uint64{}, nil, h
	m.phases = append(m.phases, Activating)
}

func (m *mRun) activate(t *rapid.T) {
	if m.phase != Inactive {
		t.Skip("active")
	}
	o := ActivateOptions{Generation: m.gen + uint64(m.draw("generations", 1, 3)), ReadOnly: chance(t, "read only", 15)}
	hurt := false // more is lost than replicas may lose between activations
	for _, rep := range m.reps {
		hurt = hurt || rep.disk.broken
	}
	if m.draw("reconcile", 0, 9) > 0 || hurt {
		m.reconcile()
	}
	m.activateWith(o)
	m.after()
	if m.draw("connect all", 0, 3) > 0 {
		m.connectAll()
	}
}

// connectAll has every replica that can connect do so.
func (m *mRun) connectAll() {
	for r := range m.n {
		if m.phase != Activating && m.phase != Active {
			return
		}
		if m.reps[r].state.Phase == Stopping {
			m.quiesceConn(m.reps[r].conn, true)
		}
		if m.reps[r].state.Phase == Down {
			m.connectWith(r, m.hello(r))
		}
	}
}

// reconcile makes the contents of all replicas equal while nothing is active, as package repair would.
func (m *mRun) reconcile() {
	best := -1
	for r, rep := range m.reps {
		m.quiesceConn(rep.conn, true)
		d := rep.disk
		if d.broken || rep.state.Home == HomeReplaced {
			continue
		}
		if best < 0 || m.reps[best].disk.gen < d.gen || m.reps[best].disk.gen == d.gen && m.reps[best].disk.flush < d.flush {
			best = r
		}
	}
	if best < 0 {
		best = 0
	}
	gen, flush := max(m.reps[best].disk.gen, 1), m.reps[best].disk.flush+1
	for r := range m.reps {
		if m.reps[r].disk != m.reps[best].disk {
			m.reps[r].disk.become(m.reps[best].disk, gen, flush)
		}
	}
	m.reps[best].disk.become(m.reps[best].disk, gen, flush)
}

func (m *mRun) activateBad(t *rapid.T) {
	switch {
	case m.phase != Inactive:
		m.refused("Activate", ErrPhase, func() error { _, err := m.tr.Activate(ActivateOptions{Generation: m.gen + 1}); return err })
	default:
		m.refused("Activate", ErrGeneration, func() error { _, err := m.tr.Activate(ActivateOptions{Generation: m.gen}); return err })
	}
	m.after()
}

func (m *mRun) closeConn(t *rapid.T) {
	c := pick(t, "connection", m.known())
	crash := m.draw("crash", 0, 2) == 0
	m.closeOne(c)
	if crash && m.reps[c.r].conn == c && m.reps[c.r].disk == c.disk {
		c.quiesced = true // nothing of it is left to be executed
		c.disk.crash(t)
	}
	m.after()
}

func (m *mRun) closeOne(c *mConn) {
	before := m.tr.Fingerprint()
	c.c.Close(errLost)
	if c.live {
		m.loseConn(c.r, errLost)
	} else if m.tr.Fingerprint() != before {
		m.t.Fatalf("Close of an ended connection changed the state")
	}
}

var errLost = errors.New("the line is dead")

func (m *mRun) quiesce(t *rapid.T) {
	var cs []*mConn
	for _, c := range m.conns {
		if !c.live && !c.quiesced || c == m.reps[c.r].conn && m.draw("any", 0, 9) == 0 {
			cs = append(cs, c)
		}
	}
	m.quiesceConn(pick(t, "connection", cs), false)
	m.after()
}

// quiesceConn has a replica execute some of what is left in the socket of a connection that has ended; then nothing of it
// can be executed any more, and its driver says so.
func (m *mRun) quiesceConn(c *mConn, all bool) {
	if c == nil {
		return
	}
	if c.live {
		if m.draw("quiesce live", 0, 3) == 0 {
			m.refused("Quiesced", ErrLifecycle, c.c.Quiesced)
		}
		return
	}
	for !c.quiesced {
		var can []mWork
		for _, q := range c.reqs {
			if c.ready(q) {
				can = append(can, mWork{c, q})
			}
		}
		if len(can) == 0 || m.draw("leave the rest", 0, 2) == 0 {
			break
		}
		m.executeOne(pick(m.t, "late", can), false, false)
	}
	c.quiesced = true
	before := m.tr.Fingerprint()
	m.must("Quiesced", c.c.Quiesced())
	if rep := m.reps[c.r]; rep.conn == c && rep.state.Phase == Stopping {
		m.move(c.r, ReplicaState{Down, rep.state.Home}, nil)
	} else if m.tr.Fingerprint() != before {
		m.t.Fatalf("Quiesced of a connection that is over changed the state")
	}
	if all {
		m.after()
	}
}

// hello is what a replica honestly says of itself.
func (m *mRun) hello(r int) Hello {
	d := m.reps[r].disk
	h := Hello{Device: ID{99}, Replica: d.id, Blocks: m.cfg.Blocks, BlockSize: m.cfg.BlockSize, Generation: d.gen, Flush: d.flush, Dirty: d.dirty}
	switch m.draw("taciturn", 0, 9) {
	case 0:
		h.Device, h.Blocks = ID{}, 0
	case 1:
		h.Replica, h.BlockSize = ID{}, 0
	}
	return h
}

func (m *mRun) connect(t *rapid.T) {
	r := m.draw("replica", 0, m.n-1)
	rep := m.reps[r]
	switch {
	case m.phase != Activating && m.phase != Active:
		m.refused("Connect", ErrPhase, func() error { _, err := m.tr.Connect(r, Hello{}); return err })
		m.after()
		return
	case rep.state.Phase == Stopping:
		m.refused("Connect", ErrNotQuiesced, func() error { _, err := m.tr.Connect(r, Hello{}); return err })
		m.after()
		return
	case rep.state.Phase != Down:
		m.refused("Connect", ErrLifecycle, func() error { _, err := m.tr.Connect(r, Hello{}); return err })
		m.after()
		return
	}
	switch m.draw("health", 0, 14) {
	case 0: // it has lost its last flush, and anything else
		if d := rep.disk; d.flush > 0 && m.phase == Active && rep.state.Home != HomeReplaced && d.gen == m.gen && rep.promised > 0 {
			d.flush = rep.promised - 1
			m.scramble(d)
		}
	case 1: // it is blank
		if d := rep.disk; d.gen > 0 && m.phase == Active && (rep.promised > 0 || rep.said.Generation > 0) {
			d.gen, d.flush = 0, 0
			m.scramble(d)
		}
	case 2: // it is yet another one
		if rep.state.Home == HomeReplaced {
			m.ids++
			rep.disk = newDisk(m.cfg.Blocks, ID{m.ids})
		}
	}
	m.connectWith(r, m.hello(r))
}

// scramble has a device lose everything.
func (m *mRun) scramble(d *mDisk) {
	clear(d.now)
	clear(d.saved)
	clear(d.since)
	d.broken = true
}

// isBehind tells whether a replica that comes to a running activation needs a repair.
func (m *mRun) isBehind(rep *mReplica, h Hello) bool {
	if m.phase != Active {
		return false
	}
	switch rep.state.Home {
	case HomeOffline:
		if h.Generation == m.gen {
			return h.Flush < rep.promised
		}
		return rep.promised > 0 || h.Generation != rep.said.Generation || h.Flush != rep.said.Flush
	case HomeNew:
		return m.wrote || m.mode.Create || [2]uint64{h.Generation, h.Flush} != m.top || h.Dirty
	case HomeFaulted, HomeReplaced:
	}
	return true
}

func (m *mRun) connectWith(r int, h Hello) {
	rep := m.reps[r]
	c, err := m.tr.Connect(r, h)
	m.must("Connect", err)
	conn := &mConn{c: c, r: r, disk: rep.disk, live: true, byID: map[JobID]*mReq{}, last: map[uint64]JobID{}}
	m.conns = append(m.conns, conn)
	if len(m.conns) > 20 {
		m.conns = m.conns[1:]
	}
	behind := m.isBehind(rep, h)
	rep.conn, rep.said, rep.sent = conn, h, 0
	if h.Device != (ID{}) {
		m.device = h.Device
	}
	needy, fresh := HomeFaulted, HomeNew
	if rep.state.Home == HomeReplaced {
		needy, fresh = HomeReplaced, HomeReplaced
	}
	switch {
	case m.phase == Activating:
		m.move(r, ReplicaState{Fresh, fresh}, nil)
	case behind:
		m.move(r, ReplicaState{RepairReady, needy}, nil)
	default:
		m.move(r, ReplicaState{Voting, HomeOffline}, nil)
	}
	m.after()
	if c.Replica() != r || c.Context().Err() != nil && conn.live {
		m.t.Fatalf("connection of replica %d says %d, %v", r, c.Replica(), c.Context().Err())
	}
	replays, reads := false, false
	for _, j := range m.table {
		if j.st[r] == mPending {
			replays = replays || j.op.Kind != Read || m.cfg.Reads == ReadAll
			reads = true
		}
	}
	want := PlanFresh
	switch {
	case rep.state.Phase == RepairReady:
		want = PlanRepair
	case replays || reads && c.Plan() == PlanReplay:
		want = PlanReplay
	}
	if c.Plan() != want {
		m.t.Fatalf("replica %d is %v and its plan is %v, want %v\n%v", r, rep.state, c.Plan(), want, m.tr.Dump())
	}
}

// connectBad says what cannot be true.
func (m *mRun) connectBad(t *rapid.T) {
	var down []int
	for r, rep := range m.reps {
		if rep.state.Phase == Down {
			down = append(down, r)
		}
	}
	m.refused("Connect", ErrReplica, func() error { _, err := m.tr.Connect(m.n, Hello{}); return err })
	m.refused("Connect", ErrReplica, func() error { _, err := m.tr.Connect(-1, Hello{}); return err })
	if m.phase != Activating && m.phase != Active {
		t.Skip("not active")
	}
	r := pick(t, "replica", down)
	h := m.hello(r)
	switch m.draw("what", 0, 5) {
	case 0:
		if m.device == (ID{}) {
			t.Skip("no device yet")
		}
		h.Device = ID{98}
	case 1:
		h.Blocks = m.cfg.Blocks + 1
	case 2:
		h.BlockSize = m.cfg.BlockSize + 1
	case 3:
		h.Generation = m.gen + 1
	case 4:
		h.Generation, h.Flush = m.gen, m.flushes+1
	case 5:
		if m.reps[r].state.Home == HomeReplaced || m.reps[r].named == (ID{}) {
			t.Skip("no identity yet")
		}
		h.Replica = ID{97}
	}
	err := m.refusal("Connect", ErrHello, func() error { _, err := m.tr.Connect(r, h); return err })
	var e *HelloError
	if !errors.As(err, &e) || e.Replica != r || e.Field == "" {
		t.Fatalf("hello %+v refused with %#v", h, err)
	}
	m.after()
}

var errFault = errors.New("the operator says so")

func (m *mRun) faultOne(t *rapid.T) {
	m.spare(t)
	r := m.draw("replica", 0, m.n)
	switch {
	case r == m.n:
		m.refused("Fault", ErrReplica, func() error { return m.tr.Fault(r, errFault) })
	case m.phase == Inactive:
		m.refused("Fault", ErrPhase, func() error { return m.tr.Fault(r, errFault) })
	default:
		m.must("Fault", m.tr.Fault(r, errFault))
		m.fault(r, errFault)
	}
	m.after()
}

func (m *mRun) replaceOne(t *rapid.T) {
	m.spare(t)
	r := m.draw("replica", 0, m.n)
	if r == m.n {
		m.refused("Replace", ErrReplica, func() error { return m.tr.Replace(r) })
		return
	}
	m.must("Replace", m.tr.Replace(r))
	m.ids++
	rep := m.reps[r]
	rep.disk = newDisk(m.cfg.Blocks, ID{m.ids})
	m.move(r, ReplicaState{Down, HomeReplaced}, ErrReplaced)
	rep.named = ID{}
	m.after()
}

func (m *mRun) deactivate(t *rapid.T) {
	if m.phase != Inactive && m.draw("really", 0, 3) > 0 {
		t.Skip("not now")
	}
	m.deactivateNow()
	m.after()
}

func (m *mRun) deactivateNow() {
	before := m.tr.Fingerprint()
	h := m.tr.Deactivate()
	switch m.phase {
	case Inactive, Closed:
		if !errors.Is(h.Err(), ErrPhase) || m.tr.Fingerprint() != before {
			m.t.Fatalf("Deactivate while %v: %v", m.phase, h.Err())
		}
	case Deactivating:
		if h != m.deactivating || m.tr.Fingerprint() != before {
			m.t.Fatalf("a second Deactivate got another handle, or changed the state")
		}
	case Activating:
		m.deactivating = h
		m.end(ErrDeactivated, nil, Inactive)
	case Active:
		m.deactivating = h
		m.phase = Deactivating
		m.phases = append(m.phases, Deactivating)
		m.refuseWaiting(ErrDeactivated)
		for r, rep := range m.reps {
			switch s := rep.state; {
			case !s.Connected() && s.Home == HomeOffline:
				m.move(r, ReplicaState{s.Phase, HomeFaulted}, ErrDeactivated)
			case s.Phase == Repairing:
				m.move(r, ReplicaState{RepairReady, s.Home}, ErrDeactivated)
			}
		}
		if n := len(m.table); n > 0 && m.table[n-1].id > m.retireTo || !m.flushed() || m.lostFrom != 0 {
			kind := Flush
			if m.mode.ReadOnly {
				kind = Barrier
			}
			m.admit(Op{Kind: kind}, nil)
		}
	}
}

// flushed tells whether a flush has vouched for everything that was retired, on everybody who votes.
func (m *mRun) flushed() bool {
	for _, rep := range m.reps {
		if rep.state.voter() && rep.vouched < max(m.retiredWrite, m.retiredCopy) {
			return false
		}
	}
	return true
}

func (m *mRun) disable(t *rapid.T) {
	if m.phase == Inactive {
		m.refused("Disable", ErrPhase, func() error { return m.tr.Disable(errFault) })
		m.after()
		return
	}
	if m.draw("really", 0, 3) > 0 {
		t.Skip("not now")
	}
	m.must("Disable", m.tr.Disable(errFault))
	m.end(errFault, errFault, Inactive)
	m.after()
}

// tick lets time pass, in steps short enough to tell deadlines apart.
func (m *mRun) tick(t *rapid.T) {
	for range rapid.SampledFrom([]int{1, 1, 2, 4, 10, 40}).Draw(t, "time") {
		m.pass(time.Second)
	}
}

func (m *mRun) pass(d time.Duration) {
	m.low = int64(time.Since(m.start))
	m.wait()
	time.Sleep(d) //rules:sleep in a bubble
	m.wait()
	now := int64(time.Since(m.start))
	for r, rep := range m.reps {
		if rep.state.Connected() {
			m.lookForReply(r, now)
		}
	}
	for r := range m.reps {
		if faulted, may, _ := m.awayTooLong(r, now); faulted && may {
			m.fault(r, ErrOfflineLimit)
		}
	}
	m.settle() // others may have missed too much by that
	for r := range m.reps {
		if faulted, _, must := m.awayTooLong(r, now); faulted || must {
			m.t.Fatalf("replica %d was faulted for being away: %v; must be: %v\n%v", r, faulted, must, m.tr.Dump())
		}
	}
	m.after()
	m.low = 0
}

// awayTooLong tells whether the tracker has faulted a replica that is away, whether it may have been too long, and whether
// it must have been.
func (m *mRun) awayTooLong(r int, now int64) (faulted, may, must bool) {
	rep := m.reps[r]
	if rep.state.Connected() || rep.state.Home != HomeOffline {
		return false, false, false
	}
	h := m.hint(r)
	return h != nil && errors.Is(h.Cause, ErrOfflineLimit), !m.lim.offlineForever && now-rep.away[0] >= m.lim.offlineFor,
		!m.lim.offlineForever && now-rep.away[1] >= m.lim.offlineFor
}

func (m *mRun) lookForReply(r int, now int64) {
	rep := m.reps[r]
	h := m.hint(r)
	ended := h != nil && errors.Is(h.Cause, ErrReplyTimeout)
	owes := rep.sent > 0 && !m.lim.replyPatient
	switch {
	case ended && (!owes || now-rep.owes[0] < m.lim.replyTimeout):
		m.t.Fatalf("replica %d was cut off after %v at most, with %d sent", r, time.Duration(now-rep.owes[0]), rep.sent)
	case !ended && owes && now-rep.owes[1] > m.lim.replyTimeout*9/8:
		m.t.Fatalf("replica %d gave no answer for %v, and was not cut off", r, time.Duration(now-rep.owes[1]))
	case ended:
		m.loseConn(r, ErrReplyTimeout)
	}
}
