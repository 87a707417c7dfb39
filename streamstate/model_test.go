package streamstate

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is what the documents say of positions and claims: one key, three partitions, two owners, tokens old and new. It
// knows nothing of how the package is built.
type model struct {
	t     *rapid.T
	book  *Book[map[uint64]bool]
	s     *Session[map[uint64]bool]
	phase Phase
	parts [3]mPart
	term  uint64
	all   []*mClaim // every claim ever, of all sessions
	run   *mFlush
	past  []*mFlush
	old   []*Session[map[uint64]bool]
}

type mPart struct {
	wanted, due, forget bool
	live, listed        []*mClaim
	received, flushed   *uint64
	covered, broken     bool
	promised            *uint64 // restart of a partition that has not been wanted yet
}

type mClaim struct {
	c     *Claim[map[uint64]bool]
	s     *Session[map[uint64]bool]
	part  int
	owner string
	term  uint64
	next  uint64
	back  *uint64
}

type mFlush struct {
	f      *FlushTicket
	target [3]*uint64
}

func (p *mPart) state() PartitionState {
	switch {
	case !p.wanted:
		return Unwanted
	case len(p.listed) > 0:
		return Fenced
	case len(p.live) > 1:
		return Contested
	case len(p.live) == 1:
		return Begun
	case p.due:
		return Due
	default:
		return Idle
	}
}

func (m *model) usable() bool { return m.phase == Opening || m.phase == Active }

// stale is the refusal of a token of that session, nil if it is the present one.
func (m *model) stale(s *Session[map[uint64]bool]) error {
	if s != m.s || m.phase >= Closing {
		return ErrStaleSession
	}
	if !m.usable() {
		return ErrPhase
	}
	return nil
}

// expect calls, and demands the refusal, which changes nothing, or none.
func (m *model) expect(what string, want error, call func() error) bool {
	before := m.s.Fingerprint()
	err := call()
	if want == nil {
		require.NoError(m.t, err, what)
		return true
	}
	require.ErrorIs(m.t, err, want, what)
	require.Equal(m.t, before, m.s.Fingerprint(), "%s changed something", what)
	return false
}

func (m *model) part() int { return rapid.IntRange(0, 2).Draw(m.t, "partition") }

// claim draws any claim there ever was.
func (m *model) claim() *mClaim {
	if len(m.all) == 0 {
		m.t.Skip("no claims")
	}
	return m.all[rapid.IntRange(max(0, len(m.all)-6), len(m.all)-1).Draw(m.t, "claim")]
}

func (m *model) session() *Session[map[uint64]bool] {
	if len(m.old) > 0 && rapid.IntRange(0, 9).Draw(m.t, "old") == 0 {
		return m.old[rapid.IntRange(0, len(m.old)-1).Draw(m.t, "which")]
	}
	return m.s
}

func (m *model) begin(t *rapid.T) {
	m.t = t
	s, i := m.session(), m.part()
	b := Begin{
		Owner: rapid.SampledFrom([]string{"A", "B"}).Draw(t, "owner"), Term: uint64(rapid.IntRange(0, 3).Draw(t, "term")),
		From: Position{Next: uint64(rapid.IntRange(0, 20).Draw(t, "from"))},
	}
	if b.MustRollBack = rapid.IntRange(0, 9).Draw(t, "back") == 0; b.MustRollBack {
		b.RollBackTo.Next = uint64(rapid.IntRange(0, 20).Draw(t, "to"))
	}
	p := &m.parts[i]
	replaced := func(l *mClaim) bool { return l.term != 0 && b.Term > l.term }
	want := m.stale(s)
	switch {
	case want != nil:
	case b.Term != 0 && b.Term < m.term:
		want = ErrStaleTerm
	case slices.ContainsFunc(p.live, func(l *mClaim) bool { return l.owner == b.Owner && !replaced(l) }):
		want = ErrDuplicate
	case !p.wanted:
		want = ErrUnwanted
	case len(p.listed) > 0:
		want = ErrNotShutDown
	}
	var c *Claim[map[uint64]bool]
	if !m.expect("begin", want, func() (err error) { c, err = s.Begin(i, b); return err }) {
		return
	}
	m.term = max(m.term, b.Term)
	l := &mClaim{c: c, s: s, part: i, owner: b.Owner, term: b.Term, next: b.From.Next}
	p.live = append(slices.DeleteFunc(p.live, replaced), l)
	m.all = append(m.all, l)
	p.due = false
	if b.MustRollBack {
		l.back = &b.RollBackTo.Next
	} else if p.received == nil || *p.received < b.From.Next {
		p.received = &b.From.Next
	}
}

