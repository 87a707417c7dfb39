package jobtracker

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestErrorTexts has every struct with its text and all that it matches.
func TestErrorTexts(t *testing.T) {
	for _, tc := range []struct {
		err  error
		text string
		is   []error
	}{
		{
			&ConfigError{Field: "MaxJobs", Got: -1, Min: 1, Max: 9},
			"jobtracker: bad configuration: MaxJobs is -1, want 1 to 9",
			[]error{ErrConfig},
		},
		{
			&OpError{Field: "Start", Got: 9, Max: 8},
			"jobtracker: bad operation: Start is 9, want 0 to 8",
			[]error{ErrOp},
		},
		{
			&ReplicaError{Replica: 3, Replicas: 3},
			"jobtracker: no such replica: 3 of 3",
			[]error{ErrReplica},
		},
		{
			&HelloError{Replica: 1, Field: "Blocks", Got: "1", Want: "2"},
			"jobtracker: bad hello: replica 1: Blocks is 1, want 2",
			[]error{ErrHello},
		},
		{
			&PhaseError{Call: "submit", Phase: Activating},
			"jobtracker: not allowed in this phase: submit while activating",
			[]error{ErrPhase},
		},
		{
			&PhaseError{Call: "submit", Phase: Inactive, Cause: ErrDisabled},
			"jobtracker: not allowed in this phase: submit while inactive (jobtracker: disabled)",
			[]error{ErrPhase, ErrDisabled},
		},
		{
			&LifecycleError{Replica: 2, State: ReplicaState{Voting, HomeOffline}, Event: EventConnect},
			"jobtracker: not allowed in this replica state: replica 2: connect while active",
			[]error{ErrLifecycle},
		},
		{
			&LifecycleError{Replica: 2, State: ReplicaState{Stopping, HomeOffline}, Event: EventConnect, Conn: 7},
			"jobtracker: the former connection is not quiesced: replica 2: connect while stopping(offline)",
			[]error{ErrNotQuiesced},
		},
		{
			&LifecycleError{Replica: 2, State: ReplicaState{Stopping, HomeFaulted}, Event: EventConnectBehind},
			"jobtracker: the former connection is not quiesced: replica 2: connect-behind while stopping(faulted)",
			[]error{ErrNotQuiesced},
		},
		{
			&LifecycleError{Replica: 2, State: ReplicaState{Stopping, HomeFaulted}, Event: EventRepairStart},
			"jobtracker: not allowed in this replica state: replica 2: repair-start while stopping(faulted)",
			[]error{ErrLifecycle},
		},
		{
			&GenerationError{Given: 3, Seen: 4},
			"jobtracker: generation not newer: 3, seen 4",
			[]error{ErrGeneration},
		},
		{
			&JobError{Job: 5, Kind: Write, Done: 1, Failed: 2, Err: ErrQuorum, Cause: errDisk},
			"jobtracker: too many replicas failed or skipped the job: job 5 (write): 1 done, 2 failed, 0 skipped: disk error",
			[]error{ErrQuorum, errDisk},
		},
		{
			&JobError{Job: 5, Kind: Flush, Done: 3, Err: ErrLostWrite},
			"jobtracker: a write acknowledged early has failed: job 5 (flush): 3 done, 0 failed, 0 skipped",
			[]error{ErrLostWrite},
		},
		{
			&EndedError{What: "connection", Cause: ErrPeerClosed},
			"jobtracker: ended: connection: jobtracker: connection closed",
			[]error{ErrEnded, ErrPeerClosed},
		},
		{
			&FaultError{Replica: 1, Job: 5, Err: ErrJobFailed, Cause: errDisk},
			"jobtracker: replica failed a job: replica 1, job 5: disk error",
			[]error{ErrJobFailed, errDisk},
		},
		{
			&FaultError{Replica: 1, Err: ErrOfflineLimit},
			"jobtracker: offline limit exceeded: replica 1",
			[]error{ErrOfflineLimit},
		},
		{
			&ConnError{Replica: 1, Conn: 2, Current: 3, Cause: ErrPeerClosed},
			"jobtracker: stale connection: replica 1, connection 2, current 3: jobtracker: connection closed",
			[]error{ErrStaleConn, ErrPeerClosed},
		},
		{
			&OrphanError{Job: 9, Conn: 2, Current: 3, Cause: ErrPeerClosed, Replica: 1},
			"jobtracker: orphaned completion: stale connection: replica 1, job 9, connection 2, current 3: jobtracker: connection closed",
			[]error{ErrOrphan, ErrStaleConn, ErrPeerClosed},
		},
		{
			&OrphanError{Job: 9, Conn: 2, Current: 2, Replica: 1, Reason: OrphanKindMismatch, Kind: Read, GotKind: Write},
			"jobtracker: orphaned completion: kind mismatch: replica 1, job 9, connection 2, current 2, job is a read, result a write",
			[]error{ErrOrphan, ErrKindMismatch},
		},
		{
			&OrphanError{Reason: 200},
			"jobtracker: orphaned completion: reason(200): replica 0, job 0, connection 0, current 0",
			[]error{ErrOrphan},
		},
	} {
		t.Run(fmt.Sprintf("%T", tc.err), func(t *testing.T) {
			require.EqualError(t, tc.err, tc.text)
			for _, s := range sentinels {
				require.Equal(t, slices.Contains(tc.is, s), errors.Is(tc.err, s), "%v", s)
			}
			for _, is := range tc.is {
				require.ErrorIs(t, tc.err, is)
			}
		})
	}
}

