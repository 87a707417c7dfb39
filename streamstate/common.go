package streamstate

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"go.uber.org/atomic"
)

// common is what a book's records share, whatever their payload.
type common struct {
	opts     Options
	lim      limits
	start    time.Time
	boot     [8]byte       // random: no two lives of a process share it
	serials  atomic.Uint64 // of records
	sessions atomic.Uint64
	others   atomic.Uint64 // numbers of holds and merges
	stats    counters
	reg      registry
}

// SessionID names one session of one key. It goes onto the wire: it is never reused, and those of two lives of a process
// do not collide. The zero id names none.
type SessionID [16]byte

// String is the id in hexadecimal.
func (id SessionID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText is the id in hexadecimal.
func (id SessionID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText reads what MarshalText wrote; anything else is an *[ArgumentError] and changes nothing.
func (id *SessionID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(id) {
		return badArgument("session id", fmt.Sprintf("%.40q", text), "32 hexadecimal digits")
	}
	copy(id[:], b)
	return nil
}

func newCommon(o Options) *common {
	c := &common{opts: o, lim: o.limits(), start: time.Now()}
	_, _ = rand.Read(c.boot[:]) // it never fails
	c.lim.id = c.id
	return c
}

func (c *common) id(session uint64) (id SessionID) {
	if session != 0 {
		copy(id[:8], c.boot[:])
		binary.BigEndian.PutUint64(id[8:], session)
	}
	return id
}

// now is the monotonic time of the book.
func (c *common) now() instant { return instant(time.Since(c.start)) + 1 }

// refused counts a refusal; an error of the caller's own is none.
func (c *common) refused(err error) {
	switch e := err.(type) { //nolint:errorlint // a wrapped one is not this call's
	case *StaleError: // the frequent ones, by their type: that is faster than to ask
		c.stats.refused[ReasonStaleSession].Inc()
	case *PartitionError:
		c.stats.refused[e.Reason].Inc()
	case refusal:
		c.stats.refused[e.reason()].Inc()
	}
}

// tell runs the callbacks of one event.
func (c *common) tell(e Event) {
	if c.opts.Logger != nil {
		e.log(c.opts.Logger)
	}
	if c.opts.OnEvent != nil {
		c.opts.OnEvent(e)
	}
}
