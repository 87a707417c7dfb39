package jobtest

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/jobtracker"
)

// live is what the live mode runs.
type live struct {
	on atomic.Bool
	mu sync.Mutex
	// +checklocks:mu
	ctx context.Context //nolint:containedctx // it ends the goroutines of the mode
	// +checklocks:mu
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Run gives each connection, present and later ones, a goroutine that takes jobs and one that executes and answers, as a
// driver has, until stop is called, or the test's clean-up. Scripted faults go on to hold. What is outstanding when it stops
// can be moved on by Settle.
func (c *Cluster) Run() (stop func()) {
	c.live.mu.Lock()
	if !c.live.on.Load() {
		c.live.ctx, c.live.cancel = context.WithCancel(context.Background())
		c.live.on.Store(true)
	}
	c.live.mu.Unlock()
	for _, r := range c.replicas {
		if l := r.Life(); l != nil {
			c.connected(l)
		}
	}
	return c.stopLive
}

// stopLive ends the live mode and waits for its goroutines.
func (c *Cluster) stopLive() {
	c.live.mu.Lock()
	if c.live.on.Load() {
		c.live.on.Store(false)
		c.live.cancel()
	}
	c.live.mu.Unlock()
	c.live.wg.Wait()
}

// connected starts the goroutines of a connection in live mode.
func (c *Cluster) connected(l *Life) {
	c.live.mu.Lock()
	defer c.live.mu.Unlock()
	if !c.live.on.Load() {
		return
	}
	ctx := c.live.ctx
	c.live.wg.Go(func() { l.send(ctx) })
	c.live.wg.Go(func() { l.work(ctx) })
}

// rouse wakes the goroutines of the connection; there may be none.
func (l *Life) rouse() {
	for _, ch := range []chan struct{}{l.kick, l.read} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// send is the sender of a live connection.
func (l *Life) send(ctx context.Context) {
	r := l.r
	buf := make([]jobtracker.Dispatch[*Payload], batchSize)
	l.setReceiving(true)
	defer l.setReceiving(false)
	for l.reads(ctx) {
		l.note()
		got, err := l.conn.NextBatch(ctx, buf)
		r.mu.Lock()
		l.takeLocked(got)
		l.over = l.over || errors.Is(err, jobtracker.ErrStaleConn)
		over := l.over
		r.mu.Unlock()
		l.rouse()
		if over {
			return
		}
	}
}

func (l *Life) setReceiving(on bool) {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.receiving = on
}

// reads waits until the replica reads; false: the connection or the live mode has ended.
func (l *Life) reads(ctx context.Context) bool {
	for {
		l.r.mu.Lock()
		deaf := l.r.f.deaf
		l.r.mu.Unlock()
		if !deaf {
			return ctx.Err() == nil
		}
		select {
		case <-l.read:
		case <-l.conn.Context().Done():
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// work executes and answers on a live connection.
func (l *Life) work(ctx context.Context) {
	r := l.r
	for {
		for l.isPresent() && (r.execute(nil) || r.deliver(nil)) {
			r.c.clock.Inc()
		}
		if l.isPresent() && r.c.pass() {
			continue
		}
		select {
		case <-l.kick:
		case <-l.conn.Context().Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// isPresent tells whether it is the replica's connection.
func (l *Life) isPresent() bool {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	return l.r.life == l && !l.over
}
