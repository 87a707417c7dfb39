package streamtest_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// TestFaults has a source fail what repair asks for, and everything be well in the end: the tickets show the ladder.
func TestFaults(t *testing.T) {
	type source = streamtest.Source
	for name, c := range map[string]struct {
		fault func(s *source)
		want  []string // tickets
	}{
		"none":         {func(*source) {}, []string{"restart"}},
		"pending":      {func(s *source) { s.PendRestarts(1) }, []string{"restart"}},
		"refused":      {func(s *source) { s.RefuseRestarts(1) }, []string{"restart", "shut-down", "restart"}},
		"not begun":    {func(s *source) { s.FailBegins(1) }, []string{"restart", "shut-down", "restart"}},
		"not shut":     {func(s *source) { s.RefuseRestarts(1); s.FailShutDowns(1) }, []string{"restart", "shut-down", "resubscribe"}},
		"not anew":     {func(s *source) { s.RefuseRestarts(1); s.FailShutDowns(1); s.FailResubscribes(1) }, []string{"restart", "shut-down", "resubscribe", "recover"}},
		"not at first": {func(s *source) { s.RefuseRestarts(1); s.FailShutDowns(1); s.FailResubscribes(1); s.FailRecoveries(1) }, []string{"restart", "shut-down", "resubscribe", "recover", "recover"}},
	} {
		t.Run(name, func(t *testing.T) {
			var work []string
			f := streamtest.New(t, streamstate.Options{OnEvent: func(e streamstate.Event) {
				if e.Kind == streamstate.TicketIssued {
					work = append(work, e.Work)
				}
			}})
			k := f.Open("a", streamtest.OpenOptions{})
			st := k.Start(0, "A")
			k.Source.Produce(0, 3)
			st.Send(-1)
			require.NoError(t, st.DeliverAll())
			st.Break()
			require.NoError(t, st.DeliverAll())
			c.fault(k.Source)
			f.Settle()
			f.RequireSettled()
			f.RequireFollowed()
			require.Equal(t, c.want, work)
		})
	}
}

// TestHistory has a source fork, and say to who asks where to go on from.
func TestHistory(t *testing.T) {
	var said []streamtest.Message
	s := streamtest.NewSource(1, func(m streamtest.Message) error {
		said = append(said, m)
		return nil
	})
	ask := func(next, branch uint64) streamtest.Message {
		st := s.Open(streamtest.Request{Owner: "A", From: streamstate.Position{Next: next, Branch: branch}})
		require.NoError(t, st.Deliver())
		require.ErrorIs(t, st.Deliver(), streamtest.ErrNothing)
		return said[len(said)-1]
	}
	s.Produce(0, 5)
	before := s.Items(0)
	require.False(t, ask(5, 1).MustRollBack)
	require.False(t, ask(0, 77).MustRollBack, "the beginning belongs to all histories")
	require.False(t, ask(4, 0).MustRollBack, "without a branch it is taken for one of this history")
	s.Lose(0, 9)
	require.Equal(t, before, s.Items(0))
	s.Lose(0, 3)
	s.Produce(0, 4)
	require.Equal(t, before[:3], s.Items(0)[:3])
	require.NotEqual(t, before[3:], s.Items(0)[3:5])
	require.False(t, ask(3, 1).MustRollBack)
	m := ask(4, 1)
	require.True(t, m.MustRollBack)
	require.Equal(t, streamstate.Position{Next: 3, Branch: 1}, m.RollBackTo)
	require.False(t, ask(7, 2).MustRollBack)
	m = ask(7, 9)
	require.True(t, m.MustRollBack, "never heard of")
	require.Equal(t, streamstate.Position{}, m.RollBackTo)
	s.Lose(0, 0)
	require.True(t, ask(1, 2).MustRollBack)
	require.Empty(t, s.Items(0))
	require.Equal(t, streamstate.Position{}, s.Position(0))
}

// TestHoldAndRepeat has messages stay in hand, and be said twice.
func TestHoldAndRepeat(t *testing.T) {
	var said []streamtest.Kind
	s := streamtest.NewSource(1, func(m streamtest.Message) error {
		said = append(said, m.Kind)
		return nil
	})
	st := s.Open(streamtest.Request{Owner: "A"})
	s.Produce(0, 2)
	s.HoldMessages()
	require.False(t, s.Settle())
	require.Empty(t, said)
	s.Heal()
	s.RepeatNext(1)
	require.True(t, s.Settle())
	require.Equal(t, []streamtest.Kind{streamtest.Begun, streamtest.Begun, streamtest.Data}, said)
	require.True(t, slices.Contains(s.Streams(), st))
	require.NoError(t, s.LoseOwner(streamstate.SessionID{}, "A"))
	require.Equal(t, streamtest.OwnerGone, said[len(said)-1])
	require.True(t, st.Over())
	require.Empty(t, s.Streams())
}
