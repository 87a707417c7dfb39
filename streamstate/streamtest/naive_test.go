package streamtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// keeper is what the stream race needs of a book-keeper of streams.
type keeper interface {
	// Open begins a life of the key; CleanUp ends it and erases its books.
	Open()
	CleanUp()
	// Reply takes the answer to a repair that was asked for in the first life.
	Reply() error
	// Check finds an answer in another life than the one it is for.
	Check() error
}

// naive is a book-keeper like the one of Couchbase MB-37227. Its reply handler looks at the status once, and then locks twice
// more, waiting in between.
type naive struct {
	gap func() // as streamstate.Options.Gap

	mu sync.Mutex
	// +checklocks:mu
	lives int
	// +checklocks:mu
	books map[string]*naiveBook // nil: cleaned up
}

// naiveBook is what a key has in one life.
type naiveBook struct {
	life   int
	status map[int]string // by partition
	asked  int
}

func newNaive(gap func()) *naive { return &naive{gap: gap, books: map[string]*naiveBook{}} }

func (n *naive) Open() {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lives++
	n.books["orders"] = &naiveBook{life: n.lives, status: map[int]string{0: "repairing"}}
}

func (n *naive) CleanUp() {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.books, "orders")
}

func (n *naive) Reply() error {
	n.gap()
	n.mu.Lock()
	active := n.books["orders"] != nil
	n.mu.Unlock()
	if !active {
		return nil // too late
	}
	// Here it talked to others.
	n.mark("answered")
	n.mark("repaired")
	return nil
}

func (n *naive) mark(status string) {
	n.gap()
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.books["orders"]
	b.status[0] = status // of an erased book: panics
	b.asked = 1
}

func (n *naive) Check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if b := n.books["orders"]; b != nil && b.asked != 0 && b.asked != b.life {
		return fmt.Errorf("the reply to life %d is in the books of life %d", b.asked, b.life)
	}
	return nil
}

// ours is the same on a book. The payload is the life that was answered, 0 if none.
type ours struct {
	x     *streamtest.Trial
	b     *streamstate.Book[[2]int] // the life, and what was answered in it
	first *streamstate.Session[[2]int]
	lives int
}

var orders = streamstate.Key{Stream: "maint", Keyspace: "orders"}

func newOurs(x *streamtest.Trial) *ours {
	o := &ours{x: x, b: streamstate.NewBook[[2]int](streamstate.Options{Gap: x.Gap})}
	x.Cleanup(func() { o.b.Close() })
	streamtest.Watch(x, o.b, o.options)
	return o
}

func (o *ours) options(streamstate.Key) streamstate.OpenOptions[[2]int] {
	o.lives++
	return streamstate.OpenOptions[[2]int]{Partitions: 1, Payload: [2]int{o.lives, 0}}
}

func (o *ours) Open() {
	s, err := o.b.Open(orders, o.options(orders))
	if err == nil && o.first == nil {
		o.first = s
	}
}

func (o *ours) CleanUp() { o.b.Drop(orders) }

func (o *ours) Reply() error {
	if o.first == nil {
		return nil
	}
	return streamstate.Exchange(context.Background(), o.first, streamstate.ReadTx[[2]int].Payload,
		func(_ context.Context, p [2]int) (int, error) { return p[0], nil }, // here it talks to others
		func(tx streamstate.Tx[[2]int], life int) error {
			p, err := tx.Payload()
			if err != nil {
				return err
			}
			return tx.SetPayload([2]int{p[0], life})
		})
}

func (o *ours) Check() error {
	for s := range o.b.Sessions() {
		err := s.Read(func(tx streamstate.ReadTx[[2]int]) error {
			p, err := tx.Payload()
			if err == nil && p[1] != 0 && p[0] != p[1] {
				err = fmt.Errorf("the reply to life %d is in the books of life %d", p[1], p[0])
			}
			return err
		})
		if err != nil && !errors.Is(err, streamstate.ErrStaleSession) {
			return err
		}
	}
	return nil
}

// cleanUp is the outage: the key is cleaned up, and opened again or not.
func cleanUp(name string, open bool) streamtest.Adversary {
	return streamtest.Adversary{Name: name, Act: func(x *streamtest.Trial) {
		k, ok := x.Subject.(keeper)
		if !ok {
			return // not built yet
		}
		k.CleanUp()
		if open {
			k.Open()
		}
	}}
}

// outage are both forms of it.
var outage = []streamtest.Adversary{cleanUp("CleanUp", false), cleanUp("CleanUpAndOpen", true)}

// reply is the scenario: a key is opened, and the answer to its repair comes.
func reply(build func(x *streamtest.Trial) keeper) func(x *streamtest.Trial) {
	return func(x *streamtest.Trial) {
		k := build(x)
		x.Subject = k
		x.Promise(k.Check)
		k.Open()
		_ = x.Call("Reply", k.Reply) // refused once the key is cleaned up
	}
}

func naively(x *streamtest.Trial) keeper   { return newNaive(x.Gap) }
func withABook(x *streamtest.Trial) keeper { return newOurs(x) }

// TestStreamRace finds the outage of MB-37227 in the naive book-keeper, and not in ours.
func TestStreamRace(t *testing.T) {
	rep := streamtest.Search(reply(naively), outage...)
	require.Equal(t, 4, rep.Acquisitions)
	require.Equal(t, 8, rep.Pairs)
	var found []string
	for _, f := range rep.Findings {
		require.Len(t, f.Problems, 1)
		problem, _, _ := strings.Cut(f.String(), "\n")
		found = append(found, problem)
	}
	require.Equal(t, []string{ // whenever it is cleaned up after the look, or was opened again
		"CleanUp before acquisition 2: panic: runtime error: invalid memory address or nil pointer dereference",
		"CleanUp before acquisition 3: panic: runtime error: invalid memory address or nil pointer dereference",
		"CleanUpAndOpen before acquisition 0: the reply to life 1 is in the books of life 2",
		"CleanUpAndOpen before acquisition 1: the reply to life 1 is in the books of life 2",
		"CleanUpAndOpen before acquisition 2: the reply to life 1 is in the books of life 2",
		"CleanUpAndOpen before acquisition 3: the reply to life 1 is in the books of life 2",
	}, found)
	t.Logf("naive: %d of %d runs panic or mix up two lives", len(rep.Findings), rep.Pairs)

	sound := streamtest.Explore(t, reply(withABook), append(outage, streamtest.Adversaries...)...)
	require.Empty(t, sound.Findings)
	require.Positive(t, sound.Refusals)
}
