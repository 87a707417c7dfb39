package jobtest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// problems runs a scenario undisturbed and returns what was found.
func problems(t *testing.T, scenario func(x *jobtest.Trial)) string {
	t.Helper()
	var all []string
	for _, f := range jobtest.Search(scenario).Findings {
		all = append(all, f.Problems...)
	}
	return strings.Join(all, "\n")
}

// TestDriverThatLies has a driver say that a connection is quiesced while a write lies in its socket (J30): the cluster sees
// that the write comes late, and that the replicas differ.
func TestDriverThatLies(t *testing.T) {
	scenario := func(require func(*jobtest.Cluster)) func(x *jobtest.Trial) {
		return func(x *jobtest.Trial) {
			c := jobtest.New(x, config{})
			r := c.Replica(0)
			c.Submit(jobtest.Write(3, 1))
			r.Life().Receive()
			old := r.Cut()
			_ = old.Conn().Quiesced() // it is not
			_, _ = r.Connect()
			c.Submit(jobtest.Write(3, 1))
			c.Settle()
			require(c)
			old.Execute()
			require(c)
		}
	}
	require.Contains(t, problems(t, scenario((*jobtest.Cluster).RequireOrder)), "block 3 was written last by job 1, but job 2 wrote it before")
	require.Contains(t, problems(t, scenario((*jobtest.Cluster).RequireSame)), "block 3 is 1 (by job 1) on replica 0 and 2 (by job 2) on replica 1")
}

// TestRequirementsCanFail has each of them fail, and end the run.
func TestRequirementsCanFail(t *testing.T) {
	for name, c := range map[string]struct {
		require func(*jobtest.Cluster)
		want    string
	}{
		"resolved": {(*jobtest.Cluster).RequireResolved, "job 1 is not resolved"},
		"empty":    {(*jobtest.Cluster).RequireEmpty, "the table is not empty"},
		"deactivate": {func(c *jobtest.Cluster) {
			c.Replica(0).Silence()
			c.Deactivate()
		}, "deactivate: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			after := false
			require.Contains(t, problems(t, func(x *jobtest.Trial) {
				k := jobtest.New(x, config{})
				k.Submit(jobtest.Write(0, 1))
				c.require(k)
				after = true
			}), c.want)
			require.False(t, after, "it has gone on")
		})
	}
	require.Contains(t, problems(t, func(x *jobtest.Trial) {
		c := jobtest.New(x, config{})
		for _, r := range c.Replicas() {
			_ = c.Tracker.Fault(r.Index(), nil)
		}
		c.RequireSame()
	}), "no replica is active")
}

// changing is a tracker whose state seems to change whenever one looks.
type changing struct {
	*jobtracker.Tracker[string]
	looks uint64
}

func (c *changing) Fingerprint() uint64 {
	c.looks++
	return c.looks
}

// TestCallChecksRefusals has the explorer see a refusal that changes something, one of no kind, and a broken promise.
func TestCallChecksRefusals(t *testing.T) {
	own := func(x *jobtest.Trial) *jobtracker.Tracker[string] {
		tr, err := jobtracker.New(jobtracker.Config[string]{Replicas: 1, Blocks: 8, BlockSize: 512, Gap: x.Gap})
		require.NoError(t, err)
		x.Cleanup(func() { tr.Close() })
		return tr
	}
	require.Empty(t, problems(t, func(x *jobtest.Trial) {
		tr := own(x)
		x.Watch(tr)
		require.ErrorIs(t, x.Call("Disable", func() error { return tr.Disable(nil) }), jobtracker.ErrPhase)
	}))
	require.Contains(t, problems(t, func(x *jobtest.Trial) {
		tr := own(x)
		x.Watch(&changing{Tracker: tr})
		_ = x.Call("Disable", func() error { return tr.Disable(nil) })
	}), "but something has changed")
	require.Contains(t, problems(t, func(x *jobtest.Trial) {
		_ = x.Call("mine", func() error { return errors.New("oh dear") })
	}), "mine: an error of no kind: oh dear")
	require.Equal(t, "broken", problems(t, func(x *jobtest.Trial) {
		x.Promise(func() error { return errors.New("broken") })
	}))
}

