package streamstate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Dump is the state of a key at one moment, for people ([Dump.String]) and programs ([Dump.JSON]).
type Dump struct {
	Key        string
	Session    SessionID
	Phase      string
	Cause      string       `json:",omitempty"` // why the session ended
	Healthy    bool         // every wanted partition is begun and none must roll back
	Holds      int          // that keep its flush closed
	Taken      int          // that it has on others
	Merges     int          // that wait
	Merging    bool         // a merge is engaged
	Waiting    int          // callers that wait
	Events     int          // events that have not been told
	Tickets    []TicketDump // what others wait for: a running flush, and what repair has been asked
	Partitions int          // how many there are; Parts shows the first that are not Unwanted
	Parts      []PartitionDump
}

// TicketDump is one ticket in a [Dump].
type TicketDump struct {
	Ticket    uint64
	Work      string
	Partition int // -1: of the session
	Age       time.Duration
}

// PartitionDump is one partition in a [Dump].
type PartitionDump struct {
	Partition int
	State     string
	Rung      string
	Received  string
	Flushed   string
	Claims    []ClaimView `json:",omitempty"`
}

// dumpParts is how many partitions a dump shows at most.
const dumpParts = 256

func (k *core) dump() Dump {
	d := Dump{
		Key: k.key.String(), Session: k.id, Phase: k.phase.String(), Healthy: k.healthy(), Holds: len(k.holds),
		Taken: len(k.taken), Merging: k.merging != 0, Partitions: len(k.parts),
	}
	if f := k.flush; f != nil {
		d.Tickets = append(d.Tickets, TicketDump{f.id, "flush", -1, time.Since(f.since)})
	}
	if t := k.ticket; t != nil {
		d.Tickets = append(d.Tickets, TicketDump{t.id, t.kind.String(), -1, time.Since(t.since)})
	}
	for i, p := range k.wantedParts {
		if len(d.Parts) == dumpParts {
			break
		}
		if t := p.ticket(); t != nil {
			d.Tickets = append(d.Tickets, TicketDump{t.id, t.kind.String(), i, time.Since(t.since)})
		}
		v := k.look(i)
		flushed := k.flushed.at(i)
		d.Parts = append(d.Parts, PartitionDump{i, v.State.String(), v.Rung.String(), p.received.String(), flushed.String(), v.Claims})
	}
	return d
}

// Dump is the state of the key that the session belongs to, whichever session it is in, with at most 256 partitions.
func (s *Session[P]) Dump() Dump { return s.e.dump() }

func (r *record) dump() Dump {
	var d Dump
	var cause error
	_ = r.do(token{op: opLook}, func(k *held) error { // allowed in every phase
		d, cause = k.dump(), k.cause.error()
		k.show(&d)
		return nil
	})
	if cause != nil { // it may be the caller's, so it is not asked in the hold
		d.Cause = cause.Error()
	}
	return d
}

// String is a table of the partitions, below a line for the key and one for each ticket.
func (d Dump) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s, session %v, healthy %v, %d holds, %d taken, %d merges, %d waiting, %d events", d.Key, d.Phase, d.Session,
		d.Healthy, d.Holds, d.Taken, d.Merges, d.Waiting, d.Events)
	if d.Cause != "" {
		fmt.Fprintf(&b, " (%s)", d.Cause)
	}
	b.WriteByte('\n')
	for _, t := range d.Tickets {
		fmt.Fprintf(&b, "ticket %d: %s, partition %d, out for %v\n", t.Ticket, t.Work, t.Partition, t.Age)
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	rows := []string{"partition\tstate\trung\treceived\tflushed\tclaims"}
	for _, p := range d.Parts {
		var claims []string
		for _, c := range p.Claims {
			claims = append(claims, fmt.Sprintf("%s (claim %d)", c.Owner, c.ID))
		}
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s", p.Partition, p.State, p.Rung, p.Received, p.Flushed, strings.Join(claims, ", ")))
	}
	_, _ = w.Write([]byte(strings.Join(rows, "\n") + "\n")) // a strings.Builder does not fail
	_ = w.Flush()                                           // a strings.Builder does not fail
	return b.String()
}

// JSON is the dump as JSON.
func (d Dump) JSON() ([]byte, error) { return json.Marshal(d) }

// Sessions ranges over the present sessions of the book, in no order. One that ends meanwhile may be among them.
func (b *Book[P]) Sessions() iter.Seq[*Session[P]] {
	return func(yield func(*Session[P]) bool) {
		for _, r := range b.c.reg.all(func(Key) bool { return true }) {
			var s *Session[P]
			e := r.owner.(*entry[P])
			_ = e.do(token{op: opLook}, func(*held) error { // allowed in every phase
				s = e.session
				return nil
			})
			if s != nil && !yield(s) {
				return
			}
		}
	}
}

// Dump is a dump of every key, in the order of the keys. Each is of one moment; together they are not.
func (b *Book[P]) Dump() []Dump {
	var out []Dump
	for _, r := range b.c.reg.all(func(Key) bool { return true }) {
		out = append(out, r.dump())
	}
	slices.SortFunc(out, func(x, y Dump) int { return strings.Compare(x.Key, y.Key) })
	return out
}

// Fingerprint is a hash of the key's whole state but the counters. It is equal before and after every refused call,
// which is what tests use it for; it takes the time of a walk through the ledger.
func (s *Session[P]) Fingerprint() uint64 {
	var state []byte
	var cause *ending
	_ = s.e.do(token{op: opLook}, func(k *held) error { // allowed in every phase
		state, cause = k.appendFacts(nil), k.cause
		return nil
	})
	h := fnv.New64a()
	_, _ = h.Write(appendCause(state, cause.error())) // it never fails
	return h.Sum64()
}

// Check verifies the invariants of the key. An error is a bug in this package; it is meant for tests.
func (s *Session[P]) Check() error {
	return s.e.do(token{op: opLook}, func(k *held) error { return k.check() })
}
