package main

import (
	"context"
	"sync"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

// watcher lets somebody wait for what happens to a device. All methods are safe for concurrent use.
type watcher struct {
	mu sync.Mutex
	// changed has all who wait, for whatever they wait.
	changed sync.Cond
	// +checklocks:mu
	seen sight
}

// sight is what a watcher has seen.
type sight struct {
	replicas []jobtracker.ReplicaState
	joined   []int                 // how often each replica became active
	resolved int                   // jobs of clients
	repairs  []repair.LiveProgress // the last word of the repair of each
	differ   bool                  // at the start they did, and had to be made equal
}

func newWatcher(replicas int) *watcher {
	w := &watcher{seen: sight{replicas: make([]jobtracker.ReplicaState, replicas), joined: make([]int, replicas), repairs: make([]repair.LiveProgress, replicas)}}
	w.changed.L = &w.mu
	return w
}

// attach has the device's callbacks tell the watcher.
func (w *watcher) attach(cfg *config) {
	cfg.onEvent, cfg.onResolve, cfg.onRepair = w.event, w.resolve, w.repair
}

func (w *watcher) event(e jobtracker.Event) {
	w.mu.Lock()
	if e.Kind == jobtracker.ReconcileNeeded {
		w.seen.differ = true
	}
	if e.Kind == jobtracker.ReplicaChanged {
		w.seen.replicas[e.Replica] = e.To
		if e.To.Phase == jobtracker.Voting {
			w.seen.joined[e.Replica]++
		}
	}
	w.mu.Unlock()
	w.changed.Broadcast()
}

func (w *watcher) repair(p repair.LiveProgress) {
	w.mu.Lock()
	w.seen.repairs[p.Target] = p
	w.mu.Unlock()
	w.changed.Broadcast()
}

func (w *watcher) resolve() {
	w.mu.Lock()
	w.seen.resolved++
	w.mu.Unlock()
	w.changed.Broadcast()
}

// await waits until what has been seen is as wanted; until must be short.
func (w *watcher) await(ctx context.Context, until func(*sight) bool) error {
	stop := context.AfterFunc(ctx, func() {
		w.mu.Lock() // whoever has looked at ctx waits by now
		defer w.mu.Unlock()
		w.changed.Broadcast()
	})
	defer stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	for !until(&w.seen) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		w.changed.Wait()
	}
	return nil
}

// more waits until n more jobs of clients have been resolved.
func (w *watcher) more(ctx context.Context, n int) error {
	w.mu.Lock()
	want := w.seen.resolved + n
	w.mu.Unlock()
	return w.await(ctx, func(s *sight) bool { return s.resolved >= want })
}

// joins is how often a replica has become active.
func (w *watcher) joins(replica int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.joined[replica]
}

// reconciled tells whether the replicas had to be made equal at the start.
func (w *watcher) reconciled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.differ
}
