package jobtracker

// effects are what a change wants done outside of the core, in the order in which it came about. The gate takes them in
// the same hold: it wakes at once, and queues what calls the user.
type effects struct {
	resolved   []resolution
	retired    []any // handles of jobs whose payload nothing needs any more
	admitted   []admission
	ended      []connEnd
	repairs    []repairEnd
	agreements []agreementEnd
	events     []Event
	phases     []phaseEnd
	wake       uint8 // replicas whose senders have something to send
	arm        bool  // a deadline wants the time
	due        due   // which of them there are
}

// due says which effects there are, so that the gate looks at one byte when there are none.
type due uint8

const (
	dueJobs due = 1 << iota // resolved, retired, wake
	dueRare                 // everything else
)

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

type agreementEnd struct {
	ticket uint64
	err    error // nil: the activation has begun with it
}

// phaseEnd resolves who waits for an activation to begin or to end.
type phaseEnd struct {
	begun bool // else it has ended
	cause error
	err   error // for who asked for the end
}

// reset forgets the effects and keeps the memory, but nothing alive.
func (f *effects) reset() {
	for i := range f.resolved { // mostly one: clear would be a call, and slower
		f.resolved[i].handle, f.resolved[i].err = nil, nil
	}
	if len(f.retired) > 0 {
		clear(f.retired)
		f.retired = f.retired[:0]
	}
	f.resolved, f.wake = f.resolved[:0], 0
	if f.due&dueRare != 0 {
		clear(f.admitted)
		clear(f.ended)
		clear(f.repairs)
		clear(f.agreements)
		f.agreements = f.agreements[:0]
		clear(f.events)
		clear(f.phases)
		f.admitted, f.ended, f.repairs = f.admitted[:0], f.ended[:0], f.repairs[:0]
		f.events, f.phases, f.arm = f.events[:0], f.phases[:0], false
	}
	f.due = 0
}

func (f *effects) resolve(r resolution) { f.resolved, f.due = append(f.resolved, r), f.due|dueJobs }
func (f *effects) retire(handle any)    { f.retired, f.due = append(f.retired, handle), f.due|dueJobs }
func (f *effects) rouse(mask uint8)     { f.wake, f.due = f.wake|mask, f.due|dueJobs }
func (f *effects) admit(a admission)    { f.admitted, f.due = append(f.admitted, a), f.due|dueRare }
func (f *effects) end(e connEnd)        { f.ended, f.due = append(f.ended, e), f.due|dueRare }
func (f *effects) repair(e repairEnd)   { f.repairs, f.due = append(f.repairs, e), f.due|dueRare }
func (f *effects) agreement(e agreementEnd) {
	f.agreements, f.due = append(f.agreements, e), f.due|dueRare
}
func (f *effects) event(e Event)    { f.events, f.due = append(f.events, e), f.due|dueRare }
func (f *effects) phase(e phaseEnd) { f.phases, f.due = append(f.phases, e), f.due|dueRare }
func (f *effects) time()            { f.arm, f.due = true, f.due|dueRare }

// whyEnded is why a connection has ended in this hold.
func (f *effects) whyEnded(conn ConnID) error {
	for _, e := range f.ended {
		if e.conn == conn {
			return e.cause
		}
	}
	return nil
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
