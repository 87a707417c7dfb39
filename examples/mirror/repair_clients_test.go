//go:build unix

package main

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

// TestR01FioRepair: one replica after another is stopped with SIGSTOP until it is faulted, continued, stopped again in the
// middle of its repair, and continued, under load: no error reaches fio, and at the end all are active and alike. With -stress
// fifty times.
func TestR01FioRepair(t *testing.T) {
	harms, loops := 2, "--loops=2"
	if *stress {
		harms, loops = 10, "--loops=60" // underFio does five times as many
	}
	halves := 0
	args := []string{"-reply-timeout", "400ms", "-offline-for", "100ms", "-repair-rate", "4M"}
	r := underFio(t, true, harms, args, []string{loops}, func(r *rig, k *kit) {
		victim := -1
		await := func(until func(jobtracker.ReplicaState) bool) {
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool {
				for i, rep := range s.replicas {
					if until(rep) && (victim < 0 || victim == i) {
						victim = i
						return true
					}
				}
				return false
			}))
		}
		k.signal(syscall.SIGSTOP)
		await(func(s jobtracker.ReplicaState) bool { return s.Home == jobtracker.HomeFaulted })
		require.NoError(t, r.watch.more(limited(t), 100))
		k.signal(syscall.SIGCONT)
		await(func(s jobtracker.ReplicaState) bool { return s.Phase == jobtracker.Repairing })
		k.signal(syscall.SIGSTOP)
		await(func(s jobtracker.ReplicaState) bool { return s.Phase != jobtracker.Repairing })
		if r.tracker.Stats().Replicas[victim].State.Phase == jobtracker.Stopping {
			halves++
		}
		k.signal(syscall.SIGCONT)
	})
	require.Positive(t, halves, "no repair was stopped in the middle")
	require.GreaterOrEqual(t, r.watch.joins(0)+r.watch.joins(1)+r.watch.joins(2), 3+harms)
	t.Logf("%d repairs were stopped in the middle; orphans: %s", halves, orphans(new(r.tracker.Stats())))
}
