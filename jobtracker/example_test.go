package jobtracker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

func Example() {
	ctx := context.Background() // errors of New, Activate, Connect and Submit are left out here
	tr, _ := jobtracker.New(jobtracker.Config[[]byte]{Replicas: 3, Blocks: 1 << 20, BlockSize: 4096})
	begun, _ := tr.Activate(jobtracker.ActivateOptions{Generation: 1, Create: true})
	conns := make([]*jobtracker.Conn[[]byte], 3)
	for r := range conns {
		conns[r], _ = tr.Connect(r, jobtracker.Hello{})
		go func() { // the replica's driver; a real one sends here and receives elsewhere
			var job jobtracker.Dispatch[[]byte]
			for conns[r].Next(ctx, &job) == nil {
				_ = conns[r].Complete(job.ID, jobtracker.Result{})
			}
		}()
	}
	fmt.Println("begun:", begun.Wait(ctx))
	write, _ := tr.Submit(ctx, jobtracker.Op{Kind: jobtracker.Write, Start: 7, Blocks: 2}, make([]byte, 8192))
	fmt.Println("written:", write.Wait(ctx)) // by two of three; the third one's answer may be on its way
	fmt.Println("flushed:", tr.Do(ctx, jobtracker.Op{Kind: jobtracker.Flush}, nil))

	conns[1].Close(nil)                                        // the replica is cut off …
	late := conns[1].Complete(write.ID(), jobtracker.Result{}) // … and a reply comes all the same
	fmt.Println("orphan:", errors.Is(late, jobtracker.ErrOrphan), errors.Is(late, jobtracker.ErrStaleConn))
	fmt.Println("closed:", tr.Close().Wait(ctx))
	// Output:
	// begun: <nil>
	// written: <nil>
	// flushed: <nil>
	// orphan: true true
	// closed: <nil>
}

// TestReadme has the README show the body of Example.
func TestReadme(t *testing.T) {
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, body, ok := strings.Cut(string(source), "\nfunc Example() {\n")
	require.True(t, ok)
	body, _, ok = strings.Cut(body, "\t// Output:\n")
	require.True(t, ok)
	body = strings.TrimSpace(strings.ReplaceAll("\n"+body, "\n\t", "\n"))

	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	_, block, ok := strings.Cut(string(readme), "<!-- example -->\n\n```go\n")
	require.True(t, ok)
	block, _, ok = strings.Cut(block, "\n```\n")
	require.True(t, ok)
	require.Equal(t, body, block)
}
