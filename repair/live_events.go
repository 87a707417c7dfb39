package repair

import (
	"time"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/jobtracker"
)

// LiveKind is what a [LiveProgress] tells.
type LiveKind uint8

// The kinds.
const (
	LiveStarted LiveKind = iota // the repair has begun; always the first
	LiveCopying                 // some more is done
	LiveEnded                   // the repair has ended; always the last. Err is what [Live] returns

	numLiveKinds = iota
)

var liveNames = [numLiveKinds]string{"started", "copying", "ended"}

// String is the kind's name in lower case.
func (k LiveKind) String() string {
	if int(k) < len(liveNames) {
		return liveNames[k]
	}
	return "event"
}

// LiveProgress is how a repair goes. Total never moves, and Done only grows (R08).
type LiveProgress struct {
	Kind    LiveKind
	Target  int
	Total   int // extents of the device
	Done    int // of these, copied, compared equal, or known to be clean
	Copied  int // by this call
	Same    int // found to be the same by this call, by checksum
	Bytes   int64
	Elapsed time.Duration
	Rate    float64       // bytes copied a second since it began; 0: not known
	Left    time.Duration // how long the rest will take if it goes on like this; 0: not known
	Err     error         // LiveEnded: nil if the target is active
}

// liveTeller tells how a repair goes on a goroutine of its own. It looks when it is poked, so that what it tells is in
// order however many copies end at once, and all that waits to be told is that there is something. A nil one tells nobody.
type liveTeller struct {
	hook   func(LiveProgress)
	look   func() (jobtracker.Extents, error)
	poked  chan struct{}
	began  time.Time
	copied atomic.Int64 // extents
	same   atomic.Int64
	bytes  atomic.Int64
	err    error // written before poked is closed, read after
}

func newLiveTeller(target int, look func() (jobtracker.Extents, error), hook func(LiveProgress)) *liveTeller {
	if hook == nil {
		return nil
	}
	t := &liveTeller{hook: hook, look: look, poked: make(chan struct{}, 1), began: time.Now()}
	p := LiveProgress{Target: target}
	t.measure(&p)
	go t.run(p)
	return t
}

// did tells that an extent was copied.
func (t *liveTeller) did(bytes uint64) {
	if t == nil {
		return
	}
	t.copied.Inc()
	t.bytes.Add(int64(bytes))
	t.poke()
}

// found tells that an extent was found to be the same.
func (t *liveTeller) found() {
	if t == nil {
		return
	}
	t.same.Inc()
	t.poke()
}

func (t *liveTeller) poke() {
	if t == nil {
		return
	}
	select {
	case t.poked <- struct{}{}:
	default: // it will look
	}
}

// end has the last event told. Nothing may be told after it.
func (t *liveTeller) end(err error) {
	if t == nil {
		return
	}
	t.err = err
	close(t.poked)
}

func (t *liveTeller) run(p LiveProgress) {
	t.hook(p)
	for range t.poked {
		p.Kind = LiveCopying
		if t.measure(&p) {
			t.hook(p)
		}
	}
	t.measure(&p)
	if p.Kind, p.Err = LiveEnded, t.err; p.Err == nil {
		p.Done, p.Left = p.Total, 0
	}
	t.hook(p)
}

// measure brings p up to date; false: the ticket has ended, and what it says of extents stays as it was.
func (t *liveTeller) measure(p *LiveProgress) bool {
	p.Copied, p.Same, p.Bytes, p.Elapsed = int(t.copied.Load()), int(t.same.Load()), t.bytes.Load(), time.Since(t.began)
	p.Rate = 0
	if p.Elapsed > 0 {
		p.Rate = float64(p.Bytes) / p.Elapsed.Seconds()
	}
	e, err := t.look()
	if err != nil {
		return false
	}
	p.Total, p.Done, p.Left = e.Total, e.Total-e.Left(), 0
	if did := p.Copied + p.Same; did > 0 {
		p.Left = time.Duration(float64(e.Left()) / float64(did) * float64(p.Elapsed))
	}
	return true
}
