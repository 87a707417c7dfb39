package jobtracker

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/staleproof/staleproof/internal/xbase"
)

// orderBench runs a trace round and round. Everything is retired at each orderAll, which is part of what is measured.
type orderBench struct {
	jobs []orderOp // of which ids are the index plus one
	at   int
	id   JobID // the latest
	last JobID // up to which all are retired
	deps []JobID
	sum  int
}

// newOrderBench makes a benchmark of the reads and writes of a trace, with an orderAll after every so many.
func newOrderBench(trace []orderOp, every int) *orderBench {
	b := new(orderBench)
	n := 0
	for _, op := range trace {
		if op.retire || op.kind == orderAll {
			continue
		}
		b.jobs = append(b.jobs, op)
		if n++; n%every == 0 {
			b.jobs = append(b.jobs, orderOp{kind: orderAll})
		}
	}
	b.jobs = append(b.jobs, orderOp{kind: orderAll})
	return b
}

// run goes on for n jobs.
func (b *orderBench) run(o *order, n int) {
	for range n {
		op := &b.jobs[b.at]
		if b.at++; b.at == len(b.jobs) {
			b.at = 0
		}
		b.id++
		b.deps = o.add(b.id, op.kind, op.start, op.blocks, b.deps[:0])
		b.sum += len(b.deps)
		if op.kind == orderAll {
			for ; b.last < b.id; b.last++ {
				o.retire(b.last + 1)
			}
		}
	}
}

// benchTrace is the real trace, or, where that is absent, a generated one.
func benchTrace(b *testing.B) (trace []orderOp, suffix string) {
	if _, err := os.Stat("../../shared/oracle/cp100.ops.gz"); err != nil {
		return generatedTrace(), "-generated"
	}
	return sharedTrace(b, "cp100.ops.gz"), ""
}

// generatedTrace resembles a virtual disk's I/O: a few busy places, runs of neighbours, and the rest anywhere.
func generatedTrace() []orderOp {
	r := rand.New(rand.NewPCG(9, 9))
	ops := make([]orderOp, 100_000)
	next := uint64(0)
	for i := range ops {
		op := &ops[i]
		if r.IntN(100) < 59 {
			op.kind = orderWrite
		}
		op.blocks = 1 << r.IntN(8)
		switch p := r.IntN(100); {
		case p < 40:
			op.start = next
		case p < 70:
			op.start = uint64(r.IntN(50)) * 0x10001
		default:
			op.start = r.Uint64N(65_000_000) &^ 7
		}
		next = op.start + op.blocks
	}
	return ops
}

// BenchmarkOrder takes one add, and its retirement, for an operation. cp100 has an orderAll after every
// 100 jobs, cp1000 after every 1000. The aim is 5 and 9 xbase.
func BenchmarkOrder(b *testing.B) {
	trace, suffix := benchTrace(b)
	for _, c := range []struct {
		name  string
		every int
	}{{"cp100", 100}, {"cp1000", 1000}} {
		b.Run(c.name+suffix, func(b *testing.B) {
			b.ReportAllocs()
			var o order
			w := newOrderBench(trace, c.every)
			w.run(&o, 2*len(w.jobs))
			xbase.Measure(b, 4096, func(n int) { w.run(&o, n) })
		})
	}
}
