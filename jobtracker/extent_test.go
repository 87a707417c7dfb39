package jobtracker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestExtentTableKeepsItsRules holds each state and each event against what the docs say, without exception.
func TestExtentTableKeepsItsRules(t *testing.T) {
	left := func(s ExtentState) bool { return s <= ExtentCopying }
	for s := range ExtentState(numExtentStates) {
		for e := range extentEvent(numExtentEvents) {
			to, ok := nextExtent(s, e)
			at := fmt.Sprintf("%v, %s", s, extentEventNames[e])
			require.Equal(t, e != extentSame || s != ExtentDirty && s != ExtentCopying, ok, at)
			if !ok {
				require.Equal(t, s, to, at)
				continue
			}
			if left(s) && !left(to) {
				require.True(t, e == extentFilled || e == extentSame && s == ExtentUnknown, at+": proven by nothing else")
			}
			if to == ExtentClean && s != ExtentClean {
				require.Equal(t, extentKept, e, at+": only a flush makes clean")
			}
			if e == extentMissed {
				require.Equal(t, ExtentDirty, to, at)
			}
			if s == ExtentDirty && e != extentFilled && e != extentAsked {
				require.Equal(t, ExtentDirty, to, at+": only a copy helps")
			}
			if e == extentDropped || e == extentKept {
				require.NotContains(t, []ExtentState{ExtentCopying, ExtentCopied, ExtentEqual}, to, at+": nothing is out without a connection")
			}
			if e == extentDropped && !left(s) {
				require.Equal(t, s == ExtentClean, !left(to), at+": what no flush covers is lost")
			}
		}
	}
}

// TestExtentDiagramIsCurrent holds docs/extent-states.md to the relation; -update writes it anew.
func TestExtentDiagramIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("# What is known of an extent of a replica\n\nGenerated from the relation in jobtracker/extent.go by a test; do not edit.\n\n")
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> unknown: activation\n    [*] --> clean: joined with everything\n    [*] --> dirty: blank, replaced, or not what was proven\n")
	for s := range ExtentState(numExtentStates) {
		var order []string
		arrows := map[string][]string{}
		for e := range extentEvent(numExtentEvents) {
			if to, ok := nextExtent(s, e); ok && to != s {
				if arrows[to.String()] == nil {
					order = append(order, to.String())
				}
				arrows[to.String()] = append(arrows[to.String()], extentEventNames[e])
			}
		}
		for _, to := range order {
			fmt.Fprintf(&b, "    %v --> %s: %s\n", s, to, strings.Join(arrows[to], ", "))
		}
	}
	b.WriteString("```\n")
	file := filepath.Join("..", "docs", "extent-states.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	require.Equal(t, b.String(), string(readFile(t, file)), "run go test ./jobtracker -run TestExtentDiagramIsCurrent -update")
}

// TestExtentRanges compares the ranges with a look at each block.
func TestExtentRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := extentTable{size: rapid.Uint64Range(1, 9).Draw(t, "size"), blocks: rapid.Uint64Range(1, 40).Draw(t, "blocks")}
		tab.reset(ExtentUnknown)
		start := rapid.Uint64Range(0, tab.blocks-1).Draw(t, "start")
		n := rapid.Uint64Range(1, tab.blocks-start).Draw(t, "n")
		in := func(b uint64) bool { return b >= start && b < start+n }
		from, to := tab.touched(start, n)
		first, last := tab.covered(start, n)
		for i := range tab.total() {
			some, all := false, true
			e := tab.extent(i)
			for b := e.Start; b < e.Start+e.Blocks; b++ {
				some, all = some || in(b), all && in(b)
			}
			if got := i >= from && i < to; got != some {
				t.Fatalf("extent %d is touched: %v, want %v", i, got, some)
			}
			if got := i >= first && i < last; got != all {
				t.Fatalf("extent %d is covered: %v, want %v", i, got, all)
			}
		}
	})
}

// TestExtentTableCounts drives a table by chance and compares it with a naive one.
func TestExtentTableCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := extentTable{size: 2, blocks: 19}
		tab.reset(rapid.SampledFrom([]ExtentState{ExtentUnknown, ExtentDirty, ExtentClean}).Draw(t, "all"))
		type cell struct {
			s     ExtentState
			flush uint64
		}
		want := make([]cell, tab.total())
		for i := range want {
			want[i].s = tab.uniform
		}
		for flush := range uint64(rapid.IntRange(0, 30).Draw(t, "steps")) {
			if rapid.IntRange(0, 7).Draw(t, "end") == 0 {
				flushed := rapid.Uint64Range(0, flush).Draw(t, "flushed")
				tab.leave(flushed)
				for i, c := range want {
					e := extentDropped
					if flushed > c.flush {
						e = extentKept
					}
					want[i].s, _ = nextExtent(c.s, e)
				}
			}
			from := rapid.IntRange(0, len(want)).Draw(t, "from")
			to := rapid.IntRange(from, len(want)).Draw(t, "to")
			e := extentEvent(rapid.IntRange(0, int(extentSame)).Draw(t, "event"))
			tab.apply(from, to, e, flush)
			for i := from; i < to; i++ {
				next, ok := nextExtent(want[i].s, e)
				if ok && (e != extentFilled || want[i].s != ExtentCopying) {
					want[i].flush = flush
				}
				if ok {
					want[i].s = next
				}
			}
			if err := tab.check(); err != nil {
				t.Fatal(err)
			}
			left := 0
			for i := range want {
				if tab.at(i) != want[i].s {
					t.Fatalf("extent %d is %v, want %v", i, tab.at(i), want[i].s)
				}
				if want[i].s <= ExtentCopying {
					left++
				}
			}
			if tab.left() != left {
				t.Fatalf("%d left, want %d", tab.left(), left)
			}
		}
	})
}
