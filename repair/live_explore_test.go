package repair

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// lRun is a run of the explorer over a driver of this package.
type lRun struct {
	x      *jobtest.Trial
	c      *jobtest.Cluster
	cancel context.CancelCauseFunc
	done   chan struct{}
	disks  *rDisks // of a reconciliation
	err    error
}

// drive runs a driver on a goroutine of its own, which goes on while the scenario yields. Whatever becomes of the run, it
// is joined.
func drive(x *jobtest.Trial, c *jobtest.Cluster, driver func(ctx context.Context) error) *lRun {
	r := &lRun{x: x, c: c, done: make(chan struct{})}
	var ctx context.Context
	ctx, r.cancel = context.WithCancelCause(context.Background())
	x.Subject = r
	go func() {
		defer close(r.done)
		r.err = driver(ctx)
	}()
	x.Cleanup(func() {
		r.cancel(errTest)
		x.Yield()
		<-r.done
	})
	return r
}

// ended lets the driver go on as far as it can, and tells whether it has returned.
func (r *lRun) ended() bool {
	r.x.Yield()
	return isClosed(r.done)
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// onRun is an adversary of a driver.
func onRun(name string, act func(r *lRun)) jobtest.Adversary {
	return jobtest.Adversary{Name: name, Act: func(x *jobtest.Trial) {
		if r, ok := x.Subject.(*lRun); ok {
			act(r)
		}
	}}
}

// onCluster is one that needs no driver.
func onCluster(name string, act func(c *jobtest.Cluster)) jobtest.Adversary {
	return onRun(name, func(r *lRun) { act(r.c) })
}

// lAdversaries are, beside those of jobtest, what a repair must live with.
var lAdversaries = []jobtest.Adversary{
	onRun("Abort", func(r *lRun) { r.cancel(errTest) }),
	onRun("Repair again", func(r *lRun) {
		_ = r.x.Call("Repair", func() error { // refused while one goes on
			ticket, err := r.c.Tracker.Repair(2)
			if err == nil {
				err = ticket.Abort(errTest)
			}
			return err
		})
	}),
	onRun("Live again", func(r *lRun) {
		if Live(gone, r.c.Tracker, 2, payload, LiveOptions{}) == nil {
			r.x.Errorf("a repair whose context has ended went well")
		}
	}),
	onCluster("Guest", func(c *jobtest.Cluster) {
		for b := range uint64(8) { // each extent, whether it was copied, is being copied, or is left; some in part
			_, _ = c.TrySubmit(jobtest.Write(2*b+b%2, 1))
		}
		_, _ = c.TrySubmit(jobtest.Write(0, 16))
	}),
	onCluster("Guest and flush", func(c *jobtest.Cluster) {
		_, _ = c.TrySubmit(jobtest.Write(1, 14))
		_, _ = c.TrySubmit(jobtest.Flush())
		_, _ = c.TrySubmit(jobtest.Write(3, 5))
	}),
	onCluster("Source cannot read", func(c *jobtest.Cluster) { c.Replica(0).FailKind(jobtracker.Copy, errTest) }),
	onCluster("No source can read", func(c *jobtest.Cluster) {
		c.Replica(0).FailKind(jobtracker.Copy, errTest)
		c.Replica(1).FailKind(jobtracker.Copy, errTest)
	}),
	onCluster("Target cannot write", func(c *jobtest.Cluster) { c.Replica(2).FailKind(jobtracker.Copy, errTest) }),
	onCluster("Target cannot flush", func(c *jobtest.Cluster) { c.Replica(2).FailKind(jobtracker.Flush, errTest) }),
	onCluster("Sources lost", func(c *jobtest.Cluster) {
		c.Replica(0).Cut()
		c.Replica(1).Cut()
	}),
	onCluster("Sources and target return", func(c *jobtest.Cluster) {
		for _, r := range c.Replicas() {
			r.Crash()
			_, _ = r.Connect()
		}
	}),
	onCluster("All are faulted", func(c *jobtest.Cluster) {
		for r := range c.Replicas() {
			_ = c.Tracker.Fault(r, errTest) // there may be no activation
		}
	}),
	onCluster("Target is silent", func(c *jobtest.Cluster) { c.Replica(2).Silence() }),
	onCluster("Target does not read", func(c *jobtest.Cluster) { c.Replica(2).StopReading() }),
	onCluster("Source is silent", func(c *jobtest.Cluster) { c.Replica(0).Silence() }),
	onCluster("Target is wiped", func(c *jobtest.Cluster) {
		c.Replica(2).Wipe()
		_, _ = c.Replica(2).Connect()
	}),
}

// lScenario is the repair of a replica that has missed five of eight extents, while the guest goes on.
func lScenario(order jobtracker.Order, o LiveOptions) func(x *jobtest.Trial) {
	return func(x *jobtest.Trial) {
		var c *jobtest.Cluster
		x.Quietly(func() { c = small(x, order) })
		r := drive(x, c, func(ctx context.Context) error { return Live(ctx, c.Tracker, 2, payload, o) })
		for n := 0; !r.ended(); n++ {
			switch n {
			case 9, 31:
				_, _ = c.TrySubmit(jobtest.Write(uint64(n%7), 6))
			case 21:
				_, _ = c.TrySubmit(jobtest.Flush())
			}
			if !c.Step() {
				r.unstick()
			}
		}
		r.judge()
		r.wellAgain(o)
	}
}

// unstick ends faults that nobody has told the tracker of.
func (r *lRun) unstick() {
	if !r.x.Disturbed() {
		r.x.Errorf("a repair is stuck that nobody has disturbed\n%v", r.c)
		r.x.FailNow()
	}
	for _, rep := range r.c.Replicas() {
		rep.Heal()
		if !rep.State().Connected() {
			_, _ = rep.TryReconnect() // there may be no activation
		}
	}
}

// judge demands that a driver has ended well, or with an error of a kind.
func (r *lRun) judge() {
	switch {
	case r.err == nil:
	case !r.x.Disturbed():
		r.x.Errorf("it has ended with %v", r.err)
	case !jobtest.Typed(r.err) && !errors.Is(r.err, errTest) && !errors.Is(r.err, ErrCopy):
		r.x.Errorf("it has ended with an error of no kind: %v", r.err)
	}
}

// wellAgain is the liveness half: faults have stopped, and drivers alone bring back all replicas.
func (r *lRun) wellAgain(o LiveOptions) {
	r.x.Quietly(func() {
		r.comeBack()
		r.c.Settle() // a failure that was on its way arrives
		r.comeBack()
		r.c.Settle()
		for i, rep := range r.c.Replicas() {
			if !r.active() || rep.State().Phase != jobtracker.RepairReady {
				continue
			}
			again := drive(r.x, r.c, func(ctx context.Context) error { return Live(ctx, r.c.Tracker, i, payload, o) })
			for !again.ended() {
				was := r.c.Tracker.Fingerprint()
				r.c.Settle()
				again.x.Yield()
				if r.c.Tracker.Fingerprint() == was && !isClosed(again.done) {
					r.x.Errorf("the repair of replica %d is stuck\n%v", i, r.c)
					r.x.FailNow()
				}
			}
			require.NoError(r.x, again.err)
		}
		for i, rep := range r.c.Replicas() {
			if p := rep.State().Phase; r.active() && p != jobtracker.Voting {
				r.x.Errorf("replica %d is %v when all faults have stopped", i, p)
			}
		}
		if r.active() {
			r.c.RequireSame()
		}
	})
}

// comeBack has replicas connect that are away, or under a repair that an adversary began and left.
func (r *lRun) comeBack() {
	for _, rep := range r.c.Replicas() {
		rep.Heal()
		if p := rep.State().Phase; r.active() && (!rep.State().Connected() || p == jobtracker.Repairing) {
			_, err := rep.TryReconnect()
			require.NoError(r.x, err)
		}
	}
}

func (r *lRun) active() bool { return r.c.Tracker.Stats().Phase == jobtracker.Active }

// lChosen are the adversaries that a scenario meets: all of them, but with the race detector a sample.
func lChosen(turn int, all ...jobtest.Adversary) []jobtest.Adversary {
	if !raceDetector {
		return all
	}
	var who []jobtest.Adversary
	for i, a := range all {
		if (i+turn)%16 == 0 {
			who = append(who, a)
		}
	}
	return who
}

type lNamed struct {
	name string
	play func(x *jobtest.Trial)
}

// exploreAll explores scenarios, and says how much that was.
func exploreAll(t *testing.T, scenarios []lNamed, all ...jobtest.Adversary) {
	t.Helper()
	var mu sync.Mutex
	var sum jobtest.Report
	t.Run("scenarios", func(t *testing.T) {
		for turn, scenario := range scenarios {
			who := lChosen(turn, all...)
			t.Run(scenario.name, func(t *testing.T) {
				t.Parallel()
				rep := jobtest.ExploreInTurns(t, scenario.play, who...)
				mu.Lock()
				defer mu.Unlock()
				sum.Acquisitions += rep.Acquisitions
				sum.Pairs += rep.Pairs
				sum.Refusals += rep.Refusals
			})
		}
	})
	require.Positive(t, sum.Pairs)
	t.Logf("%d scenarios with %d acquisitions, %d adversaries: %d pairs, %d refusals compared",
		len(scenarios), sum.Acquisitions, len(all), sum.Pairs, sum.Refusals)
}

// TestExploreLive lets each adversary go first before each acquisition of the lock during a live repair. Whatever it does,
// the driver ends with an error of a kind, refusals change nothing, every job resolves, and when faults have stopped
// drivers bring back all replicas, which hold the same.
func TestExploreLive(t *testing.T) {
	exploreAll(t, []lNamed{
		{"tracker orders", lScenario(jobtracker.TrackerOrders, LiveOptions{Parallel: 1})},
		{"replica orders", lScenario(jobtracker.ReplicaOrders, LiveOptions{Parallel: 1})},
		{"by checksum", lScenario(jobtracker.TrackerOrders, LiveOptions{Parallel: 1, Checksum: true})},
	}, append(lAdversaries, jobtest.Adversaries...)...)
}
