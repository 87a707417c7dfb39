package jobtest

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/staleproof/staleproof/jobtracker"
)

// TB is what a cluster needs of a test: *testing.T, *testing.B, *rapid.T and *[Trial] have it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
	Cleanup(f func())
}

// Read is the read of some blocks.
func Read(start, blocks uint64) jobtracker.Op {
	return jobtracker.Op{Kind: jobtracker.Read, Start: start, Blocks: blocks}
}

// Write is the write of some blocks.
func Write(start, blocks uint64) jobtracker.Op {
	return jobtracker.Op{Kind: jobtracker.Write, Start: start, Blocks: blocks}
}

// FUA is a write that is durable when it is acknowledged.
func FUA(start, blocks uint64) jobtracker.Op {
	return jobtracker.Op{Kind: jobtracker.Write, Start: start, Blocks: blocks, FUA: true}
}

// Zero writes zeros.
func Zero(start, blocks uint64) jobtracker.Op {
	return jobtracker.Op{Kind: jobtracker.Zero, Start: start, Blocks: blocks}
}

// Trim discards some blocks; on a scripted replica they read as zeros.
func Trim(start, blocks uint64) jobtracker.Op {
	return jobtracker.Op{Kind: jobtracker.Trim, Start: start, Blocks: blocks}
}

// Flush makes everything before it durable.
func Flush() jobtracker.Op { return jobtracker.Op{Kind: jobtracker.Flush} }

// Snapshot is a flush that takes a snapshot.
func Snapshot() jobtracker.Op { return jobtracker.Op{Kind: jobtracker.Flush, Snapshot: true} }

// Barrier orders everything.
func Barrier() jobtracker.Op { return jobtracker.Op{Kind: jobtracker.Barrier} }

// Payload is what the jobs of a cluster carry. The zero Payload is ready.
type Payload struct {
	// Value is what a write puts into each of its blocks. Zero: the job's id, so that every write differs.
	Value uint64

	mu sync.Mutex
	// read is what each replica has read.
	// +checklocks:mu
	read map[int][]uint64
	// data is what the first good answer that was accepted said.
	// +checklocks:mu
	data []uint64
	// copied is what a copy's source has read.
	// +checklocks:mu
	copied []uint64
}

// Data is what a read has found, a value for each block, as the first answer that was accepted says. Nil before.
func (p *Payload) Data() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.data)
}

// DataOf is what one replica has read, accepted or not. Nil if it has not.
func (p *Payload) DataOf(replica int) []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.read[replica])
}

// found keeps what a replica has read.
func (p *Payload) found(replica int, data []uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.read == nil {
		p.read = map[int][]uint64{}
	}
	p.read[replica] = data
}

// accept takes note that a replica's answer was accepted.
func (p *Payload) accept(replica int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data == nil {
		p.data = p.read[replica]
	}
}

func (p *Payload) setCopied(data []uint64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.copied = data
}

func (p *Payload) getCopied() []uint64 {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.copied
}

// digest is a hash of data that is not zero.
func digest(data []uint64) jobtracker.Digest {
	h := fnv.New64a()
	var b [8]byte
	for _, v := range data {
		binary.LittleEndian.PutUint64(b[:], v)
		_, _ = h.Write(b[:]) // a hash does not fail
	}
	return jobtracker.Digest(h.Sum64() | 1)
}

// Job is a job of a cluster. It has the methods of the tracker's job.
type Job struct {
	*jobtracker.Job[*Payload]
	Op      jobtracker.Op
	Payload *Payload
}

// Data is what a read has found; see [Payload.Data].
func (j *Job) Data() []uint64 { return j.Payload.Data() }
