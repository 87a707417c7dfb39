package jobtracker

// effects are what a change wants done outside of the core, in the order in which it came about. The gate takes them in
// the same hold: it wakes at once, and queues what calls the user.
type effects struct {
	resolved []resolution
	retired  []any // handles of jobs whose payload nothing needs any more
	admitted []admission
	ended    []connEnd
	repairs  []repairEnd
	events   []Event
	phases   []phaseEnd
	wake     uint8 // replicas whose senders have something to send
	arm      bool  // a deadline wants the time
}

type resolution struct {
	handle any
	err    *JobError // nil: it succeeded
}

type admission struct {
	handle any
	id     JobID
	err    error // the applicant was refused
}

type connEnd struct {
	replica int
	conn    ConnID
	cause   error
}

type repairEnd struct {
	replica int
	ticket  uint64
	err     error // nil: the replica is active
}

// phaseEnd resolves who waits for an activation to begin or to end.
type phaseEnd struct {
	begun bool // else it has ended
	cause error
	err   error // for who asked for the end
}

func (f *effects) any() bool {
	return len(f.resolved)|len(f.retired)|len(f.admitted)|len(f.ended)|len(f.repairs)|len(f.events)|len(f.phases)|int(f.wake) != 0 || f.arm
}

// reset forgets the effects and keeps the memory, but nothing alive.
func (f *effects) reset() {
	clear(f.resolved)
	clear(f.retired)
	clear(f.admitted)
	clear(f.ended)
	clear(f.repairs)
	clear(f.events)
	clear(f.phases)
	*f = effects{
		resolved: f.resolved[:0], retired: f.retired[:0], admitted: f.admitted[:0], ended: f.ended[:0],
		repairs: f.repairs[:0], events: f.events[:0], phases: f.phases[:0],
	}
}

// EventKind is what an [Event] tells.
type EventKind uint8

// The kinds of event.
const (
	ReplicaChanged    EventKind = iota // a replica went from one state to another
	ActivationChanged                  // the activation went from one phase to another
	ReadMismatch                       // two replicas answered a read differently
	ReconcileNeeded                    // enough replicas are here to activate, but their contents may differ
	WriteLost                          // a write acknowledged early has failed

	numEventKinds = iota
)

var eventKindNames = [numEventKinds]string{"replica", "activation", "mismatch", "reconcile-needed", "write-lost"}

// String is the kind's name in lower case.
func (k EventKind) String() string { return nameOf(eventKindNames[:], int(k), "event") }

// Event is a change worth knowing of. Fields that the kind does not need are zero.
type Event struct {
	Seq     uint64 // strictly increasing over all callbacks of a tracker
	Kind    EventKind
	Replica int          // ReplicaChanged; ReadMismatch: whose answer came later
	Other   int          // ReadMismatch: whose answer was first
	From    ReplicaState // ReplicaChanged
	To      ReplicaState
	Phase   Activation // ActivationChanged: the new phase
	Conn    ConnID     // ReplicaChanged: the present connection, or the one that ended
	Job     JobID      // ReadMismatch, WriteLost
	Cause   error      // why
}

func (c *core) event(e Event) { c.fx.events = append(c.fx.events, e) }
