package streamstate_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/streamstate"
)

func Example() {
	ctx := context.Background()
	book := streamstate.NewBook[map[string]int](streamstate.Options{})
	s, err := book.Open(streamstate.Key{Stream: "maint", Keyspace: "orders"}, streamstate.OpenOptions[map[string]int]{
		Partitions: 12, Wanted: streamstate.None, Payload: map[string]int{},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	// Partition 3 is assigned to us: follow it.
	if err := s.Want(3); err != nil {
		fmt.Println(err)
	}
	claim, err := s.Begin(3, streamstate.Begin{Owner: "me", Term: 7, From: streamstate.Position{Next: 100}})
	if err != nil {
		fmt.Println(err)
		return
	}
	count := func(tx streamstate.Tx[map[string]int]) error {
		index, err := tx.Payload()
		if err == nil {
			index["red"]++
		}
		return err
	}
	fmt.Println("apply:", claim.Apply(streamstate.Position{Next: 101}, count))
	err = s.Flush(ctx, func(_ context.Context, t streamstate.Timestamp) error {
		fmt.Println("flush:", t)
		return nil
	})
	fmt.Println("flushed:", err)

	// It is revoked. A worker that has not heard of it is late.
	fmt.Println("revoked:", s.Unwant(3).Wait(ctx))
	err = claim.Apply(streamstate.Position{Next: 102}, count)
	fmt.Println("late:", errors.Is(err, streamstate.ErrStaleClaim), errors.Is(err, streamstate.ErrGivenUp))

	fmt.Println("dropped:", s.Drop().Wait(ctx))
	// Output:
	// apply: <nil>
	// flush: [3:101]
	// flushed: <nil>
	// revoked: <nil>
	// late: true true
	// dropped: <nil>
}

// A question that takes long is asked without the lock. What happened to the session meanwhile is an error, and nothing
// has changed.
func ExampleExchange() {
	ctx := context.Background()
	book := streamstate.NewBook[int](streamstate.Options{})
	defer book.Close()
	key := streamstate.Key{Stream: "maint", Keyspace: "orders"}
	s, _ := book.Open(key, streamstate.OpenOptions[int]{Partitions: 1})

	err := streamstate.Exchange(ctx, s, streamstate.ReadTx[int].Payload,
		func(context.Context, int) (int, error) {
			s.Drop() // the key is cleaned up while the answer is on its way, and opened again
			_, err := book.Open(key, streamstate.OpenOptions[int]{Partitions: 1})
			return 42, err
		},
		func(tx streamstate.Tx[int], answer int) error { return tx.SetPayload(answer) })
	fmt.Println(errors.Is(err, streamstate.ErrStaleSession), errors.Is(err, streamstate.ErrDropped))
	// Output: true true
}
