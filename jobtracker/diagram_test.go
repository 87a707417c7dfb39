package jobtracker

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDiagramIsCurrent holds docs/replica-lifecycle.md to the lifecycle's relation; -update writes it anew.
func TestDiagramIsCurrent(t *testing.T) {
	file := filepath.Join("..", "docs", "replica-lifecycle.md")
	want := diagram()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got), "run go test ./jobtracker -run TestDiagramIsCurrent -update")
}

// diagram draws what can be reached from Down(New), leaving out the events that any state takes.
func diagram() string {
	var b strings.Builder
	b.WriteString(`# The lifecycle of a replica

Generated from the relation in jobtracker/replica.go by a test; do not edit. A state's name says where the replica is;
in brackets stands where it goes when its connection ends. Left out: replace, which leads from every state to
"replaced" unless the tracker is closed; end (of the activation), which leads to stopping or down with "new", or
"replaced" for a replaced one; and events that change nothing.

` + "```mermaid\nstateDiagram-v2\n")
	name := func(s ReplicaState) string {
		return strings.NewReplacer("-", "_").Replace(s.Phase.String()) + "_" + s.Home.String()
	}
	seen := []ReplicaState{{}}
	arrows := map[string][]string{}
	var order []string
	for i := 0; i < len(seen); i++ {
		s := seen[i]
		for e := range ReplicaEvent(numEvents) {
			for _, in := range situations(s) {
				to, ok := nextReplica(s, e, in)
				if !ok || to == s {
					continue
				}
				if !slices.Contains(seen, to) {
					seen = append(seen, to)
				}
				if e == EventReplace || e == EventEnd {
					continue
				}
				key := name(s) + " --> " + name(to)
				if _, ok := arrows[key]; !ok {
					order = append(order, key)
				}
				if !slices.Contains(arrows[key], e.String()) {
					arrows[key] = append(arrows[key], e.String())
				}
			}
		}
	}
	for _, s := range seen {
		label := s.String()
		if s.Connected() {
			label += " (" + s.Home.String() + ")"
		}
		fmt.Fprintf(&b, "    state \"%s\" as %s\n", label, name(s))
	}
	fmt.Fprintf(&b, "    [*] --> %s\n", name(ReplicaState{}))
	for _, key := range order {
		fmt.Fprintf(&b, "    %s: %s\n", key, strings.Join(arrows[key], ", "))
	}
	b.WriteString("```\n")
	return b.String()
}

// situations are all that the relation depends on beside state and event, as far as they can be true of s.
func situations(s ReplicaState) []situation {
	var all []situation
	for a := range Activation(numActivations) {
		for step := range repairStep(numRepairSteps) {
			if (step != repairNone) != (s.Phase == Repairing) {
				continue
			}
			for _, replayable := range []bool{true, false} {
				all = append(all, situation{activation: a, repair: step, replayable: replayable})
			}
		}
	}
	return all
}
