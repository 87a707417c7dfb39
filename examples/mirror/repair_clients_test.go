//go:build unix

package main

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

var rounds = flag.Int("stress.rounds", 50, "with -stress, how often TestR01FioRepair stops a replica in the middle of its repair")

// TestR01FioRepair: one replica after another is stopped with SIGSTOP until it is faulted, continued, stopped again in the
// middle of its repair, and continued, under load: no error reaches fio, and at the end all are active and alike.
func TestR01FioRepair(t *testing.T) {
	harms, cut := 2, 0
	if *stress {
		harms = *rounds
	}
	args := []string{"-reply-timeout", "400ms", "-offline-for", "100ms", "-repair-rate", "4M"}
	r := underFio(t, true, harms, args, nil, func(r *rig, k *kit) {
		await := func(until func(jobtracker.ReplicaState) bool) {
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return until(s.replicas[k.index]) }))
		}
		k.stop()
		await(func(s jobtracker.ReplicaState) bool { return s.Home == jobtracker.HomeFaulted })
		require.NoError(t, r.watch.more(limited(t), 100))
		k.goOn()
		await(func(s jobtracker.ReplicaState) bool { return s.Phase == jobtracker.Repairing })
		k.stop()
		await(func(s jobtracker.ReplicaState) bool { return s.Phase != jobtracker.Repairing })
		if r.tracker.Stats().Replicas[k.index].State.Phase == jobtracker.Stopping {
			cut++
		}
		k.goOn()
	})
	require.Positive(t, cut, "no repair was stopped in the middle")
	require.GreaterOrEqual(t, r.watch.joins(0)+r.watch.joins(1)+r.watch.joins(2), 3+harms)
	t.Logf("%d of %d repairs were stopped in the middle", cut, harms)
}