// sentinels are all there are.
var sentinels = []error{
	ErrConfig, ErrOp, ErrReplica, ErrHello, ErrPhase, ErrLifecycle, ErrNotQuiesced, ErrGeneration, ErrReadOnly, ErrSuperseded,
	ErrOrphan, ErrQuorum, ErrLostWrite, ErrEnded, ErrDeactivated, ErrDisabled, ErrClosed, ErrReplaced, ErrAllFaulted,
	ErrReplyTimeout, ErrOfflineLimit, ErrJobFailed, ErrMismatch, ErrBehind, ErrPeerClosed, ErrRepaired, ErrAborted,
	ErrFaulted, ErrStaleConn, ErrNeverIssued, ErrRetired, ErrSkipped, ErrNotSent, ErrDuplicate, ErrKindMismatch,
}

func TestSentinelsAreTold(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sentinels {
		require.True(t, strings.HasPrefix(s.Error(), "jobtracker: "), "%v", s)
		require.False(t, seen[s.Error()], "%v", s)
		seen[s.Error()] = true
	}
	require.Len(t, reasonErrors, numReasons)
}

// TestReplicaErrorNamesTheReplica has every call that takes a replica's number refuse one that does not exist.
func TestReplicaErrorNamesTheReplica(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	rep := startRepair(t, tr, conns, 2)
	for _, r := range []int{-1, 3, 255, 1 << 20} {
		for name, call := range map[string]func() error{
			"Connect": func() error { _, err := tr.Connect(r, Hello{}); return err },
			"Fault":   func() error { return tr.Fault(r, errDisk) },
			"Replace": func() error { return tr.Replace(r) },
			"Repair":  func() error { _, err := tr.Repair(r); return err },
			"Copy":    func() error { _, err := rep.Copy(r, 0, 1, 0); return err },
			"Compare": func() error { _, err := rep.Compare(r, 0, 0); return err },
		} {
			require.Equal(t, &ReplicaError{Replica: r, Replicas: 3}, unchanged(t, tr, call), name)
		}
	}
}

