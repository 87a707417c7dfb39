package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// keyspace is the key of the story.
const keyspace = "orders"

// errSuccessor is what the naive follower does to a later life of the key.
var errSuccessor = errors.New("the new life of the key was changed by an answer to the former one")

// naiveFollower is book-keeping of the kind that hit MB-37227: a map for each fact, indexed by keyspace and then by
// partition, under one lock. The handler of a repair checks the status in its first hold, and trusts that in the second.
type naiveFollower struct {
	active   map[string]bool
	next     map[string][]uint64 // the next number wanted of each partition
	repair   map[string][]bool   // which partitions are being repaired
	restarts map[string]int
	lives    int

	asked map[int]int // for the story: in which life was the restart of each partition asked for?
}

func newNaiveFollower() *naiveFollower {
	return &naiveFollower{
		active: map[string]bool{}, next: map[string][]uint64{}, repair: map[string][]bool{}, restarts: map[string]int{},
		asked: map[int]int{},
	}
}

func (n *naiveFollower) open(from uint64) error {
	n.lives++
	n.active[keyspace], n.restarts[keyspace] = true, 0
	n.next[keyspace] = slices.Repeat([]uint64{from}, partitions)
	n.repair[keyspace] = make([]bool, partitions)
	return nil
}

func (n *naiveFollower) end(int) error { return nil } // ask follows at once

// ask is the handler's first hold.
func (n *naiveFollower) ask(p int) error {
	if !n.active[keyspace] {
		return nil // a reply of a stream that is gone is ignored: here it was thought of
	}
	n.repair[keyspace][p] = true
	n.asked[p] = n.lives
	return nil
}

func (n *naiveFollower) drop() error {
	delete(n.active, keyspace)
	delete(n.next, keyspace)
	delete(n.repair, keyspace)
	delete(n.restarts, keyspace)
	return nil
}

// reply is the handler's second hold. The status was checked in the first.
func (n *naiveFollower) reply(p int) (string, error) {
	n.repair[keyspace][p] = false
	n.next[keyspace][p] = start
	n.restarts[keyspace]++
	if n.asked[p] != n.lives {
		return fmt.Sprintf("partition %d restarts at %d: what the new life asked for is overwritten", p, start), errSuccessor
	}
	return fmt.Sprintf("partition %d restarts at %d", p, start), nil
}

func (n *naiveFollower) table() string {
	if !n.active[keyspace] {
		return "nothing is known of " + keyspace
	}
	repairing := 0
	for _, r := range n.repair[keyspace] {
		if r {
			repairing++
		}
	}
	return fmt.Sprintf("%d partitions, %d in repair", len(n.next[keyspace]), repairing)
}

func (n *naiveFollower) dump() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(n.active)) {
		fmt.Fprintf(&b, "%s: next %v, in repair %v, restarts %d\n", k, n.next[k], n.repair[k], n.restarts[k])
	}
	return b.String()
}
