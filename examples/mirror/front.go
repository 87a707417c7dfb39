package main

import (
	"context"
	"errors"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

const (
	blockSize  = 512      // the unit of the tracker, and the alignment that clients are held to
	maxRequest = 32 << 20 // the longest read, write or zeroing; clients that never ask for a limit assume it
)

// front is the device as clients see it: a backend whose requests become jobs.
type front struct {
	tracker *jobtracker.Tracker[*request]
	size    int64
}

// Info implements nbd.Backend. A flush covers what any connection was answered, so several may be used at once.
func (f *front) Info() nbd.Info {
	return nbd.Info{
		Size: f.size, Flags: nbd.SendFlush | nbd.SendFUA | nbd.SendTrim | nbd.SendWriteZeroes | nbd.CanMultiConn,
		MinBlock: blockSize, PreferredBlock: 4096, MaxBlock: maxRequest,
	}
}

// Submit implements nbd.Backend. It waits for admission, which holds back this client only, and orders the requests of a
// connection as they came in.
func (f *front) Submit(ctx context.Context, r *nbd.Request) {
	ops := opsOf(r)
	q := newRequest(r, len(ops))
	for i, op := range ops {
		if _, err := f.tracker.Submit(ctx, op, q); err != nil {
			q.resolve(len(ops)-i, refusal(err))
			q.drop(len(ops) - i)
			return
		}
	}
}

// opsOf are the jobs of a request: one, more for a long trim, and a flush behind a change that is to be durable when it is
// answered. A change that a replica made durable by itself would not do: after a crash of mirror, flush numbers are all
// that tells which replica has it.
func opsOf(r *nbd.Request) []jobtracker.Op {
	const most = maxRequest / blockSize // only a trim is longer
	kind, start, left := kindOf(r.Command), r.Offset/blockSize, uint64(r.Length)/blockSize
	ops := make([]jobtracker.Op, 0, 2)
	for len(ops) == 0 || left > 0 {
		n := min(left, most)
		ops = append(ops, jobtracker.Op{Kind: kind, Start: start, Blocks: n})
		start, left = start+n, left-n
	}
	if r.Flags&nbd.FlagFUA != 0 {
		ops = append(ops, jobtracker.Op{Kind: jobtracker.Flush})
	}
	return ops
}

// refusal is what a client is told of a job that was not admitted.
func refusal(err error) error {
	if errors.Is(err, jobtracker.ErrPhase) || errors.Is(err, jobtracker.ErrEnded) || errors.Is(err, context.Canceled) {
		return nbd.ESHUTDOWN
	}
	return nbd.EIO
}

// outcome is what a client is told of a job that was.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jobtracker.ErrEnded):
		return nbd.ESHUTDOWN
	}
	return nbd.EIO
}

// resolved is the tracker's OnResolve.
func resolved(r jobtracker.Resolved[*request]) { r.Payload.resolve(1, outcome(r.Err)) }

// retired is the tracker's OnRetire.
func retired(r jobtracker.Retired[*request]) { r.Payload.drop(1) }
