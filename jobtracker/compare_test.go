package jobtracker

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestActivationDoesNotDependOnTheOrder has one dirty replica beside a clean quorum, connected in each order: the quorum
// begins, and the dirty one needs a repair. Seen red with dirty replicas counted as equal.
func TestActivationDoesNotDependOnTheOrder(t *testing.T) {
	hello := func(dirty bool) Hello { return Hello{Generation: 1, Flush: 3, Dirty: dirty} }
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			tr, err := New(Config[int]{Replicas: 3, Blocks: 8, BlockSize: 512})
			require.NoError(t, err)
			defer func() { require.NoError(t, tr.Close().Wait(t.Context())) }()
			begun, err := tr.Activate(ActivateOptions{Generation: 2})
			require.NoError(t, err)
			for i, r := range order {
				_, err := tr.Connect(r, hello(r == 0))
				require.NoError(t, err)
				if i == 1 && (order[0] == 0 || order[1] == 0) { // one clean, one dirty
					require.Equal(t, Activating, tr.Stats().Phase)
				}
			}
			require.NoError(t, begun.Wait(t.Context()))
			s := tr.Stats()
			require.Equal(t, RepairReady, s.Replicas[0].State.Phase)
			require.Equal(t, Voting, s.Replicas[1].State.Phase)
			require.Equal(t, Voting, s.Replicas[2].State.Phase)
			require.NoError(t, tr.Check())
		})
	}
}
