package jobtest

import (
	"fmt"

	"github.com/staleproof/staleproof/jobtracker"
)

// StartRepair begins a repair of the replica.
func (r *Replica) StartRepair() (rep *jobtracker.Repair[*Payload], err error) {
	err = r.c.call("Repair", func() (err error) {
		rep, err = r.c.Tracker.Repair(r.index)
		return err
	})
	return rep, err
}

// Copy admits a copy of some blocks from a source to the repair's target.
func (c *Cluster) Copy(rep *jobtracker.Repair[*Payload], source int, start, blocks uint64) (*Job, error) {
	j := &Job{Op: jobtracker.Op{Kind: jobtracker.Copy, Start: start, Blocks: blocks}, Payload: &Payload{}}
	err := c.call("Copy", func() (err error) {
		j.Job, err = rep.Copy(source, start, blocks, j.Payload)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.keep(j)
	return j, nil
}

// Repair repairs the replica, which must be repair-ready, from an active one: it copies each extent that the tracker does
// not know to be clean, settles, finishes and settles again. The replica is active when it returns nil.
func (r *Replica) Repair() error {
	c := r.c
	source := -1
	for _, s := range c.replicas {
		if s.State().Phase == jobtracker.Voting {
			source = s.index
		}
	}
	rep, err := r.StartRepair()
	if err != nil {
		return err
	}
	for {
		e, ok, err := rep.Next(0)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		j, err := c.Copy(rep, source, e.Start, e.Blocks)
		if err != nil {
			return err
		}
		c.Settle()
		if !j.Resolved() || j.Err() != nil {
			return fmt.Errorf("jobtest: copy of block %d: resolved %v, %w", e.Start, j.Resolved(), j.Err())
		}
	}
	if err := c.call("Finish", rep.Finish); err != nil {
		return err
	}
	c.Settle()
	return rep.Ended().Wait(ended)
}

// RequireRecovery is the liveness half of a test: it stops all faults and the live mode, has replicas that are away come
// back, repairs those that need it, and flushes. Then every job must be resolved, the table empty, the replicas the same and
// the order kept, as far as the activation has not ended meanwhile; else the test fails.
func (c *Cluster) RequireRecovery() {
	c.t.Helper()
	c.comeAround()
	c.stopIfFailed()
}

func (c *Cluster) comeAround() {
	c.t.Helper()
	c.stopLive()
	for _, r := range c.replicas {
		r.Heal()
	}
	c.Settle()
	c.comeBack()
	c.Settle()
	c.repairAll()
	if c.phase() == jobtracker.Active {
		c.finalFlush()
		c.checkOrder()
		c.checkSame()
	}
	c.checkResolved()
}

// recover is RequireRecovery for the explorer, which goes on after what it has found, and ends the activation.
func (c *Cluster) recover() {
	c.comeAround()
	h := c.Tracker.Deactivate()
	c.Settle()
	select {
	case <-h.Done():
		if err := h.Err(); err != nil && !Typed(err) {
			c.errorf("deactivation has ended with an error of no kind: %v", err)
		}
	default:
		c.errorf("deactivation does not end\n%v", c)
	}
	c.checkResolved()
	c.checkEmpty()
}

func (c *Cluster) phase() jobtracker.Activation { return c.Tracker.Stats().Phase }

// comeBack connects all replicas that are away, and those that have lost a reply.
func (c *Cluster) comeBack() {
	for _, r := range c.replicas {
		if p := c.phase(); p != jobtracker.Active && p != jobtracker.Activating {
			return
		}
		if r.State().Connected() && r.well() {
			continue
		}
		if _, err := r.TryReconnect(); err != nil {
			if p := c.phase(); p == jobtracker.Active || p == jobtracker.Activating {
				c.errorf("replica %d cannot come back: %v\n%v", r.index, err, c)
			}
		}
	}
}

// well tells whether the replica has a connection that has lost nothing.
func (r *Replica) well() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.life != nil && !r.life.over && !r.life.lost
}

// repairAll repairs all replicas that need it. One whose repair was left alone is repaired anew.
func (c *Cluster) repairAll() {
	for _, r := range c.replicas {
		if c.phase() != jobtracker.Active {
			return
		}
		if r.State().Phase == jobtracker.Repairing {
			if _, err := r.TryReconnect(); err != nil {
				c.errorf("replica %d cannot come back: %v\n%v", r.index, err, c)
			}
		}
		if r.State().Phase == jobtracker.RepairReady {
			if err := r.Repair(); err != nil {
				c.errorf("replica %d cannot be repaired: %v\n%v", r.index, err, c)
			}
		}
	}
}

// finalFlush has everything retired.
func (c *Cluster) finalFlush() {
	j, err := c.TrySubmit(Flush())
	if err != nil {
		c.errorf("the final flush is refused: %v\n%v", err, c)
		return
	}
	c.Settle()
	if !j.Resolved() {
		c.errorf("the final flush does not resolve\n%v", c)
		return
	}
	c.checkResolved()
	c.checkEmpty()
}
