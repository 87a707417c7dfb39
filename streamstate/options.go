package streamstate

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Options is what a book is made of. The zero value works. It is copied by [NewBook].
//
// Each duration is a deadline that an event arms. A negative one is never armed; more than ten years count as ten. Deadlines are never early, and at most
// an eighth of the shortest of them late.
type Options struct {
	// BeginWithin is how long a wanted partition may be without a claim before it is to be repaired. Zero: 30 s.
	BeginWithin time.Duration
	// HandOverWithin is how long a successor, or a predecessor's end, is waited for. Zero: 30 s.
	HandOverWithin time.Duration
	// TicketWithin is how long a ticket of [Session.NextDue] may be unanswered. Zero: 60 s.
	TicketWithin time.Duration
	// PendingWithin is how long the begin of a restart that the source reports pending is waited for. Zero: 5 min.
	PendingWithin time.Duration
	// StableAfter is how long a claim of a partition under repair must have lived to be the end of the repair, if it
	// accepts no data before. Zero: 30 s.
	StableAfter time.Duration
	// RetryAfter is how long a recovery that failed is not due again. Zero: 10 s.
	RetryAfter time.Duration

	// OnEvent, if set, is called for each change of a phase or a partition, each ticket and each flush: with no lock held,
	// one at a time for each key, in the order of [Event].Seq, on the goroutine of whichever call found none running.
	OnEvent func(Event)
	// MaxEvents is how many events of one key wait to be told at most, and how many of one call are kept until its end; more
	// are lost, and seen as a gap in [Event].Seq. Zero: 4,096.
	MaxEvents int
	// Logger gets a line for each event. Nil: silent.
	Logger *slog.Logger
	// Gap, if set, is called before each acquisition of a record's lock, once where two are acquired together, with no lock
	// held, on the goroutine that is about to acquire it; but not before those that only take events off their queue. It is
	// meant for tests, which let an adversary go first.
	Gap func()
}

// maxDeadline is the longest deadline: with the time that the book is old it has room in an alarm.
const maxDeadline = 10 * 365 * 24 * time.Hour

// limits are the options without zero values.
func (o *Options) limits() limits {
	or := func(d, def time.Duration) time.Duration {
		if d == 0 {
			return def
		}
		return min(d, maxDeadline)
	}
	l := limits{lists: o.OnEvent != nil || o.Logger != nil, events: o.MaxEvents, look: time.Hour}
	if l.events <= 0 {
		l.events = 4096
	}
	for kind, d := range [numAlarms]time.Duration{
		alarmBegin: or(o.BeginWithin, 30*time.Second), alarmHandOver: or(o.HandOverWithin, 30*time.Second),
		alarmTicket: or(o.TicketWithin, time.Minute), alarmPending: or(o.PendingWithin, 5*time.Minute),
		alarmStable: or(o.StableAfter, 30*time.Second), alarmRetry: or(o.RetryAfter, 10*time.Second),
	} {
		l.lengths[kind] = instant(d)
		if d > 0 {
			l.look = min(l.look, max(d/8, time.Microsecond))
		}
	}
	return l
}

// Key names one thing that is followed: a keyspace within a stream. Both are 1 to 1,024 bytes of valid UTF-8 without
// control characters.
type Key struct {
	Stream   string
	Keyspace string
}

// String is stream/keyspace.
func (k Key) String() string { return k.Stream + "/" + k.Keyspace }

func (k Key) check() error {
	if err := checkName("Key.Stream", k.Stream); err != nil {
		return err
	}
	return checkName("Key.Keyspace", k.Keyspace)
}

// checkName refuses what would be a trap in a log or a URL. An empty name means nothing; never "all".
func checkName(field, s string) error {
	if s == "" || len(s) > maxName || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) {
		return badArgument(field, fmt.Sprintf("%.40q", s), "1 to 1024 bytes of UTF-8 without control characters")
	}
	return nil
}

// Wanted says which partitions a session follows when it begins. The zero value is all.
type Wanted struct {
	some  bool
	parts []int
}

// The simple selections.
var (
	All  = Wanted{}
	None = Wanted{some: true}
)

// Some selects the partitions given.
func Some(partitions ...int) Wanted { return Wanted{some: true, parts: slices.Clone(partitions)} }

// OpenOptions is what a key is opened with.
type OpenOptions[P any] struct {
	// Partitions is how many there are, numbered from 0; 1 to [MaxPartitions].
	Partitions int
	// Wanted are the partitions that are ours to follow from the beginning. Zero: all.
	Wanted Wanted
	// Restart is what is flushed already, and where the partitions start. Zero: they have no position.
	Restart Timestamp
	// Payload is what the session's transactions work on.
	Payload P
	// Pending opens the session as [Opening]: [Session.Opened] or [Session.OpenFailed] ends that.
	Pending bool
}

func (o *OpenOptions[P]) check() error {
	if o.Partitions < 1 || o.Partitions > MaxPartitions {
		return badArgument("Partitions", o.Partitions, "1 to "+itoa(MaxPartitions))
	}
	if n := o.Restart.Len(); n != 0 && n != o.Partitions {
		return badArgument("Restart", itoa(n)+" partitions", itoa(o.Partitions))
	}
	seen := make(map[int]bool, len(o.Wanted.parts))
	for _, p := range o.Wanted.parts {
		if p < 0 || p >= o.Partitions || seen[p] {
			return badArgument("Wanted", p, "each partition once, 0 to "+itoa(o.Partitions-1))
		}
		seen[p] = true
	}
	return nil
}

func (o *OpenOptions[P]) setup(session uint64) setup {
	wanted := func(int) bool { return !o.Wanted.some }
	if len(o.Wanted.parts) > 0 {
		set := make([]bool, o.Partitions)
		for _, p := range o.Wanted.parts {
			set[p] = true
		}
		wanted = func(p int) bool { return set[p] }
	}
	return setup{session: session, pending: o.Pending, restart: o.Restart, wanted: wanted}
}

// ReopenOptions says how the next session of a key begins.
type ReopenOptions[P any] struct {
	// Carry makes the next session's payload out of the last one's. It runs under the lock and is to be short; if it
	// fails, nothing has changed. Nil: the next session's payload is zero.
	Carry func(old P) (P, error)
	// Restart, if it has partitions, is where the session starts. Zero: what is flushed, lowered where a live claim said
	// roll back.
	Restart Timestamp
	// Pending is as in [OpenOptions].
	Pending bool
}
