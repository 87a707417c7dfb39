package streamstate

import (
	"errors"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func (m *model) startFlush(t *rapid.T) {
	m.t = t
	s := m.session()
	want := m.stale(s)
	switch {
	case want != nil:
	case m.phase == Opening:
		want = ErrPhase
	case m.run != nil:
		want = ErrFlushRunning
	}
	var f *FlushTicket
	if !m.expect("start flush", want, func() (err error) { f, err = s.StartFlush(); return err }) {
		return
	}
	m.run = &mFlush{f: f}
	m.past = append(m.past, m.run)
	for i := range m.parts {
		p := &m.parts[i]
		if p.wanted {
			p.covered = true
			m.run.target[i] = p.received
			if slices.ContainsFunc(p.live, func(l *mClaim) bool { return l.back != nil }) {
				m.run.target[i] = p.flushed
			}
		}
		requireAt(t, f.Target(), i, m.run.target[i])
	}
}

func requireAt(t require.TestingT, ts Timestamp, i int, want *uint64) {
	pos, ok := ts.At(i)
	require.Equal(t, want != nil, ok, i)
	if ok {
		require.Equal(t, *want, pos.Next, i)
	}
}

func (m *model) endFlush(t *rapid.T) {
	m.t = t
	if len(m.past) == 0 {
		t.Skip("no flush")
	}
	f := m.past[rapid.IntRange(max(0, len(m.past)-2), len(m.past)-1).Draw(t, "flush")]
	var want error
	if f != m.run {
		want = ErrSuperseded
	}
	done := rapid.Bool().Draw(t, "done")
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
	m.run = nil
	for i := range m.parts {
		p := &m.parts[i]
		switch {
		case done && p.broken:
			given = append(given, i)
		case done && p.covered:
			p.flushed = f.target[i]
		}
		p.covered, p.broken = false, false
	}
	require.Equal(t, given, returned)
	switch m.phase {
	case Stopping:
		m.phase = Stopped
	case Closing:
		m.phase = Gone
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

func (m *model) stop(t *rapid.T) {
	m.t = t
	want := error(nil)
	if m.phase >= Closing {
		want = ErrStaleSession
	}
	if !m.expect("stop", want, func() error { return m.s.Stop(nil).Err() }) || !m.usable() {
		return
	}
	if m.phase = Stopped; m.run != nil {
		m.phase = Stopping
	}
	for i := range m.parts {
		p := &m.parts[i]
		p.promised = p.lowest()
		p.live, p.listed, p.due = nil, nil, false
	}
}

func (m *model) reopen(t *rapid.T) {
	m.t = t
	var want error
	switch {
	case m.phase >= Closing:
		want = ErrStaleSession
	case m.phase != Stopped:
		want = ErrPhase
	}
	pending := rapid.Bool().Draw(t, "pending")
	var next *Session[map[uint64]bool]
	if !m.expect("reopen", want, func() (err error) {
		next, err = m.book.Reopen(m.s, ReopenOptions[map[uint64]bool]{Pending: pending})
		return err
	}) {
		return
	}
	m.old = append(m.old, m.s)
	m.s, m.term = next, 0
	if m.phase = Active; pending {
		m.phase = Opening
	}
	for i := range m.parts {
		p := &m.parts[i]
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

func (m *model) opened(t *rapid.T) {
	m.t = t
	var want error
	switch {
	case m.phase == Active:
		want = ErrSuperseded
	case m.phase >= Closing:
		want = ErrStaleSession
	case m.phase != Opening:
		want = ErrPhase
	}
	if m.expect("opened", want, m.s.Opened) {
		m.phase = Active
	}
}

func (m *model) drop(t *rapid.T) {
	m.t = t
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		t.Skip("seldom")
	}
	m.s.Drop()
	if m.phase < Closing {
		if m.phase = Gone; m.run != nil {
			m.phase = Closing
		}
	}
}

// open opens the key, which is refused while it is there.
func (m *model) open(t *rapid.T) {
	m.t = t
	restart := map[int]Position{}
	for i := range m.parts {
		if rapid.Bool().Draw(t, "has") {
			restart[i] = Position{Next: uint64(rapid.IntRange(0, 10).Draw(t, "restart"))}
		}
	}
	ts, err := NewTimestamp(3, maps.All(restart))
	require.NoError(t, err)
	wanted := rapid.SampledFrom([]Wanted{All, None, Some(1, 2)}).Draw(t, "wanted")
	s, err := m.book.Open(key("a"), OpenOptions[map[uint64]bool]{Partitions: 3, Wanted: wanted, Restart: ts})
	if m.phase != Gone {
		require.ErrorIs(t, err, ErrExists)
		return
	}
	require.NoError(t, err)
	if m.s != nil {
		m.old = append(m.old, m.s)
	}
	m.s, m.phase, m.term, m.run = s, Active, 0, nil
	for i := range m.parts {
		m.parts[i] = mPart{wanted: !wanted.some || slices.Contains(wanted.parts, i)}
		p := &m.parts[i]
		if pos, ok := restart[i]; ok && p.wanted {
			p.received, p.flushed = &pos.Next, &pos.Next
		} else if ok {
			p.promised = &pos.Next
		}
	}
}
