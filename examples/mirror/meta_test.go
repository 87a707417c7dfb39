package main

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/jobtracker"
)

// drawMeta is any metadata that can be.
func drawMeta(t *rapid.T) *meta {
	g := newGeometry(jobtracker.ID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "device")),
		rapid.Int64Range(1, 1<<40).Draw(t, "blocks")*blockSize, 0, 0)
	g.replicas = rapid.IntRange(1, jobtracker.MaxReplicas).Draw(t, "replicas")
	g.quorum = rapid.IntRange(1, g.replicas).Draw(t, "quorum")
	m := &meta{
		geometry: g, replica: jobtracker.ID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "replica")),
		seq: rapid.Uint64().Draw(t, "seq"), generation: rapid.Uint64Min(1).Draw(t, "generation"),
		flush: rapid.Uint64().Draw(t, "flush"), clean: rapid.Bool().Draw(t, "clean"), dirty: newBitmap(g.extents()),
	}
	for range rapid.IntRange(0, 20).Draw(t, "bits") {
		m.dirty.set(rapid.IntRange(0, g.extents()-1).Draw(t, "bit"))
	}
	return m
}

func TestMetaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMeta(t)
		b := m.encode()
		require.Len(t, b, maxMeta)
		got, err := decodeMeta(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
	})
}

func TestGeometryFitsTheMetadata(t *testing.T) {
	for _, size := range []int64{blockSize, minExtent, 64 << 20, 8 << 30, 8<<30 + blockSize, 1 << 44, maxSize} {
		g := newGeometry(jobtracker.ID{}, size, 3, 2)
		require.NoError(t, g.check(), size)
		require.LessOrEqual(t, metaHeader+8*len(newBitmap(g.extents())), maxMeta)
		from, to := g.span(uint64(size/blockSize)-1, 1)
		require.Equal(t, []int{g.extents() - 1, g.extents()}, []int{from, to})
	}
}

// TestMetaTorn: whatever part of a newer copy reached the disk, one of the two is whole, and the newest that is counts.
func TestMetaTorn(t *testing.T) {
	g := newGeometry(newID(), 300<<20, 3, 2)
	older := &meta{geometry: g, replica: newID(), seq: 7, generation: 3, flush: 9, dirty: newBitmap(g.extents())}
	newer := *older
	newer.seq, newer.flush, newer.dirty = 8, 10, newBitmap(g.extents())
	newer.dirty.set(11)
	was := *older
	was.seq, was.clean = 6, true
	first, second := older.encode(), was.encode() // the newer copy goes over the second
	torn := newer.encode()
	for n := range len(torn) + 1 {
		disk := append(bytes.Clone(torn[:n]), second[n:]...)
		for _, swapped := range []bool{false, true} {
			a, b := first, disk
			if swapped {
				a, b = b, a
			}
			m, place, err := newest(a, b)
			require.NoError(t, err)
			want := uint64(7)
			if bytes.Equal(disk, torn) {
				want = 8
			}
			require.Equal(t, want, m.seq, "torn at %d", n)
			require.Equal(t, (want == 7) != swapped, place == 1, "the newest must not be overwritten")
		}
	}
}

func TestMetaBlankOrDamaged(t *testing.T) {
	g := newGeometry(newID(), 64<<20, 3, 2)
	good := (&meta{geometry: g, seq: 1, generation: 1, dirty: newBitmap(g.extents())}).encode()
	blank := make([]byte, len(good))
	bad := bytes.Clone(good)
	bad[200] ^= 1
	for _, tc := range []struct {
		first, second []byte
		err           error
	}{
		{blank, blank, errBlank},
		{good, blank, nil},
		{blank, good, nil},
		{bad, blank, errDamaged},
		{blank, bad, errDamaged},
		{bad, bad, errDamaged},
		{bad, good, nil},
		{nil, nil, errBlank},
	} {
		_, _, err := newest(tc.first, tc.second)
		require.ErrorIs(t, err, tc.err)
	}
}

// FuzzMeta: no bytes make trouble, and what is accepted is exactly what would be written.
func FuzzMeta(f *testing.F) {
	g := newGeometry(jobtracker.ID{1}, 64<<20, 3, 2)
	m := &meta{geometry: g, replica: jobtracker.ID{2}, seq: 3, generation: 4, flush: 5, dirty: newBitmap(g.extents())}
	m.dirty.set(6)
	f.Add(m.encode())
	f.Add([]byte(metaMagic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(reseal(b))
		if err != nil {
			require.Nil(t, m)
			return
		}
		require.Equal(t, m.encode(), reseal(b)[:maxMeta])
		_ = m.hello()
	})
}

// reseal gives bytes a good checksum, so that a fuzzer gets behind it.
func reseal(b []byte) []byte {
	b = append(bytes.Clone(b), make([]byte, max(0, maxMeta-len(b)))...)
	binary.LittleEndian.PutUint32(b[8:], checksum(b[12:maxMeta]))
	return b
}
