package nbd

import (
	"math/bits"
	"sync"
)

// minBufferBits is the smallest size class: 4 KiB.
const minBufferBits = 12

// buffer is a pooled piece of memory; the struct is what travels, so that putting it back allocates nothing.
type buffer struct{ b []byte }

// buffers hands out memory by powers of two.
type buffers struct {
	class [33]sync.Pool
}

// get returns a buffer of at least n bytes, with arbitrary content.
func (p *buffers) get(n uint32) *buffer {
	c := sizeClass(n)
	if b, ok := p.class[c].Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 1<<c)}
}

// put takes back what get returned.
func (p *buffers) put(b *buffer) {
	p.class[sizeClass(uint32(len(b.b)))].Put(b)
}

// sizeClass is the exponent of the smallest power of two that holds n bytes.
func sizeClass(n uint32) int {
	return max(minBufferBits, bits.Len32(max(n, 1)-1))
}
