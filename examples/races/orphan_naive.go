package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/staleproof/staleproof/jobtracker"
)

// naive is a small, fair job table of the kind that hit Crucible #1121: it knows replicas, not connections; a flush
// that is terminal everywhere retires all before it; and it remembers the ids it retired last, since it knows that
// replies come late. A longer ring only makes the failure rarer.
type naive struct {
	jobs   map[uint64]*naiveJob // the table
	oldest uint64               // in the table
	next   uint64               // id

	completed []uint64 // a ring
	at        int      // where its next id goes

	faulted [replicas]bool
	wire    [replicas][]uint64 // what each replica was sent and has not answered
}

// naiveJob is a job and where it stands on each replica.
type naiveJob struct {
	kind  jobtracker.Kind
	state [replicas]naiveState
}

type naiveState string

const (
	naiveSent    naiveState = "sent"
	naiveDone    naiveState = "done"
	naiveSkipped naiveState = "skipped"
)

// assertionFailed is what naive panics with.
type assertionFailed string

func newNaive(ring int) *naive {
	return &naive{jobs: map[uint64]*naiveJob{}, oldest: 1, next: 1, completed: make([]uint64, ring)}
}

func (n *naive) submit(kind jobtracker.Kind, jobs int) error {
	for ; jobs > 0; jobs-- {
		j := &naiveJob{kind: kind}
		for r := range replicas {
			if j.state[r] = naiveSkipped; !n.faulted[r] {
				j.state[r] = naiveSent
				n.wire[r] = append(n.wire[r], n.next)
			}
		}
		n.jobs[n.next] = j
		n.next++
	}
	return nil
}

func (n *naive) answer(r int) error {
	for _, id := range n.wire[r] {
		n.complete(r, id)
	}
	n.wire[r] = n.wire[r][:0]
	return nil
}

func (n *naive) giveUp(r int) error {
	n.faulted[r], n.wire[r] = true, nil
	for id := n.oldest; id < n.next; id++ {
		if j := n.jobs[id]; j != nil && j.state[r] == naiveSent {
			j.state[r] = naiveSkipped
			n.retire(id)
		}
	}
	return nil
}

// reconnect leaves the replica faulted until it is repaired, which is not part of this story.
func (n *naive) reconnect(int) error { return nil }

func (n *naive) reply(r int, id uint64) (string, error) { return n.complete(r, id), nil }

// complete takes a reply of a replica.
func (n *naive) complete(r int, id uint64) string {
	j, ok := n.jobs[id]
	if !ok {
		if !slices.Contains(n.completed, id) {
			panic(assertionFailed(fmt.Sprintf("assertion failed: completed ids contain %d (it is not in the table, the ring has %d)", id, len(n.completed))))
		}
		return fmt.Sprintf("ignored: not in the table, but the ring of %[2]d completed ids has %[1]d", id, len(n.completed))
	}
	if j.state[r] != naiveSent {
		return "ignored: it was skipped or done"
	}
	j.state[r] = naiveDone
	n.retire(id)
	return "done"
}

// retire moves all jobs up to a flush that is terminal on all replicas from the table to the ring.
func (n *naive) retire(flush uint64) {
	if j := n.jobs[flush]; j.kind != jobtracker.Flush || slices.Contains(j.state[:], naiveSent) {
		return
	}
	for ; n.oldest <= flush; n.oldest++ {
		delete(n.jobs, n.oldest)
		n.completed[n.at] = n.oldest
		n.at = (n.at + 1) % len(n.completed)
	}
}

func (n *naive) table() string {
	return fmt.Sprintf("%d jobs submitted, %d in the table, %d in the ring", n.next-1, len(n.jobs), min(int(n.oldest-1), len(n.completed)))
}

func (n *naive) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "oldest job %d, next job %d, faulted %v", n.oldest, n.next, n.faulted)
	for id := n.oldest; id < min(n.next, n.oldest+dumpJobs); id++ {
		fmt.Fprintf(&b, "\njob %d: %v", id, *n.jobs[id])
	}
	return b.String()
}
