package jobtest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

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
// goroutine and does the same each time, until the adversary has gone; from then on anything may be refused to it.
type Trial struct {
	// Subject is for scenario and adversary to share what they need, such as the user's own code around a tracker.
	Subject any

	adversary *Adversary
	at        int // the acquisition before which the adversary goes

	ctx    context.Context //nolint:containedctx // it is what the scenario hands to its calls
	cancel context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	counts
	// +checklocks:mu
	found
}

// counts are what a trial counts. They are guarded by its mutex.
type counts struct {
	steps    int // acquisitions counted
	all      int // acquisitions, but those for fingerprints
	off      int // acquisitions are not counted
	struck   bool
	struckAt int
	after    []uint64 // the fingerprints when the adversary had gone
	known    []uint64 // the last fingerprints
	knownAt  int      // all, when they were taken
	refusals int      // refused calls whose fingerprints were compared
}

// found is what a trial has and has found. It is guarded by its mutex.
type found struct {
	errs     []string
	cleanups []func()
	watched  []Tracker
	clusters []*Cluster
	promises []func() error
}

// Helper is that of a test.
func (x *Trial) Helper() {}

// Errorf notes a finding.
func (x *Trial) Errorf(format string, args ...any) {
	s := fmt.Sprintf(format, args...) // may ask the tracker
	x.mu.Lock()
	defer x.mu.Unlock()
	x.errs = append(x.errs, s)
}

// FailNow ends the run.
func (x *Trial) FailNow() { runtime.Goexit() }

// Cleanup has f called when the run has ended, the last one first.
func (x *Trial) Cleanup(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cleanups = append(x.cleanups, f)
}

// Context is a context that the adversary [ByWithdraw] ends, and the end of the run.
func (x *Trial) Context() context.Context { return x.ctx }

// Disturbed tells whether the adversary has gone. Before, nothing must be refused that a scenario does not expect.
func (x *Trial) Disturbed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.struck
}

// Watch has a tracker of the user's own code checked: its invariants, and that refused calls made through [Trial.Call]
// change nothing. Adversaries that need no connection act on it. Its Config.Gap is to be x.Gap.
func (x *Trial) Watch(t Tracker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watched = append(x.watched, t)
}

// Promise has f looked at when the scenario has ended.
func (x *Trial) Promise(f func() error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promises = append(x.promises, f)
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

// hook is Gap, and then what the user hooked.
func (x *Trial) hook(also func()) func() {
	return func() {
		x.Gap()
		if also != nil {
			also()
		}
	}
}

// Gap is the hook: it is called before a lock is acquired, with no lock held. If it is the adversary's turn, the adversary
// goes, and what it acquires is not counted.
func (x *Trial) Gap() {
	at := x.at
	x.mu.Lock()
	x.all++
	if x.off > 0 {
		x.mu.Unlock()
		return
	}
	step := x.steps
	x.steps++
	turn := x.adversary != nil && !x.struck && step == at
	if turn {
		x.struck, x.struckAt = true, step
	}
	x.mu.Unlock()
	if !turn {
		return
	}
	x.quietly(func() {
		x.adversary.Act(x)
		after := x.prints()
		x.mu.Lock()
		x.after, x.known = after, nil // the acquisition that follows was counted already
		x.mu.Unlock()
	})
}

// quietly runs f, and nothing that it acquires is counted.
func (x *Trial) quietly(f func()) {
	x.count(1)
	defer x.count(-1)
	f()
}

func (x *Trial) count(d int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.off += d
}

// prints are the fingerprints of all trackers. They are those of the last time while nobody has acquired a lock.
func (x *Trial) prints() []uint64 {
	x.mu.Lock()
	known, fresh := x.known, x.known != nil && x.knownAt == x.all && len(x.known) == len(x.watched)
	watched, all := x.watched, x.all
	x.mu.Unlock()
	if fresh {
		return known
	}
	prints := make([]uint64, 0, len(watched))
	x.quietly(func() {
		for _, t := range watched {
			prints = append(prints, t.Fingerprint())
		}
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == all+len(watched) {
		x.all = all
	}
	x.known, x.knownAt = prints, x.all
	return prints
}

// Call makes a call of a tracker, or of the user's own code that refuses what it cannot do. A refusal must be typed, see
// [Typed], or that of a context; and it must have changed nothing: the fingerprints before and after are equal.
func (x *Trial) Call(name string, f func() error) error {
	before := x.prints()
	x.mu.Lock()
	start, outer := x.steps, x.off == 0
	x.mu.Unlock()
	err := f()
	if err == nil {
		return nil
	}
	if !Typed(err) && !isContext(err) {
		x.Errorf("%s: an error of no kind: %v", name, err)
	}
	x.mu.Lock()
	if outer && x.struck && x.struckAt >= start {
		if x.struckAt > start || len(x.after) != len(before) {
			x.mu.Unlock()
			return err // the adversary went in the middle: what the call had done before is not known
		}
		before = x.after
	}
	x.refusals++
	x.mu.Unlock()
	if after := x.prints(); !slices.Equal(before, after) {
		x.Errorf("%s: refused with %q, but something has changed", name, err)
	}
	return err
}

// run runs the scenario, ends what it has left, and returns what was found.
func (x *Trial) run(scenario func(*Trial)) []string {
	x.ctx, x.cancel = context.WithCancel(context.Background())
	defer x.cancel()
	if x.guard(func() { scenario(x) }) {
		x.count(1)
		for f := x.finish; f != nil && x.guard(f); f = x.nextCleanup() {
			continue
		}
	}
	if x.adversary != nil && !x.Disturbed() {
		x.Errorf("the scenario is not deterministic: it acquired a lock %d times, and more before", x.counted().steps)
	}
	return x.has().errs
}

// nextCleanup takes the last function that was given to Cleanup; nil when there is none.
func (x *Trial) nextCleanup() func() {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := len(x.cleanups)
	if n == 0 {
		return nil
	}
	f := x.cleanups[n-1]
	x.cleanups = x.cleanups[:n-1]
	return f
}

func (x *Trial) has() found {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.found
}

func (x *Trial) counted() counts {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.counts
}

// guard runs f to its end, or to its FailNow. After a panic a lock may be held for ever: it returns false.
func (x *Trial) guard(f func()) bool {
	ok := true
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				ok = false
				x.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
	}()
	<-done
	return ok
}

// finish is the liveness half: when faults stop, everything ends well.
func (x *Trial) finish() {
	has := x.has()
	for _, c := range has.clusters {
		c.recover()
	}
	for _, t := range has.watched {
		if err := t.Check(); err != nil {
			x.Errorf("%v\n%v", err, t.Dump())
		}
	}
	for _, p := range has.promises {
		if err := p(); err != nil {
			x.Errorf("%v", err)
		}
	}
}
