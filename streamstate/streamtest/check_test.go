package streamtest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// problems runs a scenario undisturbed and returns what was found.
func problems(t *testing.T, scenario func(x *streamtest.Trial)) string {
	t.Helper()
	var all []string
	for _, f := range streamtest.Search(scenario).Findings {
		all = append(all, f.Problems...)
	}
	return strings.Join(all, "\n")
}

// onFeed is a scenario on a feed with one key of one partition.
func onFeed(play func(f *streamtest.Feed, k *streamtest.Keyspace)) func(x *streamtest.Trial) {
	return func(x *streamtest.Trial) {
		f := streamtest.New(x, streamstate.Options{})
		play(f, f.Open("a", streamtest.OpenOptions{}))
	}
}

// TestRequirementsCanFail has each of them fail, and end the run.
func TestRequirementsCanFail(t *testing.T) {
	for name, c := range map[string]struct {
		play func(f *streamtest.Feed, k *streamtest.Keyspace)
		want string
	}{
		"settled": {func(f *streamtest.Feed, _ *streamtest.Keyspace) { f.RequireSettled() }, "not settled\ntest/a: active"},
		"handles": {func(f *streamtest.Feed, k *streamtest.Keyspace) {
			k.Start(0, "A")
			_, _ = k.StartFlush()
			k.Stop(nil)
			f.RequireSettled()
		}, "Stop has not ended"},
		"followed": {func(f *streamtest.Feed, k *streamtest.Keyspace) {
			k.Start(0, "A")
			k.Source.Produce(0, 1)
			f.RequireFollowed()
		}, "received 0, the source is at 1@1"},
		"start": {func(_ *streamtest.Feed, k *streamtest.Keyspace) {
			k.Start(0, "A")
			k.Start(0, "A")
		}, `start of test/a partition 0 by "A": streamstate: duplicate claim`},
		"open": {func(f *streamtest.Feed, _ *streamtest.Keyspace) {
			f.Open("a", streamtest.OpenOptions{})
		}, "open test/a: streamstate: exists"},
	} {
		t.Run(name, func(t *testing.T) {
			after := false
			require.Contains(t, problems(t, onFeed(func(f *streamtest.Feed, k *streamtest.Keyspace) {
				c.play(f, k)
				after = true
			})), c.want)
			require.False(t, after, "it has gone on")
		})
	}
}

// TestAuditCanFail has a test do to a book what no book may do by itself: the feed sees it.
func TestAuditCanFail(t *testing.T) {
	data := func(k *streamtest.Keyspace, items int) *streamtest.Stream {
		st := k.Start(0, "A")
		k.Source.Produce(0, items)
		st.Send(-1)
		_ = st.Deliver()
		return st
	}
	for name, c := range map[string]struct {
		play func(f *streamtest.Feed, k *streamtest.Keyspace)
		want string
	}{
		"lost": {func(_ *streamtest.Feed, k *streamtest.Keyspace) {
			st := data(k, 1)
			_ = k.Claim(st).Advance(streamstate.Position{Next: 3}) // not applied
			k.Source.Produce(0, 3)
			st.Send(2)
			st.Send(1)
			_ = st.DeliverAll()
		}, "items 1 to 2 were lost"},
		"twice": {func(_ *streamtest.Feed, k *streamtest.Keyspace) {
			data(k, 2)
			k.Session().Unwant(0) // not by the keyspace
			_ = k.Want(0)
			st := k.Start(0, "A")
			st.Send(-1)
			_ = st.Deliver()
		}, "item 0 was let in again"},
		"mixed up": {func(f *streamtest.Feed, k *streamtest.Keyspace) {
			data(k, 1)
			var ix *streamtest.Index
			_ = k.Session().Read(func(tx streamstate.ReadTx[*streamtest.Index]) (err error) {
				ix, err = tx.Payload()
				return err
			})
			k.Drop()
			_, _ = k.TryOpen()
			_ = k.Session().Update(func(tx streamtest.Tx) error { return tx.SetPayload(ix) })
			data(k, 1)
		}, "data of session 2 of the key came into session 1"},
		"not ended": {func(f *streamtest.Feed, k *streamtest.Keyspace) {
			_, _ = k.Session().StartFlush() // nobody answers it
		}, "close waits for\ntest/a: closing"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, problems(t, onFeed(c.play)), c.want)
		})
	}
}

