package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/staleproof/staleproof/jobtracker"
)

const (
	replicas = 3
	stopped  = 1   // the replica that is stopped
	burst    = 512 // jobs until a flush, itself included
	ringSize = 2048
	newer    = 100_000
	dumpJobs = 4 // shown in a dump
)

var errStopped = errors.New("no answer for too long")

// tracker is a book-keeper of jobs with the wires to its replicas, as the script sees it.
type tracker interface {
	keeper
	submit(kind jobtracker.Kind, n int) error // admits n jobs, writes to distinct blocks, and sends them to all who take jobs
	answer(r int) error                       // the replica answers all that it was sent
	giveUp(r int) error                       // its connection ends, its jobs are skipped
	reconnect(r int) error                    // it is back on a new connection, and needs a repair
	// reply hands in a reply that waited in the replica's socket. It returns what came of it, and an error if that is not
	// what the book-keeper promises.
	reply(r int, id uint64) (string, error)
}

// orphanScript is how it came to pass. Live: the replica is back, and its replies come in on the new connection.
func orphanScript(live bool) []step[tracker] {
	silent := func(do func(t tracker) error) func(tracker) (string, error) {
		return func(t tracker) (string, error) { return "", do(t) }
	}
	reply := func(id uint64) func(tracker) (string, error) {
		return func(t tracker) (string, error) { return t.reply(stopped, id) }
	}
	s := []step[tracker]{
		{text: "511 writes are submitted and sent to replicas 0, 1 and 2.", do: silent(func(t tracker) error { return t.submit(jobtracker.Write, burst-1) })},
		{text: "Replica 1 is stopped, its replies stay in its socket. Replicas 0 and 2 answer.", do: silent(answers)},
		{text: "Replica 1 is given up: its connection ends, its jobs are skipped.", do: silent(func(t tracker) error { return t.giveUp(stopped) })},
		{text: "A flush, job 512, completes on replicas 0 and 2. It retires all jobs so far.", do: silent(flush)},
	}
	if live {
		s = append(s, step[tracker]{
			text: "Replica 1 fences its old connection and connects again. It takes no jobs before it is repaired.",
			do:   silent(func(t tracker) error { return t.reconnect(stopped) }),
		})
	}
	return append(s,
		step[tracker]{text: "Replica 1's reply to job 17 arrives.", do: reply(17)},
		step[tracker]{text: "The load goes on: 2048 newer jobs come and go.", do: silent(func(t tracker) error { return load(t, ringSize) })},
		step[tracker]{text: "Replica 1's reply to job 18 arrives.", do: reply(18), fatal: true},
		step[tracker]{text: "The load goes on: 100000 newer jobs come and go.", do: silent(func(t tracker) error { return load(t, newer) })},
		step[tracker]{text: "Replica 1's reply to job 19 arrives.", do: reply(19)})
}

// answers lets those who are not stopped answer.
func answers(t tracker) error { return errors.Join(t.answer(0), t.answer(2)) }

func flush(t tracker) error { return errors.Join(t.submit(jobtracker.Flush, 1), answers(t)) }

// load has jobs come and go, the last of each burst a flush.
func load(t tracker, jobs int) error {
	for ; jobs > 0; jobs -= burst {
		if err := errors.Join(t.submit(jobtracker.Write, min(jobs, burst)-1), answers(t), flush(t)); err != nil {
			return err
		}
	}
	return nil
}

// playOrphan tells the story twice: the replies come in on the connection that has ended, and on a live one.
func playOrphan(out *strings.Builder, dumps bool) bool {
	fmt.Fprint(out, "The orphaned completion (Crucible #1121): a replica is stopped under load, its jobs are skipped and\n"+
		"retired. Then the replies arrive that waited in its socket.\n")
	for _, live := range []bool{false, true} {
		title := "The replies come in on the connection that has ended."
		if live {
			title = "The replica is back, and its old replies come in on the live connection."
		}
		fmt.Fprintf(out, "\n== %s\n", title)
		t, err := newOurs(live)
		if err == nil && perform(out, dumps, orphanStory(orphanScript(live), newNaive(ringSize), t)) {
			err = t.close()
		} else if err == nil {
			return false
		}
		if err != nil {
			fmt.Fprintf(out, "jobtracker: %v\n", err)
			return false
		}
	}
	return true
}

func orphanStory(script []step[tracker], naive, ours tracker) story[tracker] {
	return story[tracker]{
		script: script, naive: naive, ours: ours, name: "jobtracker",
		failure:  func(cause any, _ error) bool { _, asserted := cause.(assertionFailed); return asserted },
		expected: "the naive tracker's assertion should have failed at the second late reply",
		failed:   "its assertion failed", lost: "the service is gone",
		kept: "each late reply: exactly the typed error, nothing changed, no memory of past ids.",
	}
}
