package jobtracker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// legal are all states that a replica can be in, phase by home. That it is exactly these is checked both ways: each is
// reached from the initial state, and nothing else is.
var legal = []ReplicaState{
	{Down, HomeNew},
	{Down, HomeOffline},
	{Down, HomeFaulted},
	{Down, HomeReplaced},
	{Stopping, HomeNew},
	{Stopping, HomeOffline},
	{Stopping, HomeFaulted},
	{Stopping, HomeReplaced},
	{Fresh, HomeNew},
	{Fresh, HomeReplaced},
	{RepairReady, HomeFaulted},
	{RepairReady, HomeReplaced},
	{Repairing, HomeFaulted},
	{Repairing, HomeReplaced},
	{Voting, HomeOffline},
}

// move is one row of the enumeration.
type move struct {
	from ReplicaState
	e    ReplicaEvent
	in   situation
	to   ReplicaState
	ok   bool
}

func (m move) String() string {
	return fmt.Sprintf("%v(%v) %v, %v, repair %v, replayable %v: %v(%v) %v", m.from.Phase, m.from.Home, m.e,
		m.in.activation, repairNames[m.in.repair], m.in.replayable, m.to.Phase, m.to.Home, m.ok)
}

// moves is every phase × home × event × activation × repair × replayable, what cannot occur included.
func moves(yield func(move) bool) {
	for phase := range ReplicaPhase(numPhases) {
		for home := range Home(numHomes) {
			for e := range ReplicaEvent(numEvents) {
				for a := range Activation(numActivations) {
					for step := range repairStep(numRepairSteps) {
						for _, replayable := range []bool{false, true} {
							m := move{from: ReplicaState{phase, home}, e: e, in: situation{a, step, replayable}}
							m.to, m.ok = nextReplica(m.from, e, m.in)
							if !yield(m) {
								return
							}
						}
					}
				}
			}
		}
	}
}

// possible tells whether a move's state and situation can meet: states of connections exist in an activation only, and
// a repair step in Repairing only.
func (m move) possible() bool {
	a := m.in.activation
	switch {
	case !slices.Contains(legal, m.from), (m.in.repair != repairNone) != (m.from.Phase == Repairing):
		return false
	case a == Inactive || a == Closed: // the end of an activation leaves no connection
		return !m.from.Connected() && (m.from.Home == HomeNew || m.from.Home == HomeReplaced)
	case a == Activating:
		return m.from.Phase != Repairing && m.from.Phase != Voting && m.from.Phase != RepairReady && m.from.Home != HomeOffline
	case m.from.Phase == Fresh: // it was compared when the activation began
		return false
	case a == Deactivating: // repairs have ended, and nobody is waited for
		return m.from.Phase != Repairing && (m.from.Connected() || m.from.Home != HomeOffline)
	}
	return true
}

func isConnect(e ReplicaEvent) bool { return e == EventConnect || e == EventConnectBehind }

