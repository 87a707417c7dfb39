package streamstate

import (
	"log/slog"

	"go.uber.org/atomic"
)

// counters are what is read without a lock.
type counters struct {
	opened, reopened, dropped, merged atomic.Uint64
	refused                           [numReasons]atomic.Uint64
}

// Stats are counts since the book was made. Each is exact when it is read; together they are not a snapshot.
type Stats struct {
	Opened   uint64             // keys
	Reopened uint64             // sessions begun by Reopen
	Dropped  uint64             // drops begun
	Merged   uint64             // merges done
	Refused  [numReasons]uint64 // calls refused, by [Reason]: Refused[ReasonPhase]
}

// Refusals is the number of calls that were refused, for all reasons.
func (s Stats) Refusals() uint64 {
	var n uint64
	for _, k := range s.Refused {
		n += k
	}
	return n
}

// Stats reads the counters without a lock.
func (b *Book[P]) Stats() Stats {
	n := &b.c.stats
	s := Stats{Opened: n.opened.Load(), Reopened: n.reopened.Load(), Dropped: n.dropped.Load(), Merged: n.merged.Load()}
	for i := range s.Refused {
		s.Refused[i] = n.refused[i].Load()
	}
	return s
}

// log writes the event as one line.
func (e *Event) log(l *slog.Logger) {
	at := l.With("seq", e.Seq, "key", e.Key, "session", e.Session)
	switch e.Kind {
	case PhaseChanged:
		at.Info("phase", "from", e.From, "to", e.To, "cause", e.Cause)
	case PartitionChanged:
		at.Debug("partition", "partition", e.Partition, "from", e.Was, "to", e.Is)
	case TicketIssued:
		at.Info("ticket issued", "ticket", e.Ticket, "work", e.Work, "partition", e.Partition)
	case TicketEnded:
		at.Info("ticket ended", "ticket", e.Ticket, "work", e.Work, "partition", e.Partition, "cause", e.Cause)
	case FlushStarted:
		at.Debug("flush started", "ticket", e.Ticket)
	case FlushEnded:
		at.Debug("flush ended", "ticket", e.Ticket, "cause", e.Cause)
	}
}