// TestPhaseErrorNamesCallAndPhase has every call that needs another phase refused, with why the last activation ended.
func TestPhaseErrorNamesCallAndPhase(t *testing.T) {
	tr := idle(t, Config[int]{})
	generation := uint64(0)
	calls := map[string]func() error{
		"activate": func() error {
			_, err := tr.Activate(ActivateOptions{Generation: generation + 1, Create: true})
			return err
		},
		"connect":    func() error { _, err := tr.Connect(0, Hello{}); return err },
		"submit":     func() error { return tr.Do(t.Context(), read(0, 1), 0) },
		"deactivate": func() error { return tr.Deactivate().Err() },
		"disable":    func() error { return tr.Disable(errDisk) },
		"fault":      func() error { return tr.Fault(2, errDisk) },
		"replace":    func() error { return tr.Replace(2) },
		"repair":     func() error { _, err := tr.Repair(2); return err },
	}
	refused := func(phase Activation, cause error, names ...string) {
		t.Helper()
		require.Equal(t, phase, tr.Stats().Phase)
		for _, name := range names {
			err := unchanged(t, tr, calls[name])
			require.Equal(t, &PhaseError{Call: name, Phase: phase, Cause: cause}, err)
		}
	}
	refused(Inactive, nil, "connect", "submit", "deactivate", "disable", "fault", "repair")

	require.NoError(t, calls["activate"]())
	refused(Activating, nil, "activate", "submit", "repair")
	require.NoError(t, tr.Disable(errDisk))
	refused(Inactive, errDisk, "connect", "submit", "deactivate", "disable", "fault", "repair")

	generation = 1
	conns := connectAll(t, tr)
	refused(Active, errDisk, "activate")

	submit(t, tr, write(0, 1))
	done := tr.Deactivate()
	refused(Deactivating, errDisk, "activate", "connect", "submit", "repair")
	require.Same(t, done, tr.Deactivate(), "another call gets the same handle")
	serve(t, conns...)
	require.NoError(t, done.Wait(ended()))
	refused(Inactive, ErrDeactivated, "connect", "submit", "deactivate", "disable", "fault", "repair")

	require.NoError(t, tr.Close().Wait(t.Context()))
	refused(Closed, ErrClosed, "activate", "connect", "submit", "deactivate", "disable", "fault", "replace", "repair")
}

func TestGenerationErrorNamesBoth(t *testing.T) {
	tr := idle(t, Config[int]{})
	require.Equal(t, &GenerationError{}, unchanged(t, tr, func() error { _, err := tr.Activate(ActivateOptions{}); return err }))
	_, err := tr.Activate(ActivateOptions{Generation: 7})
	require.NoError(t, err)
	require.NoError(t, tr.Disable(nil))
	for _, g := range []uint64{0, 6, 7} {
		err := unchanged(t, tr, func() error { _, err := tr.Activate(ActivateOptions{Generation: g}); return err })
		require.Equal(t, &GenerationError{Given: g, Seen: 7}, err)
	}
	_, err = tr.Activate(ActivateOptions{Generation: 8})
	require.NoError(t, err)
}

// TestLifecycleErrorNamesStateAndEvent has what a replica's state refuses.
func TestLifecycleErrorNamesStateAndEvent(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	refused := func(want LifecycleError, kind error, call func() error) {
		t.Helper()
		err := unchanged(t, tr, call)
		require.Equal(t, &want, err)
		require.ErrorIs(t, err, kind)
	}
	connect := func() error { _, err := tr.Connect(1, Hello{}); return err }
	repair := func() error { _, err := tr.Repair(1); return err }
	voting, id := ReplicaState{Voting, HomeOffline}, conns[1].ID()

	refused(LifecycleError{1, voting, EventConnect, id}, ErrLifecycle, connect)
	refused(LifecycleError{1, voting, EventQuiesced, id}, ErrLifecycle, conns[1].Quiesced)
	refused(LifecycleError{1, voting, EventRepairStart, id}, ErrLifecycle, repair)
	conns[1].Close(nil)
	refused(LifecycleError{1, ReplicaState{Stopping, HomeOffline}, EventConnect, id}, ErrNotQuiesced, connect)
	require.NoError(t, conns[1].Quiesced())
	require.NoError(t, conns[1].Quiesced(), "it is idempotent")
	refused(LifecycleError{1, ReplicaState{Down, HomeOffline}, EventRepairStart, id}, ErrLifecycle, repair)

	rep := startRepair(t, tr, conns, 2)
	source := func() error { _, err := rep.Copy(1, 0, 1, 0); return err }
	refused(LifecycleError{1, ReplicaState{Down, HomeOffline}, EventRepairStart, id}, ErrLifecycle, source)
	compare := func() error { _, err := rep.Compare(1, 0, 0); return err }
	refused(LifecycleError{1, ReplicaState{Down, HomeOffline}, EventRepairStart, id}, ErrLifecycle, compare)
	var unrepaired *UnrepairedError
	require.ErrorAs(t, unchanged(t, tr, rep.Finish), &unrepaired)
	require.Equal(t, UnrepairedError{Replica: 2, Left: 64}, *unrepaired)
	require.ErrorIs(t, unrepaired, ErrUnrepaired)
	copyAll(t, rep, conns...)
	require.NoError(t, rep.Finish())
	refused(LifecycleError{2, ReplicaState{Repairing, HomeFaulted}, EventRepairFinish, conns[2].ID()}, ErrLifecycle, rep.Finish)
	require.ErrorIs(t, unchanged(t, tr, func() error { _, err := rep.Copy(0, 0, 1, 0); return err }), ErrSuperseded)

	require.NoError(t, tr.Disable(nil))
	for r := range 3 {
		err := unchanged(t, tr, func() error { return tr.Fault(r, errDisk) })
		require.Equal(t, &PhaseError{Call: "fault", Phase: Inactive, Cause: ErrDisabled}, err, "nothing is expected of it")
	}
}

