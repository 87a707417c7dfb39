package streamstate

import (
	"context"
	"slices"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// mWork is a ticket of repair.
type mWork struct {
	w        Work
	s        *mSession
	kind     workKind
	part     int
	tries    int // of the partition, before it
	accepted bool
	names    [mParts]bool // recover: where Restart has a position
}

// due is what repair must do now, as the documents say it.
func (k *mKey) due() (kind workKind, parts []int, some bool) {
	if k.phase != Active || k.ticket != nil {
		return 0, nil, false
	}
	begun, back, recover, resubscribe := true, false, false, false
	for i := range k.parts {
		p := &k.parts[i]
		if !p.wanted {
			continue
		}
		begun = begun && len(p.live) > 0
		if to := p.lowest(); to != nil {
			back, recover = true, recover || *to == 0
		}
		if st := p.state(); st == Due || st == Fenced {
			recover = recover || p.rung == RungRecover
			resubscribe = resubscribe || p.rung == RungResubscribe
			if p.ticket == nil && p.rung <= RungShutDown {
				parts = append(parts, i)
			}
		}
	}
	switch {
	case recover || begun && back:
		return workRecover, nil, !k.retry
	case resubscribe:
		return workResubscribe, nil, true
	}
	return workRestart, parts, len(parts) > 0
}

func (m *model) nextDue() {
	s := m.session()
	k := s.k
	kind, parts, some := k.due()
	want := s.stale()
	if want == nil && !some {
		want = context.Canceled
	}
	var work []Work
	if !m.expect("next due", want, func() (err error) { work, err = s.NextDue(ends()); return err }) {
		require.Empty(m.t, work)
		return
	}
	if kind >= workResubscribe {
		require.Len(m.t, work, 1)
		m.takeSession(k, kind, work[0])
		return
	}
	require.Len(m.t, work, len(parts))
	for i, w := range work {
		m.takePart(k, parts[i], w)
	}
}

func (m *model) takeSession(k *mKey, kind workKind, w Work) {
	for i := range k.parts {
		k.parts[i].ticket = nil
	}
	k.ticket = &mWork{w: w, s: k.s, kind: kind, part: -1}
	m.works = append(m.works, k.ticket)
	if kind == workRecover {
		require.IsType(m.t, &RecoverTicket{}, w)
		for i := range k.parts {
			p := &k.parts[i]
			at := p.flushed
			if back := p.lowest(); back != nil && (*back == 0 || at != nil && *back < *at) {
				at = back
			}
			if p.wanted {
				requireAt(m.t, w.(*RecoverTicket).Restart(), i, at)
				k.ticket.names[i] = at != nil
			}
		}
		return
	}
	require.IsType(m.t, &ResubscribeTicket{}, w)
	for i := range k.parts {
		p := &k.parts[i]
		if !p.wanted {
			continue
		}
		p.live, p.listed, p.last, p.due = nil, nil, nil, false
		p.climb(RungResubscribe)
		p.first, p.tried = !p.tried, true
	}
}

func (m *model) takePart(k *mKey, i int, w Work) {
	p := &k.parts[i]
	p.ticket = &mWork{w: w, s: k.s, kind: workRestart, part: i, tries: p.tries}
	m.works = append(m.works, p.ticket)
	switch t := w.(type) {
	case *RestartTicket:
		require.Equal(m.t, Due, p.state())
		require.Equal(m.t, i, t.Partition())
		require.Equal(m.t, p.tries, t.Tries())
		from, ok := t.From()
		require.Equal(m.t, p.received != nil, ok)
		if ok {
			require.Equal(m.t, *p.received, from.Next)
		}
		p.first, p.tried = !p.tried, true
	case *ShutDownTicket:
		p.first = false
		require.Equal(m.t, Fenced, p.state())
		require.Equal(m.t, i, t.Partition())
		require.ElementsMatch(m.t, mIDs(p.listed), mapped(t.Claims(), func(c ClaimView) ClaimID { return c.ID }))
		p.ticket.kind = workShutDown
	default:
		m.t.Fatalf("%T", w)
	}
	p.tries = min(p.tries+1, maxTries)
}

// stale is the refusal of a ticket that has ended, nil if it is out.
func (w *mWork) stale() error {
	k := w.s.k
	if err := w.s.stale(); err != nil {
		return err
	}
	if w != k.ticket && (w.part < 0 || w != k.parts[w.part].ticket) {
		return ErrSuperseded
	}
	return nil
}

// reply answers a ticket, in any way that its kind has.
func (m *model) reply() {
	w, how := token1(m, m.works, "ticket"), m.n(3, "how")
	if w == nil {
		return
	}
	if how == 3 {
		if m.expect("abandon", w.stale(), w.w.Abandon) {
			w.s.k.abandon(w)
		}
		return
	}
	switch t := w.w.(type) {
	case *RestartTicket:
		m.replyRestart(w, t, how)
	case *ShutDownTicket:
		m.replyShutDown(w, t, how)
	case *ResubscribeTicket:
		if how == 2 {
			if m.expect("resubscribe failed", w.stale(), t.Failed) {
				w.s.k.sessionFailed()
			}
		} else if m.expect("resubscribed", w.stale(), t.Done) {
			w.s.k.ticket = nil
		}
	case *RecoverTicket:
		if m.expect("recover failed", w.stale(), t.Failed) {
			w.s.k.sessionFailed()
		}
	}
}

func (m *model) replyRestart(w *mWork, t *RestartTicket, how int) {
	want := w.stale()
	if how == 2 {
		if m.expect("restart refused", want, t.Refused) {
			w.s.k.parts[w.part].refused()
		}
		return
	}
	if want == nil && w.accepted {
		want = ErrSuperseded
	}
	if m.expect("restart accepted", want, [...]func() error{t.Accepted, t.Pending}[how]) {
		w.accepted = true
	}
}

// refused is a restart that was refused or timed out.
func (p *mPart) refused() {
	if p.ticket = nil; p.rung == RungRestart && len(p.last) > 0 {
		p.list()
		return
	}
	p.climb(RungResubscribe)
}

func (m *model) replyShutDown(w *mWork, t *ShutDownTicket, how int) {
	p, want := &w.s.k.parts[w.part], w.stale()
	if how == 2 {
		if m.expect("shut down failed", want, t.Failed) {
			p.ticket = nil
			p.climb(RungResubscribe)
		}
		return
	}
	claims := t.Claims()
	id := claims[how%len(claims)].ID
	at := slices.IndexFunc(p.listed, func(l *mClaim) bool { return l.c.ID() == id })
	if want == nil && at < 0 {
		want = ErrSuperseded
	}
	if m.expect("shut down", want, func() error { return t.Done(id) }) {
		if p.listed = drop(slices.Clone(p.listed), p.listed[at]); len(p.listed) == 0 {
			p.due, p.ticket = true, nil
		}
	}
}

// sessionFailed is a ticket of the session that could not be done, or timed out.
func (k *mKey) sessionFailed() {
	if k.ticket.kind == workRecover {
		k.ticket, k.retry = nil, true
		return
	}
	k.ticket = nil
	for i := range k.parts {
		p := &k.parts[i]
		if p.wanted && len(p.live) == 0 {
			p.due = len(p.listed) == 0
			p.climb(RungRecover)
		}
	}
}

// abandon has what a ticket asks for be due again.
func (k *mKey) abandon(w *mWork) {
	if w.part >= 0 {
		p := &k.parts[w.part]
		p.tries, p.ticket = w.tries, nil
		p.tried = p.tried && (!p.first || w.accepted)
		return
	}
	k.ticket = nil
	for i := range k.parts {
		p := &k.parts[i]
		if w.kind != workResubscribe || !p.wanted {
			continue
		}
		p.tried = p.tried && !p.first
		p.due = p.due || p.state() == Idle
	}
}

// later has every deadline pass that is armed now.
func (m *model) later() {
	k := m.now[m.n(1, "key")]
	_ = k.s.e.do(token{op: opLook}, func(k *held) error { // allowed in every phase
		k.stamp(1)
		k.tick(1 + instant(time.Hour))
		return nil
	})
	if k.phase != Active {
		return
	}
	armed := [mParts]bool{} // in an Active session it follows from the state
	for i := range k.parts {
		p := &k.parts[i]
		switch p.state() {
		case Idle:
			armed[i] = k.ticket == nil || k.ticket.kind != workResubscribe
		case Begun:
			armed[i] = p.rung > RungRestart || p.tries > 0
		case Contested:
			armed[i] = true
		case Due, Fenced:
			armed[i] = p.ticket != nil
		case Unwanted:
		}
	}
	k.retry = false
	if k.ticket != nil {
		k.sessionFailed()
	}
	for i, on := range armed {
		if on {
			k.parts[i].late()
		}
	}
}

// late is what a partition's deadline does.
func (p *mPart) late() {
	switch p.state() {
	case Idle:
		p.noBegin()
	case Begun: // it has been stable
		p.rung, p.tried, p.tries = RungRestart, false, 0
	case Contested:
		p.list()
	case Due:
		p.refused()
	case Fenced:
		p.ticket = nil
		p.climb(RungResubscribe)
	case Unwanted:
	}
}

// settle has the walk answer everything: all must end.
func (m *model) settle(t *rapid.T) {
	w := &walk{t: t, book: m.book, now: [2]*Session[int]{m.now[0].s.Session, m.now[1].s.Session}, handles: m.handles}
	for _, f := range m.flushes {
		w.flushes = append(w.flushes, f.f)
	}
	for _, h := range m.holds {
		w.holds = append(w.holds, h.h)
	}
	for _, g := range m.merges {
		w.handles = append(w.handles, g.h)
	}
	for _, o := range m.works {
		w.work = append(w.work, o.w)
	}
	w.settle()
	require.NoError(t, m.book.Close().Wait(t.Context()))
}