// lifecycleRules are the invariants of each row from a legal state, written from the documentation: each says when a row is wrong.
var lifecycleRules = []struct {
	name  string
	wrong func(m move) bool
}{
	{"a legal state leads to a legal state", func(m move) bool {
		return m.ok && !slices.Contains(legal, m.to)
	}},
	{"only a connect event leads from no connection to one", func(m move) bool {
		return m.ok && !m.from.Connected() && m.to.Connected() && !isConnect(m.e)
	}},
	{"a connect event leads from Down only, to a connection", func(m move) bool {
		return m.ok && isConnect(m.e) && (m.from.Phase != Down || !m.to.Connected())
	}},
	{"a replica may connect in a running activation only", func(m move) bool {
		return isConnect(m.e) && m.from.Phase == Down && m.ok != (m.in.activation == Activating || m.in.activation == Active)
	}},
	{"a connection ends in Stopping, unless the replica is replaced (J30)", func(m move) bool {
		return m.ok && m.from.Connected() && m.to.Phase == Down && m.e != EventReplace
	}},
	{"Stopping is left by quiesced and replace only (J30)", func(m move) bool {
		return m.ok && m.from.Phase == Stopping && m.to.Phase != Stopping && m.e != EventQuiesced && m.e != EventReplace
	}},
	{"quiesced leads from Stopping to Down, home unchanged, whenever", func(m move) bool {
		return m.e == EventQuiesced && (m.ok != (m.from.Phase == Stopping) || m.ok && m.to != ReplicaState{Down, m.from.Home})
	}},
	{"a replaced replica stays replaced until it is active (J16)", func(m move) bool {
		return m.ok && m.from.Home == HomeReplaced && m.to.Home != HomeReplaced && m.e != EventRepairDone && m.e != EventJoin
	}},
	{"replace is allowed until closed, and replaces", func(m move) bool {
		return m.e == EventReplace && (m.ok != (m.in.activation != Closed) || m.ok && m.to != ReplicaState{Down, HomeReplaced})
	}},
	{"only replace makes a replica replaced", func(m move) bool {
		return m.ok && m.from.Home != HomeReplaced && m.to.Home == HomeReplaced && m.e != EventReplace
	}},
	{"a replica becomes active by join, repair-done, or a connect that is not behind", func(m move) bool {
		return m.ok && m.from.Phase != Voting && m.to.Phase == Voting && m.e != EventJoin && m.e != EventRepairDone && m.e != EventConnect
	}},
	{"no connect makes a faulted or replaced replica active", func(m move) bool {
		return m.ok && isConnect(m.e) && (m.from.Home == HomeFaulted || m.from.Home == HomeReplaced) && m.to.Phase == Voting
	}},
	{"who connects behind is not active", func(m move) bool {
		return m.ok && m.e == EventConnectBehind && m.to.Phase == Voting
	}},
	{"while activating nobody is active, and everybody who connects is compared", func(m move) bool {
		return m.ok && m.in.activation == Activating && isConnect(m.e) && m.to.Phase != Fresh
	}},
	{"join is for those who are compared, while activating", func(m move) bool {
		may := m.from.Phase == Fresh && m.in.activation == Activating
		return (m.e == EventJoin || m.e == EventJoinBehind) && m.ok != may ||
			m.ok && m.e == EventJoin && m.to.Phase != Voting || m.ok && m.e == EventJoinBehind && m.to.Phase != RepairReady
	}},
	{"a repair runs from RepairReady in an active activation", func(m move) bool {
		return m.e == EventRepairStart && m.ok != (m.from.Phase == RepairReady && m.in.activation == Active)
	}},
	{"a repair ends well only by its own steps", func(m move) bool {
		active := m.from.Phase == Repairing && m.in.activation == Active
		return m.e == EventRepairFinish && m.ok != (active && m.in.repair == repairCopying) ||
			m.e == EventRepairDone && m.ok != (active && m.in.repair == repairFinishing)
	}},
	{"a repair can be aborted in any activation", func(m move) bool {
		return m.e == EventRepairAbort && m.ok != (m.from.Phase == Repairing)
	}},
	{"a lost connection is the end of a live one, in any situation", func(m move) bool {
		return m.e == EventLost && m.ok != m.from.Connected()
	}},
	{"offline is only an active replica whose loss can be replayed (J12, J34)", func(m move) bool {
		may := m.from.Phase == Voting && m.e == EventLost && m.in.replayable && m.in.activation == Active
		return m.ok && !m.to.Connected() && m.to.Home == HomeOffline && (m.from.Connected() || m.from.Home != HomeOffline) && !may
	}},
	{"what can be replayed is not faulted by its loss", func(m move) bool {
		return m.from.Phase == Voting && m.e == EventLost && m.in.replayable && m.in.activation == Active &&
			m.to != ReplicaState{Stopping, HomeOffline}
	}},
	{"a fault leaves no connection and no offline replica", func(m move) bool {
		return m.ok && m.e == EventFault && (m.to.Connected() || m.to.Home == HomeOffline)
	}},
	{"a fault is allowed in an activation", func(m move) bool {
		return m.e == EventFault && m.ok != (m.in.activation != Inactive && m.in.activation != Closed)
	}},
	{"deactivation is refused to nobody, waits for nobody who is away, and ends repairs (J14, J34, R03)", func(m move) bool {
		return m.e == EventDeactivate && (!m.ok || !m.to.Connected() && m.to.Home == HomeOffline || m.to.Phase == Repairing ||
			m.from.Connected() != m.to.Connected())
	}},
	{"the end is refused to nobody, ends connections, and leaves new and replaced replicas only (J15)", func(m move) bool {
		return m.e == EventEnd && (!m.ok || m.to.Connected() || m.to.Home != HomeNew && m.to.Home != HomeReplaced)
	}},
}