// TestEndedRepairIsSuperseded has every call on a ticket that has ended.
func TestEndedRepairIsSuperseded(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	old := startRepair(t, tr, conns, 2)
	require.NoError(t, old.Abort(nil))
	require.ErrorIs(t, old.Ended().Wait(ended()), ErrAborted)
	now, err := tr.Repair(2)
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"Copy":    func() error { _, err := old.Copy(0, 0, 1, 0); return err },
		"Compare": func() error { _, err := old.Compare(0, 0, 0); return err },
		"Finish":  old.Finish,
		"Same":    func() error { return old.Same(0) },
		"Next":    func() error { _, _, err := old.Next(0); return err },
		"Extent":  func() error { _, err := old.Extent(0); return err },
		"Extents": func() error { _, err := old.Extents(); return err },
		"Abort":   func() error { return old.Abort(errDisk) },
	} {
		require.ErrorIs(t, unchanged(t, tr, call), ErrSuperseded, name)
	}
	copyAll(t, now, conns...)
	require.NoError(t, now.Finish())
	serve(t, conns...)
	require.NoError(t, now.Ended().Wait(ended()))
}

// TestStaleConnIsTyped has every call on a connection that has ended, before and after another has followed it.
func TestStaleConnIsTyped(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	old := conns[1]
	old.Close(errDisk)
	old.Close(nil) // the first cause stays
	require.NoError(t, old.Quiesced())
	for _, current := range []ConnID{0, 4} {
		if current != 0 {
			c, err := tr.Connect(1, Hello{})
			require.NoError(t, err)
			require.Equal(t, current, c.ID())
		}
		want := &ConnError{Replica: 1, Conn: old.ID(), Current: current, Cause: errDisk}
		require.Equal(t, want, unchanged(t, tr, func() error { return old.Next(t.Context(), new(Dispatch[int])) }))
		require.Equal(t, want, unchanged(t, tr, func() error {
			_, err := old.NextBatch(t.Context(), make([]Dispatch[int], 2))
			return err
		}))
		for _, id := range []JobID{0, 1, 99} {
			orphan := &OrphanError{Job: id, Conn: old.ID(), Current: current, Cause: errDisk, Replica: 1}
			require.Equal(t, orphan, unchanged(t, tr, func() error { return old.Complete(id, Result{}) }))
			require.Equal(t, orphan, unchanged(t, tr, func() error {
				batch := []Completion{{ID: id}}
				require.Equal(t, 1, old.CompleteBatch(batch))
				return batch[0].Err
			}))
		}
		was := tr.Fingerprint()
		old.Close(nil)
		require.NoError(t, old.Quiesced())
		require.Equal(t, was, tr.Fingerprint())
	}
	require.EqualValues(t, 12, tr.Stats().Orphans[OrphanStaleConn])
}

// TestKeptOrphansStay keeps orphan errors of both roads for longer than those that are made at a time: each says for ever
// what it said.
func TestKeptOrphansStay(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	conns[1].Close(errDisk)
	kept := make(map[JobID][2]error)
	for id := range JobID(5 * orphanSlab) {
		kept[id] = [2]error{conns[1].Complete(100+id, Result{}), conns[0].Complete(100+id, Result{})}
	}
	for id, e := range kept {
		require.Equal(t, &OrphanError{Job: 100 + id, Conn: conns[1].ID(), Cause: errDisk, Replica: 1}, e[0])
		require.Equal(t, &OrphanError{Job: 100 + id, Conn: conns[0].ID(), Current: conns[0].ID(), Reason: OrphanNeverIssued}, e[1])
	}
	require.EqualValues(t, 5*orphanSlab, tr.Stats().Orphans[OrphanNeverIssued])
}

