package jobtracker

import "go.uber.org/atomic"

// counters are what is read without the lock. The core is their only writer, under the lock; one is exact, two are not a
// snapshot.
type counters struct {
	submitted, acked, failed, retired, skipped, lost, mismatches atomic.Uint64
	phase                                                        atomic.Uint32
	orphans                                                      [numReasons]atomic.Uint64
	replicas                                                     [MaxReplicas]replicaCounters
}

type replicaCounters struct {
	state                        atomic.Uint32
	dispatched, answered, failed atomic.Uint64
}

func packState(s ReplicaState) uint32   { return uint32(s.Phase)<<8 | uint32(s.Home) }
func unpackState(v uint32) ReplicaState { return ReplicaState{ReplicaPhase(v >> 8), Home(v)} }

// Stats are counts since the tracker was made. Each is exact when it is read; together they are not a snapshot.
type Stats struct {
	Phase      Activation
	Submitted  uint64             // jobs admitted, the tracker's own included
	Acked      uint64             // jobs that succeeded
	Failed     uint64             // jobs that failed
	Retired    uint64             // jobs that have left the table
	Active     uint64             // jobs in the table
	Skipped    uint64             // jobs written off, counted for each replica
	Lost       uint64             // writes acknowledged early that failed
	Mismatches uint64             // answers to a read that differed
	Orphans    [numReasons]uint64 // indexed by OrphanReason
	Replicas   []ReplicaStats
}

// Orphaned is the number of completions that were refused, for all reasons.
func (s *Stats) Orphaned() uint64 {
	var n uint64
	for _, k := range s.Orphans {
		n += k
	}
	return n
}

// ReplicaStats are counts of one replica since the tracker was made.
type ReplicaStats struct {
	State      ReplicaState
	Dispatched uint64 // jobs handed to its sender, replays included; see Answered
	Answered   uint64 // completions accepted; up to 15 behind until the next retirement, exact when the table is empty
	Failed     uint64 // of these, bad ones
}

// snapshot reads the counters.
func (n *counters) snapshot(replicas int) Stats {
	s := Stats{
		Phase: Activation(n.phase.Load()), Acked: n.acked.Load(), Failed: n.failed.Load(),
		Skipped: n.skipped.Load(), Lost: n.lost.Load(), Mismatches: n.mismatches.Load(),
		Replicas: make([]ReplicaStats, replicas),
	}
	s.Retired = n.retired.Load() // before Submitted, so that Active is not negative
	s.Submitted = n.submitted.Load()
	s.Active = s.Submitted - s.Retired
	for i := range s.Orphans {
		s.Orphans[i] = n.orphans[i].Load()
	}
	for r := range s.Replicas {
		k := &n.replicas[r]
		s.Replicas[r] = ReplicaStats{
			State: unpackState(k.state.Load()), Dispatched: k.dispatched.Load(),
			Answered: k.answered.Load(), Failed: k.failed.Load(),
		}
	}
	return s
}
