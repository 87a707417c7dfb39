// Package handle is what the packages of this module return for something that ends by itself.
package handle

import "context"

// Handle is something that ends by itself, whether or not anybody waits. All methods are safe for concurrent use.
type Handle struct {
	done chan struct{}
	err  error // set before done is closed
}

// New is a handle that has not ended.
func New() *Handle { return &Handle{done: make(chan struct{})} }

// Resolved is a handle that has ended with err.
func Resolved(err error) *Handle {
	h := New()
	Resolve(h, err)
	return h
}

// Resolve ends the handle; only the first call counts, and nil is ignored. The caller makes sure that calls do not
// overlap. It is no method, so that a user, who cannot import this package, cannot call it.
func Resolve(h *Handle, err error) {
	if h == nil {
		return
	}
	select {
	case <-h.done:
	default:
		h.err = err
		close(h.done)
	}
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

// Join is a handle that ends when all have ended, with the first error in their order. A goroutine waits for them, so it
// lives as long as the last one.
func Join(all []*Handle) *Handle {
	j := New()
	go func() {
		var first error
		for _, h := range all {
			<-h.done
			if first == nil {
				first = h.err
			}
		}
		Resolve(j, first)
	}()
	return j
}
