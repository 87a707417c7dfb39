package main

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// span is what a lookup wants of one field: values from, inclusive, to, exclusive, both as the index orders them; nothing
// up to after.
type span struct {
	field    uint8
	from, to string // to: empty is open
	after    string // the place of the last hit of the page before
	limit    int
}

// only is the span of one value: none is a prefix of another one.
func only(field uint8, value string) span {
	return span{field: field, from: value, to: value + "\xff"} // a partition follows, and is below
}

// hit is one entry that was found.
type hit struct {
	at     string // its place: value, partition, record key, as in the index behind the field
	offset int64
}

// owned is one partition that answers a lookup: what the memtable had of it when the lookup began.
type owned struct {
	partition int32
	claim     uint64
	term      uint64
	next      uint64
	pending   []*batch
}

// scan finds up to limit hits of the partitions given, in order. more tells whether there are others. The view of the store
// is to be one that was begun after the partitions' memtables were looked at: what was flushed in between is in it.
func (v storeView) scan(s span, parts []owned) (hits []hit, more bool) {
	news := v.overlay(s, parts)
	start := append([]byte{s.field}, max(s.from, s.after)...)
	c := v.entries.Cursor()
	for k, off := c.Seek(start); k != nil && k[0] == s.field; k, off = c.Next() {
		at := k[1:]
		if s.to != "" && string(at) >= s.to {
			break
		}
		if string(at) <= s.after {
			continue
		}
		_, p, key, err := splitEntryKey(at)
		if err != nil || len(off) != 8 || !news.wants(p, key) {
			continue
		}
		if hits, more = news.before(hits, string(at), s.limit); more {
			return hits, true
		}
		if len(hits) == s.limit {
			return hits, true
		}
		hits = append(hits, hit{string(at), int64(binary.BigEndian.Uint64(off))})
	}
	return news.before(hits, "", s.limit)
}

// overlay is what the memtables say beyond the store.
type overlay struct {
	rows map[int32]map[string]row // of each partition that answers: what hides the store's rows
	hits []hit                    // in order
}

func (v storeView) overlay(s span, parts []owned) *overlay {
	o := &overlay{rows: make(map[int32]map[string]row, len(parts))}
	for _, part := range parts {
		rows := make(map[string]row)
		at, known := v.position(part.partition)
		for _, b := range part.pending {
			if known && b.pos.Next <= at.Next {
				continue // was flushed since
			}
			for _, r := range b.rows {
				rows[r.key] = r
			}
		}
		o.rows[part.partition] = rows
		for key, r := range rows {
			for _, e := range r.entries {
				at := string(entryKey(e, part.partition, key)[1:])
				if e.field == s.field && at >= s.from && (s.to == "" || at < s.to) && at > s.after {
					o.hits = append(o.hits, hit{at, r.offset})
				}
			}
		}
	}
	slices.SortFunc(o.hits, byEntry)
	return o
}

// wants tells whether the store's row of a key counts.
func (o *overlay) wants(p int32, key string) bool {
	rows, ours := o.rows[p]
	if !ours {
		return false
	}
	_, hidden := rows[key]
	return !hidden
}

// before appends the memtables' hits below a place, or all if it is empty, up to the limit.
func (o *overlay) before(hits []hit, at string, limit int) (_ []hit, more bool) {
	for len(o.hits) > 0 && (at == "" || o.hits[0].at < at) {
		if len(hits) == limit {
			return hits, true
		}
		hits, o.hits = append(hits, o.hits[0]), o.hits[1:]
	}
	return hits, false
}

// everything walks the entries of a topic that belong to a partition: what a test or the demonstration compares.
func (v storeView) everything(p int32, fn func(field uint8, value any, key string, offset int64)) error {
	want := partitionKey(p)
	return v.entries.ForEach(func(k, off []byte) error {
		value, of, key, err := splitEntryKey(k[1:])
		if err != nil || len(off) != 8 {
			return errValue
		}
		if bytes.Equal(partitionKey(of), want) {
			fn(k[0], value, key, int64(binary.BigEndian.Uint64(off)))
		}
		return nil
	})
}
