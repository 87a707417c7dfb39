package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/staleproof/staleproof/streamstate"
)

// store is the index on disk, in one bbolt file:
//
//	topic id
//	    meta      name, fields and format, as JSON
//	    positions partition → where the log goes on
//	    entries   field, value, partition, record key → offset
//	    rows      partition, record key → the offset, and the field and value of each entry that the key has
//
// Entries and position of a partition change in one transaction, so that a crash leaves the index of a prefix of the log,
// and says of which. All methods are safe for concurrent use.
type store struct {
	db *bolt.DB
	// beforeCommit, if set, is called in the transaction of a commit when all is written. It is meant for tests.
	beforeCommit func() error
}

// topicID is what a topic has for its whole life, and no other one ever.
type topicID [16]byte

func (id topicID) String() string { return hex.EncodeToString(id[:]) }

// topicMeta is what the store knows of a topic.
type topicMeta struct {
	Name   string
	Fields []string
	Format int
}

const storeFormat = 1

var (
	bucketMeta      = []byte("meta")
	bucketPositions = []byte("positions")
	bucketEntries   = []byte("entries")
	bucketRows      = []byte("rows")

	errNoTopic = errors.New("the store does not have the topic")
	errInUse   = errors.New("another process has it open")
)

// openStore opens the file in dir, or makes it.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "index.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, FreelistType: bolt.FreelistMapType, NoFreelistSync: true})
	if errors.Is(err, bolterrors.ErrTimeout) {
		err = errInUse
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &store{db: db}, nil
}

func (s *store) close() error { return s.db.Close() }

// topics are those that the store has.
func (s *store) topics() (map[topicID]topicMeta, error) {
	found := make(map[topicID]topicMeta)
	err := s.db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			var m topicMeta
			if err := json.Unmarshal(b.Get(bucketMeta), &m); err != nil {
				return fmt.Errorf("topic %x: %w", name, err)
			}
			found[topicID(name)] = m
			return nil
		})
	})
	return found, err
}

// ensure has the store know a topic. If it was indexed by other fields before, its index begins anew; anew says so.
func (s *store) ensure(id topicID, name string, fields []string) (anew bool, err error) {
	want, err := json.Marshal(topicMeta{Name: name, Fields: fields, Format: storeFormat})
	if err != nil {
		return false, err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		if b := tx.Bucket(id[:]); b != nil {
			if bytes.Equal(b.Get(bucketMeta), want) {
				return nil
			}
			if err := tx.DeleteBucket(id[:]); err != nil {
				return err
			}
			anew = true
		}
		b, err := tx.CreateBucket(id[:])
		if err != nil {
			return err
		}
		for _, name := range [][]byte{bucketPositions, bucketEntries, bucketRows} {
			if _, err := b.CreateBucket(name); err != nil {
				return err
			}
		}
		return b.Put(bucketMeta, want)
	})
	return anew, err
}

// dropTopic forgets a topic; one that is not there is no error.
func (s *store) dropTopic(id topicID) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		if tx.Bucket(id[:]) == nil {
			return nil
		}
		return tx.DeleteBucket(id[:])
	})
}

// position is where a partition goes on; ok is false if nothing of it was ever committed.
func (s *store) position(id topicID, p int32) (pos streamstate.Position, ok bool, err error) {
	err = s.view(id, func(v storeView) error {
		pos, ok = v.position(p)
		return nil
	})
	return pos, ok, err
}

// positions are those of all partitions below n.
func (s *store) positions(id topicID, n int) (t streamstate.Timestamp, err error) {
	err = s.view(id, func(v storeView) error {
		t, err = streamstate.NewTimestamp(n, func(yield func(int, streamstate.Position) bool) {
			for p := range n {
				if pos, ok := v.position(int32(p)); ok && !yield(p, pos) {
					return
				}
			}
		})
		return err
	})
	return t, err
}

// commit puts batches and the positions after them into the store, all or nothing. What the store has already is skipped.
// A topic that was dropped stays dropped: errNoTopic.
func (s *store) commit(id topicID, parts map[int32][]*batch) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		v, err := viewOf(tx, id)
		if err != nil {
			return err
		}
		for p, batches := range parts {
			if err := v.commit(p, batches); err != nil {
				return err
			}
		}
		if s.beforeCommit != nil {
			return s.beforeCommit()
		}
		return nil
	})
}

