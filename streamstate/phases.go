package streamstate

// Op is a call, as errors name it.
type Op uint8

// The operations, in the order of the phase table.
const (
	OpOpen        Op = iota // [Book.Open]
	OpOpened                // [Session.Opened]
	OpOpenFailed            // [Session.OpenFailed]
	OpBegin                 // [Session.Begin]
	OpBeginFailed           // [Session.BeginFailed]
	OpOwnerGone             // [Session.OwnerGone]
	OpEnd                   // [Claim.End]
	OpRelease               // [Claim.Release]
	OpFence                 // [Claim.Fence]
	OpApply                 // [Claim.Apply] and [Session.ApplyBatch]
	OpAdvance               // [Claim.Advance] and [Session.AdvanceBatch]
	OpWant                  // [Session.Want]
	OpUnwant                // [Session.Unwant]
	OpNextDue               // [Session.NextDue]
	OpReply                 // an answer of a ticket of repair
	OpStartFlush            // [Session.StartFlush]
	OpFlush                 // [Session.Flush]
	OpFlushReply            // an answer of a [FlushTicket]
	OpHold                  // [Session.Hold], on either side
	OpReleaseHold           // [Hold.Release]
	OpMerge                 // [Book.Merge], on either side
	OpRead                  // [Session.Read] and [Session.Timestamp]
	OpUpdate                // [Session.Update]
	OpExchange              // [Exchange], each of its holds
	OpPair                  // [Book.Pair], on either side
	OpWhen                  // [Session.When]
	OpStop                  // [Session.Stop]
	OpDrain                 // [Session.Drain]
	OpReopen                // [Book.Reopen]
	OpDrop                  // [Session.Drop] and [Book.Drop]
	OpSession               // [Book.Session]
	opLook                  // the library's own: a timer, a dump, what follows a change

	numOps = iota
)

var opNames = [numOps]string{
	"open", "opened", "open-failed", "begin", "begin-failed", "owner-gone", "end", "release", "fence", "apply", "advance",
	"want", "unwant", "next-due", "reply", "start-flush", "flush", "flush-reply", "hold", "release-hold", "merge", "read",
	"update", "exchange", "pair", "when", "stop", "drain", "reopen", "drop", "session", "look",
}

// String is the operation's name in lower case.
func (o Op) String() string { return nameOf(opNames[:], int(o), "op") }

// rule is what a phase says to an operation.
type rule uint8

const (
	allow      rule = iota // it goes on, and may be refused for another reason
	wait                   // it waits until the phase is another one, if it is one that waits
	idempot                // it has been done: the same handle again
	resolved               // a resolved handle: there is nothing to do
	exists                 // ErrExists
	badPhase               // ErrPhase
	stale                  // ErrStaleSession
	superseded             // ErrSuperseded: the ticket has been resolved
	deadHold               // ErrStaleHold
)

// lets tells whether the operation reaches the state.
func (r rule) lets() bool { return r <= resolved }

// phaseTable is the relation of phases and operations. What the caller's session, which may have been superseded,
// says to it is decided before.
var phaseTable = [numOps][numPhases]rule{
	//              Opening   Active     Stopping   Stopped    Closing    Gone
	OpOpen:        {exists, exists, exists, exists, exists, allow},
	OpOpened:      {allow, superseded, badPhase, badPhase, stale, stale},
	OpOpenFailed:  {allow, superseded, badPhase, badPhase, stale, stale},
	OpBegin:       {allow, allow, badPhase, badPhase, stale, stale},
	OpBeginFailed: {allow, allow, badPhase, badPhase, stale, stale},
	OpOwnerGone:   {allow, allow, badPhase, badPhase, stale, stale},
	OpEnd:         {allow, allow, badPhase, badPhase, stale, stale},
	OpRelease:     {allow, allow, badPhase, badPhase, stale, stale},
	OpFence:       {allow, allow, badPhase, badPhase, stale, stale},
	OpApply:       {allow, allow, badPhase, badPhase, stale, stale},
	OpAdvance:     {allow, allow, badPhase, badPhase, stale, stale},
	OpWant:        {allow, allow, allow, allow, stale, stale},
	OpUnwant:      {allow, allow, allow, allow, stale, stale},
	OpNextDue:     {wait, allow, badPhase, badPhase, stale, stale},
	OpReply:       {superseded, allow, badPhase, badPhase, stale, stale},
	OpStartFlush:  {badPhase, allow, badPhase, badPhase, stale, stale},
	OpFlush:       {wait, allow, badPhase, badPhase, stale, stale},
	OpFlushReply:  {superseded, allow, allow, superseded, allow, superseded},
	OpHold:        {allow, allow, badPhase, badPhase, stale, stale},
	OpReleaseHold: {allow, allow, deadHold, deadHold, deadHold, deadHold},
	OpMerge:       {wait, allow, badPhase, badPhase, stale, stale},
	OpRead:        {allow, allow, allow, allow, stale, stale},
	OpUpdate:      {allow, allow, badPhase, badPhase, stale, stale},
	OpExchange:    {allow, allow, badPhase, badPhase, stale, stale},
	OpPair:        {allow, allow, badPhase, badPhase, stale, stale},
	OpWhen:        {allow, allow, badPhase, badPhase, stale, stale},
	OpStop:        {allow, allow, idempot, idempot, stale, stale},
	OpDrain:       {allow, allow, idempot, idempot, stale, stale},
	OpReopen:      {badPhase, badPhase, badPhase, allow, stale, stale},
	OpDrop:        {allow, allow, allow, allow, idempot, resolved},
	OpSession:     {allow, allow, allow, allow, stale, stale},
	opLook:        {allow, allow, allow, allow, allow, allow},
}
