package streamstate

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite generated documents")

// TestDiagramsAreCurrent holds docs/stream-states.md to the tables; -update writes it anew.
func TestDiagramsAreCurrent(t *testing.T) {
	file := filepath.Join("..", "docs", "stream-states.md")
	want := "# The states of streams\n\nGenerated from the tables in streamstate by a test; do not edit.\n\n" +
		phaseDiagram(t) + phaseList() + partitionDiagram()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run go test ./streamstate -run TestDiagramsAreCurrent -update")
}

// arrows are labelled arrows between states, in the order in which they were found.
type arrows struct {
	order  []string
	labels map[string][]string
}

func (a *arrows) add(from, to fmt.Stringer, label string) {
	key := from.String() + " --> " + to.String()
	if a.labels == nil {
		a.labels = map[string][]string{}
	}
	if a.labels[key] == nil {
		a.order = append(a.order, key)
	}
	if !slices.Contains(a.labels[key], label) {
		a.labels[key] = append(a.labels[key], label)
	}
}

func (a *arrows) String() string {
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, key := range a.order {
		fmt.Fprintf(&b, "    %s : %s\n", key, strings.Join(a.labels[key], ", "))
	}
	b.WriteString("```\n\n")
	return b.String()
}

// phaseDiagram asks sessions that were brought into each phase, with a flush running and without.
func phaseDiagram(t *testing.T) string {
	var a arrows
	for ph := range Gone {
		for _, op := range []Op{OpOpened, OpOpenFailed, OpStop, OpDrain, OpDrop, OpFlushReply, OpReopen} {
			for _, flush := range []bool{false, true} {
				w := newWorld(t, ph)
				label := op.String()
				if flush && ph == Active {
					w.flush, _ = w.s.StartFlush()
					label += " (a flush runs)"
				}
				if calls[op](w) != nil {
					continue
				}
				to := w.s.e.view().phase
				if to != ph {
					a.add(ph, to, label)
				}
			}
		}
	}
	return "## Phases of a key\n\nThe end of the running flush, `flush-reply`, is what Stopping and Closing wait for. " +
		"Open begins in opening or active.\n\n" + a.String()
}

// phaseList is the table of what each phase says to each call.
func phaseList() string {
	var b strings.Builder
	b.WriteString("| call |")
	for ph := range Phase(numPhases) {
		fmt.Fprintf(&b, " %v |", ph)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", numPhases) + "\n")
	for op := range opLook {
		fmt.Fprintf(&b, "| %v |", op)
		for _, r := range phaseTable[op] {
			fmt.Fprintf(&b, " %s |", ruleNames[r])
		}
		b.WriteByte('\n')
	}
	return b.String() + "\n"
}

// partitionDiagram asks the relation about everything that can be known beside a state and an event.
func partitionDiagram() string {
	var a arrows
	for s := range PartitionState(numStates) {
		for e := range event(numEvents) {
			for _, f := range situations(s) {
				if to, why := nextPartition(s, e, f); why == 0 && to != s && e != evUnwant && e != evSessionEnd {
					a.add(s, to, e.String())
				}
			}
		}
	}
	return "## States of a partition\n\nLeft out: `unwant`, which leads from every state to unwanted, and `session-end`, which leads " +
		"from every state but unwanted to idle.\n\n" + strings.TrimRight(a.String(), "\n") + "\n"
}

// situations are the facts that a state allows.
func situations(s PartitionState) []facts {
	var out []facts
	for _, is := range []known{0, isLive, isListed, hasLast} {
		for n := range int32(3) {
			f := facts{is: is, stay: n, left: n}
			switch {
			case is == isLive && !s.live(), is == isListed && s != Fenced && s != Unwanted, is == hasLast && s != Due && s != Idle:
			case s == Begun && is == isLive && n > 0, s == Contested && is == isLive && n == 0, s == Idle && n > 0, s == Due && n > 0:
			default:
				out = append(out, f)
			}
		}
	}
	return out
}
