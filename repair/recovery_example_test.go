package repair_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/repair"
	"github.com/staleproof/staleproof/streamstate"
)

// lost is the source of sessions of which the first can only be recovered; in the second one the service ends.
type lost struct {
	feed
	book *streamstate.Book[int]
	life int
}

func (l lost) Resubscribe(context.Context, []repair.Restart) error {
	if l.life > 1 {
		l.book.Close()
	}
	return repair.ErrRefused
}

func (l lost) Restart(context.Context, []repair.Restart) error { return repair.ErrRefused }

// keep repairs a key, session after session, until that ends.
func keep(ctx context.Context, book *streamstate.Book[int], s *streamstate.Session[int]) error {
	for life := 1; ; life++ {
		err := repair.Stream(ctx, s, lost{book: book, life: life}, repair.StreamOptions{})
		due, ok := errors.AsType[*repair.RecoveryDueError](err)
		if !ok {
			return err
		}
		if err := s.Stop(due).Wait(ctx); err != nil {
			return err
		}
		s, err = book.Reopen(s, streamstate.ReopenOptions[int]{Pending: true})
		if err != nil {
			return err
		}
		at, err := s.Timestamp()
		if err == nil {
			fmt.Println("roll back to", at)
			err = s.Opened()
		}
		if err != nil {
			return errors.Join(err, s.OpenFailed(err))
		}
		if _, err := s.Begin(0, streamstate.Begin{Owner: "node 1"}); err != nil {
			return err
		}
		if _, err := s.OwnerGone("node 1"); err != nil {
			return err
		}
	}
}

// A service that recovers whatever can only be recovered, and ends when its book is closed.
func ExampleRecoveryDueError() {
	book := streamstate.NewBook[int](streamstate.Options{})
	s, err := book.Open(streamstate.Key{Stream: "maint", Keyspace: "orders"}, streamstate.OpenOptions[int]{Partitions: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := s.Begin(0, streamstate.Begin{Owner: "node 1"}); err != nil {
		fmt.Println(err)
	}
	_, _ = s.OwnerGone("node 1")
	fmt.Println(errors.Is(keep(context.Background(), book, s), streamstate.ErrClosed))
	// Output:
	// roll back to []
	// true
}
