package main

import (
	"fmt"
	"strings"
)

// keeper is a book-keeper that a script drives.
type keeper interface {
	table() string // what there is to keep
	dump() string
}

// step is an event. What do returns is shown, the table if that is empty; an error is a broken promise.
type step[K keeper] struct {
	text  string
	do    func(k K) (said string, err error)
	fatal bool // the naive book-keeper is expected to fail here
}

// story is a script with two book-keepers, and how it must end.
type story[K keeper] struct {
	script      []step[K]
	naive, ours K
	name        string                          // of ours
	failure     func(cause any, err error) bool // is this panic, or wrong result, of the naive one the expected one?
	expected    string                          // for the verdict: what the naive one should have done,
	failed      string                          // what it did, up to the step,
	lost        string                          // what came of it,
	kept        string                          // and what ours did
}

// perform drives both book-keepers through the script and tells whether it ended as it must. It stops where ours is wrong.
func perform[K keeper](out *strings.Builder, dumps bool, s story[K]) bool {
	failed, dead, expected := 0, false, false
	for i, now := range s.script {
		fmt.Fprintf(out, "%2d. %s\n", i+1, now.text)
		if dead {
			fmt.Fprintf(out, "    naive       (dead since step %d)\n", failed)
		} else if cause, err := act(out, dumps, "naive", s.naive, now); failed == 0 && (cause != nil || err != nil) {
			failed, dead, expected = i+1, cause != nil, s.failure(cause, err) && now.fatal
		}
		if cause, err := act(out, dumps, s.name, s.ours, now); cause != nil || err != nil {
			fmt.Fprintf(out, "Verdict: NOT AS EXPECTED: %s should have kept its promise.\n", s.name)
			return false
		}
	}
	if !expected {
		fmt.Fprintf(out, "Verdict: NOT AS EXPECTED: %s.\n", s.expected)
		return false
	}
	fmt.Fprintf(out, "Verdict: as expected.\n    naive       %s at step %d: %s.\n    %-12s%s\n", s.failed, failed, s.lost, s.name, s.kept)
	return true
}

// act is one step of one book-keeper. A panic is caught to be shown: a real service would be gone.
func act[K keeper](out *strings.Builder, dumps bool, name string, k K, now step[K]) (cause any, err error) {
	say := func(text string) {
		fmt.Fprintf(out, "    %-12s%s\n", name, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 16)))
	}
	defer func() {
		if cause = recover(); cause != nil {
			say(fmt.Sprintf("PANIC: %v", cause))
		}
	}()
	said, err := now.do(k)
	if said == "" {
		said = k.table()
	}
	if err != nil {
		said += fmt.Sprintf("\nWRONG: %v", err)
	}
	say(said)
	if dumps {
		fmt.Fprintf(out, "      | %s\n", strings.ReplaceAll(strings.TrimSpace(k.dump()), "\n", "\n      | "))
	}
	return nil, err
}
