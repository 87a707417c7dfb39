package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// races are the outages that can be shown. play tells the story, with a dump after each step if asked for, and returns
// whether it ended as it must.
var races = []struct {
	name, title string
	play        func(out *strings.Builder, dumps bool) bool
}{
	{"stream", "the stream race, Couchbase MB-37227", playStream},
	{"orphan", "the orphaned completion, Crucible #1121", playOrphan},
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program. It returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	var out strings.Builder
	status := tell(args, &out)
	if status == 2 {
		stdout = stderr
	}
	if _, err := io.WriteString(stdout, out.String()); err != nil {
		return 1
	}
	return status
}

// tell writes what the program prints and returns its exit status.
func tell(args []string, out *strings.Builder) int {
	known := []string{"all"}
	for _, r := range races {
		known = append(known, r.name)
	}
	flags := flag.NewFlagSet("races", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, "usage: races [flags]\n\n"+
			"Shows real outages step by step, each with a naive book-keeper and with ours. Exit status: 0 if the naive one\n"+
			"failed as expected and ours returned exactly the typed error, 1 if not, 2 for a bad command line.\n\nraces:\n")
		for _, r := range races {
			fmt.Fprintf(out, "  %-8s %s\n", r.name, r.title)
		}
		fmt.Fprint(out, "\nflags:\n")
		flags.PrintDefaults()
	}
	names := flags.String("race", "all", "the `races` to show, separated by commas")
	dumps := flags.Bool("v", false, "print the dump of each book-keeper after each step")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2 // flags said why
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(out, "races: unexpected argument %q; try races -h\n", flags.Arg(0))
		return 2
	}
	chosen := map[string]bool{}
	for name := range strings.SplitSeq(*names, ",") {
		if chosen[name] = true; !slices.Contains(known, name) {
			fmt.Fprintf(out, "races: unknown race %q; there are: %s\n", name, strings.Join(known, ", "))
			return 2
		}
	}
	status := 0
	for _, r := range races {
		if !chosen["all"] && !chosen[r.name] {
			continue
		}
		if out.Len() > 0 {
			fmt.Fprintln(out)
		}
		if !r.play(out, *dumps) {
			status = 1
		}
	}
	return status
}
