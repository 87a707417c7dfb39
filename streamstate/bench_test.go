package streamstate

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/xbase"
)

// opened is a book with one key, all of whose partitions have begun at 0.
func opened(tb testing.TB, o Options, partitions int) (*Session[*int], []*Claim[*int]) {
	tb.Helper()
	book := NewBook[*int](o)
	tb.Cleanup(func() { require.NoError(tb, book.Close().Wait(context.Background())) })
	s, err := book.Open(Key{"maint", "orders"}, OpenOptions[*int]{Partitions: partitions, Payload: new(int)})
	require.NoError(tb, err)
	return s, beginAll(tb, s, partitions)
}

func beginAll(tb testing.TB, s *Session[*int], partitions int) []*Claim[*int] {
	tb.Helper()
	claims := make([]*Claim[*int], partitions)
	for p := range claims {
		var err error
		claims[p], err = s.Begin(p, Begin{Owner: "me"})
		require.NoError(tb, err)
	}
	return claims
}

// BenchmarkAdvance is data that a claim says it has applied.
func BenchmarkAdvance(b *testing.B) {
	for _, hook := range []bool{false, true} {
		name, o := "plain", Options{}
		if hook {
			name, o.Gap = "hook", func() {}
		}
		b.Run(name, func(b *testing.B) {
			_, claims := opened(b, o, 64)
			at := uint64(0)
			b.ReportAllocs()
			xbase.Measure(b, 4096, func(n int) {
				for i := range n {
					at++
					if claims[i&63].Advance(Position{Next: at}) != nil {
						b.Fatal("refused")
					}
				}
			})
		})
	}
}

// BenchmarkApply is data that is applied in the hold in which its claim is checked.
func BenchmarkApply(b *testing.B) {
	_, claims := opened(b, Options{}, 64)
	at := uint64(0)
	nothing := func(Tx[*int]) error { return nil }
	b.ReportAllocs()
	xbase.Measure(b, 4096, func(n int) {
		for i := range n {
			at++
			if claims[i&63].Apply(Position{Next: at}, nothing) != nil {
				b.Fatal("refused")
			}
		}
	})
}

// BenchmarkAdvanceBatch is one operation for each partition of a batch.
func BenchmarkAdvanceBatch(b *testing.B) {
	b.Run("64", func(b *testing.B) {
		s, claims := opened(b, Options{}, 64)
		batch := make([]Advance[*int], 64)
		for p := range batch {
			batch[p].Claim = claims[p]
		}
		b.ReportAllocs()
		xbase.Measure(b, 4096, func(n int) {
			for ; n > 0; n -= len(batch) {
				for p := range batch {
					batch[p].Position.Next++
				}
				if s.AdvanceBatch(batch) != nil {
					b.Fatal("refused")
				}
			}
		})
	})
}

// BenchmarkBeginEnd is a pair of begin and orderly end; hand-over is begin, begin of the other, and both ends.
func BenchmarkBeginEnd(b *testing.B) {
	b.Run("pair", func(b *testing.B) {
		s, _ := opened(b, Options{}, 64)
		beginEnds(b, s)
		b.ReportAllocs()
		xbase.Measure(b, 1024, func(n int) {
			for i := range n {
				c, err := s.Begin(i&63, Begin{Owner: "me"})
				if err != nil || c.End(HandOver) != nil {
					b.Fatal("refused")
				}
			}
		})
	})
	b.Run("hand-over", func(b *testing.B) {
		s, _ := opened(b, Options{}, 64)
		beginEnds(b, s)
		b.ReportAllocs()
		xbase.Measure(b, 1024, func(n int) {
			for i := range n {
				c, err := s.Begin(i&63, Begin{Owner: "me"})
				d, err2 := s.Begin(i&63, Begin{Owner: "you"})
				if err != nil || err2 != nil || c.End(HandOver) != nil || d.End(HandOver) != nil {
					b.Fatal("refused")
				}
			}
		})
	})
}

// beginEnds ends all claims in good order.
func beginEnds(b *testing.B, s *Session[*int]) {
	ended, err := s.OwnerGone("me")
	require.NoError(b, err)
	for p := range ended {
		c, err := s.Begin(p, Begin{Owner: "you"})
		require.NoError(b, err)
		require.NoError(b, c.End(HandOver))
	}
}