// Seen red with mutants/J27-end-quiesces.patch.
func TestJ27_LifecycleIsTotalAndKeepsItsRules(t *testing.T) {
	rows, refused := 0, 0
	for m := range moves {
		rows++
		if !m.ok {
			refused++
		}
		for _, r := range lifecycleRules {
			if slices.Contains(legal, m.from) && r.wrong(m) {
				t.Errorf("%v\n\t%v", r.name, m)
			}
		}
		if again, ok := nextReplica(m.from, m.e, m.in); again != m.to || ok != m.ok {
			t.Errorf("not a function: %v", m)
		}
		if m.from.String() == "" || m.e.String() == "" || m.String() == "" {
			t.Errorf("no name: %+v", m)
		}
	}
	require.Equal(t, numPhases*numHomes*numEvents*numActivations*numRepairSteps*2, rows)
	require.Positive(t, refused)
}

// Each rule can fail: for each there is a row that would break it if it led elsewhere.
func TestJ27_RulesAreNotVacuous(t *testing.T) {
	for _, r := range lifecycleRules {
		found := false
		for m := range moves {
			for phase := range ReplicaPhase(numPhases) {
				for home := range Home(numHomes) {
					for _, ok := range []bool{true, false} {
						m.to, m.ok = ReplicaState{phase, home}, ok
						found = found || m.possible() && r.wrong(m)
					}
				}
			}
			if found {
				break
			}
		}
		require.True(t, found, "nothing can break %q", r.name)
	}
}

// From the initial state every legal state is reached, and nothing else; every event is taken somewhere and refused
// somewhere, or documented as refused never; every kind of move that can be, is.
func TestJ27_EverythingIsReachedAndNothingElse(t *testing.T) {
	reached := map[ReplicaState]bool{{}: true}
	type arm struct {
		from ReplicaState
		e    ReplicaEvent
		to   ReplicaState
	}
	arms := map[arm]bool{}
	for changed := true; changed; {
		changed = false
		for m := range moves {
			if !m.ok || !reached[m.from] || !m.possible() {
				continue
			}
			arms[arm{m.from, m.e, m.to}] = true
			if !reached[m.to] {
				reached[m.to], changed = true, true
			}
		}
	}
	for _, s := range legal {
		require.True(t, reached[s], "%v(%v) cannot be reached", s.Phase, s.Home)
	}
	require.Len(t, reached, len(legal))

	for _, s := range legal { // and left again by something else than the end of everything
		left := false
		for a := range arms {
			left = left || a.from == s && a.to != s && a.e != EventReplace && a.e != EventEnd
		}
		require.True(t, left, "%v(%v) cannot be left", s.Phase, s.Home)
	}
	never := []ReplicaEvent{EventDeactivate, EventEnd} // whoever is asked takes them
	for e := range ReplicaEvent(numEvents) {
		taken, refused := false, false
		for m := range moves {
			if m.e == e && m.possible() {
				taken, refused = taken || m.ok, refused || !m.ok
			}
		}
		require.True(t, taken, "%v is a dead arm", e)
		require.Equal(t, !slices.Contains(never, e), refused, "%v", e)
	}
	for _, want := range []arm{ // one of each kind, both ways where there are two
		{ReplicaState{Down, HomeNew}, EventConnect, ReplicaState{Fresh, HomeNew}},
		{ReplicaState{Down, HomeNew}, EventConnect, ReplicaState{Voting, HomeOffline}},
		{ReplicaState{Down, HomeOffline}, EventConnect, ReplicaState{Voting, HomeOffline}},
		{ReplicaState{Down, HomeOffline}, EventConnectBehind, ReplicaState{RepairReady, HomeFaulted}},
		{ReplicaState{Down, HomeReplaced}, EventConnect, ReplicaState{RepairReady, HomeReplaced}},
		{ReplicaState{Fresh, HomeReplaced}, EventJoin, ReplicaState{Voting, HomeOffline}},
		{ReplicaState{Fresh, HomeReplaced}, EventJoinBehind, ReplicaState{RepairReady, HomeReplaced}},
		{ReplicaState{Voting, HomeOffline}, EventLost, ReplicaState{Stopping, HomeOffline}},
		{ReplicaState{Voting, HomeOffline}, EventLost, ReplicaState{Stopping, HomeFaulted}},
		{ReplicaState{Voting, HomeOffline}, EventFault, ReplicaState{Stopping, HomeFaulted}},
		{ReplicaState{Voting, HomeOffline}, EventReplace, ReplicaState{Down, HomeReplaced}},
		{ReplicaState{Stopping, HomeOffline}, EventDeactivate, ReplicaState{Stopping, HomeFaulted}},
		{ReplicaState{Repairing, HomeReplaced}, EventRepairDone, ReplicaState{Voting, HomeOffline}},
		{ReplicaState{Repairing, HomeReplaced}, EventRepairAbort, ReplicaState{RepairReady, HomeReplaced}},
		{ReplicaState{Repairing, HomeFaulted}, EventLost, ReplicaState{Stopping, HomeFaulted}},
		{ReplicaState{Repairing, HomeFaulted}, EventDeactivate, ReplicaState{RepairReady, HomeFaulted}},
	} {
		require.True(t, arms[want], "%v --%v--> %v", want.from, want.e, want.to)
	}
}

