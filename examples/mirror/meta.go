package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/staleproof/staleproof/jobtracker"
)

// The last MiB of a replica belongs to mirror. It holds two copies of the metadata, written alternately, so that the
// older one is whole while the newer one is being written. All numbers are little-endian.
//
//	 0  magic                  48  replica id
//	 8  CRC-32C of the rest    64  size of the device
//	12  length of the copy     72  size of an extent
//	16  version                80  generation
//	18  replicas, quorum       88  flush number
//	20  flags                  96  zeros
//	24  sequence number       128  a dirty bit for each extent, zeros up to the length
//	32  device id
const (
	metaSpace  = 1 << 20 // bytes at the end of a replica
	metaStride = metaSpace / 2
	metaMagic  = "STALPRF1"
	metaHeader = 128
	maxMeta    = 4096 // of a copy: a page, so that a write of it costs little and hardly ever tears
	maxExtents = 8 * (maxMeta - metaHeader)
	minExtent  = 256 << 10
	minSize    = 64 << 10 // of a device, in bytes
	maxSize    = 1 << 56

	metaVersion = 1
	flagClean   = 1
)

var (
	errBlank   = errors.New("it is blank")
	errDamaged = errors.New("its metadata is damaged")
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// geometry is what is fixed when a device is made.
type geometry struct {
	device   jobtracker.ID
	size     int64 // bytes
	extent   int64 // bytes, a power of two
	replicas int
	quorum   int
}

// newGeometry chooses the extents so that their bits fit.
func newGeometry(device jobtracker.ID, size int64, replicas, quorum int) geometry {
	g := geometry{device: device, size: size, extent: minExtent, replicas: replicas, quorum: quorum}
	for g.extents() > maxExtents {
		g.extent *= 2
	}
	return g
}

func (g *geometry) extents() int { return int((g.size + g.extent - 1) / g.extent) }

// span is the extents, from..to-1, that a range of blocks touches.
func (g *geometry) span(start, blocks uint64) (from, to int) {
	end := int64(start+blocks) * blockSize
	return int(int64(start) * blockSize / g.extent), int((end + g.extent - 1) / g.extent)
}

func (g *geometry) check() error {
	switch {
	case g.size < blockSize || g.size > maxSize || g.size%blockSize != 0:
		return fmt.Errorf("%w: size %d", errDamaged, g.size)
	case g.extent < minExtent || g.extent&(g.extent-1) != 0 || g.extents() > maxExtents:
		return fmt.Errorf("%w: extent size %d", errDamaged, g.extent)
	case g.replicas < 1 || g.replicas > jobtracker.MaxReplicas || g.quorum < 1 || g.quorum > g.replicas:
		return fmt.Errorf("%w: %d replicas, quorum %d", errDamaged, g.replicas, g.quorum)
	}
	return nil
}

// meta is what a replica remembers.
type meta struct {
	geometry
	replica    jobtracker.ID
	seq        uint64 // of the copy; the highest valid one counts
	generation uint64
	flush      uint64 // the last flush of that generation
	clean      bool   // nothing was written after that flush, and nothing will be before this is taken back
	dirty      bitmap
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func (m *meta) encode() []byte {
	b := make([]byte, maxMeta)
	copy(b, metaMagic)
	le := binary.LittleEndian
	le.PutUint32(b[12:], uint32(len(b)))
	le.PutUint16(b[16:], metaVersion)
	b[18], b[19] = byte(m.replicas), byte(m.quorum)
	if m.clean {
		le.PutUint32(b[20:], flagClean)
	}
	le.PutUint64(b[24:], m.seq)
	copy(b[32:], m.device[:])
	copy(b[48:], m.replica[:])
	le.PutUint64(b[64:], uint64(m.size))
	le.PutUint64(b[72:], uint64(m.extent))
	le.PutUint64(b[80:], m.generation)
	le.PutUint64(b[88:], m.flush)
	for i, w := range m.dirty {
		le.PutUint64(b[metaHeader+8*i:], w)
	}
	le.PutUint32(b[8:], checksum(b[12:]))
	return b
}

// decodeMeta is the inverse of encode; b may be longer than the copy. It answers errBlank where there is no copy at all,
// errDamaged for one that is torn or cannot be.
func decodeMeta(b []byte) (*meta, error) {
	if len(b) < maxMeta || !bytes.HasPrefix(b, []byte(metaMagic)) {
		return nil, errBlank
	}
	le := binary.LittleEndian
	b = b[:maxMeta]
	if checksum(b[12:]) != le.Uint32(b[8:]) {
		return nil, fmt.Errorf("%w: bad checksum", errDamaged)
	}
	if v := le.Uint16(b[16:]); v != metaVersion || le.Uint32(b[12:]) != maxMeta {
		return nil, fmt.Errorf("%w: version %d, not %d", errDamaged, v, metaVersion)
	}
	flags := le.Uint32(b[20:])
	m := &meta{
		seq: le.Uint64(b[24:]), generation: le.Uint64(b[80:]), flush: le.Uint64(b[88:]), clean: flags&flagClean != 0,
	}
	m.replicas, m.quorum = int(b[18]), int(b[19])
	m.size, m.extent = int64(le.Uint64(b[64:])), int64(le.Uint64(b[72:]))
	copy(m.device[:], b[32:])
	copy(m.replica[:], b[48:])
	if err := m.check(); err != nil {
		return nil, err
	}
	m.dirty = newBitmap(m.extents())
	if flags&^flagClean != 0 || m.generation == 0 {
		return nil, fmt.Errorf("%w: flags %#x, generation %d", errDamaged, flags, m.generation)
	}
	for i := range m.dirty {
		m.dirty[i] = le.Uint64(b[metaHeader+8*i:])
	}
	if !m.dirty.within(m.extents()) || !bytes.Equal(b, m.encode()) {
		return nil, fmt.Errorf("%w: something where nothing belongs", errDamaged)
	}
	return m, nil
}

// newest chooses between the two copies, and says into which place the next one goes.
func newest(first, second []byte) (m *meta, place int, err error) {
	a, errA := decodeMeta(first)
	b, errB := decodeMeta(second)
	switch {
	case errA == nil && (errB != nil || a.seq > b.seq):
		return a, 1, nil
	case errB == nil:
		return b, 0, nil
	case errors.Is(errA, errDamaged):
		return nil, 0, errA
	default:
		return nil, 0, errB
	}
}

// hello is what the replica says of itself.
func (m *meta) hello() jobtracker.Hello {
	return jobtracker.Hello{
		Device: m.device, Replica: m.replica, Blocks: uint64(m.size) / blockSize, BlockSize: blockSize,
		Generation: m.generation, Flush: m.flush, Dirty: !m.clean && m.dirty.any(),
	}
}
