package streamtest_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// checkFeed plays random streams, flushes, repairs and ends on two keys of a feed; then it must recover. The feed checks
// the rest.
func checkFeed(t *rapid.T) {
	f := streamtest.New(t, streamstate.Options{})
	keys := []*streamtest.Keyspace{
		f.Open("a", streamtest.OpenOptions{Partitions: 2}), f.Open("b", streamtest.OpenOptions{Partitions: 1}),
	}
	key := func() *streamtest.Keyspace { return rapid.SampledFrom(keys).Draw(t, "key") }
	part := func(k *streamtest.Keyspace) int {
		return rapid.IntRange(0, k.Source.Partitions()-1).Draw(t, "partition")
	}
	var all []*streamtest.Stream
	stream := func(do func(k *streamtest.Keyspace, st *streamtest.Stream)) func(*rapid.T) {
		return func(t *rapid.T) {
			k := key()
			if streams := k.Source.Streams(); len(streams) > 0 {
				do(k, rapid.SampledFrom(streams).Draw(t, "stream"))
			}
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"start": func(t *rapid.T) {
			k := key()
			st, _ := k.TryStart(part(k), rapid.SampledFrom([]string{"A", "B"}).Draw(t, "owner"), rapid.Uint64Range(0, 2).Draw(t, "term"))
			if st != nil {
				all = append(all, st)
			}
		},
		"produce": func(t *rapid.T) { k := key(); k.Source.Produce(part(k), rapid.IntRange(1, 3).Draw(t, "items")) },
		"lose": func(t *rapid.T) {
			k := key()
			p := part(k)
			k.Source.Lose(p, rapid.Uint64Range(0, k.Source.Position(p).Next).Draw(t, "from"))
		},
		"send":      stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { st.Send(2) }),
		"deliver":   stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { _ = st.Deliver() }),
		"deliver2":  stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { _ = st.DeliverAll() }),
		"hand over": stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { st.HandOver() }),
		"break":     stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { st.Break() }),
		"cut":       stream(func(_ *streamtest.Keyspace, st *streamtest.Stream) { st.Cut() }),
		"fence":     stream(func(k *streamtest.Keyspace, st *streamtest.Stream) { _ = k.Fence(st) }),
		"release":   stream(func(k *streamtest.Keyspace, st *streamtest.Stream) { k.Release(st) }),
		"late": func(t *rapid.T) {
			if len(all) > 0 {
				st := rapid.SampledFrom(all).Draw(t, "stream")
				_ = st.Repeat()
				_ = st.Deliver()
			}
		},
		"want":   func(*rapid.T) { k := key(); _ = k.Want(part(k)) },
		"unwant": func(*rapid.T) { k := key(); k.Unwant(part(k)) },
		"gone": func(t *rapid.T) {
			k := key()
			_ = k.Source.LoseOwner(k.Session().ID(), rapid.SampledFrom([]string{"A", "B", "source"}).Draw(t, "owner"))
		},
		"flush": func(*rapid.T) { _, _ = key().StartFlush() },
		"wait":  func(*rapid.T) { _ = key().Flush(polls) },
		"hold":  func(*rapid.T) { _, _ = f.Hold(keys[0], keys[1]) },
		"merge": func(*rapid.T) { f.Merge(keys[0], keys[1], nil) },
		"due":   func(*rapid.T) { key().Poll() },
		"faults": func(t *rapid.T) {
			s := key().Source
			s.FailBegins(rapid.IntRange(0, 2).Draw(t, "begins"))
			s.RefuseRestarts(rapid.IntRange(0, 2).Draw(t, "restarts"))
			s.FailShutDowns(rapid.IntRange(0, 1).Draw(t, "shut-downs"))
			s.FailResubscribes(rapid.IntRange(0, 1).Draw(t, "resubscribes"))
			s.FailRecoveries(rapid.IntRange(0, 1).Draw(t, "recoveries"))
			s.RepeatNext(3)
		},
		"pend":   func(*rapid.T) { key().Source.PendRestarts(1) },
		"mute":   func(*rapid.T) { key().Source.HoldMessages() },
		"heal":   func(*rapid.T) { key().Source.Heal() },
		"settle": func(*rapid.T) { f.Settle() },
		"stop":   func(*rapid.T) { key().Stop(nil) },
		"drain":  func(*rapid.T) { key().Drain() },
		"reopen": func(t *rapid.T) { _, _ = key().TryReopen(streamstate.Timestamp{}, rapid.Bool().Draw(t, "pending")) },
		"drop":   func(*rapid.T) { key().Drop() },
		"open":   func(*rapid.T) { _, _ = key().TryOpen() },
		"": func(t *rapid.T) {
			for s := range f.Book.Sessions() {
				require.NoError(t, s.Check())
			}
		},
	})
	f.RequireRecovery()
}

