package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/staleproof/staleproof/jobtracker"
)

// slack is by how much the heap may seem to grow. A memory of the newer ids would need 781 KiB and more.
const slack = 256 << 10

const blocks = 1 << 16

// payload is nothing: in this story no data moves.
type payload struct{}

// ours is package jobtracker, and the wires to its replicas.
type ours struct {
	tr     *jobtracker.Tracker[payload]
	conns  [replicas]*jobtracker.Conn[payload] // present or last connections
	wire   [replicas][]jobtracker.Completion   // answers to what each replica was sent
	polls  context.Context                     //nolint:containedctx // it has ended: calls that could wait do not
	reason jobtracker.OrphanReason             // of every late reply, as promised
	kind   error                               // its sentinel
	writes uint64
	heap   uint64 // at the first late reply
}

// newOurs makes a device of blank replicas. Live says that late replies will come in on a live connection.
func newOurs(live bool) (*ours, error) {
	tr, err := jobtracker.New(jobtracker.Config[payload]{
		Replicas: replicas, Blocks: blocks, BlockSize: 4096,
		ReplyTimeout: -1, OfflineFor: -1, // no deadline: the script says when a replica is given up
		AutoSync: jobtracker.SyncOff, // it flushes by itself often enough
	})
	if err != nil {
		return nil, err
	}
	o := &ours{tr: tr, reason: jobtracker.OrphanStaleConn, kind: jobtracker.ErrStaleConn}
	if live {
		o.reason, o.kind = jobtracker.OrphanRetired, jobtracker.ErrRetired
	}
	var cancel context.CancelFunc
	o.polls, cancel = context.WithCancel(context.Background())
	cancel()
	if _, err := tr.Activate(jobtracker.ActivateOptions{Generation: 1, Create: true}); err != nil {
		return nil, err
	}
	for r := range replicas {
		if err := o.connect(r); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// close ends the tracker and tells whether its invariants hold.
func (o *ours) close() error {
	err := o.tr.Check()
	return errors.Join(err, o.tr.Close().Wait(context.Background()))
}

func (o *ours) connect(r int) (err error) {
	o.conns[r], err = o.tr.Connect(r, jobtracker.Hello{})
	return err
}

func (o *ours) submit(kind jobtracker.Kind, n int) error {
	for range n {
		op := jobtracker.Op{Kind: kind}
		if kind == jobtracker.Write {
			op.Start, op.Blocks = o.writes%blocks, 1
			o.writes++
		}
		if _, err := o.tr.Submit(o.polls, op, payload{}); err != nil {
			return err
		}
	}
	return o.send()
}

// send is the replicas' senders, as long as there is something to send.
func (o *ours) send() error {
	var buf [64]jobtracker.Dispatch[payload]
	for r, c := range o.conns {
		for {
			batch, err := c.NextBatch(o.polls, buf[:])
			for _, d := range batch {
				o.wire[r] = append(o.wire[r], jobtracker.Completion{ID: d.ID, Result: jobtracker.Result{Kind: d.Kind}})
			}
			if errors.Is(err, context.Canceled) || errors.Is(err, jobtracker.ErrStaleConn) {
				break // nothing more is ready, or the sender ends with its connection
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *ours) answer(r int) error {
	refused := o.conns[r].CompleteBatch(o.wire[r])
	o.wire[r] = o.wire[r][:0]
	if refused > 0 {
		return fmt.Errorf("%d answers of replica %d were refused", refused, r)
	}
	return nil
}

func (o *ours) giveUp(r int) error {
	o.wire[r] = nil
	return o.tr.Fault(r, errStopped)
}

func (o *ours) reconnect(r int) error {
	if err := o.conns[r].Quiesced(); err != nil {
		return err
	}
	return o.connect(r)
}

// reply hands in a late reply and looks at all that is promised of it.
func (o *ours) reply(r int, id uint64) (string, error) {
	c := o.conns[r]
	was, count, current := o.tr.Fingerprint(), o.tr.Stats().Orphans[o.reason], jobtracker.ConnID(0)
	if o.reason == jobtracker.OrphanRetired {
		current = c.ID()
	}
	err := c.Complete(jobtracker.JobID(id), jobtracker.Result{Kind: jobtracker.Write})
	same, heap := o.tr.Fingerprint() == was, liveHeap()
	if o.heap == 0 {
		o.heap = heap
	}
	said := fmt.Sprintf("%T\n%v\nstate unchanged: %v; heap grown: %v", err, err, same, heap > o.heap+slack)

	e, ok := err.(*jobtracker.OrphanError) //nolint:errorlint // this type is promised, not one that wraps it
	switch {
	case !ok || !errors.Is(err, jobtracker.ErrOrphan) || !errors.Is(err, o.kind):
		return said, fmt.Errorf("want an *OrphanError: %w", o.kind)
	case e.Reason != o.reason || e.Job != jobtracker.JobID(id) || e.Replica != uint8(r) || e.Conn != c.ID() || e.Current != current:
		return said, fmt.Errorf("want %v, job %d, replica %d, connection %d, current %d", o.reason, id, r, c.ID(), current)
	case errors.Is(err, errStopped) != (current == 0):
		return said, errors.New("want the cause of the connection's end, if it has ended")
	case !same || o.tr.Stats().Orphans[o.reason] != count+1:
		return said, errors.New("want one more orphan of this reason, and no other change")
	case heap > o.heap+slack:
		return said, fmt.Errorf("the heap has grown from %d to %d bytes", o.heap, heap)
	}
	return said, nil
}

// liveHeap is the size of what is reachable.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what a pool held is gone only now
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (o *ours) table() string {
	s := o.tr.Stats()
	return fmt.Sprintf("%d jobs submitted, %d acknowledged, %d skipped on a replica, %d in the table", s.Submitted, s.Acked, s.Skipped, s.Active)
}

func (o *ours) dump() string {
	d := o.tr.Dump()
	d.Jobs = d.Jobs[:min(len(d.Jobs), dumpJobs)]
	return d.String()
}
