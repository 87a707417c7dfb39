package jobtest

import (
	"fmt"

	"github.com/staleproof/staleproof/jobtracker"
)

// ids is a set of job ids, a bit each.
type ids []uint64

// add puts id into the set; false if it was in it.
func (s *ids) add(id jobtracker.JobID) bool {
	if s.has(id) {
		return false
	}
	if need := int(id/64) + 1; need > len(*s) {
		*s = append(*s, make([]uint64, need-len(*s))...)
	}
	(*s)[id/64] |= 1 << (id % 64)
	return true
}

func (s *ids) has(id jobtracker.JobID) bool {
	return int(id/64) < len(*s) && (*s)[id/64]>>(id%64)&1 != 0
}

// without is the first id that is in s and not in o; 0 if there is none.
func (s *ids) without(o *ids) jobtracker.JobID {
	for i := range *s {
		for b := range 64 {
			if id := jobtracker.JobID(i*64 + b); s.has(id) && !o.has(id) {
				return id
			}
		}
	}
	return 0
}

// audit is what is checked all the time. It is guarded by the cluster's mutex.
type audit struct {
	submitted, resolved, retired ids
	seq                          uint64
	inside                       bool // a callback runs
	bad                          []string
	more                         int
}

func (a *audit) violate(format string, args ...any) {
	if len(a.bad) == 8 {
		a.more++
		return
	}
	a.bad = append(a.bad, fmt.Sprintf(format, args...))
}

// watch puts itself in front of the callbacks.
func (a *audit) watch(c *Cluster, cfg *jobtracker.Config[*Payload]) {
	resolve, retire, event := cfg.OnResolve, cfg.OnRetire, cfg.OnEvent
	cfg.OnResolve = func(v jobtracker.Resolved[*Payload]) {
		defer c.callback(v.Seq)()
		c.mu.Lock()
		if !a.resolved.add(v.Job.ID()) {
			a.violate("job %d was resolved twice", v.Job.ID())
		}
		if !v.Job.Resolved() {
			a.violate("job %d was reported before it was resolved", v.Job.ID())
		}
		if v.Err != nil && !Typed(v.Err) {
			a.violate("job %d ended with an error of no kind: %v", v.Job.ID(), v.Err)
		}
		c.mu.Unlock()
		if resolve != nil {
			resolve(v)
		}
	}
	cfg.OnRetire = func(v jobtracker.Retired[*Payload]) {
		defer c.callback(v.Seq)()
		c.mu.Lock()
		if !a.retired.add(v.Job.ID()) {
			a.violate("job %d was retired twice", v.Job.ID())
		}
		if !a.resolved.has(v.Job.ID()) {
			a.violate("job %d was retired before it was resolved", v.Job.ID())
		}
		c.mu.Unlock()
		if retire != nil {
			retire(v)
		}
	}
	cfg.OnEvent = func(e jobtracker.Event) {
		defer c.callback(e.Seq)()
		if event != nil {
			event(e)
		}
	}
}

// callback takes note that a callback begins, and returns what takes note that it ends.
func (c *Cluster) callback(seq uint64) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.audit.inside {
		c.audit.violate("callback %d began before another has ended", seq)
	}
	if seq <= c.audit.seq {
		c.audit.violate("callback %d came after callback %d", seq, c.audit.seq)
	}
	c.audit.seq, c.audit.inside = seq, true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.audit.inside = false
	}
}

// checkAudit reports what was noted; at the end also what is missing.
func (c *Cluster) checkAudit(end bool) {
	c.t.Helper()
	c.mu.Lock()
	bad := c.audit.bad
	if c.audit.more > 0 {
		bad = append(bad, fmt.Sprintf("and %d more", c.audit.more))
	}
	c.audit.bad, c.audit.more = nil, 0
	if end {
		if id := c.audit.submitted.without(&c.audit.resolved); id != 0 {
			bad = append(bad, fmt.Sprintf("job %d was never reported as resolved", id))
		}
		if id := c.audit.submitted.without(&c.audit.retired); id != 0 {
			bad = append(bad, fmt.Sprintf("job %d was never reported as retired", id))
		}
	}
	c.mu.Unlock()
	for _, b := range bad {
		c.errorf("%s", b)
	}
}
