// Command bench reads the output of go test -bench and prints each figure that has a budget beside it.
//
//	go test -run '^$' -bench . ./jobtracker | go run ./internal/bench internal/bench/budgets.txt
//
// A line of the budgets file names a benchmark, a metric and a budget: "BenchmarkGate xbase 1.3" is a ceiling, a
// budget that begins with >= a floor. Of several runs the median counts. A figure that misses its budget is marked and fails
// nothing, since machines are noisy; a budget whose benchmark or metric is missing fails the run.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: bench budgets.txt <output of go test -bench>")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	budgets, err := parseBudgets(f)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	got, err := parseResults(in)
	if err != nil {
		return err
	}
	table, missing := report(budgets, got)
	if _, err := io.WriteString(out, table); err != nil {
		return err
	}
	if missing > 0 {
		return fmt.Errorf("%d budgets have no figure", missing)
	}
	return nil
}

// budget is one line of the budgets file.
type budget struct {
	name, metric string
	limit        float64
	floor        bool // the figure must be at least limit, not at most
}

func parseBudgets(r io.Reader) ([]budget, error) {
	var out []budget
	for s := bufio.NewScanner(r); ; {
		if !s.Scan() {
			return out, s.Err()
		}
		text, _, _ := strings.Cut(s.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q: want a benchmark, a metric and a budget", s.Text())
		}
		number, floor := strings.CutPrefix(fields[2], ">=")
		limit, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", s.Text(), err)
		}
		out = append(out, budget{fields[0], fields[1], limit, floor})
	}
}

// key is one metric of one benchmark.
type key struct{ name, metric string }

// procs is the suffix that go test adds for GOMAXPROCS, when that is not 1.
var procs = regexp.MustCompile(`-\d+$`)

// generated marks a benchmark that ran on a trace made up because the real one is not there. It counts for the real one's
// budget, and the lines above the table tell which it was.
const generated = "-generated"

func parseResults(r io.Reader) (map[key][]float64, error) {
	out := make(map[key][]float64)
	s := bufio.NewScanner(r)
	for s.Scan() {
		// BenchmarkName-2   1000   12.5 ns/op   1.2 xbase
		fields := strings.Fields(s.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break // a log line, not a result
			}
			plain := procs.ReplaceAllString(fields[0], "")
			names := []string{fields[0], plain, strings.ReplaceAll(plain, generated, "")}
			for _, name := range slices.Compact(names) {
				k := key{name, fields[i+1]}
				out[k] = append(out[k], v)
			}
		}
	}
	return out, s.Err()
}

// report is the table, and how many of its budgets have no figure.
func report(budgets []budget, got map[key][]float64) (table string, missing int) {
	var out strings.Builder
	fmt.Fprintf(&out, "%-44s %10s %-10s %10s\n", "benchmark", "figure", "unit", "budget")
	for _, b := range budgets {
		sign, note := "<=", ""
		if b.floor {
			sign = ">="
		}
		limit := sign + strconv.FormatFloat(b.limit, 'g', -1, 64)
		vs := got[key{b.name, b.metric}]
		if len(vs) == 0 {
			missing++
			fmt.Fprintf(&out, "%-44s %10s %-10s %10s  MISSING\n", b.name, "-", b.metric, limit)
			continue
		}
		v := median(vs)
		if b.floor && v < b.limit || !b.floor && v > b.limit {
			note = "  missed"
		}
		fmt.Fprintf(&out, "%-44s %10.4g %-10s %10s%s\n", b.name, v, b.metric, limit, note)
	}
	return out.String(), missing
}

func median(vs []float64) float64 {
	vs = slices.Sorted(slices.Values(vs))
	n := len(vs)
	return (vs[(n-1)/2] + vs[n/2]) / 2
}
