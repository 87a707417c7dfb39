package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckCanFail breaks each invariant once: a check that says nothing then is none.
func TestCheckCanFail(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(k *core)
		want   string
	}{
		"none":          {func(*core) {}, ""},
		"base":          {func(k *core) { k.base = 0 }, "table 0 to"},
		"next":          {func(k *core) { k.next = k.base - 1 }, "table"},
		"ring":          {func(k *core) { k.ring = k.ring[:2] }, "in a ring of 2"},
		"lost":          {func(k *core) { k.slot(1).sent &^= 1 }, "no partition"},
		"twice":         {func(k *core) { k.slot(1).done |= 1 }, "no partition"},
		"nobody's":      {func(k *core) { k.slot(1).skipped |= 1 << 3 }, "no partition"},
		"charged":       {func(k *core) { k.slot(2).charged |= 0b111; s := k.slot(2); s.done, s.queued = s.done|s.queued, 0 }, "charged on"},
		"not sent":      {func(k *core) { k.slot(1).here = 0 }, "dispatched on"},
		"undecided":     {func(k *core) { s := k.slot(1); s.done, s.sent, s.queued, s.charged = 0b111, 0, 0, 0 }, "not decided"},
		"dead":          {func(k *core) { k.live &^= 1 }, "live are"},
		"held":          {func(k *core) { s := k.slot(2); s.held, s.queued = s.queued, 0 }, "held on"},
		"jobs":          {func(k *core) { k.reps[0].jobs++ }, "replica 0 counts 4 jobs"},
		"bytes":         {func(k *core) { k.reps[1].bytes-- }, "replica 1 counts"},
		"held count":    {func(k *core) { k.reps[2].held++ }, "replica 2 counts"},
		"held bytes":    {func(k *core) { k.reps[2].heldBytes++ }, "replica 2 counts"},
		"sent count":    {func(k *core) { k.reps[0].sent-- }, "replica 0 counts"},
		"ready":         {func(k *core) { k.reps[2].state = ReplicaState{Stopping, HomeOffline} }, "has no connection but"},
		"repair":        {func(k *core) { k.reps[0].repair = repairCopying }, "with repair copying"},
		"order":         {func(k *core) { k.ord.nfew = 1 }, "order"},
		"straggler":     {func(k *core) { k.side = append(k.side, straggler{id: 3, slot: *k.slot(3)}) }, "after"},
		"not issued":    {func(k *core) { k.side = append(k.side, straggler{id: 9, slot: *k.slot(3)}) }, "not issued"},
		"order's cells": {func(k *core) { k.ord.cells = nil }, "order"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := New(Config[int]{Replicas: 3, Blocks: 64, BlockSize: 512, ReplyTimeout: -1}) // no timer looks at the damage
			require.NoError(t, err)
			conns := connectAll(t, tr)
			submit(t, tr, write(0, 1))
			submit(t, tr, read(0, 1))
			submit(t, tr, write(7, 1))
			require.Len(t, take(t, conns[0]), 2)
			require.NoError(t, conns[0].Complete(3, Result{}))
			submit(t, tr, write(9, 1))
			_ = tr.do(nil, asking{}, func(k *core) error {
				tc.damage(k)
				err = k.check()
				return nil
			})
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorContains(t, err, "bug: ")
		})
	}
}

// TestFingerprintTells has the hash differ between states that answer differently.
func TestFingerprintTells(t *testing.T) {
	seen := map[uint64]string{}
	note := func(tr *Tracker[int], what string) {
		t.Helper()
		f := tr.Fingerprint()
		require.Equal(t, f, tr.Fingerprint())
		require.Empty(t, seen[f], "%s is as %s", what, seen[f])
		seen[f] = what
	}
	tr := idle(t, Config[int]{})
	note(tr, "inactive")
	conns := connectAll(t, tr)
	note(tr, "active")
	submit(t, tr, write(0, 1))
	note(tr, "a write")
	take(t, conns[0])
	note(tr, "sent")
	require.NoError(t, conns[0].Complete(1, Result{}))
	note(tr, "done on one")
	take(t, conns[1])
	require.NoError(t, conns[1].Complete(1, Result{}))
	note(tr, "acknowledged")
	conns[2].Close(nil)
	note(tr, "one stopping")
	require.NoError(t, conns[2].Quiesced())
	note(tr, "one offline")
	require.NoError(t, tr.Fault(2, errDisk))
	note(tr, "one faulted")
	require.NoError(t, tr.Replace(2))
	note(tr, "one replaced")
	c, err := tr.Connect(2, Hello{Replica: ID{1}})
	require.NoError(t, err)
	note(tr, "back")
	rep, err := tr.Repair(2)
	require.NoError(t, err)
	note(tr, "in repair")
	_, err = rep.Copy(0, 0, 1, 0)
	require.NoError(t, err)
	note(tr, "a copy")
	require.NoError(t, rep.Abort(nil))
	note(tr, "aborted")
	c.Close(nil)
	submit(t, tr, Op{Kind: Trim, Blocks: 1})
	note(tr, "a trim")
	require.NoError(t, tr.Disable(nil))
	note(tr, "disabled")
	require.NoError(t, tr.Close().Wait(ended()))
	note(tr, "closed")
}
