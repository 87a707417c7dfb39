package repair

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// rDisks are the replicas of a cluster as a reconciliation sees them, over the connections they have now: a request on one
// that has ended does nothing. An adversary may go first before each call.
type rDisks struct {
	x     *jobtest.Trial
	c     *jobtest.Cluster
	lives []*jobtest.Life
	fails map[string]int // calls of that name that are still to fail
}

func disksOf(x *jobtest.Trial, c *jobtest.Cluster) *rDisks {
	d := &rDisks{x: x, c: c, fails: map[string]int{}}
	for _, r := range c.Replicas() {
		d.lives = append(d.lives, r.Life())
	}
	return d
}

// call is what comes before each request.
func (d *rDisks) call(ctx context.Context, what string) error {
	d.x.Gap()
	if d.fails[what] > 0 {
		d.fails[what]--
		return errTest
	}
	return context.Cause(ctx)
}

// Extents knows no extents: a device that is not dirty is as its version says.
func (d *rDisks) Extents(ctx context.Context, replica int) ([]ExtentMeta, error) {
	err := d.call(ctx, "extents")
	h := d.c.Replica(replica).Hello()
	return slices.Repeat([]ExtentMeta{{Generation: h.Generation, Flush: h.Flush, Dirty: h.Dirty || h.Generation == 0}}, rExtents), err
}

func (d *rDisks) Copy(ctx context.Context, source, target, extent int) error {
	if err := d.call(ctx, "copy"); err != nil {
		return err
	}
	return d.lives[target].CopyFrom(d.lives[source], uint64(extent*rExtent), rExtent)
}

func (d *rDisks) Flush(ctx context.Context, replica int) error {
	if err := d.call(ctx, "flush"); err != nil {
		return err
	}
	return d.lives[replica].Sync()
}

func (d *rDisks) Remember(ctx context.Context, replica int, m Memory) error {
	if err := d.call(ctx, "remember"); err != nil {
		return err
	}
	return d.lives[replica].Remember(m.Generation, m.Flush, !m.Equal && slices.Contains(m.Dirty, true))
}

const (
	rExtent  = 4
	rExtents = 4
)

// onDisks is an adversary that has the next calls of a name fail.
func onDisks(what string, n int) jobtest.Adversary {
	return onRun("Fails to "+what, func(r *lRun) {
		if r.disks != nil {
			r.disks.fails[what] = n
		}
	})
}

// rAdversaries are, beside those of jobtest, what a reconciliation must live with.
var rAdversaries = []jobtest.Adversary{
	onRun("Abort", func(r *lRun) { r.cancel(errTest) }),
	byReconcile,
	onDisks("extents", 1), onDisks("copy", 1), onDisks("flush", 1), onDisks("remember", 1), onDisks("remember", 2),
	onCluster("All are lost", func(c *jobtest.Cluster) {
		for _, r := range c.Replicas() {
			r.Crash()
		}
	}),
	onCluster("One is lost", func(c *jobtest.Cluster) { c.Replica(1).Crash() }),
	onCluster("All return", func(c *jobtest.Cluster) {
		for _, r := range c.Replicas() {
			r.Crash()
			_, _ = r.Connect() // there may be no activation
		}
	}),
	onRun("Another is faster", func(r *lRun) {
		// It makes all equal to the one with the highest version, the activation begins, and the guest goes on.
		ticket, err := r.c.Tracker.Reconcile()
		if err != nil {
			return
		}
		ps := ticket.Participants()
		best := slices.MaxFunc(ps, func(a, b jobtracker.Participant) int {
			return 1<<16*(int(a.Generation)-int(b.Generation)) + int(a.Flush) - int(b.Flush)
		})
		generation, flush := ticket.Version()
		source := r.c.Replica(best.Replica).Life()
		for _, p := range ps {
			l := r.c.Replica(p.Replica).Life()
			if p != best {
				require.NoError(r.x, l.CopyFrom(source, 0, rExtent*rExtents))
			}
			require.NoError(r.x, errors.Join(l.Sync(), l.Remember(generation, flush, false)))
		}
		require.NoError(r.x, ticket.Done())
		_, _ = r.c.TrySubmit(jobtest.Write(1, 9)) // it may be ending
		_, _ = r.c.TrySubmit(jobtest.Flush())
		r.c.Settle()
	}),
}

// rScenario is the reconciliation of three replicas, of which each holds another write that nobody has flushed, or of two
// of them; flushed: two have flushed what the third has not got.
func rScenario(here int, flushed bool) func(x *jobtest.Trial) {
	return func(x *jobtest.Trial) {
		var c *jobtest.Cluster
		x.Quietly(func() {
			c = jobtest.New(x, config{Blocks: rExtent * rExtents, ExtentBlocks: rExtent})
			c.Submit(jobtest.Write(0, 16))
			c.Submit(jobtest.Flush())
			c.Settle()
			if flushed {
				c.Replica(2).Cut()
				c.Submit(jobtest.Write(3, 2))
				c.Submit(jobtest.Flush())
				c.Settle()
			}
			for i, r := range c.Replicas() {
				c.Submit(jobtest.Write(uint64(5*i), 2))
				if r.Connected() {
					r.Life().Receive()
					r.Life().Execute()
				}
			}
			require.NoError(x, c.Tracker.Disable(errTest))
			for _, r := range c.Replicas() {
				require.NoError(x, r.Quiesce())
			}
			_, err := c.TryActivate(jobtracker.ActivateOptions{})
			require.NoError(x, err)
			for _, r := range c.Replicas()[3-here:] {
				_, err := r.Connect()
				require.NoError(x, err)
			}
		})
		r := driveReconcile(x, c)
		if !r.ended() {
			x.Errorf("a reconciliation waits for nobody, and has not ended")
			x.FailNow()
		}
		r.judge()
		x.Quietly(r.begins)
		r.wellAgain(LiveOptions{})
	}
}

func driveReconcile(x *jobtest.Trial, c *jobtest.Cluster) *lRun {
	disks := disksOf(x, c)
	r := drive(x, c, func(ctx context.Context) error {
		return Reconcile(ctx, c.Tracker, disks, ReconcileOptions{Parallel: 1})
	})
	r.disks = disks
	return r
}

// begins has whoever is away come back, and reconciles again until the activation begins: it must with the next one.
func (r *lRun) begins() {
	activating := func() bool { return r.c.Tracker.Stats().Phase == jobtracker.Activating }
	if !activating() {
		return
	}
	for _, rep := range r.c.Replicas() {
		if !rep.State().Connected() && activating() {
			_, err := rep.TryReconnect()
			require.NoError(r.x, err)
		}
	}
	if !activating() {
		return // they turned out to be alike
	}
	again := driveReconcile(r.x, r.c)
	require.True(r.x, again.ended())
	require.NoError(r.x, again.err)
	require.True(r.x, r.active())
}

// TestExploreReconcile lets each adversary go first before each acquisition of the lock, and each request to a replica, of a
// reconciliation. Whatever it does, the driver ends with an error of a kind, refusals change nothing, the next attempt
// goes well, and all replicas hold the same.
func TestExploreReconcile(t *testing.T) {
	exploreAll(t, []lNamed{
		{"all are here", rScenario(3, false)},
		{"one is away", rScenario(2, false)},
		{"all, one is behind", rScenario(3, true)},
		{"one away, one behind", rScenario(2, true)},
	}, append(rAdversaries, jobtest.Adversaries...)...)
}
