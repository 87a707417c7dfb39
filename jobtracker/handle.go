package jobtracker

import "github.com/staleproof/staleproof/internal/handle"

// Handle is something that ends by itself, whether or not anybody waits. All methods are safe for concurrent use:
//
//	Done() <-chan struct{}            // closed when it has ended
//	Err() error                       // how it ended; nil before
//	Wait(ctx context.Context) error   // waits for the end; the context bounds only the wait
//
// What has ended is told even to an ended context.
type Handle = handle.Handle

func newHandle() *Handle { return handle.New() }

func resolvedHandle(err error) *Handle { return handle.Resolved(err) }

// resolve ends a handle; only the first call counts, and nil is ignored.
func resolve(h *Handle, err error) { handle.Resolve(h, err) }