// liveClaim is the refusal of a claim that has ended, nil if it is live.
func (m *model) liveClaim(l *mClaim) error {
	if err := m.stale(l.s); err != nil {
		return err
	}
	if !slices.Contains(m.parts[l.part].live, l) {
		return ErrStaleClaim
	}
	return nil
}

func drop[E comparable](s []E, e E) []E {
	return slices.DeleteFunc(s, func(o E) bool { return o == e })
}

func (m *model) end(t *rapid.T) {
	m.t = t
	l, kind := m.claim(), rapid.SampledFrom([]EndKind{HandOver, Failed}).Draw(t, "kind")
	p := &m.parts[l.part]
	want := m.liveClaim(l)
	listed := want == ErrStaleClaim && p.wanted && slices.Contains(p.listed, l) //nolint:errorlint // ours, as it is
	if listed {
		want = nil
	}
	if !m.expect("end", want, func() error { return l.c.End(kind) }) {
		return
	}
	if p.live, p.listed = drop(p.live, l), drop(p.listed, l); listed {
		p.due = len(p.listed) == 0
	} else if len(p.live) == 0 {
		p.due = kind == Failed
	}
}

func (m *model) release(t *rapid.T) {
	m.t = t
	l := m.claim()
	p := &m.parts[l.part]
	var h *Handle
	if !m.expect("release", m.liveClaim(l), func() error { h = l.c.Release(); return h.Err() }) {
		return
	}
	if p.live = drop(p.live, l); len(p.live) == 0 {
		p.giveUp()
	}
	m.released(p, h)
}

func (p *mPart) giveUp() {
	p.wanted, p.due, p.live = false, false, nil
	p.received, p.flushed, p.promised = nil, nil, nil
	p.broken = p.covered
}

// released demands that a handle waits exactly for a flush that covers the partition.
func (m *model) released(p *mPart, h *Handle) {
	require.Equal(m.t, !p.wanted && p.covered, open(h))
}

func (m *model) fence(t *rapid.T) {
	m.t = t
	l := m.claim()
	p := &m.parts[l.part]
	if m.expect("fence", m.liveClaim(l), func() error { return l.c.Fence(nil) }) {
		p.listed, p.live = p.live, nil
	}
}

func (m *model) ownerGone(t *rapid.T) {
	m.t = t
	s, owner := m.session(), rapid.SampledFrom([]string{"A", "B"}).Draw(t, "owner")
	n, want := 0, 0
	if !m.expect("owner gone", m.stale(s), func() (err error) { n, err = s.OwnerGone(owner); return err }) {
		return
	}
	is := func(l *mClaim) bool { return l.owner == owner }
	for i := range m.parts {
		p := &m.parts[i]
		if slices.ContainsFunc(p.live, is) {
			want++
			p.live = slices.DeleteFunc(p.live, is)
			p.due = len(p.live) == 0
		}
		if slices.ContainsFunc(p.listed, is) {
			p.listed = slices.DeleteFunc(p.listed, is)
			p.due = p.wanted && len(p.listed) == 0
		}
	}
	require.Equal(t, want, n)
}

func (m *model) want(t *rapid.T) {
	m.t = t
	s, i := m.session(), m.part()
	p := &m.parts[i]
	want := m.stale(s)
	if want == ErrPhase { //nolint:errorlint // ours, as it is
		want = nil
	}
	if want == nil && m.usable() && !p.wanted && p.covered {
		want = ErrReleasing
	}
	if m.expect("want", want, func() error { return s.Want(i) }) && !p.wanted {
		p.wanted, p.due = true, false
		if m.usable() && p.promised != nil {
			p.received, p.flushed, p.promised = p.promised, p.promised, nil
		}
	}
}

