package streamstate

import (
	"errors"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type mFlush struct {
	f         *FlushTicket
	k         *mKey
	target    [mParts]*uint64
	cancelled bool
}

func (m *model) startFlush() {
	s := m.session()
	k := s.k
	want := s.stale()
	switch {
	case want != nil:
	case k.phase == Opening:
		want = ErrPhase
	case k.run != nil:
		want = ErrFlushRunning
	case m.engaged(k) != nil || len(m.holdsOn(k)) > 0:
		want = ErrHeld
	}
	var f *FlushTicket
	if !m.expect("start flush", want, func() (err error) { f, err = s.StartFlush(); return err }) {
		return
	}
	k.run = &mFlush{f: f, k: k}
	m.flushes = append(m.flushes, k.run)
	for i := range k.parts {
		p := &k.parts[i]
		if p.wanted {
			p.covered = true
			k.run.target[i] = p.received
			if p.lowest() != nil {
				k.run.target[i] = p.flushed
			}
		}
		requireAt(m.t, f.Target(), i, k.run.target[i])
	}
}

func requireAt(t require.TestingT, ts Timestamp, i int, want *uint64) {
	pos, ok := ts.At(i)
	require.Equal(t, want != nil, ok, i)
	if ok {
		require.Equal(t, *want, pos.Next, i)
	}
}

func (m *model) endFlush() {
	f, done := token1(m, m.flushes, "flush"), m.n(1, "done") == 0
	if f == nil {
		return
	}
	k := f.k
	var want error
	if f != k.run {
		want = ErrSuperseded
	}
	var returned, given []int
	ok := m.expect("flush reply", want, func() (err error) {
		if done {
			returned, err = f.f.Done()
			return err
		}
		return f.f.Fail(errors.New("no"))
	})
	if !ok {
		return
	}
	k.run = nil
	for i := range k.parts {
		p := &k.parts[i]
		switch {
		case done && p.broken:
			given = append(given, i)
		case done && p.covered:
			p.flushed = f.target[i]
		}
		p.covered, p.broken = false, false
	}
	require.Equal(m.t, given, returned)
	switch k.phase {
	case Stopping:
		k.phase = Stopped
	case Closing:
		k.phase = Gone
	case Opening, Active, Stopped, Gone:
	}
}

// lowest is where live claims say to roll back to.
func (p *mPart) lowest() (to *uint64) {
	for _, l := range p.live {
		if l.back != nil && (to == nil || *l.back < *to) {
			to = l.back
		}
	}
	return to
}

// end ends a session: all that hangs on it but a running flush, which is waited for.
func (m *model) endSession(k *mKey) {
	for i := range k.parts {
		p := &k.parts[i]
		p.promised = p.lowest()
		p.live, p.listed, p.last, p.due, p.ticket = nil, nil, nil, false, nil
		p.rung, p.tried, p.tries = RungRestart, false, 0
	}
	k.ticket, k.retry = nil, false
	for _, h := range m.holds {
		if h.from.k == k || h.on.k == k {
			h.ended = true
		}
	}
	m.merges = slices.DeleteFunc(m.merges, func(g *mMerge) bool {
		over := g.from.k == k || g.into.k == k
		if over {
			require.ErrorIs(m.t, g.h.Err(), ErrEnded)
		}
		return over
	})
}

// stopSession stops or drains; a session that has ended answers with the same handle again.
func (m *model) stopSession() {
	s, how := m.session(), m.n(5, "how")
	k, stop := s.k, s.Stop
	if how > 1 { // mostly what ends a session is left out
		return
	}
	drain := how == 1
	if drain {
		stop = func(error) *Handle { return s.Drain() }
	}
	var h *Handle
	if !m.expect("stop", s.ended(), func() error { h = stop(nil); return refused(h) }) {
		return
	}
	if k.run != nil && !drain {
		k.run.cancelled = true
	}
	if !k.usable() {
		require.Same(m.t, k.stop, h)
		return
	}
	if k.phase, k.stop = Stopped, h; k.run != nil {
		k.phase = Stopping
	}
	m.endSession(k)
	m.handles = append(m.handles, h)
}

func (m *model) reopen() {
	s, pending, carry := m.session(), m.n(1, "pending") == 1, m.n(1, "carry") == 1
	k := s.k
	want := s.ended()
	if want == nil && k.phase != Stopped {
		want = ErrPhase
	}
	o := ReopenOptions[int]{Pending: pending}
	if carry {
		o.Carry = func(n int) (int, error) { return n, nil }
	}
	var next *Session[int]
	if !m.expect("reopen", want, func() (err error) { next, err = m.book.Reopen(s.Session, o); return err }) {
		return
	}
	m.begins(k, next, pending)
	if !carry {
		k.payload = 0
	}
	for i := range k.parts {
		p := &k.parts[i]
		at := p.flushed
		if back := p.promised; back != nil && (*back == 0 || at != nil && *back < *at) {
			at = back
		}
		if !p.wanted || p.forget {
			at = nil
		}
		*p = mPart{wanted: p.wanted, received: at, flushed: at}
	}
}

// begins notes a session.
func (m *model) begins(k *mKey, s *Session[int], pending bool) {
	k.s, k.term, k.stop = &mSession{s, k}, 0, nil
	m.ss = append(m.ss, k.s)
	if k.phase = Active; pending {
		k.phase = Opening
	}
}

func (m *model) opened() {
	s, failed := m.session(), m.n(5, "failed") == 5
	k := s.k
	want := s.stale()
	if want == nil && k.phase == Active {
		want = ErrSuperseded
	}
	if failed {
		if m.expect("open failed", want, func() error { return s.OpenFailed(nil) }) {
			k.phase = Stopped
			m.endSession(k)
			k.stop = s.Stop(nil)
		}
	} else if m.expect("opened", want, s.Opened) {
		k.phase = Active
	}
}

// drop drops the record of any session, whichever session that is in now.
func (m *model) drop() {
	s := m.session()
	if m.n(5, "really") > 0 {
		return
	}
	m.handles = append(m.handles, s.Drop())
	m.dropped(s.k)
}

func (m *model) dropped(k *mKey) {
	if k.phase >= Closing {
		return
	}
	if k.phase == Stopping {
		require.ErrorIs(m.t, k.stop.Err(), ErrDropped)
	}
	usable := k.usable()
	if k.phase = Gone; k.run != nil {
		k.phase, k.run.cancelled = Closing, true
	}
	if usable {
		m.endSession(k)
	}
}

func (m *model) openOne() { m.open(m.n(1, "key")) }

// open opens a key, which is refused while it is there.
func (m *model) open(key int) {
	restart := map[int]Position{}
	for i := range mParts {
		if m.n(1, "has") == 1 {
			restart[i] = Position{Next: uint64(m.n(10, "restart"))}
		}
	}
	ts, err := NewTimestamp(mParts, maps.All(restart))
	require.NoError(m.t, err)
	wanted, pending := rapid.SampledFrom([]Wanted{All, None, Some(1)}).Draw(m.t, "wanted"), m.n(3, "pending") == 3
	s, err := m.book.Open(Key{"stream " + string(rune('a'+key)), "orders"}, OpenOptions[int]{
		Partitions: mParts, Wanted: wanted, Restart: ts, Pending: pending,
	})
	if k := m.now[key]; k != nil && k.phase != Gone {
		require.ErrorIs(m.t, err, ErrExists)
		return
	}
	require.NoError(m.t, err)
	k := &mKey{n: key}
	m.now[key] = k
	m.begins(k, s, pending)
	for i := range k.parts {
		p := &k.parts[i]
		*p = mPart{wanted: !wanted.some || slices.Contains(wanted.parts, i)}
		if pos, ok := restart[i]; ok && p.wanted {
			p.received, p.flushed = &pos.Next, &pos.Next
		} else if ok {
			p.promised = &pos.Next
		}
	}
}

// same compares everything that can be seen.
func (m *model) same() {
	for _, k := range m.now {
		require.NoError(m.t, k.s.Check())
		require.Equal(m.t, k.phase.String(), k.s.Dump().Phase)
		if k.run != nil {
			require.Equal(m.t, k.run.cancelled, k.run.f.Context().Err() != nil, "the flush's context")
		}
		if k.phase < Closing {
			require.Equal(m.t, k.usable(), k.s.Context().Err() == nil, "the session's context")
			require.NoError(m.t, k.s.Read(func(tx ReadTx[int]) error { m.sameKey(k, tx); return nil }))
		}
	}
	for _, s := range m.ss {
		if s != s.k.s || s.k.phase >= Closing {
			require.ErrorIs(m.t, s.Read(func(ReadTx[int]) error { return nil }), ErrStaleSession)
		}
	}
	for _, g := range m.merges {
		require.True(m.t, open(g.h))
	}
}

func (m *model) sameKey(k *mKey, tx ReadTx[int]) {
	n, err := tx.Payload()
	require.NoError(m.t, err)
	require.Equal(m.t, k.payload, n)
	if k.usable() {
		require.Equal(m.t, k.healthy(), tx.Healthy())
	}
	for i := range k.parts {
		p := &k.parts[i]
		v, err := tx.Partition(i)
		require.NoError(m.t, err)
		require.Equal(m.t, p.state(), v.State, i)
		require.Equal(m.t, p.rung, v.Rung, i)
		if k.usable() {
			requireAt(m.t, tx.Received(), i, p.received)
			requireAt(m.t, tx.Flushed(), i, p.flushed)
		}
		if !p.wanted {
			continue
		}
		ids := func(c ClaimView) ClaimID { return c.ID }
		require.ElementsMatch(m.t, append(mIDs(p.live), mIDs(p.listed)...), mapped(v.Claims, ids), i)
		for _, l := range p.live {
			at := slices.IndexFunc(v.Claims, func(c ClaimView) bool { return c.ID == l.c.ID() })
			require.Equal(m.t, l.next, v.Claims[at].Next)
		}
	}
}

func mIDs(ls []*mClaim) []ClaimID { return mapped(ls, func(l *mClaim) ClaimID { return l.c.ID() }) }

func mapped[A, B any](as []A, f func(A) B) []B {
	bs := make([]B, 0, len(as))
	for _, a := range as {
		bs = append(bs, f(a))
	}
	return bs
}
