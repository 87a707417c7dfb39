package streamstate

import (
	"errors"
	"slices"

	"github.com/stretchr/testify/require"
)

// mHold is a hold of one session on another's flush.
type mHold struct {
	h        *Hold
	from, on *mSession
	ended    bool
}

// mMerge is a merge that waits.
type mMerge struct {
	h          *Handle
	from, into *mSession
	fails      error // what its function returns
	engaged    bool
}

func (m *model) holdsOn(k *mKey) (out []*mHold) {
	for _, h := range m.holds {
		if !h.ended && h.on.k == k {
			out = append(out, h)
		}
	}
	return out
}

func (m *model) engaged(k *mKey) *mMerge {
	for _, g := range m.merges {
		if g.engaged && (g.from.k == k || g.into.k == k) {
			return g
		}
	}
	return nil
}

// both is the refusal of a call on two sessions.
func both2(x, y *mSession) error {
	if err := x.stale(); err != nil {
		return err
	}
	if err := y.stale(); err != nil {
		return err
	}
	if x.k == y.k {
		return ErrSameSession
	}
	return nil
}

func (m *model) hold() {
	x, y := m.session(), m.session()
	var h *Hold
	if m.expect("hold", both2(x, y), func() (err error) { h, err = x.Hold(y.Session); return err }) {
		m.holds = append(m.holds, &mHold{h: h, from: x, on: y})
	}
}

func (m *model) releaseHold() {
	h := token1(m, m.holds, "hold")
	if h == nil {
		return
	}
	var want error
	if h.ended {
		want = ErrStaleHold
	}
	if m.expect("release hold", want, h.h.Release) {
		h.ended = true
	}
}

func (m *model) merge() {
	x, y := m.session(), m.session()
	g := &mMerge{from: x, into: y}
	if m.n(3, "fails") == 3 {
		g.fails = errors.New("no")
	}
	if m.expect("merge", both2(x, y), func() error {
		g.h = m.book.Merge(x.Session, y.Session, nil, func(_, _ Tx[int]) error { return g.fails })
		return refused(g.h)
	}) {
		m.merges = append(m.merges, g)
	}
}

// free tells whether nothing of a session is in the way of a merge but a running flush.
func (m *model) free(k *mKey, g *mMerge) bool {
	if k.phase != Active || !k.healthy() || k.ticket != nil || len(m.holdsOn(k)) > 0 {
		return false
	}
	for i := range k.parts {
		if k.parts[i].ticket != nil {
			return false
		}
	}
	by := m.engaged(k)
	return by == nil || by == g
}

// look looks at the merges after a change, the oldest first, until none goes on.
func (m *model) look() {
	for again := true; again; {
		again = false
		for _, g := range slices.Clone(m.merges) {
			x, y := g.from.k, g.into.k
			free := m.free(x, g) && m.free(y, g)
			switch was := g.engaged; {
			case free && x.run == nil && y.run == nil:
				m.merged(g)
				again = true
			case free != was:
				g.engaged, again = free, true
			}
			if again {
				break
			}
		}
	}
}

func (m *model) merged(g *mMerge) {
	m.merges = drop(m.merges, g)
	require.False(m.t, open(g.h), "a merge waits for nothing")
	require.ErrorIs(m.t, g.h.Err(), g.fails)
	if g.fails == nil {
		m.dropped(g.from.k)
	}
}
