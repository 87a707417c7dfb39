package jobtracker

// ReplicaPhase is what a replica's connection is at.
type ReplicaPhase uint8

// The phases. Fresh, RepairReady, Repairing and Voting have a live connection; Down and Stopping have none.
const (
	Down        ReplicaPhase = iota // no connection, and nothing of a former one can still be executed
	Stopping                        // the connection has ended; what it sent may still be executed
	Fresh                           // connected while activating, not yet compared with the others
	RepairReady                     // connected, contents behind; takes no jobs
	Repairing                       // takes every changing job and the copies; no reads, no vote
	Voting                          // takes every job and votes: an active replica

	numPhases = iota
)

var phaseNames = [numPhases]string{"down", "stopping", "fresh", "repair-ready", "repairing", "active"}

// String is the phase's name in lower case.
func (p ReplicaPhase) String() string { return nameOf(phaseNames[:], int(p), "phase") }

// Home is where a replica is when it has no connection, and so what it will need when it comes back.
type Home uint8

// The homes.
const (
	HomeNew      Home = iota // not part of this activation yet
	HomeOffline              // it may come back by replay
	HomeFaulted              // it needs a repair
	HomeReplaced             // another device in its place, of any identity; it needs a repair of everything

	numHomes = iota
)

var homeNames = [numHomes]string{"new", "offline", "faulted", "replaced"}

// String is the home's name in lower case.
func (h Home) String() string { return nameOf(homeNames[:], int(h), "home") }

// ReplicaState is one replica's place in the lifecycle: where it is, and where it goes when its connection ends. The
// zero value is Down(New), the initial state.
//
//	Down(new | offline | faulted | replaced) → Fresh | RepairReady | Voting → Stopping(…) → Down(…)
//	RepairReady ⇄ Repairing → Voting
type ReplicaState struct {
	Phase ReplicaPhase
	Home  Home
}

// String names the state as the diagrams do.
func (s ReplicaState) String() string {
	switch s.Phase {
	case Down:
		return s.Home.String()
	case Stopping:
		return "stopping(" + s.Home.String() + ")"
	case Fresh, RepairReady, Repairing, Voting:
		return s.Phase.String()
	}
	return s.Phase.String()
}

// Connected tells whether a connection is live.
func (s ReplicaState) Connected() bool { return s.Phase >= Fresh }

// voter tells whether the replica's answers count: it is active, or away and may replay.
func (s ReplicaState) voter() bool {
	return s.Phase == Voting || !s.Connected() && s.Home == HomeOffline
}

// taker tells whether changing jobs are kept or dispatched for it.
func (s ReplicaState) taker() bool { return s.voter() || s.Phase == Repairing }

// ReplicaEvent is what happens to a replica.
type ReplicaEvent uint8

// The events.
const (
	EventConnect       ReplicaEvent = iota // its driver connects; what it says of itself is as it should be
	EventConnectBehind                     // its driver connects; its contents are behind, or it is blank
	EventJoin                              // the activation has compared it: it is one of those with everything
	EventJoinBehind                        // the activation has compared it: it is behind
	EventLost                              // its connection ends: by its driver, or for want of an answer
	EventQuiesced                          // nothing sent on the ended connection can still be executed
	EventFault                             // it failed what all must do alike, broke a limit, or the caller says so
	EventReplace                           // another device is put in its place
	EventRepairStart                       // a repair of it starts
	EventRepairFinish                      // everything is copied; its final flush is on its way
	EventRepairDone                        // its final flush is done
	EventRepairAbort                       // its repair ends without success
	EventDeactivate                        // the activation is to end when its jobs have
	EventEnd                               // the activation has ended

	numEvents = iota
)

var eventNames = [numEvents]string{
	"connect", "connect-behind", "join", "join-behind", "lost", "quiesced", "fault", "replace",
	"repair-start", "repair-finish", "repair-done", "repair-abort", "deactivate", "end",
}

// String is the event's name in lower case.
func (e ReplicaEvent) String() string { return nameOf(eventNames[:], int(e), "event") }

// repairStep is how far the repair of a replica is. It is repairNone in every phase but Repairing.
type repairStep uint8

const (
	repairNone repairStep = iota
	repairCopying
	repairFinishing

	numRepairSteps = iota
)

var repairNames = [numRepairSteps]string{"none", "copying", "finishing"}

// situation is what the lifecycle depends on beside state and event.
type situation struct {
	activation Activation
	repair     repairStep
	replayable bool // everything the replica may have lost is still in the table (J12)
}

