package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/staleproof/staleproof/streamstate"
)

// maxKey is the longest key of a record that is indexed.
const maxKey = 8192

// row is what one record makes of the index: the entries of its key, in place of those that the key had before.
type row struct {
	key     string // see rowKey
	offset  int64
	entries []entry // none: the key is gone, or has nothing that is indexed
}

// batch are the rows of some consecutive records of one partition. It does not change once it was made.
type batch struct {
	pos  streamstate.Position // after the last record
	rows []row
}

// odd counts the records that were not indexed as they should be; they do not stop the others.
type odd struct {
	undecodable int // not a JSON object: the key has no entries
	unindexable int // values, not records: too long, or a number beyond a float64
	longKeys    int
}

func (o *odd) add(p odd) {
	o.undecodable += p.undecodable
	o.unindexable += p.unindexable
	o.longKeys += p.longKeys
}

func (o odd) String() string {
	if o == (odd{}) {
		return ""
	}
	return fmt.Sprintf("%d not JSON objects, %d values left out, %d keys too long", o.undecodable, o.unindexable, o.longKeys)
}

// rowKey names what a record replaces: its key, or the record itself if it has none.
func rowKey(r *kgo.Record) string {
	if r.Key != nil {
		return "k" + string(r.Key)
	}
	return string(binary.BigEndian.AppendUint64([]byte{'o'}, uint64(r.Offset)))
}

// decode makes a batch of records, of which there is at least one.
func decode(records []*kgo.Record, fields []string) (*batch, odd) {
	var o odd
	last := records[len(records)-1]
	b := &batch{pos: positionAfter(last), rows: make([]row, 0, len(records))}
	for _, r := range records {
		if r.Attrs.IsControl() || r.Key == nil && r.Value == nil {
			continue
		}
		if len(r.Key) > maxKey {
			o.longKeys++
			continue
		}
		w := row{key: rowKey(r), offset: r.Offset}
		if r.Value != nil { // else a tombstone
			entries, left, err := entriesOf(r.Value, fields)
			if err != nil {
				o.undecodable++
			}
			o.unindexable += left
			w.entries = entries
		}
		b.rows = append(b.rows, w)
	}
	return b, o
}

// noEpoch is the branch of a position that no record has come before.
const noEpoch = math.MaxUint64

// positionAfter is where a partition goes on after a record. The leader epoch of the record is the branch.
func positionAfter(r *kgo.Record) streamstate.Position {
	return streamstate.Position{Next: uint64(r.Offset + 1), Branch: uint64(int64(r.LeaderEpoch))}
}

// offsetOf is the position as the client wants it: with the epoch it notices a log that was cut and written anew.
func offsetOf(pos streamstate.Position, known bool) kgo.Offset {
	if !known {
		return kgo.NewOffset().AtStart()
	}
	return kgo.NewOffset().At(int64(pos.Next)).WithEpoch(int32(pos.Branch))
}
