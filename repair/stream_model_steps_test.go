package repair

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/streamstate"
)

func (m *mModel) reopen() {
	_ = m.s.Stop(nil).Err()
	s, err := m.book.Reopen(m.s, streamstate.ReopenOptions[int]{})
	require.NoError(m.t, err)
	m.s = s
	m.drive()
}

// pick draws one of the last few.
func pick[E any](t *rapid.T, from []E) (e E, ok bool) {
	if len(from) == 0 {
		return e, false
	}
	return from[rapid.IntRange(max(0, len(from)-6), len(from)-1).Draw(t, "which")], true
}

func (m *mModel) part() int { return rapid.IntRange(0, mParts-1).Draw(m.t, "partition") }

// answer has the source answer a call, of whichever driver, in any way.
func (m *mModel) answer() {
	d, ok := pick(m.t, m.drivers)
	if !ok || len(d.open) == 0 {
		return
	}
	i := rapid.IntRange(0, len(d.open)-1).Draw(m.t, "call")
	c := d.open[i]
	d.open = append(d.open[:i:i], d.open[i+1:]...)
	one := func() error {
		return rapid.SampledFrom([]error{nil, nil, errSource, errSource, ErrRefused, ErrPending}).Draw(m.t, "answer")
	}
	err := one()
	if rapid.Bool().Draw(m.t, "each its own") {
		some := PartitionErrors{}
		for _, p := range c.parts {
			if err := one(); err != nil {
				some[p] = err
			}
		}
		err = some
	}
	if c.ctx.Err() == nil || m.deaf {
		m.answered(d, c, err)
	}
	c.reply <- err
}

func (m *mModel) begin() {
	b := streamstate.Begin{Owner: rapid.SampledFrom([]string{"A", "B"}).Draw(m.t, "owner")}
	p := m.part()
	b.From = next(uint64(rapid.IntRange(0, 20).Draw(m.t, "from")))
	if b.MustRollBack = rapid.IntRange(0, 7).Draw(m.t, "back") == 0; b.MustRollBack {
		b.RollBackTo = next(uint64(rapid.IntRange(0, 2).Draw(m.t, "to")))
	}
	if c, err := m.s.Begin(p, b); err == nil {
		m.claims = append(m.claims, c)
	}
}

// onClaim does something with a claim, of whatever session, that may have ended.
func (m *mModel) onClaim() {
	c, ok := pick(m.t, m.claims)
	if !ok {
		return
	}
	switch rapid.IntRange(0, 5).Draw(m.t, "what") {
	case 0:
		_ = c.End(streamstate.HandOver)
	case 1, 2:
		_ = c.End(streamstate.Failed)
	case 3:
		_ = c.Advance(next(uint64(rapid.IntRange(0, 40).Draw(m.t, "to"))))
	case 4:
		_ = c.Fence(nil)
	case 5:
		_, _ = m.s.OwnerGone(c.Owner())
	}
}

func (m *mModel) want() {
	if p := m.part(); rapid.Bool().Draw(m.t, "want") {
		_ = m.s.Want(p)
	} else {
		_ = m.s.Unwant(p).Err()
	}
}

// wait lets time pass.
func (m *mModel) wait() {
	d := rapid.SampledFrom([]time.Duration{
		10 * time.Millisecond, 100 * time.Millisecond, time.Second, 5 * time.Second, 11 * time.Second, 45 * time.Second,
	}).Draw(m.t, "time")
	m.slept = true
	time.Sleep(d) //rules:sleep in a bubble
}

// grind has the source fail whatever it is asked, for a while.
func (m *mModel) grind() {
	if rapid.IntRange(0, 3).Draw(m.t, "really") > 0 {
		return
	}
	for range 7 {
		for _, d := range m.drivers {
			for _, c := range d.open {
				c.reply <- errSource
			}
			d.open = nil
		}
		m.slept = true
		time.Sleep(5 * time.Second) //rules:sleep in a bubble
		m.look()
	}
}