// The actions follow from the two states, for each pair there is.
func TestJ27_ActionsOfTransitions(t *testing.T) {
	taker := func(s ReplicaState) bool {
		return s.Phase == Voting || s.Phase == Repairing || !s.Connected() && s.Home == HomeOffline
	}
	for m := range moves {
		if !m.ok || !m.possible() || m.from == m.to {
			continue
		}
		a := actionsOf(m.from, m.to)
		require.Equal(t, m.from.Connected() && !m.to.Connected(), a.endConn, "%v", m)
		require.Equal(t, m.from.Phase == Repairing && m.to.Phase != Repairing, a.endRepair, "%v", m)
		require.Equal(t, taker(m.from) && !taker(m.to), a.skip, "%v", m)
		require.Equal(t, a.endConn && m.to.Home == HomeOffline, a.hold, "held is what may be replayed: %v", m)
		require.Equal(t, m.from == ReplicaState{Down, HomeOffline} && m.to.Phase == Voting, a.replay, "%v", m)
		require.False(t, a.hold && a.skip, "%v", m)
		require.False(t, a.replay && (a.skip || a.endConn), "%v", m)
		if m.to.Phase == Voting && m.from.Phase != Voting {
			require.False(t, a.skip, "%v", m)
		}
	}
	for _, from := range legal { // nothing happens where nothing changes
		require.Equal(t, actions{}, actionsOf(from, from))
	}
}

// The derived predicates agree with the documentation of the states.
func TestJ27_Predicates(t *testing.T) {
	for _, s := range legal {
		require.Equal(t, s.Phase != Down && s.Phase != Stopping, s.Connected(), "%v", s)
		require.Equal(t, s.Phase == Voting || !s.Connected() && s.Home == HomeOffline, s.voter(), "%v", s)
		require.Equal(t, s.voter() || s.Phase == Repairing, s.taker(), "%v", s)
		require.Equal(t, s, unpackState(packState(s)))
	}
}

