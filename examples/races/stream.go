package main

import (
	"errors"
	"fmt"
	"strings"
)

const (
	partitions = 8
	start      = 100 // where the partitions begin in the first life of the key
	easy       = 5   // the partition whose repair goes well
	raced      = 3   // the partition whose repair is overtaken
)

// follower is a book-keeper of a stream's partitions, as the script sees it. The handler of a repair holds its lock
// twice: ask is the first hold, reply the second, and in between it waits for the source.
type follower interface {
	keeper
	open(from uint64) error // opens the key: all partitions are followed from here
	end(p int) error        // the source ends a partition
	ask(p int) error        // the handler checks that the stream is active, and asks the source to restart p
	drop() error            // clean-up: the key's book-keeping is erased
	// reply has the source accept what was asked: the handler goes on in its second hold. It returns what came of it, and
	// an error if that is not what the book-keeper promises, or if a later life of the key was changed.
	reply(p int) (string, error)
}

// streamScript is how it came to pass. Reopened: the key is opened again before the reply arrives.
func streamScript(reopened bool) []step[follower] {
	silent := func(do func(f follower) error) func(follower) (string, error) {
		return func(f follower) (string, error) { return "", do(f) }
	}
	reply := func(p int) func(follower) (string, error) {
		return func(f follower) (string, error) { return f.reply(p) }
	}
	s := []step[follower]{
		{text: "Keyspace orders is opened. Its 8 partitions are followed from 100.", do: silent(func(f follower) error { return f.open(start) })},
		{text: "The source ends partition 5. The handler finds the stream active, unlocks, and asks for a restart.", do: silent(endAndAsk(easy))},
		{text: "The source accepts. The handler locks again and writes it down.", do: reply(easy)},
		{text: "The source ends partition 3. The handler finds the stream active, unlocks, and asks for a restart.", do: silent(endAndAsk(raced))},
		{text: "In the gap keyspace orders is dropped: clean-up erases its book-keeping.", do: silent(func(f follower) error { return f.drop() })},
	}
	if reopened {
		s = append(s, step[follower]{
			text: "Still in the gap, it is created and opened again. Its partitions are followed from 0.",
			do:   silent(func(f follower) error { return f.open(0) }),
		})
	}
	return append(s, step[follower]{text: "The source's answer for partition 3 arrives. The handler locks again.", do: reply(raced), fatal: true})
}

func endAndAsk(p int) func(follower) error {
	return func(f follower) error { return errors.Join(f.end(p), f.ask(p)) }
}

// playStream tells the story twice: the key is gone when the answer arrives, and it has a successor.
func playStream(out *strings.Builder, dumps bool) bool {
	fmt.Fprint(out, "The stream race (Couchbase MB-37227): a handler checks a stream's status once and locks twice. Clean-up\n"+
		"runs in the gap.\n")
	for _, reopened := range []bool{false, true} {
		title := "The key is gone when the answer arrives."
		if reopened {
			title = "The key was opened again before the answer arrives."
		}
		fmt.Fprintf(out, "\n== %s\n", title)
		f := newFollower()
		if !perform(out, dumps, streamStory(reopened, newNaiveFollower(), f)) {
			return false
		}
		if err := f.close(); err != nil {
			fmt.Fprintf(out, "streamstate: %v\n", err)
			return false
		}
	}
	return true
}

func streamStory(reopened bool, naive, ours follower) story[follower] {
	s := story[follower]{
		script: streamScript(reopened), naive: naive, ours: ours, name: "streamstate",
		failure:  func(cause any, _ error) bool { return isIndexPanic(cause) },
		expected: "the naive follower should have indexed what was erased",
		failed:   "it indexed what was erased", lost: "the service is gone",
		kept: "the late answer: exactly the typed error in the second hold, and nothing was written.",
	}
	if reopened {
		s.failure = func(_ any, err error) bool { return errors.Is(err, errSuccessor) }
		s.expected = "the naive follower should have written into the new life"
		s.failed, s.lost = "it wrote into the new life", "what is below 100 will never be read"
	}
	return s
}

// isIndexPanic tells whether a slice was indexed beyond its length.
func isIndexPanic(cause any) bool {
	err, ok := cause.(error)
	return ok && strings.Contains(err.Error(), "index out of range")
}
