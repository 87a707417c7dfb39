package streamstate

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// snippets are bodies of func(s *Session[int], other *Session[int]) error, and what the compiler must say to them.
var snippets = []struct{ body, says string }{
	{`return s.Read(func(tx ReadTx[int]) error { _, err := tx.Payload(); return err })`, ""},
	{`return s.Update(func(tx Tx[int]) error { return tx.SetPayload(1) })`, ""},
	{`return s.Read(func(tx ReadTx[int]) error { return tx.SetPayload(1) })`, "tx.SetPayload undefined"},
	{`return s.Read(func(tx Tx[int]) error { return tx.SetPayload(1) })`, "cannot use (func(tx Tx[int]) error literal)"},
	{`return s.Read(func(tx ReadTx[int]) error { return Tx[int]{tx}.SetPayload(1) })`, "implicit assignment"},
	{`return s.Read(func(tx ReadTx[int]) error { return Tx[int]{ReadTx: tx}.SetPayload(1) })`, "unknown field ReadTx"},
	{`return s.Read(func(tx ReadTx[int]) error { return Tx[int]{readTx: tx}.SetPayload(1) })`, "unexported field readTx"},
	{`return s.Read(func(tx ReadTx[int]) error { return Tx[int](tx).SetPayload(1) })`, "cannot convert tx"},
	{`return s.When(nil, func(v View) bool { v.SetPayload(1); return true }, nil)`, "v.SetPayload undefined"},
	{
		`return Exchange(nil, s, func(tx ReadTx[int]) (int, error) { return 0, tx.SetPayload(1) },
		func(context.Context, int) (int, error) { return 0, nil }, func(Tx[int], int) error { return nil })`,
		"tx.SetPayload undefined",
	},
	{`Merge(s, other, func(from, into View) bool { into.SetPayload(1); return true })`, "into.SetPayload undefined"},
}

// Seen red with mutants/S04-read-only.patch.
func TestS04_WriteInAReadTransactionDoesNotCompile(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", ".")
	list.Env = append(os.Environ(), "GOFLAGS=") // what it was built with is of no interest
	out, err := list.Output()
	require.NoError(t, err)
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		pkg, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[pkg] = file
	}
	fset := gotoken.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, tc := range snippets {
		src := `package user
			import "context"
			import . "github.com/staleproof/staleproof/streamstate"
			var _ context.Context
			func Merge(from, into *Session[int], ready func(from, into View) bool) {}
			func use(s *Session[int], other *Session[int]) error { ` + tc.body + ` }`
		file, err := parser.ParseFile(fset, "user.go", src, parser.SkipObjectResolution)
		require.NoError(t, err, tc.body)
		_, err = (&types.Config{Importer: imports}).Check("user", fset, []*ast.File{file}, nil)
		if tc.says == "" {
			require.NoError(t, err, tc.body)
		} else {
			require.ErrorContains(t, err, tc.says, tc.body)
		}
	}
}

// A read transaction that a user makes out of a view has no payload, and harms nobody.
func TestS04_ViewIsNoReadTransaction(t *testing.T) {
	l := newLedger(t, false, "Begun")
	l.unchanged(ErrTxDone, func() error {
		return l.s.Read(func(tx ReadTx[int]) error {
			_, err := ReadTx[int]{View: tx.View}.Payload()
			return err
		})
	})
	l.calm()
}

// Seen red with mutants/S05-one-record.patch.
func TestS05_OpenWhileAnotherOpens(t *testing.T) {
	for name, first := range map[string]func(*Book[int]) (present bool){
		"another opens it": func(b *Book[int]) bool {
			_, err := b.Open(key("a"), OpenOptions[int]{Partitions: 2})
			require.NoError(t, err)
			return true
		},
		"another opens and stops it": func(b *Book[int]) bool {
			s, err := b.Open(key("a"), OpenOptions[int]{Partitions: 2})
			require.NoError(t, err)
			s.Stop(nil)
			return true
		},
		"another opens it, and drops it under a flush": func(b *Book[int]) bool {
			s, err := b.Open(key("a"), OpenOptions[int]{Partitions: 2})
			require.NoError(t, err)
			f, err := s.StartFlush()
			require.NoError(t, err)
			t.Cleanup(func() { _ = f.Abort() })
			s.Drop()
			return true
		},
		"another opens and drops it": func(b *Book[int]) bool {
			s, err := b.Open(key("a"), OpenOptions[int]{Partitions: 2})
			require.NoError(t, err)
			require.NoError(t, s.Drop().Wait(ends()))
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			var book *Book[int]
			went, present := false, false
			book = NewBook[int](Options{Gap: func() {
				if !went {
					went = true
					present = first(book)
				}
			}})
			s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1}) // it is let pass by the other
			if !present {
				require.NoError(t, err)
				require.NoError(t, s.Drop().Wait(ends()))
				return
			}
			var exists *ExistsError
			require.ErrorAs(t, err, &exists)
			require.Equal(t, key("a"), exists.Key)
			stats := book.Stats()
			require.Equal(t, uint64(1), stats.Refused[ReasonExists])
			require.Equal(t, uint64(1), stats.Opened)
			require.Len(t, keysOf(book), 1)
			for present := range book.Sessions() {
				require.Equal(t, 2, present.Dump().Partitions, "the one that was there")
			}
		})
	}
}

// Many open and drop one key at once: those that are open never overlap.
func TestS05_OpenRacesWithDrop(t *testing.T) {
	book := NewBook[int](Options{})
	var open, won, lost atomic.Int64
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for range 300 {
				s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1, Payload: g})
				if _, is := err.(*ExistsError); is { //nolint:errorlint // it is not wrapped
					lost.Inc()
					continue
				}
				if err != nil || open.Inc() != 1 {
					t.Error("two sessions at once, or: ", err)
				}
				won.Inc()
				if err := s.Read(func(tx ReadTx[int]) error {
					if p, err := tx.Payload(); p != g {
						return fmt.Errorf("the payload of %d: %w", p, err)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				open.Dec()
				if err := s.Drop().Wait(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	stats := book.Stats()
	require.Equal(t, uint64(won.Load()), stats.Opened)
	require.Equal(t, uint64(won.Load()), stats.Dropped)
	require.Equal(t, uint64(lost.Load()), stats.Refused[ReasonExists])
	require.Empty(t, keysOf(book))
	require.NoError(t, book.Close().Wait(ends()))
}
