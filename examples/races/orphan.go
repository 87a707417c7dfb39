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
	submit(kind jobtracker.Kind, n int) error // admits n jobs, writes to distinct blocks, and sends them to all who take jobs
	answer(r int) error                       // the replica answers all that it was sent
	giveUp(r int) error                       // its connection ends, its jobs are skipped
	reconnect(r int) error                    // it is back on a new connection, and needs a repair
	// reply hands in a reply that waited in the replica's socket. It returns what came of it, and an error if that is not
	// what the book-keeper promises.
	reply(r int, id uint64) (string, error)
	table() string // how much there is to keep
	dump() string
}

// step is an event.
type step struct {
	text  string
	do    func(t tracker) error
	reply uint64 // instead of do: the job that the stopped replica's reply is for
	fatal bool   // the naive tracker is expected to fail here
}

// orphanScript is how it came to pass. Live: the replica is back, and its replies come in on the new connection.
func orphanScript(live bool) []step {
	s := []step{
		{text: "511 writes are submitted and sent to replicas 0, 1 and 2.", do: func(t tracker) error { return t.submit(jobtracker.Write, burst-1) }},
		{text: "Replica 1 is stopped, its replies stay in its socket. Replicas 0 and 2 answer.", do: answers},
		{text: "Replica 1 is given up: its connection ends, its jobs are skipped.", do: func(t tracker) error { return t.giveUp(stopped) }},
		{text: "A flush, job 512, completes on replicas 0 and 2. It retires all jobs so far.", do: flush},
	}
	if live {
		s = append(s, step{
			text: "Replica 1 fences its old connection and connects again. It takes no jobs before it is repaired.",
			do:   func(t tracker) error { return t.reconnect(stopped) },
		})
	}
	return append(s,
		step{text: "Replica 1's reply to job 17 arrives.", reply: 17},
		step{text: "The load goes on: 2048 newer jobs come and go.", do: func(t tracker) error { return load(t, ringSize) }},
		step{text: "Replica 1's reply to job 18 arrives.", reply: 18, fatal: true},
		step{text: "The load goes on: 100000 newer jobs come and go.", do: func(t tracker) error { return load(t, newer) }},
		step{text: "Replica 1's reply to job 19 arrives.", reply: 19})
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
		if err == nil && perform(out, dumps, orphanScript(live), newNaive(ringSize), t) {
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

// perform drives both trackers through the script and tells whether it ended as it must. It stops where ours is wrong.
func perform(out *strings.Builder, dumps bool, script []step, naive, ours tracker) bool {
	died, expected := 0, false
	for i, s := range script {
		fmt.Fprintf(out, "%2d. %s\n", i+1, s.text)
		if died > 0 {
			fmt.Fprintf(out, "    naive       (dead since step %d)\n", died)
		} else if cause, err := act(out, dumps, "naive", naive, s); cause != nil || err != nil {
			_, asserted := cause.(assertionFailed)
			died, expected = i+1, asserted && s.fatal
		}
		if cause, err := act(out, dumps, "jobtracker", ours, s); cause != nil || err != nil {
			fmt.Fprint(out, "Verdict: NOT AS EXPECTED: jobtracker should have kept its promise.\n")
			return false
		}
	}
	if !expected {
		fmt.Fprint(out, "Verdict: NOT AS EXPECTED: the naive tracker's assertion should have failed at the second late reply.\n")
		return false
	}
	fmt.Fprintf(out, "Verdict: as expected.\n    naive       its assertion failed at step %d: the service is gone.\n"+
		"    jobtracker  each late reply: exactly the typed error, nothing changed, no memory of past ids.\n", died)
	return true
}

// act is one step of one tracker. A panic is caught to be shown: a real service would be gone.
func act(out *strings.Builder, dumps bool, name string, t tracker, s step) (cause any, err error) {
	say := func(text string) {
		fmt.Fprintf(out, "    %-12s%s\n", name, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 16)))
	}
	defer func() {
		if cause = recover(); cause != nil {
			say(fmt.Sprintf("PANIC: %v", cause))
		}
	}()
	var said string
	if s.reply > 0 {
		said, err = t.reply(stopped, s.reply)
	} else {
		err = s.do(t)
		said = t.table()
	}
	if err != nil {
		said += fmt.Sprintf("\nWRONG: %v", err)
	}
	say(said)
	if dumps {
		fmt.Fprintf(out, "      | %s\n", strings.ReplaceAll(strings.TrimSpace(t.dump()), "\n", "\n      | "))
	}
	return nil, err
}
