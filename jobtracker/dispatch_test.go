package jobtracker

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLongChain has a job look through a chain of jobs on one block that are all over on the replica, in little stack:
// nothing there keeps it from being dispatched, and nothing travels with it.
func TestLongChain(t *testing.T) {
	for _, order := range []Order{TrackerOrders, ReplicaOrders} {
		t.Run(order.String(), func(t *testing.T) {
			tr, conns := running(t, Config[int]{Order: order, AutoSync: SyncOff})
			require.NoError(t, tr.Fault(2, nil))
			require.NoError(t, conns[2].Quiesced())
			for range 50_000 {
				submit(t, tr, write(7, 1))
				serve(t, conns[:2]...)
			}
			require.EqualValues(t, 50_000, tr.Stats().Active)
			target, err := tr.Connect(2, Hello{})
			require.NoError(t, err)
			_, err = tr.Repair(2)
			require.NoError(t, err)

			defer debug.SetMaxStack(debug.SetMaxStack(1 << 20))
			j := submit(t, tr, write(7, 1))
			var d Dispatch[int]
			require.NoError(t, target.Next(ended(), &d))
			require.Equal(t, j.ID(), d.ID)
			require.Empty(t, d.Deps)
		})
	}
}
