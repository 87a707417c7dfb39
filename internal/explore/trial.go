package explore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
)

// Trial is one run of a scenario. A scenario runs on one goroutine, or in turns (see [NewInTurns]), and does the same each
// time, until the adversary has gone. All methods are safe for concurrent use.
type Trial struct {
	typed func(error) bool
	act   func() // the adversary's; nil: nobody interferes
	at    int    // the acquisition before which the adversary goes

	ctx    context.Context //nolint:containedctx // it is what the scenario hands to its calls
	cancel context.CancelFunc

	mu sync.Mutex
	// +checklocks:mu
	counts
	// +checklocks:mu
	found
	// +checklocks:mu
	turns
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
	watched  []func() uint64
	promises []func() error
}

// New makes a trial in which act goes first before an acquisition; with a nil act nobody does. typed tells whether an
// error is one by which the package under test refuses.
func New(typed func(error) bool, act func(), at int) *Trial {
	x := &Trial{typed: typed, act: act, at: at}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	return x
}

// Errorf notes a finding.
func (x *Trial) Errorf(format string, args ...any) {
	s := fmt.Sprintf(format, args...) // may ask what is watched
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

// Context is a context that Withdraw ends, and the end of the run.
func (x *Trial) Context() context.Context { return x.ctx }

// Withdraw ends the context.
func (x *Trial) Withdraw() { x.cancel() }

// Disturbed tells whether the adversary has gone.
func (x *Trial) Disturbed() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.struck
}

// Steps is how many acquisitions were counted.
func (x *Trial) Steps() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.steps
}

// WentAt tells whether the adversary has gone before that acquisition, from 0.
func (x *Trial) WentAt(step int) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.struck && x.struckAt == step
}

// Watch has Call compare a fingerprint of what is under test.
func (x *Trial) Watch(fingerprint func() uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.watched = append(x.watched, fingerprint)
}

// Promise has f looked at when the scenario has ended.
func (x *Trial) Promise(f func() error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promises = append(x.promises, f)
}

// Gap is the hook: it is called before a lock is acquired, with no lock held. If it is the adversary's turn, the adversary
// goes, and what it acquires is not counted.
func (x *Trial) Gap() {
	at := x.at
	x.awaitTurn()
	x.mu.Lock()
	x.all++
	if x.off > 0 {
		x.mu.Unlock()
		return
	}
	step := x.steps
	x.steps++
	turn := x.act != nil && !x.struck && step == at
	if turn {
		x.struck, x.struckAt = true, step
	}
	x.mu.Unlock()
	if !turn {
		return
	}
	x.Quietly(func() {
		x.act()
		after := x.prints()
		x.mu.Lock()
		x.after, x.known = after, nil // the acquisition that follows was counted already
		x.mu.Unlock()
	})
}

// Hook is Gap, and then what the user hooked.
func (x *Trial) Hook(also func()) func() {
	return func() {
		x.Gap()
		if also != nil {
			also()
		}
	}
}

// Quietly runs f, and nothing that it acquires is counted.
func (x *Trial) Quietly(f func()) {
	x.count(1)
	defer x.count(-1)
	f()
}

func (x *Trial) count(d int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.off += d
}

// prints are the fingerprints of all that is watched. They are those of the last time while nobody has acquired a lock.
func (x *Trial) prints() []uint64 {
	x.mu.Lock()
	known, fresh := x.known, x.known != nil && x.knownAt == x.all && len(x.known) == len(x.watched)
	watched, all := x.watched, x.all
	x.mu.Unlock()
	if fresh {
		return known
	}
	prints := make([]uint64, 0, len(watched))
	x.Quietly(func() {
		for _, print := range watched {
			prints = append(prints, print())
		}
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.all = all // a scenario runs on one goroutine: only the fingerprints have acquired locks
	x.known, x.knownAt = prints, x.all
	return prints
}

// Call makes a call of what is under test. A refusal must be typed, or that of a context; and it must have changed
// nothing: the fingerprints before and after are equal.
func (x *Trial) Call(name string, f func() error) error {
	before := x.prints()
	x.mu.Lock()
	start, outer := x.steps, x.off == 0
	x.mu.Unlock()
	err := f()
	if err == nil {
		return nil
	}
	if !x.typed(err) && !isContext(err) {
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

func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// Run runs the scenario, then finish, the promises and what was given to Cleanup, and returns what came of it.
func (x *Trial) Run(scenario, finish func()) Outcome {
	defer x.cancel()
	if x.guard(scenario) {
		x.count(1)
		for f := func() { finish(); x.keepPromises() }; f != nil && x.guard(f); f = x.nextCleanup() {
			continue
		}
	}
	if x.act != nil && !x.Disturbed() {
		x.Errorf("the scenario is not deterministic: it acquired a lock %d times, and more before", x.outcome().Acquisitions)
	}
	return x.outcome()
}

func (x *Trial) outcome() Outcome {
	x.mu.Lock()
	defer x.mu.Unlock()
	return Outcome{x.steps, x.refusals, x.errs}
}

func (x *Trial) keepPromises() {
	x.mu.Lock()
	promises := x.promises
	x.mu.Unlock()
	for _, p := range promises {
		if err := p(); err != nil {
			x.Errorf("%v", err)
		}
	}
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

// guard runs f to its end, or to its FailNow. After a panic a lock may be held for ever: it returns false.
func (x *Trial) guard(f func()) bool {
	ok := true
	done := make(chan struct{})
	go root(func() {
		defer close(done)
		x.takeTurn()
		defer func() {
			if v := recover(); v != nil {
				ok = false
				x.Errorf("panic: %v\n%s", v, debug.Stack())
			}
		}()
		f()
	})
	<-done
	return ok
}
