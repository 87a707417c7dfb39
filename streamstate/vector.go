package streamstate

import "slices"

// chunkLen is how many partitions share a chunk. Smaller ones cost places, larger ones are copied for too little.
const (
	chunkShift = 2
	chunkLen   = 1 << chunkShift
)

// chunk is immutable once a Timestamp that is handed out has it.
type chunk [chunkLen]Position

var noChunk = chunk{absent, absent, absent, absent}

// vector is immutable once a Timestamp that is handed out points at it. Its chunks lie in blocks, those of one draft in one
// block. So it has few pointers, however many chunks it shares: to copy pointers, and the collector's work on them, would cost
// more than all else that a vector costs.
type vector struct {
	n      int
	index  []place // of each chunk
	blocks []block // numbered; one that is not used has no chunks
	draws  int     // the number of the block that is this vector's own
}

// place is where a chunk lies: the number of its block plus one, and where it is there. Zero is a chunk without positions.
type place uint32

const placeBits = 24 // for where it is; the rest is for the number

func (w place) block() int { return int(w>>placeBits) - 1 }
func (w place) at() int    { return int(w & (1<<placeBits - 1)) }

// block is chunks that were allocated at once, and how many of them this vector has.
type block struct {
	chunks []chunk
	live   int
}

// maxBlocks is how many blocks a vector shares with others at most, and maxSpread how many chunks, for each of its own,
// there may be in them: what is not used of them is kept as long as the vector.
const (
	maxBlocks = 32
	maxSpread = 2
)

// newVector is a vector without positions.
func newVector(n int) *vector {
	return &vector{n: n, index: make([]place, (n+chunkLen-1)>>chunkShift)}
}

func (v *vector) at(p int) *Position {
	w := v.index[p>>chunkShift]
	if w == 0 {
		return &absent
	}
	return &v.blocks[w.block()].chunks[w.at()][p&(chunkLen-1)]
}

func (v *vector) chunk(i int) *chunk {
	w := v.index[i]
	if w == 0 {
		return &noChunk
	}
	return &v.blocks[w.block()].chunks[w.at()]
}

// draft begins a vector that shares all chunks with v but those that are written to, for which it has some room.
func (v *vector) draft(room int) *vector {
	d := &vector{n: v.n, index: slices.Clone(v.index), blocks: make([]block, len(v.blocks), len(v.blocks)+1)}
	copy(d.blocks, v.blocks)
	d.draws = slices.IndexFunc(d.blocks, func(b block) bool { return b.live == 0 })
	if d.draws < 0 {
		d.draws = len(d.blocks)
		d.blocks = append(d.blocks, block{})
	}
	d.blocks[d.draws].chunks = make([]chunk, 0, room)
	for d.crowded() {
		d.vacate()
	}
	return d
}

// crowded tells whether a draft shares too many blocks, or has too little use of them.
func (d *vector) crowded() bool {
	blocks, chunks := 0, 0
	for i := range d.blocks {
		if b := &d.blocks[i]; i != d.draws && b.live > 0 {
			blocks++
			chunks += cap(b.chunks)
		}
	}
	return blocks > maxBlocks || chunks > maxSpread*len(d.index)
}

// vacate makes the chunks of the block that is used least the draft's own.
func (d *vector) vacate() {
	least := -1
	for i := range d.blocks {
		if b := &d.blocks[i]; i != d.draws && b.live > 0 && (least < 0 || b.live < d.blocks[least].live) {
			least = i
		}
	}
	for i, w := range d.index {
		if w.block() == least {
			d.put(i, d.chunk(i))
		}
	}
}

// put gives a draft a chunk of its own, with what c has, and returns it. It is to be used before the next put.
func (d *vector) put(i int, c *chunk) *chunk {
	own := &d.blocks[d.draws]
	own.chunks = append(own.chunks, *c)
	own.live++
	if w := d.index[i]; w != 0 {
		b := &d.blocks[w.block()]
		if b.live--; b.live == 0 {
			*b = block{}
		}
	}
	at := len(own.chunks) - 1
	d.index[i] = place((d.draws+1)<<placeBits | at)
	return &own.chunks[at]
}

// own is a position of a draft that may be written to.
func (d *vector) own(p int) *Position {
	i := p >> chunkShift
	c := d.chunk(i)
	if d.index[i].block() != d.draws {
		c = d.put(i, c)
	}
	return &c[p&(chunkLen-1)]
}
