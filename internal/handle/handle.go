// Package handle is what the packages of this module return for something that ends by itself.
package handle

import (
	"context"
	"sync"
)

// Handle is something that ends by itself, whether or not anybody waits. All methods are safe for concurrent use.
type Handle struct {
	done chan struct{}
	err  error // set before done is closed

	mu sync.Mutex
	// +checklocks:mu
	ended bool
	// +checklocks:mu
	joints []*joint
}

// joint is a handle that waits for others.
type joint struct {
	h  *Handle
	mu sync.Mutex
	// +checklocks:mu
	left int
	// +checklocks:mu
	err error
}

// New is a handle that has not ended.
func New() *Handle { return &Handle{done: make(chan struct{})} }

// Resolved is a handle that has ended with err.
func Resolved(err error) *Handle {
	h := New()
	Resolve(h, err)
	return h
}

// Resolve ends the handle; only the first call counts, and nil is ignored. It is no method, so that a user, who cannot
// import this package, cannot call it.
func Resolve(h *Handle, err error) {
	if h == nil {
		return
	}
	for _, j := range h.end(err) {
		j.one(err)
	}
}

// end ends the handle, and returns the joints that are to be told.
func (h *Handle) end(err error) []*joint {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return nil
	}
	h.ended = true
	h.err = err
	close(h.done)
	joints := h.joints
	h.joints = nil
	return joints
}

// one notes that one of the joint's handles has ended.
func (j *joint) one(err error) {
	j.mu.Lock()
	j.left--
	if j.err == nil {
		j.err = err
	}
	last, first := j.left == 0, j.err
	j.mu.Unlock()
	if last {
		Resolve(j.h, first)
	}
}

// Join is a handle that ends when all have ended, with the first error.
func Join(all []*Handle) *Handle {
	j := &joint{h: New(), left: len(all) + 1}
	for _, h := range all {
		if !h.tell(j) {
			j.one(h.err)
		}
	}
	j.one(nil)
	return j.h
}

// tell has the joint told of the end, unless it has come.
func (h *Handle) tell(j *joint) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.joints = append(h.joints, j)
	}
	return !h.ended
}

// Done is closed when it has ended.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Err is how it ended; nil before.
func (h *Handle) Err() error {
	select {
	case <-h.done:
		return h.err
	default:
		return nil
	}
}

// Wait waits for the end and returns how it ended. The context bounds only the wait; its cause is returned. What has
// ended is told even to an ended context.
func (h *Handle) Wait(ctx context.Context) error {
	select {
	case <-h.done:
		return h.err
	default:
	}
	select {
	case <-h.done:
		return h.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
