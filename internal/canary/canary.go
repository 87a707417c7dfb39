//go:build canary

// Package canary breaks lock annotations on purpose. CI runs checklocks over it with the build tag canary and fails
// unless every violation below is reported: a checker that reports nothing, here, is not checking. Without the tag
// the package has no files, so nothing else sees it.
package canary

import "sync"

type record struct {
	mu sync.Mutex
	// +checklocks:mu
	state int
}

// +checklocks:r.mu
func (r *record) setLocked(state int) { r.state = state }

// +checklocksexclude:r.mu
func (r *record) notify() {}

var _ = []any{(*record).call, (*record).read, (*record).underLock}

// call calls a Locked helper without the lock.
func (r *record) call() { r.setLocked(1) }

// read reads a guarded field without the lock.
func (r *record) read() int { return r.state }

// underLock calls foreign code under the lock.
func (r *record) underLock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify()
}
