package jobtracker

import "context"

// Handle is something that ends by itself, whether or not anybody waits. All methods are safe for concurrent use.
type Handle struct {
	done chan struct{}
	err  error // set before done is closed
}

func newHandle() *Handle { return &Handle{done: make(chan struct{})} }

func resolvedHandle(err error) *Handle {
	h := newHandle()
	h.resolve(err)
	return h
}

// resolve ends the handle; only the first call counts. The caller makes sure that calls do not overlap.
func (h *Handle) resolve(err error) {
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

// Wait waits for the end and returns how it ended. The context bounds only the wait; its cause is returned.
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
