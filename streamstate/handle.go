package streamstate

import "github.com/staleproof/staleproof/internal/handle"

// Handle is something that ends by itself, whether or not anybody waits. All methods are safe for concurrent use:
//
//	Done() <-chan struct{}            // closed when it has ended
//	Err() error                       // how it ended; nil before
//	Wait(ctx context.Context) error   // waits for the end; the context bounds only the wait
//
// A call that is refused returns a handle that has ended with the refusal.
type Handle = handle.Handle

func newHandle() *Handle { return handle.New() }

func resolve(h *Handle, err error) { handle.Resolve(h, err) }

func resolvedHandle(err error) *Handle { return handle.Resolved(err) }

// joined resolves when all have, with the first error.
func joined(all []*Handle) *Handle {
	switch len(all) {
	case 0:
		return resolvedHandle(nil)
	case 1:
		return all[0]
	}
	return handle.Join(all)
}