// BenchmarkStale refuses a claim that has ended, and a session that has.
func BenchmarkStale(b *testing.B) {
	s, claims := opened(b, Options{}, 64)
	require.NoError(b, claims[0].End(HandOver))
	b.Run("claim", func(b *testing.B) {
		b.ReportAllocs()
		xbase.Measure(b, 4096, func(n int) {
			for range n {
				if claims[0].Advance(Position{Next: 7}) == nil {
					b.Fatal("accepted")
				}
			}
		})
	})
	require.NoError(b, s.Drop().Err())
	b.Run("session", func(b *testing.B) {
		b.ReportAllocs()
		xbase.Measure(b, 4096, func(n int) {
			for range n {
				if claims[1].Advance(Position{Next: 7}) == nil {
					b.Fatal("accepted")
				}
			}
		})
	})
}

// BenchmarkTimestamp takes vectors of 1,024 partitions.
func BenchmarkTimestamp(b *testing.B) {
	for name, step := range map[string]int{"scattered": 64, "neighbours": 1, "none": 0} {
		b.Run(name, func(b *testing.B) {
			s, claims := opened(b, Options{}, 1024)
			_, err := s.Timestamp()
			require.NoError(b, err)
			at := uint64(0)
			b.ReportAllocs()
			xbase.Measure(b, 128, func(n int) {
				for range n {
					if step > 0 {
						at++
						for i := range 16 {
							c := &claims[i*step].facts // past the gate: its price is not the vector's
							_ = s.e.view().advance(c, &Position{Next: at})
						}
					}
					sink, _ = s.Timestamp()
				}
			})
		})
	}
	b.Run("copy", func(b *testing.B) {
		from := make([]Position, 1024)
		b.ReportAllocs()
		xbase.Measure(b, 128, func(n int) {
			for range n {
				copied = append([]Position(nil), from...)
			}
		})
	})
}

var (
	sink   Timestamp
	copied []Position
)

// twelve are a key's fields, as one record has them.
type twelve struct{ a, b, c, d, e, f, g, h, i, j, k, l uint64 }

// twelveMaps are the same fields, as a map of maps for each.
type twelveMaps struct{ a, b, c, d, e, f, g, h, i, j, k, l map[string]map[string]uint64 }

// BenchmarkRecord looks at and changes twelve fields of one of ten thousand keys in one hold, beside twelve maps of maps
// under one lock. Both go through the keys in the same order, and have the caches to themselves.
func BenchmarkRecord(b *testing.B) {
	const keys = 10_000
	b.Run("record", func(b *testing.B) {
		book := NewBook[*twelve](Options{})
		defer book.Close()
		sessions := make([]*Session[*twelve], keys)
		for i := range sessions {
			var err error
			sessions[i], err = book.Open(Key{"maint", fmt.Sprint(i)}, OpenOptions[*twelve]{Partitions: 1, Payload: new(twelve)})
			require.NoError(b, err)
		}
		at := 0
		add := func(tx Tx[*twelve]) error {
			r, err := tx.Payload()
			r.a++
			r.b++
			r.c++
			r.d++
			r.e++
			r.f++
			r.g++
			r.h++
			r.i++
			r.j++
			r.k++
			r.l++
			return err
		}
		xbase.Measure(b, 1024, func(n int) {
			for range n {
				at = (at + 7919) % keys
				_ = sessions[at].Update(add)
			}
		})
	})
	b.Run("maps", func(b *testing.B) {
		var mu sync.RWMutex
		var m twelveMaps
		names := make([]string, keys)
		for i := range names {
			names[i] = fmt.Sprint(i)
		}
		for _, field := range [...]*map[string]map[string]uint64{&m.a, &m.b, &m.c, &m.d, &m.e, &m.f, &m.g, &m.h, &m.i, &m.j, &m.k, &m.l} {
			*field = map[string]map[string]uint64{"maint": {}}
			for _, name := range names {
				(*field)["maint"][name] = 0
			}
		}
		at := 0
		xbase.Measure(b, 1024, func(n int) {
			for range n {
				at = (at + 7919) % keys
				name := names[at]
				mu.Lock()
				m.a["maint"][name]++
				m.b["maint"][name]++
				m.c["maint"][name]++
				m.d["maint"][name]++
				m.e["maint"][name]++
				m.f["maint"][name]++
				m.g["maint"][name]++
				m.h["maint"][name]++
				m.i["maint"][name]++
				m.j["maint"][name]++
				m.k["maint"][name]++
				m.l["maint"][name]++
				mu.Unlock()
			}
		})
	})
}
