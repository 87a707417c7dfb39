package jobtracker

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// TestLinearizable has four clients read and write a few blocks of a live cluster, in which one replica is cut off with
// replies in flight, executes what lies in its socket, and comes back by replay. To the clients each block must look like
// one register.
//
// Seen red with: reads that wait for nothing; no search through what is terminal, in either mode; a new job that looks at its
// own dependencies only; what was found clear kept when a connection ends. It hangs with answers of ended connections
// accepted, and where nobody looks again after a skip.
func TestLinearizable(t *testing.T) {
	rounds := 8
	if *stress {
		rounds = 400
	}
	var replays, late int64
	for seed := range uint64(rounds) {
		x := newLinearRun(t, seed)
		x.run()
		require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(linearModel, x.history, time.Minute), "seed %d", seed)
		replays += x.replays.Load()
		late += x.late.Load()
	}
	t.Logf("%d jobs replayed, %d late replies", replays, late)
	require.Positive(t, replays)
	require.Positive(t, late)
}

const (
	linearBlocks  = 3
	linearClients = 4
	linearOps     = 90
)

// linearOp is what a client did: write a value, or read one.
type linearOp struct {
	block uint64
	write bool
	value int
}

// linearModel is a register for each block.
var linearModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, linearBlocks)
		for _, op := range history {
			b := op.Input.(linearOp).block
			parts[b] = append(parts[b], op)
		}
		return parts
	},
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		if op := input.(linearOp); op.write {
			return true, op.value
		}
		return output.(int) == state.(int), state
	},
}

// linearLoad is a job's payload. Of the answers to a read only one that was accepted arrives.
type linearLoad struct {
	value int
	got   chan int
}

type linearRun struct {
	t       *testing.T
	seed    uint64
	tr      *Tracker[*linearLoad]
	reps    [3]*linearReplica
	clock   atomic.Int64
	replays atomic.Int64 // jobs that were dispatched on a second connection
	late    atomic.Int64 // replies refused
	wrong   atomic.Error
	middle  chan struct{} // closed when half of the work is done
	mu      sync.Mutex
	history []porcupine.Operation
}

// linearReplica is a device and its driver. Each request is executed by a goroutine of its own.
type linearReplica struct {
	x    *linearRun
	r    int
	conn *Conn[*linearLoad]
	rest *sync.WaitGroup // the sender of the connection, and what it has dispatched

	mu sync.Mutex
	// +checklocks:mu
	disk [linearBlocks]int
	// +checklocks:mu
	gen uint64
	// +checklocks:mu
	num uint64
	// hold, while it is set, is closed before replies come in.
	// +checklocks:mu
	hold chan struct{}
	// +checklocks:mu
	seen map[JobID]bool
}

func (p *linearReplica) contents() [linearBlocks]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.disk
}

func newLinearRun(t *testing.T, seed uint64) *linearRun {
	x := &linearRun{t: t, seed: seed, middle: make(chan struct{})}
	var err error
	x.tr, err = New(Config[*linearLoad]{
		Replicas: 3, Blocks: linearBlocks, BlockSize: 1, Order: Order(seed % numOrders), Reads: Reads(seed / 2 % numReads), MaxJobs: 1024, OfflineJobs: 1024,
		AutoSyncJobs: 1000, OfflineFor: -1, ReplyTimeout: -1,
	})
	require.NoError(t, err)
	begun, err := x.tr.Activate(ActivateOptions{Generation: 1, Create: true})
	require.NoError(t, err)
	for r := range x.reps {
		x.reps[r] = &linearReplica{x: x, r: r, seen: map[JobID]bool{}}
		require.NoError(t, x.reps[r].connect())
	}
	require.NoError(t, begun.Wait(t.Context()))
	return x
}

func (p *linearReplica) connect() error {
	p.mu.Lock()
	hello := Hello{Generation: p.gen, Flush: p.num}
	p.mu.Unlock()
	c, err := p.x.tr.Connect(p.r, hello)
	if err != nil {
		return err
	}
	p.conn, p.rest = c, &sync.WaitGroup{}
	p.rest.Go(func() { p.send(c, p.rest) })
	return nil
}

// send takes jobs and has each executed.
func (p *linearReplica) send(c *Conn[*linearLoad], rest *sync.WaitGroup) {
	done := map[JobID]chan struct{}{} // executed; closed
	for {
		got, err := c.NextBatch(context.Background(), make([]Dispatch[*linearLoad], 4))
		if err != nil {
			return // it has ended
		}
		for i := range got {
			d, mine := &got[i], make(chan struct{})
			done[d.ID] = mine
			var after []chan struct{}
			for _, dep := range d.Deps {
				after = append(after, done[dep])
			}
			rest.Go(func() {
				for _, ch := range after {
					<-ch
				}
				runtime.Gosched()
				v := p.execute(d)
				close(mine)
				p.reply(c, d, v)
			})
		}
	}
}