func TestFeedModel(t *testing.T) { rapid.Check(t, checkFeed) }

func FuzzFeedModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkFeed)) }

// TestDeadlines has a source that never begins, and one that never answers repair: the book climbs by itself.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := streamtest.New(t, streamstate.Options{BeginWithin: time.Second, TicketWithin: time.Second})
		k := f.Open("a", streamtest.OpenOptions{})
		require.Empty(t, k.Poll())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		work := k.Poll()
		require.Len(t, work, 1)
		require.IsType(t, &streamstate.RestartTicket{}, work[0])
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, context.Cause(work[0].Context()), streamstate.ErrTimeout)
		k.Source.Produce(0, 3)
		f.RequireRecovery()
	})
}

// TestWaiting has callers that wait, and somebody come between at each step: each is answered, and none waits for ever, which
// synctest would see.
func TestWaiting(t *testing.T) {
	between := map[string]func(f *streamtest.Feed, k *streamtest.Keyspace){
		"nobody": func(*streamtest.Feed, *streamtest.Keyspace) {},
		"drop":   func(_ *streamtest.Feed, k *streamtest.Keyspace) { k.Drop() },
		"stop":   func(_ *streamtest.Feed, k *streamtest.Keyspace) { k.Stop(nil) },
		"drain":  func(_ *streamtest.Feed, k *streamtest.Keyspace) { k.Drain() },
		"reopen": func(_ *streamtest.Feed, k *streamtest.Keyspace) {
			k.Stop(nil)
			_, _ = k.TryReopen(streamstate.Timestamp{}, false)
		},
		"merge":  func(f *streamtest.Feed, k *streamtest.Keyspace) { f.Merge(k, f.Keyspaces()[1], nil) },
		"hold":   func(f *streamtest.Feed, k *streamtest.Keyspace) { _, _ = f.Hold(f.Keyspaces()[1], k) },
		"unwant": func(_ *streamtest.Feed, k *streamtest.Keyspace) { k.Unwant(0) },
		"close":  func(f *streamtest.Feed, _ *streamtest.Keyspace) { f.Book.Close() },
	}
	for name, act := range between {
		for at := range 6 {
			synctest.Test(t, func(t *testing.T) {
				f := streamtest.New(t, streamstate.Options{})
				k := f.Open("a", streamtest.OpenOptions{})
				f.Open("b", streamtest.OpenOptions{Wanted: streamstate.None})
				s := k.Session()
				var waiters sync.WaitGroup
				ctx := t.Context()
				wait := func(what string, call func() error) func() {
					return func() {
						waiters.Go(func() {
							if err := call(); err != nil && !streamtest.Typed(err) {
								t.Errorf("%s at %d: %s has ended with %v", name, at, what, err)
							}
						})
					}
				}
				steps := []func(){
					wait("When", func() error {
						return s.When(ctx, streamstate.View.Healthy, func(streamtest.Tx) error { return nil })
					}),
					wait("NextDue", func() error { _, err := s.NextDue(ctx); return err }),
					func() { _, _ = k.StartFlush() },
					wait("Flush", func() error {
						return s.Flush(ctx, func(context.Context, streamstate.Timestamp) error { return nil })
					}),
					func() { f.Settle() },
					func() { k.Stop(nil) }, // else nothing would be due
				}
				for i, step := range steps {
					if i == at {
						act(f, k)
						synctest.Wait()
					}
					step()
					synctest.Wait()
				}
				f.Settle()
				waiters.Wait()
				f.RequireRecovery()
			})
		}
	}
}

// TestTogether runs owners of streams, flushes and repair at once, for the race detector.
func TestTogether(t *testing.T) {
	f := streamtest.New(t, streamstate.Options{})
	k := f.Open("a", streamtest.OpenOptions{Partitions: 4})
	var users sync.WaitGroup
	for p := range 4 {
		users.Go(func() {
			for i := range 60 {
				st, err := k.TryStart(p, "me", 0)
				k.Source.Produce(p, 2)
				if err != nil {
					continue
				}
				st.Send(-1)
				_ = st.DeliverAll()
				switch i % 4 {
				case 0:
					st.HandOver()
				case 1:
					st.Break()
				case 2:
					_ = k.Source.LoseOwner(k.Session().ID(), "me")
				default:
					_ = k.Fence(st)
				}
				_ = st.DeliverAll()
				_ = st.Repeat()
			}
		})
	}
	users.Go(func() {
		for range 60 {
			if fl, err := k.StartFlush(); err == nil {
				_, _ = fl.Finish()
			}
			k.Poll()
		}
	})
	users.Go(func() {
		for range 20 {
			k.Stop(nil)
			_, _ = k.TryReopen(streamstate.Timestamp{}, false)
		}
	})
	users.Wait()
	f.RequireRecovery()
}
