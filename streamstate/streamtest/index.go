package streamtest

import (
	"slices"

	"github.com/staleproof/staleproof/streamstate"
)

// Index is the payload of a [Feed]'s sessions: what was applied. It is to be touched in transactions only.
type Index struct {
	life  int // which session of its keyspace it is of, from 0
	parts []indexPart
}

// indexPart are the items of one partition, without a hole.
type indexPart struct {
	life  int // the session in which it was last applied to
	first uint64
	items []uint64
}

func newIndex(life, partitions int) *Index {
	return &Index{life: life, parts: make([]indexPart, partitions)}
}

func (p *indexPart) end() uint64 { return p.first + uint64(len(p.items)) }

// until is the partition up to a number.
func (p *indexPart) until(n uint64) indexPart {
	q := *p
	q.items = slices.Clone(p.items[:min(max(n, p.first)-p.first, uint64(len(p.items)))])
	return q
}

// durable is what a flush of the target keeps.
func (ix *Index) durable(t streamstate.Timestamp) []indexPart {
	parts := make([]indexPart, len(ix.parts))
	for i := range parts {
		if pos, ok := t.At(i); ok {
			parts[i] = ix.parts[i].until(pos.Next)
		}
	}
	return parts
}

// apply puts the items of a message that lie above what is received into the index. It runs in the hold in which the book
// has let the claim in, and says what the book should not have done.
func (k *Keyspace) apply(tx streamstate.Tx[*Index], c *Claim, m *Message) error {
	ix, err := tx.Payload()
	if err != nil {
		return err
	}
	v, err := tx.Partition(m.Partition)
	if err != nil {
		return err
	}
	if life := k.lifeOf(m.Session); ix.life != life {
		k.f.violate("%v: data of session %d of the key came into session %d", k.Key, life, ix.life)
	}
	if !slices.ContainsFunc(v.Claims, func(o streamstate.ClaimView) bool { return o.ID == c.ID() }) {
		k.f.violate("%v partition %d: data of claim %d, which is not live", k.Key, m.Partition, c.ID())
	}
	received := v.Received.Next
	if m.Position.Next <= received {
		k.f.violate("%v partition %d: data up to %v was applied, but %d was received", k.Key, m.Partition, m.Position, received)
	}
	if m.First > received {
		k.f.violate("%v partition %d: item %d was let in, but %d was received", k.Key, m.Partition, m.First, received)
	}
	fresh := m.Items[min(max(received, m.First)-m.First, uint64(len(m.Items))):]
	k.put(ix, m.Partition, received, fresh)
	return nil
}

// put appends items to a partition. There is no hole but where somebody vouched for it, and nothing twice but what was
// given up.
func (k *Keyspace) put(ix *Index, partition int, first uint64, items []uint64) {
	p := &ix.parts[partition]
	if p.life != ix.life { // what a former session has made durable counts as far as this one begins
		if *p = p.until(first); len(p.items) == 0 {
			p.first = 0
		}
		p.life = ix.life
	}
	if end := p.end(); first != end {
		vouched, again := k.mayBegin(partition, first)
		switch {
		case first < end && !again:
			k.f.violate("%v partition %d: item %d was let in again", k.Key, partition, first)
		case first > end && !vouched:
			k.f.violate("%v partition %d: items %d to %d were lost", k.Key, partition, end, first-1)
		}
		p.first, p.items = first, nil
	}
	p.items = append(p.items, items...)
}
