package jobtest_test

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
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

// A reply waits in somebody's hands while its connection dies; it is refused, and the job is replayed.
func ExampleNew() {
	defer t.end()
	c := jobtest.New(t, jobtracker.Config[*jobtest.Payload]{Replicas: 3})
	c.Replica(1).HoldReplies()
	job := c.Submit(jobtest.Write(7, 2))
	c.Settle()
	old := c.Replica(1).Cut() // the replies stay in hand
	fmt.Println("in hand:", old.InHand())

	err := old.Deliver(job.ID())
	fmt.Println(errors.Is(err, jobtracker.ErrStaleConn), err)

	c.Replica(1).Heal()
	again := c.Replica(1).Reconnect()
	fmt.Println("plan:", again.Conn().Plan())
	c.Settle()
	c.RequireResolved()
	c.RequireOrder()
	c.RequireSame()
	fmt.Println("block 8:", c.Replica(0).Block(8), c.Replica(1).Block(8), c.Replica(2).Block(8))
	// Output:
	// in hand: [1]
	// true jobtracker: orphaned completion: stale connection: replica 1, job 1, connection 2, current 0: jobtracker: connection closed
	// plan: replay
	// block 8: 1 1 1
}

// Replies can be handed in in any order, lost or repeated, and jobs failed.
func ExampleReplica() {
	defer t.end()
	c := jobtest.New(t, jobtracker.Config[*jobtest.Payload]{Replicas: 3})
	r := c.Replica(2)
	r.HoldReplies()
	a, b := c.Submit(jobtest.Write(1, 1)), c.Submit(jobtest.Write(2, 1))
	c.Settle()
	fmt.Println(r.Deliver(b.ID(), a.ID()))
	fmt.Println(errors.Is(r.Life().Deliver(a.ID()), jobtracker.ErrDuplicate))

	r.Heal()
	r.FailNext(1, errors.New("bad sector"))
	w := c.Submit(jobtest.Write(1, 1))
	c.Settle()
	fmt.Println(w.Err(), r.State())
	r.Reconnect()
	fmt.Println(r.State())
	fmt.Println(r.Repair(), r.State())
	c.RequireSame()
	// Output:
	// [<nil> <nil>]
	// true
	// <nil> stopping(faulted)
	// repair-ready
	// <nil> active
}

// The explorer goes through a scenario with an adversary before each acquisition of the tracker's lock. In a test,
// jobtest.Explore makes a subtest of each.
func ExampleSearch() {
	scenario := func(x *jobtest.Trial) {
		c := jobtest.New(x, jobtracker.Config[*jobtest.Payload]{Replicas: 3})
		_, _ = c.TrySubmit(jobtest.Write(0, 1)) // may be refused when the adversary has gone
		_, _ = c.TrySubmit(jobtest.Flush())
		c.Settle()
	}
	report := jobtest.Search(scenario, jobtest.Adversaries...)
	fmt.Println(report.Pairs > 500, len(report.Findings))
	// Output: true 0
}

// The outage of Crucible #1121: a naive book-keeper of jobs asserts that a reply which is not to an active job is to one of
// the last that were completed. The explorer finds out, and finds nothing with a tracker. The adversary stops a replica under
// load; the scenario is one write that all replicas answer; naive and ours keep the books.
func ExampleExplore() {
	for _, b := range []struct {
		name  string
		build func(x *jobtest.Trial) book
	}{
		{"naive", func(x *jobtest.Trial) book { return newNaive(x.Gap) }},
		{"ours", func(x *jobtest.Trial) book { return newOurs(x) }},
	} {
		report := jobtest.Search(late(b.build), stopUnderLoad(2)) // in a test: jobtest.Explore(t, …)
		fmt.Printf("%s: %d findings\n", b.name, len(report.Findings))
		for _, f := range report.Findings {
			problem, _, _ := strings.Cut(f.String(), "\n")
			fmt.Println(problem)
		}
	}
	// Output:
	// naive: 3 findings
	// StopUnderLoad(2) before acquisition 1: panic: assertion failed: completed.contains(1)
	// StopUnderLoad(2) before acquisition 2: panic: assertion failed: completed.contains(1)
	// StopUnderLoad(2) before acquisition 3: panic: assertion failed: completed.contains(1)
	// ours: 0 findings
}