// Every name is total, also of what is none.
func TestJ27_StringsAreTotal(t *testing.T) {
	seen := map[string]bool{}
	for i := range 256 {
		for _, s := range []fmt.Stringer{
			ReplicaPhase(i), Home(i), ReplicaEvent(i), Activation(i), State(i), Kind(i), Plan(i), Half(i), Order(i), Reads(i),
			SyncKind(i), Mismatch(i), OrphanReason(i), EventKind(i),
			ReplicaState{ReplicaPhase(i), Home(i)},
			ReplicaState{ReplicaPhase(i), Home(i / 16)},
		} {
			require.NotEmpty(t, s.String())
			if i >= 16 && i%16 != 0 {
				seen[s.String()] = true
			}
		}
	}
	require.Contains(t, seen, "phase(17)")
	require.Len(t, map[string]bool{StateDone.String(): true, StateFailed.String(): true, StateSkipped.String(): true}, 3)
	for _, s := range legal {
		require.NotContains(t, s.String(), "(1")
	}
}

// The tracker, driven by every call there is in every state: each is defined, typed where it is refused, and nothing
// panics; whatever the state, the end empties it.
func TestJ27_EveryCallInEveryState(t *testing.T) {
	calls := map[string]func(x *rig) error{
		"connect": func(x *rig) error { _, err := x.tr.Connect(1, x.peers[1].hello()); return err },
		"connect behind": func(x *rig) error {
			_, err := x.tr.Connect(1, Hello{Generation: 0})
			return err
		},
		"close":      func(x *rig) error { x.peers[1].conn.Close(nil); return nil },
		"quiesced":   func(x *rig) error { return x.peers[1].conn.Quiesced() },
		"fault":      func(x *rig) error { return x.tr.Fault(1, errDisk) },
		"replace":    func(x *rig) error { return x.tr.Replace(1) },
		"repair":     func(x *rig) error { _, err := x.tr.Repair(1); return err },
		"deactivate": func(x *rig) error { return x.tr.Deactivate().Err() },
		"disable":    func(x *rig) error { return x.tr.Disable(nil) },
		"close all":  func(x *rig) error { x.tr.Close(); return nil },
		"activate":   func(x *rig) error { _, err := x.tr.Activate(ActivateOptions{Generation: 1 << 40}); return err },
		"submit":     func(x *rig) error { _, err := x.tr.Submit(ended(), opOf(Write), &load{}); return err },
		"complete":   func(x *rig) error { return x.peers[1].conn.Complete(1, Result{}) },
	}
	states := map[string]func(x *rig, p *peer){
		"voting":       func(*rig, *peer) {},
		"stopping":     func(_ *rig, p *peer) { p.close() },
		"offline":      func(_ *rig, p *peer) { p.cut() },
		"faulted":      func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.quiesce() },
		"replaced":     func(x *rig, _ *peer) { _ = x.tr.Replace(1) },
		"repair-ready": func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.comeBack() },
		"repairing":    func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.comeBack(); _, _ = x.tr.Repair(1) },
		"deactivating": func(x *rig, _ *peer) { x.tr.Deactivate() },
		"inactive":     func(x *rig, _ *peer) { _ = x.tr.Disable(nil) },
		"activating":   func(x *rig, _ *peer) { _ = x.tr.Disable(nil); x.activate(ActivateOptions{}) },
		"fresh":        func(x *rig, p *peer) { _ = x.tr.Disable(nil); x.activate(ActivateOptions{}); p.comeBack() },
		"closed":       func(x *rig, _ *peer) { x.tr.Close() },
	}
	for state, into := range states {
		for call, do := range calls {
			t.Run(state+"/"+call, func(t *testing.T) {
				x := newRig(t, Config[*load]{})
				x.flush()
				x.settle()
				x.tainted = true
				x.write(1, 1)
				for _, p := range x.peers {
					p.take()
				}
				into(x, x.peers[1])
				was := x.tr.Fingerprint()
				if err := do(x); err != nil {
					require.Equal(t, was, x.tr.Fingerprint(), "%v", err)
				}
				require.NoError(t, x.tr.Check())
				_ = do(x) // and once more
				require.NoError(t, x.tr.Check())
				require.NoError(t, x.tr.Close().Wait(t.Context()))
				require.Zero(t, x.tr.Dump().Active)
				for _, j := range x.jobs {
					require.True(t, j.Resolved())
				}
			})
		}
	}
}
