package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/streamstate"
)

var (
	testTopic  = topicID{1}
	testFields = []string{"a", "b"}
	errCrash   = errors.New("crashed in the middle of a commit")
)

// newStore is a store with one topic.
func newStore(t *testing.T) *store {
	t.Helper()
	s, err := openStore(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	anew, err := s.ensure(testTopic, "topic", testFields)
	require.NoError(t, err)
	require.False(t, anew)
	return s
}

// batchOf makes a batch whose last record is at offset last.
func batchOf(last int64, rows ...row) *batch {
	return &batch{streamstate.Position{Next: uint64(last + 1), Branch: 7}, rows}
}

// rowOf makes a row of field a with these values; no value is a tombstone.
func rowOf(key string, offset int64, values ...string) row {
	r := row{key: "k" + key, offset: offset}
	for _, v := range values {
		value, _ := encodeValue(v)
		r.entries = append(r.entries, entry{0, value})
	}
	return r
}

// entriesIn are the entries of a partition, as text.
func entriesIn(t *testing.T, s *store, p int32) (lines []string) {
	t.Helper()
	require.NoError(t, s.view(testTopic, func(v storeView) error {
		return v.everything(p, func(field uint8, value any, key string, offset int64) {
			lines = append(lines, fmt.Sprintf("%s=%v %s@%d", testFields[field], value, key[1:], offset))
		})
	}))
	return lines
}

func requirePosition(t *testing.T, s *store, p int32, next uint64) {
	t.Helper()
	pos, known, err := s.position(testTopic, p)
	require.NoError(t, err)
	require.Equal(t, next > 0, known, "whether there is a position")
	require.Equal(t, next, pos.Next)
}

func TestUpdateAndTombstoneRemoveOldEntries(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{
		0: {batchOf(2, rowOf("x", 0, "red", "round"), rowOf("y", 1, "red"), rowOf("z", 2, "blue"))},
		1: {batchOf(0, rowOf("x", 0, "red"))},
	}))
	require.Equal(t, []string{"a=blue z@2", "a=red x@0", "a=red y@1", "a=round x@0"}, entriesIn(t, s, 0))

	require.NoError(t, s.commit(testTopic, map[int32][]*batch{0: {batchOf(4, rowOf("x", 3, "green")), batchOf(5, rowOf("y", 5))}}))
	require.Equal(t, []string{"a=blue z@2", "a=green x@3"}, entriesIn(t, s, 0), "the update and the tombstone took the old entries away")
	require.Equal(t, []string{"a=red x@0"}, entriesIn(t, s, 1), "the same key of another partition is another one")
	requirePosition(t, s, 0, 6)
}

func TestCommitIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore(dir)
	require.NoError(t, err)
	_, err = s.ensure(testTopic, "topic", testFields)
	require.NoError(t, err)
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{0: {batchOf(0, rowOf("x", 0, "red"))}}))
	s.beforeCommit = func() error { return errCrash }
	err = s.commit(testTopic, map[int32][]*batch{0: {batchOf(1, rowOf("x", 1, "blue"))}, 1: {batchOf(9, rowOf("y", 9, "blue"))}})
	require.ErrorIs(t, err, errCrash)
	require.NoError(t, s.close())

	s, err = openStore(dir) // as after a restart
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	require.Equal(t, []string{"a=red x@0"}, entriesIn(t, s, 0))
	require.Empty(t, entriesIn(t, s, 1))
	requirePosition(t, s, 0, 1)
	requirePosition(t, s, 1, 0)
	at, err := s.positions(testTopic, 3)
	require.NoError(t, err)
	require.Equal(t, 3, at.Len())
	pos, ok := at.At(0)
	require.True(t, ok)
	require.Equal(t, streamstate.Position{Next: 1, Branch: 7}, pos)
	_, ok = at.At(1)
	require.False(t, ok, "never committed is not the same as zero")
}

func TestCommitSkipsWhatItHas(t *testing.T) {
	s := newStore(t)
	old, later := batchOf(1, rowOf("x", 1, "red")), batchOf(2, rowOf("x", 2, "blue"))
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{0: {old, later}}))
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{0: {old}}))
	require.Equal(t, []string{"a=blue x@2"}, entriesIn(t, s, 0))
	requirePosition(t, s, 0, 3)
}

func TestDroppedTopicStaysDropped(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.dropTopic(testTopic))
	require.NoError(t, s.dropTopic(testTopic), "it is not there any more")
	require.ErrorIs(t, s.commit(testTopic, map[int32][]*batch{0: {batchOf(0, rowOf("x", 0, "red"))}}), errNoTopic)
	_, _, err := s.position(testTopic, 0)
	require.ErrorIs(t, err, errNoTopic)
	known, err := s.topics()
	require.NoError(t, err)
	require.Empty(t, known)
}

func TestDropPartition(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{
		0: {batchOf(1, rowOf("x", 0, "red"), rowOf("y", 1, "red", "blue"))}, 1: {batchOf(0, rowOf("x", 0, "red"))},
	}))
	require.NoError(t, s.dropPartition(testTopic, 0))
	require.Empty(t, entriesIn(t, s, 0))
	requirePosition(t, s, 0, 0)
	require.Equal(t, []string{"a=red x@0"}, entriesIn(t, s, 1))
	requirePosition(t, s, 1, 1)
}