// leave has a driver's context end; another one comes.
func (m *mModel) leave() {
	if d, ok := pick(m.t, m.drivers); ok && rapid.IntRange(0, 2).Draw(m.t, "really") == 0 {
		d.cancel()
		m.drive()
	}
}

func (m *mModel) end() {
	switch rapid.IntRange(0, 9).Draw(m.t, "how") {
	case 0:
		m.s.Drop()
		m.open()
	case 1:
		m.reopen()
	}
}

// settle ends all faults: what is asked for is done, and begins follow. All is well then within the stated number of
// tickets.
func (m *mModel) settle() {
	m.mu.Lock()
	m.issued = map[int]int{}
	m.mu.Unlock()
	sessions := 1
	for step := 0; !m.s.Dump().Healthy; step++ {
		require.Less(m.t, step, 1000, "never well: %v", m.s.Dump())
		s := m.s
		m.serve()
		m.slept = true
		time.Sleep(time.Second) //rules:sleep in a bubble
		m.look()
		if s != m.s {
			sessions++
		}
	}
	require.LessOrEqual(m.t, sessions, 2, "recoveries")
	m.mu.Lock()
	defer m.mu.Unlock()
	require.LessOrEqual(m.t, m.issued[-1], 2, "a resubscribe and a recovery")
	for p := range mParts {
		require.LessOrEqual(m.t, m.issued[p], 3, "partition %d", p)
	}
}

// serve answers all calls, and has begun what was asked for.
func (m *mModel) serve() {
	for _, d := range m.drivers {
		for _, c := range d.open {
			m.answered(d, c, nil)
			c.reply <- nil
			for _, p := range c.parts {
				if state := m.state(d.s, p); c.what != "shut-down" && (state == streamstate.Due || state == streamstate.Idle) {
					_, _ = d.s.Begin(p, streamstate.Begin{Owner: "Z"})
				}
			}
		}
		d.open = nil
	}
}

func (m *mModel) state(s *sess, p int) (state streamstate.PartitionState) {
	_ = s.Read(func(tx streamstate.ReadTx[int]) error { // unwanted, if the session has ended
		v, err := tx.Partition(p)
		state = v.State
		return err
	})
	return state
}

func (m *mModel) close() {
	m.book.Close()
	for _, d := range m.drivers {
		close(d.src.over)
		d.cancel()
		require.Error(m.t, <-d.done)
	}
	synctest.Wait()
}

func checkStream(t *rapid.T) {
	rapid.SyncTest(t, func(t *rapid.T) {
		m := &mModel{t: t, mSeen: mSeen{tickets: map[mTicket]*mLife{}}, deaf: rapid.Bool().Draw(t, "deaf")}
		o := deadlines
		o.OnEvent = m.onBook
		m.book = streamstate.NewBook[int](o)
		defer m.close()
		m.open()
		steps := []func(){
			m.answer, m.answer, m.answer, m.answer, m.begin, m.begin, m.onClaim, m.onClaim, m.onClaim, m.want, m.wait,
			m.wait, m.wait, m.leave, m.end, m.grind,
		}
		t.Repeat(map[string]func(*rapid.T){"step": func(t *rapid.T) {
			m.t, m.slept = t, false
			steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")]()
			m.look()
		}})
		m.t = t
		m.settle()
		mTotal.add(m)
	})
}

var mTotal mSum

// mSum is what all runs did.
type mSum struct{ runs, calls, tickets, timeouts, escalated, recoveries int }

func (s *mSum) add(m *mModel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &m.stats
	*s = mSum{
		s.runs + 1, s.calls + n.calls, s.tickets + n.tickets, s.timeouts + n.timeouts, s.escalated + n.escalated,
		s.recoveries + n.recoveries,
	}
}

// TestStreamModel lets a source, owners and time do anything. See mModel for what is demanded.
func TestStreamModel(t *testing.T) {
	rapid.Check(t, checkStream)
	t.Logf("%+v", mTotal)
}

// FuzzStream is the same model, guided by coverage.
func FuzzStream(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkStream)) }
