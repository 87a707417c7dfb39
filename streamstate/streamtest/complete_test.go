package streamtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// facts are methods that acquire no lock.
var facts = map[string]bool{
	"ID": true, "Key": true, "Partition": true, "Owner": true, "Term": true, "Session": true, "Stats": true, "Ticket": true,
	"From": true, "Within": true, "Tries": true, "Target": true,
}

// TestTourIsComplete has every public operation of a book be called by the tour, or by the fixtures that it uses: an
// operation that is new fails it.
func TestTourIsComplete(t *testing.T) {
	called := map[string]bool{}
	for _, pattern := range []string{"tour*_test.go", "explore_test.go", "feed.go", "keyspace.go", "take.go", "settle.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					called[s.Sel.Name] = true
				}
				return true
			})
		}
	}
	operations := 0
	for _, of := range []any{
		&streamtest.Book{}, &streamtest.Session{}, &streamtest.Claim{}, &streamstate.FlushTicket{}, &streamstate.Hold{},
		&streamstate.RestartTicket{}, &streamstate.ShutDownTicket{}, &streamstate.ResubscribeTicket{}, &streamstate.RecoverTicket{},
	} {
		typ := reflect.TypeOf(of)
		for m := range typ.Methods() {
			if !facts[m.Name] {
				operations++
				require.True(t, called[m.Name], "%v.%s is not part of the tour", typ, m.Name)
			}
		}
	}
	require.True(t, called["Exchange"])
	t.Logf("%d operations", operations+1)
}
