package streamstate

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestVectorsShare makes vectors out of each other. Each keeps what it had when it was made, and none keeps more memory than
// it may.
func TestVectorsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "partitions")
		vectors, models := []Timestamp{{newVector(n)}}, [][]Position{make([]Position, n)}
		for p := range models[0] {
			models[0][p] = absent
		}
		partition := rapid.IntRange(0, n-1)
		number := rapid.OneOf(rapid.Uint64Range(0, 9), rapid.Just(uint64(never)))
		for range rapid.IntRange(1, 60).Draw(t, "vectors") {
			from := rapid.IntRange(max(0, len(vectors)-3), len(vectors)-1).Draw(t, "from")
			e, model := vectors[from].edit(n), append([]Position(nil), models[from]...)
			for range rapid.IntRange(0, 40).Draw(t, "changes") {
				p, pos := partition.Draw(t, "partition"), Position{Next: number.Draw(t, "next")}
				e.set(p, pos)
				model[p] = pos
			}
			vectors, models = append(vectors, e.done()), append(models, model)
			checkVector(t, vectors[len(vectors)-1].v)
		}
		for i, v := range vectors {
			for p, pos := range models[i] {
				require.Equal(t, pos, v.at(p), "vector %d, partition %d", i, p)
			}
		}
	})
}

// checkVector verifies that a vector counts the use of its blocks, and the bounds of what it keeps.
func checkVector(t require.TestingT, v *vector) {
	uses := make([]int, len(v.blocks))
	for _, w := range v.index {
		if w != 0 {
			uses[w.block()]++
		}
	}
	shared, chunks := 0, 0
	for i, b := range v.blocks {
		require.Equal(t, uses[i], b.live)
		if i == v.draws {
			continue
		}
		chunks += cap(b.chunks)
		if b.live > 0 {
			shared++
		} else {
			require.Nil(t, b.chunks)
		}
	}
	require.LessOrEqual(t, shared, maxBlocks)
	require.LessOrEqual(t, chunks, maxSpread*len(v.index))
}