// TestCallChecksRefusals has the explorer see a refusal that changes something, one of no kind, and a broken promise.
func TestCallChecksRefusals(t *testing.T) {
	require.Empty(t, problems(t, func(x *streamtest.Trial) {
		b, s := own(x)
		require.ErrorIs(t, x.Call("Open", func() error {
			_, err := b.Open(orders, streamstate.OpenOptions[int]{Partitions: 1})
			return err
		}), streamstate.ErrExists)
		require.ErrorIs(t, x.Call("Opened", s.Opened), streamstate.ErrSuperseded)
	}))
	require.Contains(t, problems(t, func(x *streamtest.Trial) {
		_, s := own(x)
		_ = x.Call("Want", func() error {
			_, _ = s.Begin(0, streamstate.Begin{Owner: "A"})
			return s.Want(9)
		})
	}), "but something has changed")
	require.Contains(t, problems(t, func(x *streamtest.Trial) {
		_ = x.Call("mine", func() error { return errMine })
	}), "mine: an error of no kind: mine")
	require.Equal(t, "broken", problems(t, func(x *streamtest.Trial) {
		x.Promise(func() error { return errors.New("broken") })
	}))
}

// own is a book of the user's own.
func own(x *streamtest.Trial) (*streamstate.Book[int], *streamstate.Session[int]) {
	b := streamstate.NewBook[int](streamstate.Options{Gap: x.Gap})
	x.Cleanup(func() { b.Close() })
	streamtest.Watch(x, b, func(streamstate.Key) streamstate.OpenOptions[int] {
		return streamstate.OpenOptions[int]{Partitions: 2}
	})
	s, err := b.Open(orders, streamstate.OpenOptions[int]{Partitions: 2})
	if err != nil && !x.Disturbed() {
		x.Errorf("%v", err)
	}
	return b, s
}

// TestExploreOwnCode explores code around a book of another payload type, with all adversaries that need no feed, on two keys.
func TestExploreOwnCode(t *testing.T) {
	add := func(tx streamstate.Tx[int]) error {
		n, err := tx.Payload()
		if err == nil {
			err = tx.SetPayload(n + 1)
		}
		return err
	}
	rep := streamtest.Explore(t, func(x *streamtest.Trial) {
		b, s := own(x)
		var other *streamstate.Session[int]
		_ = x.Call("Open", func() (err error) {
			other, err = b.Open(streamstate.Key{Stream: "maint", Keyspace: "parts"}, streamstate.OpenOptions[int]{Partitions: 1})
			return err
		})
		if s == nil || other == nil {
			return
		}
		for _, k := range []*streamstate.Session[int]{s, other} {
			_ = x.Call("Begin", func() error {
				c, err := k.Begin(0, streamstate.Begin{Owner: "me"})
				if err == nil {
					err = c.Apply(streamstate.Position{Next: 3}, add)
				}
				return err
			})
		}
		_ = x.Call("Update", func() error { return s.Update(add) })
		_ = x.Call("Pair", func() error {
			return b.Pair(s, other, func(p, q streamstate.Tx[int]) error { return errors.Join(add(p), add(q)) })
		})
		h := s.Stop(nil)
		_ = x.Call("Stop", h.Err)
		_ = x.Call("Reopen", func() error {
			_, err := b.Reopen(s, streamstate.ReopenOptions[int]{})
			return err
		})
	}) // all adversaries
	require.Empty(t, rep.Findings)
	require.Positive(t, rep.Refusals)
}
