package jobtest_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// book is what the orphaned completion needs of a book-keeper of jobs.
type book interface {
	// Write admits a write, Flush what retires all before it.
	Write() jobtracker.JobID
	Flush() jobtracker.JobID
	// Answer takes a replica's reply to a job, on the connection that the replica had at the start.
	Answer(replica int, id jobtracker.JobID) error
	// Stop takes a replica out of service: its jobs are skipped.
	Stop(replica int)
}

// naive is a book-keeper like the one of Crucible #1121. It knows what is active, and of what is not, the last few ids.
type naive struct {
	gap func() // as jobtracker.Config.Gap

	mu sync.Mutex
	// +checklocks:mu
	next jobtracker.JobID
	// active has, by job, the replicas that have not answered.
	// +checklocks:mu
	active map[jobtracker.JobID]map[int]bool
	// +checklocks:mu
	flushes map[jobtracker.JobID]bool
	// +checklocks:mu
	stopped map[int]bool
	// completed is a ring of 4; there it was one of 2,048.
	// +checklocks:mu
	completed []jobtracker.JobID
	// +checklocks:mu
	completedTo jobtracker.JobID
}

func newNaive(gap func()) *naive {
	return &naive{gap: gap, active: map[jobtracker.JobID]map[int]bool{}, flushes: map[jobtracker.JobID]bool{}, stopped: map[int]bool{}}
}

func (n *naive) admit(flush bool) jobtracker.JobID {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	n.active[n.next] = map[int]bool{}
	n.flushes[n.next] = flush
	for r := range 3 {
		if !n.stopped[r] {
			n.active[n.next][r] = true
		}
	}
	return n.next
}

func (n *naive) Write() jobtracker.JobID { return n.admit(false) }

func (n *naive) Flush() jobtracker.JobID { return n.admit(true) }

func (n *naive) Answer(replica int, id jobtracker.JobID) error {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	job, ok := n.active[id]
	if !ok {
		if !slices.Contains(n.completed, id) {
			panic(fmt.Sprintf("assertion failed: completed.contains(%d)", id))
		}
		return nil // late, and known
	}
	delete(job, replica)
	n.retireLocked()
	return nil
}

func (n *naive) Stop(replica int) {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped[replica] = true
	for _, job := range n.active {
		delete(job, replica)
	}
	n.retireLocked()
}

// retireLocked retires everything up to a flush when nobody owes an answer to any of it.
//
// +checklocks:n.mu
func (n *naive) retireLocked() {
	for id := n.completedTo + 1; id <= n.next && len(n.active[id]) == 0; id++ {
		if !n.flushes[id] {
			continue
		}
		for n.completedTo < id {
			n.completedTo++
			delete(n.active, n.completedTo)
			n.completed = append(n.completed, n.completedTo)
		}
		n.completed = n.completed[max(0, len(n.completed)-4):]
	}
}

// ours is the same on a tracker.
type ours struct {
	c     *jobtest.Cluster
	lives []*jobtest.Life
}

func newOurs(x *jobtest.Trial) *ours {
	o := &ours{c: jobtest.New(x, config{Replicas: 3})}
	for _, r := range o.c.Replicas() {
		o.lives = append(o.lives, r.Life())
	}
	return o
}

func (o *ours) admit(op jobtracker.Op) jobtracker.JobID {
	j, err := o.c.TrySubmit(op)
	if err != nil {
		return 0
	}
	return j.ID()
}

func (o *ours) Write() jobtracker.JobID { return o.admit(jobtest.Write(0, 1)) }

func (o *ours) Flush() jobtracker.JobID { return o.admit(jobtest.Flush()) }

func (o *ours) Answer(replica int, id jobtracker.JobID) error {
	o.lives[replica].Receive()
	return o.lives[replica].Deliver(id)
}

func (o *ours) Stop(replica int) { o.c.Replica(replica).Cut() }

// stopUnderLoad is the outage: a replica is stopped, its jobs are skipped, and the others go on.
func stopUnderLoad(replica int) jobtest.Adversary {
	return jobtest.Adversary{Name: fmt.Sprintf("StopUnderLoad(%d)", replica), Act: func(x *jobtest.Trial) {
		b, ok := x.Subject.(book)
		if !ok {
			return // not built yet
		}
		b.Stop(replica)
		for range 3 {
			for _, id := range []jobtracker.JobID{b.Write(), b.Flush()} {
				for r := range 3 {
					if r != replica {
						_ = b.Answer(r, id)
					}
				}
			}
		}
	}}
}

// late is the scenario: one write, and all answer.
func late(build func(x *jobtest.Trial) book) func(x *jobtest.Trial) {
	return func(x *jobtest.Trial) {
		b := build(x)
		x.Subject = b
		id := b.Write()
		for r := range 3 {
			_ = x.Call("Answer", func() error { return b.Answer(r, id) })
		}
	}
}

// TestOrphanedCompletion finds the outage of Crucible #1121 in the naive book-keeper, and not in ours.
func TestOrphanedCompletion(t *testing.T) {
	rep := jobtest.Search(late(func(x *jobtest.Trial) book { return newNaive(x.Gap) }), stopUnderLoad(0), stopUnderLoad(1), stopUnderLoad(2))
	require.Equal(t, 4, rep.Acquisitions)
	require.Equal(t, 12, rep.Pairs)
	require.Len(t, rep.Findings, 3) // whenever the last one to answer is stopped before it does
	for i, f := range rep.Findings {
		require.Equal(t, "StopUnderLoad(2)", f.Adversary)
		require.Equal(t, i+1, f.Acquisition)
		require.Len(t, f.Problems, 1)
		require.True(t, strings.HasPrefix(f.Problems[0], "panic: assertion failed: completed.contains(1)"), f.Problems[0])
	}
	t.Logf("naive: %d of %d runs panic", len(rep.Findings), rep.Pairs)

	sound := jobtest.Explore(t, late(func(x *jobtest.Trial) book { return newOurs(x) }), stopUnderLoad(0), stopUnderLoad(1), stopUnderLoad(2))
	require.Empty(t, sound.Findings)
	require.Positive(t, sound.Refusals)
}