func TestOtherFieldsBeginAnew(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.commit(testTopic, map[int32][]*batch{0: {batchOf(0, rowOf("x", 0, "red"))}}))
	anew, err := s.ensure(testTopic, "topic", testFields)
	require.NoError(t, err)
	require.False(t, anew)
	requirePosition(t, s, 0, 1)
	anew, err = s.ensure(testTopic, "topic", []string{"b"})
	require.NoError(t, err)
	require.True(t, anew)
	requirePosition(t, s, 0, 0)
	require.Empty(t, entriesIn(t, s, 0))
}

func TestStoreInUse(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	_, err = openStore(dir)
	require.ErrorIs(t, err, errInUse)
}

// drawRow draws a row of few keys and few values, over both fields.
func drawRow(t *rapid.T, offset int64) row {
	r := row{key: "k" + rapid.SampledFrom([]string{"x", "y", "z", ""}).Draw(t, "key"), offset: offset}
	for field := range uint8(2) {
		if v := rapid.SampledFrom([]string{"", "p", "q", "p\x00", "pp"}).Draw(t, "value"); v != "" {
			value, _ := encodeValue(v)
			r.entries = append(r.entries, entry{field, value})
		}
	}
	return r
}

// half is a log of three partitions, of which some is committed, some applied only.
type half struct {
	t    *rapid.T
	s    *store
	id   topicID
	m    *memtable
	rows map[int32]map[string]row // the last of each key
	next map[int32]uint64
}

// apply appends n rows to a partition.
func (h *half) apply(p int32, n int) {
	b := &batch{}
	for range n {
		r := drawRow(h.t, int64(h.next[p]))
		b.rows, h.rows[p][r.key] = append(b.rows, r), r
		h.next[p]++
	}
	b.pos.Next = h.next[p]
	h.m.add(p, b)
}

// flush commits about half of what is in the memtable, or crashes, or is done and not known to be.
func (h *half) flush() {
	target, err := streamstate.NewTimestamp(3, func(yield func(int, streamstate.Position) bool) {
		for p := range int32(3) {
			if batches := h.m.parts[p]; len(batches) > 0 && !yield(int(p), batches[len(batches)/2].pos) {
				return
			}
		}
	})
	require.NoError(h.t, err)
	parts := h.m.upTo(target)
	switch rapid.IntRange(0, 2).Draw(h.t, "flush") {
	case 0:
		h.s.beforeCommit = func() error { return errCrash }
		require.ErrorIs(h.t, h.s.commit(h.id, parts), errCrash)
		h.s.beforeCommit = nil
	case 1:
		require.NoError(h.t, h.s.commit(h.id, parts))
	case 2:
		require.NoError(h.t, h.s.commit(h.id, parts))
		h.m.drop(target)
	}
}

// TestScanIsTheLog holds lookups over a memtable and a store against the rows themselves, wherever the commits were, with
// crashes in between, and however small the pages are.
func TestScanIsTheLog(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		h := &half{t: t, id: topicID{byte(n), byte(n >> 8), byte(n >> 16)}, m: newMemtable(), next: map[int32]uint64{}}
		h.rows = map[int32]map[string]row{0: {}, 1: {}, 2: {}}
		var err error
		h.s, err = openStore(dir)
		require.NoError(t, err)
		defer func() { require.NoError(t, h.s.close()) }()
		_, err = h.s.ensure(h.id, "topic", testFields)
		require.NoError(t, err)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "apply") {
				h.apply(int32(rapid.IntRange(0, 2).Draw(t, "partition")), rapid.IntRange(1, 4).Draw(t, "rows"))
			} else {
				h.flush()
			}
		}
		var parts []owned
		for p := range int32(3) {
			if rapid.IntRange(0, 3).Draw(t, "owned") > 0 {
				parts = append(parts, owned{partition: p, pending: h.m.parts[p]})
			}
		}
		if rapid.Bool().Draw(t, "late") { // the memtable was looked at before this, the store is after it
			for p := range int32(3) {
				h.apply(p, 1)
			}
			require.NoError(t, h.s.commit(h.id, h.m.parts))
		}
		sp := span{field: uint8(rapid.IntRange(0, 1).Draw(t, "field")), limit: rapid.IntRange(1, 5).Draw(t, "limit")}
		if rapid.Bool().Draw(t, "ranged") {
			sp.from, _ = encodeValue("p")
			sp.to, _ = encodeValue("pp")
		}
		require.NoError(t, h.s.view(h.id, func(v storeView) error {
			require.Equal(t, wantHits(h.rows, parts, sp), allPages(t, v, sp, parts))
			return nil
		}))
	})
}

// wantHits are the hits of a span, from the last row of each key.
func wantHits(rows map[int32]map[string]row, parts []owned, sp span) (want []hit) {
	for _, part := range parts {
		for key, r := range rows[part.partition] {
			for _, e := range r.entries {
				if e.field == sp.field && e.value >= sp.from && (sp.to == "" || e.value < sp.to) {
					want = append(want, hit{string(entryKey(e, part.partition, key)[1:]), r.offset})
				}
			}
		}
	}
	slices.SortFunc(want, byEntry)
	return want
}

// allPages reads page after page.
func allPages(t *rapid.T, v storeView, sp span, parts []owned) (got []hit) {
	for {
		hits, more := v.scan(sp, parts)
		got = append(got, hits...)
		if !more {
			return got
		}
		require.Len(t, hits, sp.limit, "a page that is not the last one is full")
		sp.after = hits[len(hits)-1].at
	}
}
