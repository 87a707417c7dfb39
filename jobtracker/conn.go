package jobtracker

import (
	"context"
	"fmt"
	"math"
)

// Conn is one life of one replica's connection, and the token by which its replies are known. All methods are safe for
// concurrent use. It ends by [Conn.Close], or when the replica is faulted or replaced, owes an answer too long, or the
// activation ends; from then on every call is refused with [ErrStaleConn] and nothing that it brings is applied.
type Conn[P any] struct {
	t      *Tracker[P]
	token  connToken
	plan   Plan
	ctx    context.Context //nolint:containedctx // it is what the connection hands to its users
	cancel context.CancelCauseFunc
	wake   chan struct{} // one slot: something is ready
	cause  error         // guarded by t.mu: why it ended
}

// ConnError refuses a call on a connection that has ended.
type ConnError struct {
	Replica int
	Conn    ConnID
	Current ConnID // the replica's live connection, 0 if it has none
	Cause   error  // why it ended
}

func (e *ConnError) Error() string {
	return fmt.Sprintf("%v: replica %d, connection %d, current %d: %v", ErrStaleConn, e.Replica, e.Conn, e.Current, e.Cause)
}

// Unwrap is [ErrStaleConn] and the cause.
func (e *ConnError) Unwrap() []error { return pair(ErrStaleConn, e.Cause) }

// Dispatch is a job for one replica.
type Dispatch[P any] struct {
	ID       JobID
	Kind     Kind
	Half     Half // of a copy or a comparison
	FUA      bool
	Snapshot bool
	Start    uint64
	Blocks   uint64
	// Number is what the replica is to remember, durably, once it has done this flush and before it is completed: the
	// number of the flush and, with it, Generation. 0 for anything else, and for a replica under repair until its last.
	Number     uint64
	Generation uint64
	// Deps are the jobs outstanding on this replica that must be executed there before this one. Empty if the tracker
	// orders. A replica that failed one of them must fail this job, unexecuted, unless that one only read. The memory
	// is used again by the next call with the same Dispatch.
	Deps    []JobID
	Payload P
}

// Completion is a reply for [Conn.CompleteBatch].
type Completion struct {
	ID     JobID
	Result Result
	Err    error // set by CompleteBatch: what Complete would have returned
}

// ID is the connection's id.
func (c *Conn[P]) ID() ConnID { return c.token.conn }

// Replica is the replica's number.
func (c *Conn[P]) Replica() int { return c.token.replica }

// Plan is what the replica goes through, as far as that was known when it connected. One that connects while activating
// is compared later, and may turn out to be behind: OnEvent tells.
func (c *Conn[P]) Plan() Plan { return c.plan }

// Context ends with the connection; its cause is an *[EndedError].
func (c *Conn[P]) Context() context.Context { return c.ctx }

// Next waits for a job to be ready for the replica and fills in d, whose Deps are used again. What Next gave is Sent.
// The error is a *[ConnError] or the context's cause.
func (c *Conn[P]) Next(ctx context.Context, d *Dispatch[P]) error {
	n, err := c.next(ctx, d, nil)
	_ = n
	return err
}

// NextBatch is Next for as many jobs as are ready and fit into buf: one lock for many. It returns the part of buf that
// was filled in, at least one.
func (c *Conn[P]) NextBatch(ctx context.Context, buf []Dispatch[P]) ([]Dispatch[P], error) {
	if len(buf) == 0 {
		return nil, &OpError{Field: "len(buf)", Got: 0, Min: 1, Max: math.MaxInt}
	}
	n, err := c.next(ctx, nil, buf)
	return buf[:n], err
}

// next fills in one, or many.
func (c *Conn[P]) next(ctx context.Context, one *Dispatch[P], many []Dispatch[P]) (int, error) {
	waits := 0
	for {
		n := 0
		err := c.t.do(c, asking{}, func(k *core) error {
			rep := &k.reps[c.token.replica]
			rep.senders -= waits
			if one != nil {
				n = c.fill(k, one)
			} else {
				for n < len(many) && c.fill(k, &many[n]) == 1 {
					n++
				}
			}
			if n == 0 {
				rep.senders++
			} else {
				rep.dispatches += uint32(n)
				if rep.senders > 0 && rep.ready.Len() > 0 {
					k.fx.rouse(1 << c.token.replica)
				}
			}
			return nil
		})
		if err != nil || n > 0 {
			return n, err
		}
		waits = 1
		select {
		case <-c.wake:
		case <-c.ctx.Done(): // the gate says why
		case <-ctx.Done():
			return 0, c.stopWaiting(ctx)
		}
	}
}

