package jobtest

import (
	"context"
	"sync"

	"github.com/staleproof/staleproof/internal/explore"
	"github.com/staleproof/staleproof/jobtracker"
)

// Tracker is what the explorer needs of a tracker, whatever its payloads are. Every [jobtracker.Tracker] has it.
type Tracker interface {
	Activate(o jobtracker.ActivateOptions) (*jobtracker.Handle, error)
	Deactivate() *jobtracker.Handle
	Disable(cause error) error
	Close() *jobtracker.Handle
	Fault(replica int, cause error) error
	Replace(replica int) error
	Stats() jobtracker.Stats
	Dump() jobtracker.Dump
	Fingerprint() uint64
	Check() error
}

// Trial is one run of a scenario by the explorer. It is the scenario's [TB], and it counts the acquisitions of the locks
// whose hook it was given: that of each [Cluster] made on it, and of whatever calls [Trial.Gap]. A scenario runs on one
// goroutine, or in turns (see [ExploreInTurns]), and does the same each time, until the adversary has gone; from then on
// anything may be refused to it.
type Trial struct {
	// Subject is for scenario and adversary to share what they need, such as the user's own code around a tracker.
	Subject any

	engine *explore.Trial

	mu sync.Mutex
	// +checklocks:mu
	watched []Tracker
	// +checklocks:mu
	clusters []*Cluster
}

// Helper is that of a test.
func (x *Trial) Helper() {}

// Errorf notes a finding.
func (x *Trial) Errorf(format string, args ...any) { x.engine.Errorf(format, args...) }

// FailNow ends the run.
func (x *Trial) FailNow() { x.engine.FailNow() }

// Cleanup has f called when the run has ended, the last one first.
func (x *Trial) Cleanup(f func()) { x.engine.Cleanup(f) }

// Context is a context that the adversary [ByWithdraw] ends, and the end of the run.
func (x *Trial) Context() context.Context { return x.engine.Context() }

// Disturbed tells whether the adversary has gone. Before, nothing must be refused that a scenario does not expect.
func (x *Trial) Disturbed() bool { return x.engine.Disturbed() }

// Promise has f looked at when the scenario has ended.
func (x *Trial) Promise(f func() error) { x.engine.Promise(f) }

// Gap is the hook: it is called before a lock is acquired, with no lock held. If it is the adversary's turn, the adversary
// goes, and what it acquires is not counted.
func (x *Trial) Gap() { x.engine.Gap() }

// Call makes a call of a tracker, or of the user's own code that refuses what it cannot do. A refusal must be typed, see
// [Typed], or that of a context; and it must have changed nothing: the fingerprints before and after are equal.
func (x *Trial) Call(name string, f func() error) error { return x.engine.Call(name, f) }

// Quietly runs a part of the scenario in which nobody goes first: what it acquires is not counted.
func (x *Trial) Quietly(f func()) { x.engine.Quietly(f) }

// Yield lets the goroutines of the scenario go on until each of them waits for something; see [ExploreInTurns].
func (x *Trial) Yield() { x.engine.Yield() }

// Watch has a tracker of the user's own code checked: its invariants, and that refused calls made through [Trial.Call]
// change nothing. Adversaries that need no connection act on it. Its Config.Gap is to be x.Gap.
func (x *Trial) Watch(t Tracker) {
	x.engine.Watch(t.Fingerprint)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watched = append(x.watched, t)
}

// Cluster is the last cluster that the scenario has made; nil if it has made none.
func (x *Trial) Cluster() *Cluster {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.clusters) == 0 {
		return nil
	}
	return x.clusters[len(x.clusters)-1]
}

func (x *Trial) adopt(c *Cluster) {
	x.Watch(c.Tracker)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clusters = append(x.clusters, c)
}

// has is what the scenario has made.
func (x *Trial) has() ([]Tracker, []*Cluster) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.watched, x.clusters
}

// finish is the liveness half: when faults stop, everything ends well.
func (x *Trial) finish() {
	watched, clusters := x.has()
	for _, c := range clusters {
		c.recover()
	}
	for _, t := range watched {
		if err := t.Check(); err != nil {
			x.Errorf("%v\n%v", err, t.Dump())
		}
	}
}
