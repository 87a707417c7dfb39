package main

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// TestR22RefusedFlushRaisesNoNumber: a flush executes on a replica and its answer is too late to count: its number is not what
// the replica remembers. Where the answer is in time it is remembered first, and only then does it count.
func TestR22RefusedFlushRaisesNoNumber(t *testing.T) {
	for _, late := range []bool{true, false} {
		tr, err := jobtracker.New(jobtracker.Config[*request]{Replicas: 1, Blocks: 8, BlockSize: blockSize})
		require.NoError(t, err)
		_, err = tr.Activate(jobtracker.ActivateOptions{Generation: 1, Create: true})
		require.NoError(t, err)
		conn, err := tr.Connect(0, jobtracker.Hello{})
		require.NoError(t, err)
		job, err := tr.Submit(t.Context(), jobtracker.Op{Kind: jobtracker.Flush}, nil)
		require.NoError(t, err)
		var d jobtracker.Dispatch[*request]
		require.NoError(t, conn.Next(t.Context(), &d))
		require.NotZero(t, d.Number)
		s := newSession(&driver{m: &mirror{tracker: tr, slog: slog.New(slog.DiscardHandler)}}, nil, conn)
		if late {
			conn.Close(nil)
		}
		s.answer(&call{id: d.ID, kind: d.Kind, number: d.Number}, nil)
		require.False(t, job.Resolved(), "the number is not durable")
		if late {
			require.Empty(t, s.notes, "the sender would make the number durable")
			require.Equal(t, uint64(1), tr.Stats().Orphans[jobtracker.OrphanStaleConn])
		} else {
			require.Equal(t, d.ID, (<-s.notes).flush.id)
		}
		require.NoError(t, tr.Close().Wait(t.Context()))
	}
}