func (p *linearReplica) execute(d *Dispatch[*linearLoad]) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen[d.ID] {
		p.x.replays.Inc()
	}
	p.seen[d.ID] = true
	switch d.Kind {
	case Write:
		p.disk[d.Start] = d.Payload.value
	case Read:
		return p.disk[d.Start]
	case Flush:
		p.gen, p.num = d.Generation, d.Number
	case Zero, Trim, Barrier, Copy:
	}
	return 0
}

func (p *linearReplica) reply(c *Conn[*linearLoad], d *Dispatch[*linearLoad], v int) {
	p.mu.Lock()
	hold := p.hold
	p.mu.Unlock()
	if hold != nil {
		<-hold
	}
	switch err := c.Complete(d.ID, Result{Kind: d.Kind}); {
	case err != nil:
		p.x.late.Inc()
		p.x.blame(err, ErrStaleConn)
	case d.Kind == Read:
		d.Payload.got <- v
	}
}

// blame notes an error that is not of the kind that is due.
func (x *linearRun) blame(err, kind error) {
	if !errors.Is(err, kind) {
		x.wrong.Store(err)
	}
}

func (x *linearRun) run() {
	gate := make(chan struct{})
	var clients, others sync.WaitGroup
	for c := range linearClients {
		clients.Go(func() {
			<-gate
			x.client(c)
		})
	}
	others.Go(x.cut)
	close(gate)
	clients.Wait()
	others.Wait()
	require.NoError(x.t, x.wrong.Load())
	require.NoError(x.t, x.tr.Deactivate().Wait(x.t.Context()))
	for _, p := range x.reps {
		p.rest.Wait()
		require.Equal(x.t, x.reps[0].contents(), p.contents(), "replica %d", p.r)
	}
	require.NoError(x.t, x.tr.Close().Wait(x.t.Context()))
}

// client does its operations one after another.
func (x *linearRun) client(c int) {
	r := rand.New(rand.NewPCG(x.seed, uint64(c)))
	for k := range linearOps {
		op := linearOp{block: r.Uint64N(linearBlocks), write: r.IntN(2) == 0, value: c*linearOps + k + 1}
		kind := Read
		if op.write {
			kind = Write
		}
		load := &linearLoad{value: op.value, got: make(chan int, 3)}
		call := x.clock.Inc()
		runtime.Gosched()
		if err := x.tr.Do(context.Background(), Op{Kind: kind, Start: op.block, Blocks: 1}, load); err != nil {
			x.wrong.Store(err)
			return
		}
		out := 0
		if !op.write {
			out = <-load.got
		}
		x.mu.Lock()
		x.history = append(x.history, porcupine.Operation{ClientId: c, Input: op, Call: call, Output: out, Return: x.clock.Inc()})
		if len(x.history) == linearClients*linearOps/2 {
			close(x.middle)
		}
		x.mu.Unlock()
		if r.IntN(30) == 0 {
			if err := x.tr.Do(context.Background(), Op{Kind: Flush}, nil); err != nil {
				x.wrong.Store(err)
			}
		}
	}
}

// cut ends the connection of a replica in the middle, with its replies in flight, and has it come back.
func (x *linearRun) cut() {
	<-x.middle
	p := x.reps[x.seed%3]
	hold := make(chan struct{})
	p.mu.Lock()
	p.hold = hold
	p.mu.Unlock()
	old, rest := p.conn, p.rest
	for range 50 { // replies gather
		runtime.Gosched()
	}
	old.Close(nil)
	stale := func() {
		for id := range JobID(3) {
			x.blame(old.Complete(id, Result{}), ErrStaleConn)
		}
		_, err := old.NextBatch(context.Background(), make([]Dispatch[*linearLoad], 1))
		x.blame(err, ErrStaleConn)
		old.Close(nil)
	}
	stale()
	p.mu.Lock()
	p.hold = nil
	p.mu.Unlock()
	close(hold) // late replies come in, and what lies in the socket is executed
	_, err := x.tr.Connect(p.r, Hello{})
	x.blame(err, ErrNotQuiesced)
	rest.Wait()
	if err := old.Quiesced(); err != nil {
		x.wrong.Store(err)
	}
	if err := p.connect(); err != nil {
		x.wrong.Store(err)
	}
	stale()
}
