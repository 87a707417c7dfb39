package jobtracker

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// idle is a small tracker that is not activated. Zero fields of cfg are 3 replicas, 64 blocks of 512 bytes, and no
// deadlines.
func idle(t *testing.T, cfg Config[int]) *Tracker[int] {
	t.Helper()
	if cfg.Replicas == 0 {
		cfg.Replicas = 3
	}
	if cfg.Blocks == 0 {
		cfg.Blocks = 64
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 512
	}
	if cfg.ReplyTimeout == 0 {
		cfg.ReplyTimeout = -1
	}
	if cfg.OfflineFor == 0 {
		cfg.OfflineFor = -1
	}
	tr, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tr.Close().Wait(context.Background()))
		require.NoError(t, tr.Check())
	})
	return tr
}

// connectAll activates a tracker as a new device and connects all replicas.
func connectAll(t *testing.T, tr *Tracker[int]) []*Conn[int] {
	t.Helper()
	begun, err := tr.Activate(ActivateOptions{Generation: tr.Dump().Generation + 1, Create: true})
	require.NoError(t, err)
	var conns []*Conn[int]
	for r := range tr.cfg.Replicas {
		c, err := tr.Connect(r, Hello{})
		require.NoError(t, err)
		conns = append(conns, c)
	}
	require.NoError(t, begun.Wait(ended()))
	return conns
}

// running is idle and connectAll.
func running(t *testing.T, cfg Config[int]) (*Tracker[int], []*Conn[int]) {
	t.Helper()
	tr := idle(t, cfg)
	return tr, connectAll(t, tr)
}

// submit admits a job that must not have to wait.
func submit(t *testing.T, tr *Tracker[int], op Op) *Job[int] {
	t.Helper()
	j, err := tr.Submit(ended(), op, 0)
	require.NoError(t, err)
	return j
}

// take takes all that is ready; nothing is if the connection has ended.
func take(t *testing.T, c *Conn[int]) (ids []JobID) {
	t.Helper()
	for {
		var d Dispatch[int]
		if c.Next(ended(), &d) != nil {
			return ids
		}
		ids = append(ids, d.ID)
	}
}

// serve takes and answers until nothing is ready.
func serve(t *testing.T, conns ...*Conn[int]) {
	t.Helper()
	for moved := true; moved; {
		moved = false
		for _, c := range conns {
			for _, id := range take(t, c) {
				require.NoError(t, c.Complete(id, Result{}))
				moved = true
			}
		}
	}
}

// unchanged demands that a call is refused and has changed nothing, and returns the error.
func unchanged(t *testing.T, tr *Tracker[int], call func() error) error {
	t.Helper()
	was, stats := tr.Fingerprint(), tr.Stats()
	err := call()
	require.Error(t, err)
	require.Equal(t, was, tr.Fingerprint(), "changed by a call that was refused: %v", err)
	now := tr.Stats()
	now.Orphans = stats.Orphans
	require.Equal(t, stats, now)
	require.NoError(t, tr.Check())
	return err
}

func write(start, blocks uint64) Op { return Op{Kind: Write, Start: start, Blocks: blocks} }
func read(start, blocks uint64) Op  { return Op{Kind: Read, Start: start, Blocks: blocks} }

// copyAll has everything copied to a repair's target, from replica 0.
func copyAll(t *testing.T, rep *Repair[int], conns ...*Conn[int]) {
	t.Helper()
	_, err := rep.Copy(0, 0, 64, 0)
	require.NoError(t, err)
	serve(t, conns...)
}
