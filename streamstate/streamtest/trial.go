package streamtest

import (
	"context"
	"sync"

	"github.com/staleproof/staleproof/internal/explore"
	"github.com/staleproof/staleproof/streamstate"
)

// Trial is one run of a scenario by the explorer. It is the scenario's [TB], and it counts the acquisitions of the locks
// whose hook it was given: that of each [Feed] made on it, and of whatever calls [Trial.Gap]. A scenario runs on one
// goroutine and does the same each time, until the adversary has gone; from then on anything may be refused to it.
type Trial struct {
	// Subject is for scenario and adversary to share what they need, such as the user's own code around a book.
	Subject any

	engine *explore.Trial

	mu sync.Mutex
	// +checklocks:mu
	feeds []*Feed
	// +checklocks:mu
	books []watched
	// later is what adversaries have left to be done when faults stop.
	// +checklocks:mu
	later []func()
	// +checklocks:mu
	handles []tracked
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

// Call makes a call of a book, or of the user's own code that refuses what it cannot do. A refusal must be typed, see
// [Typed], or that of a context; and it must have changed nothing: the fingerprints before and after are equal.
func (x *Trial) Call(name string, f func() error) error { return x.engine.Call(name, f) }

// Feed is the last feed that the scenario has made; nil if it has made none.
func (x *Trial) Feed() *Feed {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.feeds) == 0 {
		return nil
	}
	return x.feeds[len(x.feeds)-1]
}

func (x *Trial) adopt(f *Feed) {
	x.engine.Watch(f.fingerprint)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.feeds = append(x.feeds, f)
}

// Watch has a book of the user's own code checked: its invariants, and that refused calls made through [Trial.Call] change
// nothing. Adversaries that need no source act on it. Its Options.Gap is to be x.Gap. open says with what adversaries open
// a key again that they have dropped; with a nil open they do not.
func Watch[P any](x *Trial, b *streamstate.Book[P], open func(streamstate.Key) streamstate.OpenOptions[P]) {
	w := &own[P]{x: x, b: b, open: open}
	x.engine.Watch(func() uint64 { return printOf(b, nil) })
	x.mu.Lock()
	defer x.mu.Unlock()
	x.books = append(x.books, w)
}

// has is what the scenario has made.
func (x *Trial) has() ([]*Feed, []watched) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.feeds, x.books
}

// leave notes what is to be done when faults stop.
func (x *Trial) leave(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.later = append(x.later, f)
}

// track notes a handle that must have ended when the run has.
func (x *Trial) track(what string, h *streamstate.Handle) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.handles = append(x.handles, tracked{what, h})
}

// checkHandles reports what an adversary has begun on a book of the user's own that has not ended now that all has.
func (x *Trial) checkHandles() {
	x.mu.Lock()
	handles := x.handles
	x.mu.Unlock()
	for _, h := range handles {
		if h.h.Wait(ended) == nil {
			continue
		}
		if err := h.h.Err(); err == nil {
			x.Errorf("%s has not ended", h.what)
		} else if !Typed(err) {
			x.Errorf("%s has ended with an error of no kind: %v", h.what, err)
		}
	}
}

// finish is the liveness half: when faults stop, everything ends well.
func (x *Trial) finish() {
	feeds, books := x.has()
	for _, f := range feeds {
		f.recover()
	}
	x.mu.Lock()
	later := x.later
	x.later = nil
	x.mu.Unlock()
	for _, f := range later {
		f()
	}
	for _, b := range books {
		b.check()
	}
}
