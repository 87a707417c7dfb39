package repair

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// byReconcile is an adversary that begins a reconciliation of its own, and gives it up.
var byReconcile = jobtest.Adversary{Name: "Reconcile", Act: func(x *jobtest.Trial) {
	c := x.Cluster()
	if c == nil {
		return
	}
	_ = x.Call("Reconcile", func() error { // a refusal is checked by Call
		ticket, err := c.Tracker.Reconcile()
		if err == nil {
			err = ticket.Abort(errTest)
		}
		return err
	})
}}

// A reconciliation with somebody going first at each acquisition of the lock: it ends well, or its ticket is refused and has
// changed nothing.
func TestR16_GapsOfAReconciliation(t *testing.T) {
	report := jobtest.Explore(t, func(x *jobtest.Trial) {
		c := jobtest.New(x, config{Blocks: 8})
		if _, err := c.TrySubmit(jobtest.Write(0, 8)); err == nil {
			c.Settle() // all have it, and nobody has flushed it
		}
		_ = x.Call("Disable", func() error { return c.Tracker.Disable(errTest) })
		for _, r := range c.Replicas() {
			_ = r.Quiesce() // the adversary may have been there
		}
		_, _ = c.TryActivate(jobtracker.ActivateOptions{})
		for _, r := range c.Replicas() {
			_, _ = r.TryReconnect()
		}
		var ticket *jobtracker.Reconciliation[*jobtest.Payload]
		err := x.Call("Reconcile", func() (err error) {
			ticket, err = c.Tracker.Reconcile()
			return err
		})
		if err != nil {
			require.True(x, x.Disturbed(), "%v", err)
			return
		}
		c.Reconcile() // nothing is on its way to anybody
		done := x.Call("Done", ticket.Done)
		x.Promise(func() error {
			if done == nil {
				return ticket.Ended().Err()
			}
			require.ErrorIs(x, done, jobtracker.ErrSuperseded)
			require.ErrorIs(x, ticket.Ended().Err(), jobtracker.ErrEnded)
			require.Error(x, ticket.Context().Err())
			return nil
		})
	}, append([]jobtest.Adversary{byReconcile}, jobtest.Adversaries...)...)
	require.Greater(t, report.Pairs, 500)
	require.Positive(t, report.Refusals)
}