// TestExploreOwnCode explores code around a tracker of another payload type, with adversaries that need no cluster.
func TestExploreOwnCode(t *testing.T) {
	rep := jobtest.Explore(t, func(x *jobtest.Trial) {
		tr, err := jobtracker.New(jobtracker.Config[string]{Replicas: 1, Blocks: 8, BlockSize: 512, Gap: x.Gap})
		require.NoError(t, err)
		x.Watch(tr)
		x.Cleanup(func() { tr.Close() })
		_ = x.Call("Activate", func() error {
			_, err := tr.Activate(jobtracker.ActivateOptions{Generation: 1, Create: true})
			return err
		})
		var conn *jobtracker.Conn[string]
		_ = x.Call("Connect", func() (err error) {
			conn, err = tr.Connect(0, jobtracker.Hello{})
			return err
		})
		var job *jobtracker.Job[string]
		_ = x.Call("Submit", func() (err error) {
			job, err = tr.Submit(x.Context(), jobtest.Write(0, 1), "hello")
			return err
		})
		if conn == nil || job == nil {
			return
		}
		var d jobtracker.Dispatch[string]
		if x.Call("Next", func() error { return conn.Next(polls(), &d) }) == nil {
			_ = x.Call("Complete", func() error { return conn.Complete(d.ID, jobtracker.Result{}) })
		}
		conn.Close(nil)
		_ = x.Call("Quiesced", conn.Quiesced)
		x.Promise(func() error {
			if tr.Close(); !job.Resolved() {
				return errors.New("the job is not resolved")
			}
			return nil
		})
	}, jobtest.ByDisable(), jobtest.ByDeactivate(), jobtest.ByClose(), jobtest.ByWithdraw(), jobtest.ByReactivate())
	require.Empty(t, rep.Findings)
	require.Positive(t, rep.Pairs)
}

// TestBarrierAndReplay has a replica come back by replay, having done a barrier that the others then do as well: what is
// replayed there is still in order.
func TestBarrierAndReplay(t *testing.T) {
	c := jobtest.New(t, config{})
	c.Submit(jobtest.Write(0, 2))
	c.Submit(jobtest.Write(1, 1))
	c.Settle()
	for _, r := range c.Replicas()[1:] {
		r.HoldReplies()
	}
	c.Submit(jobtest.Barrier())
	c.Settle()
	require.Equal(t, jobtracker.PlanReplay, c.Replica(0).Reconnect().Conn().Plan())
	c.Submit(jobtest.Write(1, 1))
	for _, r := range c.Replicas()[1:] {
		r.ReleaseReplies()
		for range 4 {
			r.Life().Receive()
			r.Life().Execute()
			r.Life().DeliverAll()
		}
	}
	c.Replica(0).Life().Receive()
	require.Equal(t, []jobtracker.JobID{1}, c.Replica(0).Life().InSocket(), "job 2 writes what job 1 does")
	c.Settle()
	c.RequireOrder()
	c.RequireSame()
}

// TestDevices has devices crash, and be replaced and wiped.
func TestDevices(t *testing.T) {
	c := jobtest.New(t, config{})
	r := c.Replica(0)
	c.Submit(jobtest.Write(0, 1))
	c.Submit(jobtest.Flush())
	c.Submit(jobtest.Write(0, 2))
	f := c.Submit(jobtest.FUA(2, 1))
	c.Settle()
	require.Equal(t, uint64(3), r.Block(0))
	require.True(t, r.Hello().Dirty)
	r.Crash()
	require.Equal(t, uint64(1), r.Block(0))
	require.Zero(t, r.Block(1))
	require.Equal(t, uint64(f.ID()), r.Block(2))
	require.Equal(t, uint64(1), r.Hello().Flush)
	require.Equal(t, jobtracker.PlanReplay, r.Reconnect().Conn().Plan())
	c.Settle()
	c.RequireSame()

	before := r.Hello()
	r.Wipe()
	require.Zero(t, r.Block(2))
	require.Equal(t, before.Replica, r.Hello().Replica)
	require.Equal(t, jobtracker.PlanRepair, r.Reconnect().Conn().Plan())
	require.NoError(t, r.Replace())
	require.NotEqual(t, before.Replica, r.Hello().Replica)
	c.RequireRecovery()
	require.Equal(t, jobtracker.Voting, r.State().Phase)
	read := c.Submit(jobtest.Read(0, 3))
	c.Settle()
	require.Equal(t, []uint64{3, 3, 4}, read.Data())
	c.Deactivate()
	c.Activate()
	for _, r := range c.Replicas() {
		require.Equal(t, jobtracker.PlanFresh, r.Reconnect().Conn().Plan())
	}
	c.RequireSame()
}

// TestSameSeedSameRun has the same calls give the same run.
func TestSameSeedSameRun(t *testing.T) {
	run := func(seed uint64) (prints []uint64) {
		c := jobtest.New(t, config{Order: jobtracker.ReplicaOrders})
		c.Seed(seed)
		for i := range 30 {
			c.Submit(jobtest.Write(uint64(i%5), 2))
			c.Submit(jobtest.Read(uint64(i%7), 1))
			c.Step()
			prints = append(prints, c.Tracker.Fingerprint())
		}
		c.RequireRecovery()
		return prints
	}
	first := run(1)
	require.Equal(t, first, run(1))
	require.NotEqual(t, first, run(2))
}