// fill takes the next ready job; 0 when there is none.
func (c *Conn[P]) fill(k *core, d *Dispatch[P]) int {
	r := c.token.replica
	id, s := k.pop(r)
	if s == nil {
		return 0
	}
	d.ID, d.Kind, d.Start, d.Blocks = id, s.kind, s.start, uint64(s.blocks)
	d.FUA, d.Snapshot = s.flags&flagFUA != 0, s.flags&flagSnapshot != 0
	d.Half, d.Number, d.Generation = HalfNone, 0, 0
	if s.kind == Flush || s.kind == Copy {
		c.fillRarely(k, id, s, d)
	}
	d.Deps = k.remaining(id, s, 1<<r, d.Deps[:0])
	if s.handle != nil {
		d.Payload = s.handle.(*Job[P]).payload
	} else {
		var none P
		d.Payload = none
	}
	return 1
}

// fillRarely fills in what only a flush or a copy has.
func (c *Conn[P]) fillRarely(k *core, id JobID, s *slot, d *Dispatch[P]) {
	r := c.token.replica
	if s.kind == Copy {
		d.Half = halfOf(s, r)
		return
	}
	if rep := &k.reps[r]; rep.numbered(id) {
		d.Number, d.Generation = s.aux, k.generation
		rep.told = max(rep.told, s.aux)
	}
}

// halfOf is what a replica does of a copy or a comparison.
func halfOf(s *slot, r int) Half {
	switch target := r == targetOf(s); {
	case s.compares() && target:
		return HalfCompare
	case s.compares():
		return HalfSum
	case target:
		return HalfWrite
	}
	return HalfRead
}

// stopWaiting takes a sender back whose context has ended.
func (c *Conn[P]) stopWaiting(ctx context.Context) error {
	_ = c.t.do(c, asking{}, func(k *core) error { // a connection that has ended counts no senders
		k.reps[c.token.replica].senders--
		return nil
	})
	return context.Cause(ctx)
}

// rouse wakes a sender. Under the lock.
func (c *Conn[P]) rouse() {
	select {
	case c.wake <- struct{}{}:
	default: // one is on its way
	}
}

// Complete applies the replica's answer to a job. What cannot be applied is returned as an *[OrphanError], counted by
// reason, and changes nothing: it is never a reason to stop.
func (c *Conn[P]) Complete(id JobID, res Result) error {
	return c.t.do(c, asking{completion: true, job: id}, func(k *core) error { return k.complete(c.token, id, &res) })
}

// CompleteBatch is Complete for many replies in one lock, in their order; a job named twice is a duplicate the second
// time. Each gets its own Err; refused is how many were not applied.
func (c *Conn[P]) CompleteBatch(batch []Completion) (refused int) {
	err := c.t.do(c, asking{}, func(k *core) error {
		for i := range batch {
			b := &batch[i]
			if !k.current(c.token) { // ended by a failure within this batch
				b.Err = k.late(c.token, b.ID, k.fx.whyEnded(c.token.conn))
			} else {
				b.Err = k.complete(c.token, b.ID, &b.Result)
			}
			if b.Err != nil {
				refused++
			}
		}
		return nil
	})
	if err != nil { // it had ended before: each is an orphan of its own
		for i := range batch {
			batch[i].Err = c.Complete(batch[i].ID, batch[i].Result)
		}
		return len(batch)
	}
	return refused
}

// Close ends the connection: its epoch is over, later replies are orphans, and what it has not answered is replayed,
// asked of others, or written off. It is idempotent. The driver then makes sure that nothing it sent can still be
// executed, hands late replies to Complete, where they are counted, and calls [Conn.Quiesced]. Nil is [ErrPeerClosed].
func (c *Conn[P]) Close(cause error) {
	if cause == nil {
		cause = ErrPeerClosed
	}
	_ = c.t.do(c, asking{}, func(k *core) error { // one that has ended is left as it is
		k.closeConn(c.token, cause)
		return nil
	})
}

// Quiesced says that nothing sent on the connection can still be executed by the replica: the driver has read to the
// end of the stream, or the replica fences older connections. Only then can the replica connect again. It is
// idempotent; while the connection is live it is refused with a *[LifecycleError].
func (c *Conn[P]) Quiesced() error {
	return c.t.do(nil, asking{}, func(k *core) error { return k.quiesced(c.token) })
}
