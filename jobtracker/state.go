package jobtracker

import "fmt"

// MaxReplicas is the largest number of replicas a tracker serves. Per-replica facts of a job are bitmasks of one byte.
const MaxReplicas = 7

// JobID names a job. Ids are issued in the order of Submit, only grow and are never reused, also across activations,
// so that a late reply can be told from a current one for ever, without a memory of past ids (J04). Zero names no job.
type JobID uint64

// ConnID names one life of one replica's connection. Ids only grow and are never reused within a tracker.
type ConnID uint64

// Kind is what a job does. The zero Kind names none; a [Result] may leave its kind unnamed.
type Kind uint8

// The kinds of job.
const (
	Read    Kind = iota + 1 // reads blocks; one voter's answer is enough
	Write                   // writes blocks
	Zero                    // writes zeros; ordered and acknowledged like Write
	Trim                    // discards blocks; ordered and acknowledged like Write
	Flush                   // makes everything before it durable
	Barrier                 // orders everything before it before everything after it, without durability
	Copy                    // reads blocks from one replica and writes them to another; or compares: [Repair.Copy], [Repair.Compare]

	numKinds = iota + 1
)

var kindNames = [numKinds]string{"none", "read", "write", "zero", "trim", "flush", "barrier", "copy"}

// String is the kind's name in lower case.
func (k Kind) String() string { return nameOf(kindNames[:], int(k), "kind") }

// writes tells whether a job of this kind changes blocks on a voter.
func (k Kind) writes() bool { return k == Write || k == Zero || k == Trim }

// fences tells whether a job of this kind is ordered against everything.
func (k Kind) fences() bool { return k == Flush || k == Barrier }

// State is where one job stands on one replica.
type State uint8

// The states of a job on a replica, in the order a job usually meets them. Done, Failed and Skipped are terminal,
// but for a Done write that no flush vouches for: it is Held again when the connection ends (replay).
const (
	StateQueued  State = iota // to be dispatched when its dependencies allow
	StateSpare                // a read that another voter is asked first; a copy whose source has not answered
	StateHeld                 // the replica is away and may replay it
	StateSent                 // dispatched on the present connection, not answered
	StateDone                 // answered well, or vouched for by a later flush
	StateFailed               // answered with an error
	StateSkipped              // written off on this replica

	numStates = iota
)

var (
	stateNames  = [numStates]string{"queued", "spare", "held", "sent", "done", "failed", "skipped"}
	stateColumn = [numStates]string{"new", "spare", "held", "sent", "done", "ERR", "skip"}
)

// String is the state's name in lower case.
func (s State) String() string { return nameOf(stateNames[:], int(s), "state") }

// Activation is the phase of the whole device.
type Activation uint8

// The phases of an activation.
const (
	Inactive     Activation = iota // no activation: Submit and Connect are refused
	Activating                     // Activate was called; replicas connect and are compared
	Active                         // jobs are admitted
	Deactivating                   // Deactivate was called; what was admitted runs to its end
	Closed                         // Close was called; terminal

	numActivations = iota
)

var activationNames = [numActivations]string{"inactive", "activating", "active", "deactivating", "closed"}

// String is the phase's name in lower case.
func (a Activation) String() string { return nameOf(activationNames[:], int(a), "activation") }

// Plan is what a replica that has just connected goes through.
type Plan uint8

// The plans. See [Conn.Plan].
const (
	PlanFresh  Plan = iota // it joins as it is: nothing to replay, nothing to repair
	PlanReplay             // the jobs it has not got, or may have lost, are dispatched to it again
	PlanRepair             // its contents are behind: it takes no jobs before [Tracker.Repair]

	numPlans = iota
)

var planNames = [numPlans]string{"fresh", "replay", "repair"}

// String is the plan's name in lower case.
func (p Plan) String() string { return nameOf(planNames[:], int(p), "plan") }

// Half tells which end of a copy a dispatch is, or of a comparison.
type Half uint8

// The halves of a copy and of a comparison; HalfNone for every other kind.
const (
	HalfNone    Half = iota
	HalfRead         // read the blocks from this replica and keep them with the payload
	HalfWrite        // write the blocks kept with the payload to this replica
	HalfSum          // have this replica say what the blocks hold, and keep a checksum of that with the payload
	HalfCompare      // have this replica say whether it holds the same, by that checksum: [Result].Same

	numHalves = iota
)

var halfNames = [numHalves]string{"none", "read", "write", "sum", "compare"}

// String is the half's name in lower case.
func (h Half) String() string { return nameOf(halfNames[:], int(h), "half") }

// Order says who keeps the order of jobs on a replica.
type Order uint8

// The order modes. In both, the order is that of Submit, and a dependency that is terminal on a replica is replaced
// there by its own dependencies, transitively (J19, J31).
const (
	TrackerOrders Order = iota // a job is dispatched when nothing it depends on is outstanding on that replica
	ReplicaOrders              // a job is dispatched at once; what is left of its dependencies travels with it

	numOrders = iota
)

var orderNames = [numOrders]string{"tracker", "replica"}

// String is the mode's name in lower case.
func (o Order) String() string { return nameOf(orderNames[:], int(o), "order") }

// Reads says how many voters a read is dispatched to.
type Reads uint8

// The read modes.
const (
	ReadOne Reads = iota // one voter, the next one when it fails or goes away
	ReadAll              // all voters, the first good answer wins

	numReads = iota
)

var readNames = [numReads]string{"one", "all"}

// String is the mode's name in lower case.
func (r Reads) String() string { return nameOf(readNames[:], int(r), "reads") }

// SyncKind is what the tracker inserts by itself so that jobs can be retired (J26).
type SyncKind uint8

// The kinds of automatic sync.
const (
	SyncFlush   SyncKind = iota // a flush: replay stays possible
	SyncBarrier                 // a barrier: cheaper, but a replica that drops afterwards needs a repair (J12)
	SyncOff                     // nothing: the table grows until the caller flushes

	numSyncs = iota
)

var syncNames = [numSyncs]string{"flush", "barrier", "off"}

// String is the kind's name in lower case.
func (s SyncKind) String() string { return nameOf(syncNames[:], int(s), "sync") }

// Mismatch is what happens to a replica whose answer to a read differs from the first one (J17).
type Mismatch uint8

// The policies.
const (
	MismatchReport Mismatch = iota // an event names both replicas; the later answer counts as failed
	MismatchFault                  // and the later replica is faulted

	numMismatches = iota
)

var mismatchNames = [numMismatches]string{"report", "fault"}

// String is the policy's name in lower case.
func (m Mismatch) String() string { return nameOf(mismatchNames[:], int(m), "mismatch") }

// nameOf is the name at i, or a name that shows the stray value.
func nameOf(names []string, i int, what string) string {
	if i < 0 || i >= len(names) {
		return fmt.Sprintf("%s(%d)", what, i)
	}
	return names[i]
}
