package streamtest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/staleproof/staleproof/streamstate"
	"github.com/staleproof/staleproof/streamstate/streamtest"
)

// t stands for the *testing.T that a test has.
var t = &exampleT{}

type exampleT struct{ cleanups []func() }

func (t *exampleT) Helper()                           {}
func (t *exampleT) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (t *exampleT) FailNow()                          { os.Exit(1) }
func (t *exampleT) Cleanup(f func())                  { t.cleanups = append(t.cleanups, f) }
func (t *exampleT) end() {
	for _, f := range t.cleanups {
		f()
	}
	t.cleanups = nil
}

// Data waits in somebody's hands while its partition is taken away and given back; it is refused, and sent again.
func ExampleNew() {
	defer t.end()
	f := streamtest.New(t, streamstate.Options{})
	k := f.Open("orders", streamtest.OpenOptions{Partitions: 1})
	old := k.Start(0, "me")
	k.Source.Produce(0, 3)
	old.Send(2)
	fmt.Println("applied:", old.Deliver())
	old.Send(1) // stays in hand

	k.Release(old)
	fmt.Println("wanted again:", k.Want(0))
	k.Start(0, "me")
	err := old.Deliver()
	fmt.Println("late:", errors.Is(err, streamstate.ErrStaleClaim), errors.Is(err, streamstate.ErrReleased))

	f.Settle()
	f.RequireSettled()
	f.RequireFollowed()
	first, items := k.Items(0)
	fmt.Println("from", first, "on:", len(items), "items")
	// Output:
	// applied: <nil>
	// wanted again: <nil>
	// late: true true
	// from 0 on: 3 items
}

// A source loses items that were received. Who goes on from them is told to roll back, and Settle recovers: it stops the
// session, and begins the next one from what is flushed and the source still has.
func ExampleSource() {
	defer t.end()
	f := streamtest.New(t, streamstate.Options{})
	k := f.Open("orders", streamtest.OpenOptions{Partitions: 1})
	k.Source.Produce(0, 5)
	f.Settle()
	_, items := k.Items(0)
	fmt.Println("before:", len(items), "items, at", k.Source.Position(0))
	session := k.Session()

	k.Source.Lose(0, 3) // a failover: another history begins
	k.Source.Produce(0, 1)
	f.Settle()
	f.RequireSettled()
	f.RequireFollowed()
	_, items = k.Items(0)
	fmt.Println("after:", len(items), "items, at", k.Source.Position(0), "in another session:", k.Session() != session)
	// Output:
	// before: 5 items, at 5@1
	// after: 4 items, at 4@2 in another session: true
}

// What a source says can go to the user's own code.
func ExampleNewSource() {
	source := streamtest.NewSource(1, func(m streamtest.Message) error {
		fmt.Println(m.Kind, m.Owner, m.First, len(m.Items), m.Position)
		return nil
	})
	st := source.Open(streamtest.Request{Partition: 0, Owner: "node-a"})
	source.Produce(0, 3)
	st.Send(2)
	st.HandOver()
	fmt.Println(st.DeliverAll())
	// Output:
	// begun node-a 0 0 0
	// data node-a 0 2 2@1
	// handed-over node-a 0 0 0
	// <nil>
}

// The explorer goes through a scenario with an adversary before each acquisition of a lock. In a test,
// streamtest.Explore makes a subtest of each.
func ExampleSearch() {
	scenario := func(x *streamtest.Trial) {
		f := streamtest.New(x, streamstate.Options{})
		k := f.Open("orders", streamtest.OpenOptions{Partitions: 1})
		k.Source.Produce(0, 3)
		_, _ = k.TryStart(0, "me", 0) // may be refused when the adversary has gone
		f.Settle()
		_, _ = k.StartFlush()
		f.Settle()
	}
	report := streamtest.Search(scenario, streamtest.Adversaries...)
	fmt.Println(report.Pairs > 500, len(report.Findings))
	// Output: true 0
}

// The outage of Couchbase MB-37227: a naive book-keeper looks at the status of a stream once, and locks again to write to
// its books. The explorer finds out, and finds nothing with a book. The adversary cleans up; the scenario is one reply;
// naively and withABook keep the books.
func ExampleExplore() {
	for _, b := range []struct {
		name  string
		build func(x *streamtest.Trial) keeper
	}{{"naive", naively}, {"ours", withABook}} {
		report := streamtest.Search(reply(b.build), cleanUp("CleanUp", false)) // in a test: streamtest.Explore(t, …)
		fmt.Printf("%s: %d findings\n", b.name, len(report.Findings))
		for _, f := range report.Findings {
			problem, _, _ := strings.Cut(f.String(), "\n")
			fmt.Println(problem)
		}
	}
	// Output:
	// naive: 2 findings
	// CleanUp before acquisition 2: panic: runtime error: invalid memory address or nil pointer dereference
	// CleanUp before acquisition 3: panic: runtime error: invalid memory address or nil pointer dereference
	// ours: 0 findings
}
