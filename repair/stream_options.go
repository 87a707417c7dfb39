package repair

import (
	"fmt"
	"time"

	"github.com/staleproof/staleproof/streamstate"
)

// StreamOptions are the options of a [Stream]. The zero value works. How long a rung may take is not among them: those
// deadlines are armed by the session, see [streamstate.Options].
type StreamOptions struct {
	// Gather is how long tickets of partitions wait for others to go to the source in the same call. Zero: 20 ms;
	// negative: not at all.
	Gather time.Duration
	// MaxBatch is how many partitions go to the source in one call at most. Zero: 1,024.
	MaxBatch int
	// Attempts is how often the source is asked under one ticket before it counts as refused. Zero: 5.
	Attempts int
	// MinBackoff is the pause before the second attempt of a ticket, and before the first one of a partition that has
	// failed again; each further failure doubles it, up to MaxBackoff. Up to half of a pause is left out by chance, and
	// none is longer than an eighth of what its ticket allows. Zero: 250 ms.
	MinBackoff time.Duration
	// MaxBackoff is the longest pause. Zero: 10 s, or MinBackoff if that is longer.
	MaxBackoff time.Duration

	// OnEvent, if set, is told what the driver does, in order, one at a time, on a goroutine of its own. It cannot hold up
	// the repair, nor its end: an OnEvent that is slow or never returns loses events, but never the first one,
	// [StreamStarted], nor the last one, [StreamEnded]. That one may be told after Stream has returned; the goroutine ends
	// with it. OnEvent may call anything.
	OnEvent func(StreamEvent)
	// MaxEvents is how many events wait to be told at most, beside the last one; more are lost, and counted in
	// [StreamEvent].Lost. An event that waits takes about 200 bytes. Zero: 256.
	MaxEvents int
}

// check names an option that cannot be.
func (o *StreamOptions) check(src Source) error {
	bad := func(field string, got any, want string) error {
		return &streamstate.ArgumentError{Field: field, Got: fmt.Sprint(got), Want: want}
	}
	switch {
	case src == nil:
		return bad("Source", src, "one")
	case o.MaxBatch < 0:
		return bad("StreamOptions.MaxBatch", o.MaxBatch, "0 or more")
	case o.Attempts < 0:
		return bad("StreamOptions.Attempts", o.Attempts, "0 or more")
	case o.MinBackoff < 0:
		return bad("StreamOptions.MinBackoff", o.MinBackoff, "0 or more")
	case o.MaxBackoff < 0 || o.MaxBackoff > 0 && o.MaxBackoff < o.MinBackoff:
		return bad("StreamOptions.MaxBackoff", o.MaxBackoff, "0, or MinBackoff or more")
	case o.MaxEvents < 0:
		return bad("StreamOptions.MaxEvents", o.MaxEvents, "0 or more")
	}
	return nil
}

func (o *StreamOptions) setDefaults() {
	if o.Gather == 0 {
		o.Gather = 20 * time.Millisecond
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = 1024
	}
	if o.Attempts == 0 {
		o.Attempts = 5
	}
	if o.MinBackoff == 0 {
		o.MinBackoff = 250 * time.Millisecond
		if o.MaxBackoff > 0 {
			o.MinBackoff = min(o.MinBackoff, o.MaxBackoff)
		}
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = max(10*time.Second, o.MinBackoff)
	}
	if o.MaxEvents == 0 {
		o.MaxEvents = 256
	}
}