// TestCompleteBatchSaysWhyItEnded has a batch end its own connection, and with it the activation: the replies behind
// are orphans of that connection, and the cause is why the connection ended, as it is for those that come later.
func TestCompleteBatchSaysWhyItEnded(t *testing.T) {
	tr, conns := running(t, Config[int]{Replicas: 1})
	a, b := submit(t, tr, write(0, 1)), submit(t, tr, write(1, 1))
	take(t, conns[0])
	batch := []Completion{{ID: a.ID(), Result: Result{Err: errDisk}}, {ID: b.ID()}}
	require.Equal(t, 1, conns[0].CompleteBatch(batch))
	require.NoError(t, batch[0].Err)
	require.Equal(t, Inactive, tr.Stats().Phase)
	var orphan *OrphanError
	require.ErrorAs(t, batch[1].Err, &orphan)
	require.Equal(t, OrphanStaleConn, orphan.Reason)
	require.ErrorIs(t, orphan.Cause, ErrJobFailed)
	require.Equal(t, batch[1].Err, conns[0].Complete(b.ID(), Result{}))
}

// TestFaultWithoutACause has a cause all the same.
func TestFaultWithoutACause(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	require.NoError(t, tr.Fault(1, nil))
	err := conns[1].Next(t.Context(), new(Dispatch[int]))
	require.ErrorIs(t, err, ErrFaulted)
	require.EqualError(t, err, "jobtracker: stale connection: replica 1, connection 2, current 0: jobtracker: replica faulted by the caller: replica 1")
}

// TestNames has a name of its own for each value of each enum, and one for what is none.
func TestNames(t *testing.T) {
	for _, e := range []struct {
		what string
		n    int
		name func(i int) string
	}{
		{"kind", numKinds, func(i int) string { return Kind(i).String() }},
		{"state", numStates, func(i int) string { return State(i).String() }},
		{"activation", numActivations, func(i int) string { return Activation(i).String() }},
		{"plan", numPlans, func(i int) string { return Plan(i).String() }},
		{"half", numHalves, func(i int) string { return Half(i).String() }},
		{"order", numOrders, func(i int) string { return Order(i).String() }},
		{"reads", numReads, func(i int) string { return Reads(i).String() }},
		{"sync", numSyncs, func(i int) string { return SyncKind(i).String() }},
		{"mismatch", numMismatches, func(i int) string { return Mismatch(i).String() }},
		{"reason", numReasons, func(i int) string { return OrphanReason(i).String() }},
		{"event", numEventKinds, func(i int) string { return EventKind(i).String() }},
		{"phase", numPhases, func(i int) string { return ReplicaPhase(i).String() }},
		{"home", numHomes, func(i int) string { return Home(i).String() }},
		{"event", numEvents, func(i int) string { return ReplicaEvent(i).String() }},
		{"column", numStates, func(i int) string { return nameOf(stateColumn[:], i, "column") }},
		{"repair", numRepairSteps, func(i int) string { return nameOf(repairNames[:], i, "repair") }},
	} {
		seen := map[string]bool{}
		for i := range e.n {
			name := e.name(i)
			require.NotEmpty(t, name)
			require.NotContains(t, name, "(")
			require.False(t, seen[name], "%s %q twice", e.what, name)
			seen[name] = true
		}
		for _, i := range []int{e.n, 255} {
			require.Equal(t, fmt.Sprintf("%s(%d)", e.what, i), e.name(i))
		}
	}
	require.Equal(t, "kind(-1)", nameOf(kindNames[:], -1, "kind"))
}

func TestReplicaStateNames(t *testing.T) {
	seen := map[string]ReplicaState{}
	for p := range ReplicaPhase(numPhases) {
		for h := range Home(numHomes) {
			s := ReplicaState{p, h}
			want := p.String() // with a connection it does not matter where it would go
			switch p {
			case Down:
				want = h.String()
			case Stopping:
				want = "stopping(" + h.String() + ")"
			case Fresh, RepairReady, Repairing, Voting:
			}
			require.Equal(t, want, s.String())
			if o, ok := seen[want]; ok {
				require.Equal(t, o.Phase, p, "%q is ambiguous", want)
			}
			seen[want] = s
			require.Equal(t, s, unpackState(packState(s)))
		}
	}
	require.Equal(t, "phase(9)", ReplicaState{Phase: 9}.String())
}
