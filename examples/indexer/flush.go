package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/staleproof/staleproof/streamstate"
)

// flush commits what a session has received: entries and positions in one transaction of the store. The target is taken
// by the book; the batches that it covers stay in the memtable until the flush has ended, those of a partition that is given
// up meanwhile as well.
func (n *node) flush(ctx context.Context, t *topic, s *session) error {
	var done streamstate.Timestamp
	err := s.Flush(ctx, func(_ context.Context, target streamstate.Timestamp) error {
		if n.broken() { // those that waited for their turn would all fail as the first one did, each after a long time
			return n.failure
		}
		var parts map[int32][]*batch
		err := s.Read(func(tx streamstate.ReadTx[*memtable]) error {
			m, err := tx.Payload()
			if err == nil {
				parts = m.upTo(target)
			}
			return err
		})
		if err != nil || len(parts) == 0 {
			return err
		}
		if err := n.store.commit(t.id, parts); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		n.commits.Add(1)
		done = target
		return nil
	})
	if err != nil {
		return err
	}
	return s.Update(func(tx streamstate.Tx[*memtable]) error {
		m, err := tx.Payload()
		if err == nil {
			m.drop(done)
		}
		return err
	})
}

// over tells whether a flush could not be done only because its session or the node has ended.
func over(err error) bool {
	for _, end := range []error{streamstate.ErrStaleSession, streamstate.ErrPhase, streamstate.ErrEnded, context.Canceled} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// flushAll commits every session.
func (n *node) flushAll(ctx context.Context) error {
	for t, s := range n.sessions() {
		if err := n.flush(ctx, t, s); err != nil && !over(err) {
			return fmt.Errorf("topic %s: %w", t.name, err)
		}
	}
	return nil
}

// flushIfFull commits if a session's memtable is full. The worker that filled it waits, and so does what comes after.
func (n *node) flushIfFull(t *topic, s *session) {
	full := false
	_ = s.Read(func(tx streamstate.ReadTx[*memtable]) error {
		m, err := tx.Payload()
		full = err == nil && m.rows() >= n.cfg.flushRows
		return err
	})
	if !full {
		return
	}
	if err := n.flush(n.living, t, s); err != nil && !over(err) {
		n.fail(fmt.Errorf("topic %s: %w", t.name, err))
	}
}

// flusher commits now and then, so that lookups, and a restart, have little to go through.
func (n *node) flusher() {
	tick := time.NewTicker(n.cfg.flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := n.flushAll(n.living); err != nil {
				n.fail(err)
				return
			}
		case <-n.living.Done():
			return
		}
	}
}
