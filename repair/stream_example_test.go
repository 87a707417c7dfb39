package repair_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/repair"
	"github.com/staleproof/staleproof/streamstate"
)

// feed is a source that restarts partition 0, and nothing else.
type feed struct {
	s *streamstate.Session[int]
}

func (f feed) Restart(_ context.Context, batch []repair.Restart) error {
	failed := repair.PartitionErrors{}
	for _, r := range batch {
		fmt.Printf("restart %d from %d\n", r.Partition, r.From.Next)
		if r.Partition != 0 {
			failed[r.Partition] = fmt.Errorf("no such partition any more: %w", repair.ErrRefused)
		} else if _, err := f.s.Begin(0, streamstate.Begin{Owner: "node 2", From: r.From}); err != nil {
			failed[0] = err
		}
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

func (feed) Shutdown(context.Context, []repair.Shutdown) error { return nil }

func (feed) Resubscribe(_ context.Context, all []repair.Restart) error {
	fmt.Printf("resubscribe to %d partitions\n", len(all))
	return repair.ErrRefused
}

func ExampleStream() {
	ctx := context.Background()
	book := streamstate.NewBook[int](streamstate.Options{})
	defer book.Close()
	s, err := book.Open(streamstate.Key{Stream: "maint", Keyspace: "orders"}, streamstate.OpenOptions[int]{Partitions: 2})
	if err != nil {
		fmt.Println(err)
		return
	}
	for p := range 2 {
		if _, err := s.Begin(p, streamstate.Begin{Owner: "node 1", From: streamstate.Position{Next: 100}}); err != nil {
			fmt.Println(err)
		}
	}
	_, _ = s.OwnerGone("node 1") // both partitions are to be repaired

	err = repair.Stream(ctx, s, feed{s}, repair.StreamOptions{})
	if due, ok := errors.AsType[*repair.RecoveryDueError](err); ok {
		fmt.Println("recovery is due; flushed:", due.Restart)
		fmt.Println(s.Stop(due).Wait(ctx))
	}
	// Output:
	// restart 0 from 100
	// restart 1 from 100
	// resubscribe to 2 partitions
	// recovery is due; flushed: []
	// <nil>
}