// nextReplica is the whole lifecycle of a replica: where an event leads to, or that it is refused. It is total and pure;
// the chooser ("where does this connection go?") and the legality table are this one function (J27, CR 1760, CR 1923).
func nextReplica(s ReplicaState, e ReplicaEvent, in situation) (to ReplicaState, ok bool) {
	switch e {
	case EventConnect, EventConnectBehind:
		return nextConnect(s, e == EventConnectBehind, in.activation)
	case EventJoin:
		return ReplicaState{Voting, HomeOffline}, s.Phase == Fresh && in.activation == Activating
	case EventJoinBehind:
		return ReplicaState{RepairReady, s.needy()}, s.Phase == Fresh && in.activation == Activating
	case EventLost:
		return nextLost(s, in)
	case EventQuiesced:
		return ReplicaState{Down, s.Home}, s.Phase == Stopping
	case EventFault:
		return nextFault(s, in.activation)
	case EventReplace:
		return ReplicaState{Down, HomeReplaced}, in.activation != Closed
	case EventRepairStart:
		return ReplicaState{Repairing, s.Home}, s.Phase == RepairReady && in.activation == Active
	case EventRepairFinish:
		return s, s.Phase == Repairing && in.repair == repairCopying && in.activation == Active
	case EventRepairDone:
		return ReplicaState{Voting, HomeOffline}, s.Phase == Repairing && in.repair == repairFinishing && in.activation == Active
	case EventRepairAbort:
		return ReplicaState{RepairReady, s.Home}, s.Phase == Repairing
	case EventDeactivate:
		return nextDeactivate(s)
	case EventEnd:
		return nextEnd(s)
	}
	return s, false
}

// needy is the home of a replica that turned out to be behind: a replaced one stays replaced (J16).
func (s ReplicaState) needy() Home {
	if s.Home == HomeReplaced {
		return HomeReplaced
	}
	return HomeFaulted
}

func nextConnect(s ReplicaState, behind bool, a Activation) (ReplicaState, bool) {
	if s.Phase != Down {
		return s, false // a live connection, or one that is not quiesced (J30)
	}
	switch a {
	case Activating:
		if s.Home == HomeReplaced {
			return ReplicaState{Fresh, HomeReplaced}, true
		}
		return ReplicaState{Fresh, HomeNew}, true
	case Active:
		if !behind && (s.Home == HomeNew || s.Home == HomeOffline) {
			return ReplicaState{Voting, HomeOffline}, true
		}
		return ReplicaState{RepairReady, s.needy()}, true
	case Inactive, Deactivating, Closed:
		return s, false
	}
	return s, false
}

func nextLost(s ReplicaState, in situation) (ReplicaState, bool) {
	switch s.Phase {
	case Voting:
		if in.replayable && in.activation == Active {
			return ReplicaState{Stopping, HomeOffline}, true
		}
		return ReplicaState{Stopping, HomeFaulted}, true // J12, J34
	case Fresh, RepairReady, Repairing:
		return ReplicaState{Stopping, s.Home}, true
	case Down, Stopping:
		return s, false
	}
	return s, false
}

func nextFault(s ReplicaState, a Activation) (ReplicaState, bool) {
	if a != Activating && a != Active && a != Deactivating {
		return s, false
	}
	switch s.Phase {
	case Down:
		if s.Home == HomeOffline {
			return ReplicaState{Down, HomeFaulted}, true
		}
		return s, true // nothing it has is relied on
	case Stopping:
		return ReplicaState{Stopping, s.needy()}, true
	case Fresh, RepairReady, Repairing, Voting:
		return ReplicaState{Stopping, s.needy()}, true
	}
	return s, false
}

func nextDeactivate(s ReplicaState) (ReplicaState, bool) {
	switch {
	case !s.Connected() && s.Home == HomeOffline:
		return ReplicaState{s.Phase, HomeFaulted}, true // nobody waits for a replica that is away (J14, J34)
	case s.Phase == Repairing:
		return ReplicaState{RepairReady, s.Home}, true // the repair ends first (R03)
	}
	return s, true
}

func nextEnd(s ReplicaState) (ReplicaState, bool) {
	to := ReplicaState{Down, HomeNew}
	if s.Phase != Down {
		to.Phase = Stopping
	}
	if s.Home == HomeReplaced {
		to.Home = HomeReplaced
	}
	return to, true
}

// actions are what a transition does beside changing the state. They follow from the two states alone: actions belong
// to transitions, not to callers.
type actions struct {
	endConn   bool // the connection ends: its epoch, its context, the dispatches it has not answered
	hold      bool // what is not vouched for is kept for replay
	replay    bool // what was held is queued
	skip      bool // what is not terminal is written off; while the connection lives, only what was not dispatched
	endRepair bool // the repair ticket ends: well if the replica votes, else aborted
}

func actionsOf(from, to ReplicaState) actions {
	return actions{
		endConn:   from.Connected() && !to.Connected(),
		hold:      from.Phase == Voting && !to.Connected() && to.Home == HomeOffline,
		replay:    !from.Connected() && from.Home == HomeOffline && to.Phase == Voting,
		skip:      from.taker() && !to.taker(),
		endRepair: from.Phase == Repairing && to.Phase != Repairing,
	}
}