func (m *model) unwant(t *rapid.T) {
	m.t = t
	s, i := m.session(), m.part()
	p := &m.parts[i]
	want := m.stale(s)
	if want == ErrPhase { //nolint:errorlint // ours, as it is
		want = nil
	}
	var h *Handle
	if !m.expect("unwant", want, func() error { h = s.Unwant(i); return h.Err() }) {
		return
	}
	if p.wanted && m.usable() {
		p.giveUp()
	} else if p.wanted {
		p.wanted, p.forget, p.broken = false, true, p.covered
	}
	m.released(p, h)
}

func (m *model) data(t *rapid.T) {
	m.t = t
	l, pos := m.claim(), uint64(rapid.IntRange(0, 30).Draw(t, "pos"))
	p := &m.parts[l.part]
	want := m.liveClaim(l)
	switch {
	case want != nil:
	case l.back != nil:
		want = ErrMustRollBack
	case pos < l.next:
		want = ErrPosition
	}
	applied := false
	how := rapid.IntRange(0, 3).Draw(t, "how")
	ok := m.expect("data", want, func() error {
		batch := []Advance[map[uint64]bool]{{l.c, Position{Next: pos}}}
		switch how {
		case 0:
			return l.c.Advance(Position{Next: pos})
		case 1:
			return l.s.AdvanceBatch(batch)
		case 2:
			return l.s.ApplyBatch(batch, func(Tx[map[uint64]bool], []Advance[map[uint64]bool]) error { applied = true; return nil })
		default:
			return l.c.Apply(Position{Next: pos}, func(Tx[map[uint64]bool]) error { applied = true; return nil })
		}
	})
	if !ok {
		return
	}
	fresh := pos > *p.received
	if how >= 2 {
		require.Equal(t, fresh, applied)
	}
	if l.next = pos; fresh {
		p.received = &pos
	}
}

// same compares everything that can be seen.
func (m *model) same(t *rapid.T) {
	m.t = t
	require.NoError(t, m.s.Check())
	require.Equal(t, m.phase.String(), m.s.Dump().Phase)
	for _, o := range m.old {
		require.ErrorIs(t, o.Read(func(ReadTx[map[uint64]bool]) error { return nil }), ErrStaleSession)
	}
	if m.phase >= Closing {
		return
	}
	require.NoError(t, m.s.Read(func(tx ReadTx[map[uint64]bool]) error {
		for i := range m.parts {
			p := &m.parts[i]
			v, err := tx.Partition(i)
			require.NoError(t, err)
			require.Equal(t, p.state(), v.State, i)
			require.Len(t, v.Claims, len(p.live)+len(p.listed))
			if m.usable() {
				requireAt(t, tx.Received(), i, p.received)
				requireAt(t, tx.Flushed(), i, p.flushed)
			}
			for j, l := range p.live {
				at := slices.IndexFunc(v.Claims, func(c ClaimView) bool { return c.ID == l.c.ID() })
				require.GreaterOrEqual(t, at, 0, fmt.Sprint(j))
				require.Equal(t, l.next, v.Claims[at].Next)
			}
		}
		return nil
	}))
}

func checkModel(t *rapid.T) {
	m := &model{t: t, phase: Gone, book: NewBook[map[uint64]bool](Options{})}
	defer func() {
		h := m.book.Close()
		if m.run != nil {
			_ = m.run.f.Abort()
		}
		require.NoError(t, h.Wait(t.Context()))
	}()
	m.open(t)
	t.Repeat(map[string]func(*rapid.T){
		"begin": m.begin, "begin again": m.begin, "end": m.end, "release": m.release, "fence": m.fence, "owner gone": m.ownerGone,
		"want": m.want, "unwant": m.unwant, "data": m.data, "more data": m.data, "start flush": m.startFlush, "end flush": m.endFlush,
		"stop": m.stop, "reopen": m.reopen, "opened": m.opened, "drop": m.drop, "open": m.open, "": m.same,
	})
}

func TestModel(t *testing.T) { rapid.Check(t, checkModel) }

func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkModel)) }
