package jobtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type config = jobtracker.Config[*jobtest.Payload]

// TestDesign is the story that the package doc tells.
func TestDesign(t *testing.T) {
	c := jobtest.New(t, config{Replicas: 3})
	c.Replica(1).HoldReplies()
	job := c.Submit(jobtest.Write(7, 2))
	c.Settle()
	require.True(t, job.Resolved())
	old := c.Replica(1).Cut()
	require.Equal(t, []jobtracker.JobID{job.ID()}, old.InHand())
	require.ErrorIs(t, old.Deliver(job.ID()), jobtracker.ErrStaleConn)
	c.Replica(1).ReleaseReplies()
	c.Replica(1).Reconnect()
	c.Settle()
	c.RequireSame()
	c.RequireOrder()
	c.RequireResolved()
	c.Submit(jobtest.Flush())
	c.Settle()
	c.RequireEmpty()
	c.Deactivate()
}
