package streamtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStory is the story that the package doc tells.
func TestStory(t *testing.T) {
	f := streamtest.New(t, streamstate.Options{})
	k := f.Open("orders", streamtest.OpenOptions{Partitions: 2})
	st := k.Start(0, "a")
	k.Source.Produce(0, 5)
	require.Equal(t, 3, st.Send(3))
	require.NoError(t, st.Deliver())
	require.Equal(t, 2, st.Send(-1)) // these stay in hand
	require.NoError(t, k.Stop(nil).Wait(t.Context()))
	_, err := k.TryReopen(streamstate.Timestamp{}, false)
	require.NoError(t, err)
	require.ErrorIs(t, st.Deliver(), streamstate.ErrStaleSession)
	f.Settle()
	f.RequireSettled()
	f.RequireFollowed()
	_, items := k.Items(0)
	require.Equal(t, k.Source.Items(0), items)
}
