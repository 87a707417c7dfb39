package main

import (
	"maps"
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// memtable is a session's payload: what was applied and is not known to be in the store. It is reached in transactions
// only; the batches in it do not change, so that a slice of them may be kept.
type memtable struct {
	parts map[int32][]*batch // each in the order of the log
}

func newMemtable() *memtable { return &memtable{parts: make(map[int32][]*batch)} }

func (m *memtable) add(p int32, b *batch) { m.parts[p] = append(m.parts[p], b) }

// rows is how many rows wait for a flush.
func (m *memtable) rows() int {
	n := 0
	for _, batches := range m.parts {
		for _, b := range batches {
			n += len(b.rows)
		}
	}
	return n
}

// upTo is what a flush with that target has to commit.
func (m *memtable) upTo(target streamstate.Timestamp) map[int32][]*batch {
	found := make(map[int32][]*batch)
	for p, batches := range m.parts {
		if n := covered(batches, target, p); n > 0 {
			found[p] = batches[:n:n]
		}
	}
	return found
}

// drop forgets what a flush with that target has committed.
func (m *memtable) drop(target streamstate.Timestamp) {
	maps.DeleteFunc(m.parts, func(p int32, batches []*batch) bool {
		n := covered(batches, target, p)
		if n == len(batches) {
			return true
		}
		m.parts[p] = slices.Clone(batches[n:]) // let go of what is gone
		return false
	})
}

// covered is how many of a partition's batches a target covers.
func covered(batches []*batch, target streamstate.Timestamp, p int32) int {
	pos, ok := target.At(int(p))
	if !ok {
		return 0
	}
	n, _ := slices.BinarySearchFunc(batches, pos.Next+1, func(b *batch, next uint64) int {
		if b.pos.Next < next {
			return -1
		}
		return 1
	})
	return n
}

// forget lets go of a partition that was given up.
func (m *memtable) forget(p int32) { delete(m.parts, p) }