// dropPartition forgets a partition, entries and position.
func (s *store) dropPartition(id topicID, p int32) error {
	return s.db.Update(func(tx *bolt.Tx) error {
		v, err := viewOf(tx, id)
		if err != nil {
			return err
		}
		prefix := partitionKey(p)
		c := v.rows.Cursor()
		for k, _ := c.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = c.Seek(prefix) {
			if err := v.replace(p, string(k[len(prefix):]), row{}); err != nil {
				return err
			}
		}
		return v.positions.Delete(prefix)
	})
}

// view runs fn on one state of a topic.
func (s *store) view(id topicID, fn func(storeView) error) error {
	return s.db.View(func(tx *bolt.Tx) error {
		v, err := viewOf(tx, id)
		if err != nil {
			return err
		}
		return fn(v)
	})
}

// storeView is a topic in a transaction.
type storeView struct {
	positions, entries, rows *bolt.Bucket
}

func viewOf(tx *bolt.Tx, id topicID) (storeView, error) {
	b := tx.Bucket(id[:])
	if b == nil {
		return storeView{}, fmt.Errorf("%v: %w", id, errNoTopic)
	}
	return storeView{b.Bucket(bucketPositions), b.Bucket(bucketEntries), b.Bucket(bucketRows)}, nil
}

func (v storeView) position(p int32) (streamstate.Position, bool) {
	b := v.positions.Get(partitionKey(p))
	if len(b) != 16 {
		return streamstate.Position{}, false
	}
	return streamstate.Position{Next: binary.BigEndian.Uint64(b), Branch: binary.BigEndian.Uint64(b[8:])}, true
}

// commit puts the batches of one partition into the store, and its position.
func (v storeView) commit(p int32, batches []*batch) error {
	at, known := v.position(p)
	last := make(map[string]row) // of each key only the last row matters
	moved := false
	for _, b := range batches {
		if known && b.pos.Next <= at.Next {
			continue
		}
		for _, r := range b.rows {
			last[r.key] = r
		}
		at, known, moved = b.pos, true, true
	}
	if !moved {
		return nil
	}
	keys := make([]string, 0, len(last))
	for k := range last {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		if err := v.replace(p, k, last[k]); err != nil {
			return err
		}
	}
	b := binary.BigEndian.AppendUint64(nil, at.Next)
	return v.positions.Put(partitionKey(p), binary.BigEndian.AppendUint64(b, at.Branch))
}

// replace takes the entries of a record key out and puts those of r in.
func (v storeView) replace(p int32, key string, r row) error {
	name := append(partitionKey(p), key...)
	if old := v.rows.Get(name); old != nil {
		had, err := decodeRow(old)
		if err != nil {
			return fmt.Errorf("row %x: %w", name, err)
		}
		for _, e := range had.entries {
			if err := v.entries.Delete(entryKey(e, p, key)); err != nil {
				return err
			}
		}
	}
	if len(r.entries) == 0 {
		return v.rows.Delete(name)
	}
	for _, e := range r.entries {
		if err := v.entries.Put(entryKey(e, p, key), binary.BigEndian.AppendUint64(nil, uint64(r.offset))); err != nil {
			return err
		}
	}
	return v.rows.Put(name, encodeRow(r))
}

func partitionKey(p int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(p)) }

// entryKey is the key of an entry: field, value, partition, record key.
func entryKey(e entry, p int32, key string) []byte {
	b := make([]byte, 0, 1+len(e.value)+4+len(key))
	b = append(append(b, e.field), e.value...)
	return append(binary.BigEndian.AppendUint32(b, uint32(p)), key...)
}

// splitEntryKey takes an entry's key apart behind its field.
func splitEntryKey(b []byte) (value any, p int32, key string, err error) {
	value, rest, err := decodeValue(b)
	if err == nil && len(rest) < 5 {
		err = errValue
	}
	if err != nil {
		return nil, 0, "", err
	}
	return value, int32(binary.BigEndian.Uint32(rest)), string(rest[4:]), nil
}

func encodeRow(r row) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(r.offset))
	for _, e := range r.entries {
		b = append(b, e.field)
		b = append(b, e.value...)
	}
	return b
}

func decodeRow(b []byte) (row, error) {
	if len(b) < 8 {
		return row{}, errValue
	}
	r := row{offset: int64(binary.BigEndian.Uint64(b))}
	for b = b[8:]; len(b) > 0; {
		field := b[0]
		_, rest, err := decodeValue(b[1:])
		if err != nil {
			return row{}, err
		}
		r.entries = append(r.entries, entry{field, string(b[1 : len(b)-len(rest)])})
		b = rest
	}
	return r, nil
}

// byEntry sorts hits as the index does.
func byEntry(a, b hit) int { return strings.Compare(a.at, b.at) }
