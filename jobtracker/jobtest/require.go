package jobtest

import "github.com/staleproof/staleproof/jobtracker"

// RequireSame fails the test unless all active replicas hold the same, and at least one is active. It makes sense when
// nothing is outstanding.
func (c *Cluster) RequireSame() {
	c.t.Helper()
	c.checkSame()
	c.stopIfFailed()
}

func (c *Cluster) checkSame() {
	c.t.Helper()
	var first *Replica
	for _, r := range c.replicas {
		if r.State().Phase != jobtracker.Voting {
			continue
		}
		if first == nil {
			first = r
			continue
		}
		a, b := first.snapshot(), r.snapshot()
		if block, differs := a.differs(b); differs {
			c.errorf("block %d is %d (by job %d) on replica %d and %d (by job %d) on replica %d", block, a.cells[block].value,
				a.cells[block].writer, first.index, b.cells[block].value, b.cells[block].writer, r.index)
		}
	}
	if first == nil {
		c.errorf("no replica is active\n%v", c)
	}
}

func (r *Replica) snapshot() *disk {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := newDisk(r.disk.id)
	d.copyOf(r.disk)
	return d
}

// RequireOrder fails the test if writes have reached a block of any replica in another order than that of their ids, on
// one connection, or if a block was written last by another job than the highest that has written it, over all
// connections: what a replay has written again, it must have written again up to the last one. It makes sense when
// nothing is outstanding.
func (c *Cluster) RequireOrder() {
	c.t.Helper()
	c.checkOrder()
	c.stopIfFailed()
}

func (c *Cluster) checkOrder() {
	c.t.Helper()
	c.checkAudit(false)
	for _, r := range c.replicas {
		if err := r.check(); err != nil {
			c.errorf("replica %d: %v", r.index, err)
		}
	}
}

// RequireResolved fails the test unless every job that was submitted through the cluster is resolved.
func (c *Cluster) RequireResolved() {
	c.t.Helper()
	c.checkResolved()
	c.stopIfFailed()
}

func (c *Cluster) checkResolved() {
	c.t.Helper()
	c.mu.Lock()
	var id jobtracker.JobID
	for _, j := range c.open {
		if !j.Resolved() {
			id = j.ID()
			break
		}
	}
	c.mu.Unlock()
	if id != 0 {
		c.errorf("job %d is not resolved\n%v", id, c)
	}
}

// RequireEmpty fails the test unless the table is empty and no charge is left, as it must be when everything was answered
// and a flush followed.
func (c *Cluster) RequireEmpty() {
	c.t.Helper()
	c.checkEmpty()
	c.stopIfFailed()
}

func (c *Cluster) checkEmpty() {
	c.t.Helper()
	if err := c.Tracker.Check(); err != nil {
		c.errorf("%v\n%v", err, c)
	}
	d := c.Tracker.Dump()
	if d.Active != 0 || d.Waiting != 0 {
		c.errorf("the table is not empty\n%v", d)
		return
	}
	for r, rep := range d.Replicas {
		if rep.Jobs != 0 || rep.Bytes != 0 || rep.Held != 0 || rep.Sent != 0 {
			c.errorf("replica %d is charged with an empty table\n%v", r, d)
		}
	}
}

// errorf fails the test and goes on.
func (c *Cluster) errorf(format string, args ...any) {
	c.t.Helper()
	c.failed.Store(true)
	c.t.Errorf("jobtest: "+format, args...)
}

// fatal fails the test and ends it.
func (c *Cluster) fatal(format string, args ...any) {
	c.t.Helper()
	c.errorf(format, args...)
	c.t.FailNow()
}

func (c *Cluster) stopIfFailed() {
	c.t.Helper()
	if c.failed.Load() {
		c.t.FailNow()
	}
}
