package jobtracker

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// orderModel is what order must agree with, written from its documentation: a record per block, no
// segments, nothing ever forgotten but by an orderAll. Blocks come in regions that no operation cuts, so that
// the model can have the first and the last block there is.
type orderModel struct {
	regions []orderRegion
	blocks  []modelBlock
	floor   []JobID // of one at most
	retired map[JobID]bool
	issued  []JobID // since, and with, the floor
}

type orderRegion struct{ first, last uint64 }

type modelBlock struct{ writer, readers []JobID }

func newOrderModel(regions []orderRegion) *orderModel {
	return &orderModel{regions: regions, blocks: make([]modelBlock, len(regions)), retired: map[JobID]bool{}}
}

// singleBlocks are n regions of one block.
func singleBlocks(n int) []orderRegion {
	r := make([]orderRegion, n)
	for i := range r {
		r[i] = orderRegion{uint64(i), uint64(i)}
	}
	return r
}

// wholeSpace is all blocks there are: n single ones at both ends, and one region in between.
func wholeSpace(n int) []orderRegion {
	r := append(singleBlocks(n), orderRegion{uint64(n), math.MaxUint64 - uint64(n)})
	for i := range uint64(n) {
		b := math.MaxUint64 - uint64(n) + 1 + i
		r = append(r, orderRegion{b, b})
	}
	return r
}

func (m *orderModel) live(ids []JobID) []JobID {
	var out []JobID
	for _, id := range ids {
		if !m.retired[id] {
			out = append(out, id)
		}
	}
	return out
}

func (m *orderModel) add(id JobID, kind orderKind, start, blocks uint64) []JobID {
	last := start + blocks - 1
	if blocks > 0 && last < start {
		last = math.MaxUint64
	}
	var deps []JobID
	touched := 0
	for i := range m.blocks {
		b, r := &m.blocks[i], m.regions[i]
		if kind != orderAll && (blocks == 0 || r.first < start || r.last > last) {
			continue
		}
		touched++
		if readers := m.live(b.readers); kind == orderRead || len(readers) == 0 {
			deps = append(deps, m.live(b.writer)...)
		} else {
			deps = append(deps, readers...)
		}
		if kind == orderRead {
			b.readers = append(b.readers, id)
		} else {
			b.writer, b.readers = []JobID{id}, b.readers[:0]
		}
	}
	if kind == orderAll {
		deps = append(deps, m.live(m.floor)...)
		m.floor = []JobID{id}
		m.issued = m.issued[:0]
		if len(m.retired) > 1<<12 {
			clear(m.retired) // what came before is in no block any more
		}
	}
	if touched > 0 || kind == orderAll {
		m.issued = append(m.issued, id)
	}
	slices.Sort(deps)
	return slices.Compact(deps)
}

func (m *orderModel) retire(id JobID) { m.retired[id] = true }

// state describes all that later answers depend on.
func (m *orderModel) state() string {
	var s strings.Builder
	fmt.Fprint(&s, m.live(m.floor))
	for _, b := range m.blocks {
		fmt.Fprint(&s, m.live(b.writer), m.live(b.readers))
	}
	return s.String()
}

// orderOp is a line of a trace: an operation, or, where retire is set, the retirement of id.
type orderOp struct {
	id            JobID
	start, blocks uint64
	kind          orderKind
	retire        bool
}

func (op orderOp) String() string {
	switch {
	case op.retire:
		return fmt.Sprintf("X %d", op.id)
	case op.kind == orderAll:
		return fmt.Sprintf("F %d", op.id)
	default:
		return fmt.Sprintf("%c %d %d %d", "RW"[op.kind], op.id, op.start, op.blocks)
	}
}

// orderMix says how often a random trace does what, in percent of all lines.
type orderMix struct {
	regions                    []orderRegion
	all, read, retire, nothing int // the rest are writes
	wide                       int // ranges that may be as wide as all there is; others have up to 4 regions
}

// next draws the line after those that m has seen.
func (x *orderMix) next(r *rand.Rand, m *orderModel, id JobID) orderOp {
	p := r.IntN(100)
	if p < x.retire && len(m.issued) > 0 {
		return orderOp{retire: true, id: m.issued[max(0, len(m.issued)-1-r.IntN(1+min(len(m.issued), 64)))]}
	}
	if p = r.IntN(100); p < x.all {
		return orderOp{id: id, kind: orderAll}
	}
	op := orderOp{id: id, kind: orderWrite}
	if r.IntN(100) < x.read {
		op.kind = orderRead
	}
	n := len(x.regions)
	from := r.IntN(n)
	span := min(4, n-from)
	if r.IntN(100) < x.wide {
		span = n - from
	}
	to := from + r.IntN(span)
	op.start = x.regions[from].first
	op.blocks = x.regions[to].last - op.start + 1 // 0 for all there are: one more than fits
	if r.IntN(100) < x.nothing {
		op.blocks = 0
	}
	return op
}
