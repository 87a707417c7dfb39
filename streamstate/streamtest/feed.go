package streamtest

import (
	"context"
	"slices"
	"strings"
	"sync"

	"go.uber.org/atomic"

	"github.com/staleproof/staleproof/internal/handle"
	"github.com/staleproof/staleproof/streamstate"
)

type (
	// Book is the book of a [Feed].
	Book = streamstate.Book[*Index]
	// Session is a session of a [Feed].
	Session = streamstate.Session[*Index]
	// Claim is a claim of a [Feed].
	Claim = streamstate.Claim[*Index]
	// Tx is a transaction of a [Feed].
	Tx = streamstate.Tx[*Index]
)

// TB is what a feed needs of a test: *testing.T, *testing.B, *rapid.T and *[Trial] have it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
	Cleanup(f func())
}

// Feed is a book whose keys follow scripted sources. See the package doc.
type Feed struct {
	// Book is the book. Whatever a test needs can be called on it directly.
	Book *Book

	t      TB
	trial  *Trial // nil: no explorer
	failed atomic.Bool

	mu sync.Mutex
	// +checklocks:mu
	keys []*Keyspace
	// +checklocks:mu
	handles []tracked
	// +checklocks:mu
	holds []*streamstate.Hold
	// +checklocks:mu
	audit audit
}

// tracked is a handle that must have ended when all has.
type tracked struct {
	what string
	h    *streamstate.Handle
}

// ended is a context that makes a wait a poll.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// New makes a book. Durations that are zero in the options are never armed, else a test would depend on the time it takes.
// At clean-up the book is closed and checked.
func New(t TB, o streamstate.Options) *Feed {
	t.Helper()
	for _, d := range []*int64{
		(*int64)(&o.BeginWithin), (*int64)(&o.HandOverWithin), (*int64)(&o.TicketWithin),
		(*int64)(&o.PendingWithin), (*int64)(&o.StableAfter), (*int64)(&o.RetryAfter),
	} {
		if *d == 0 {
			*d = -1
		}
	}
	f := &Feed{t: t, audit: audit{records: map[streamstate.Key][]*chain{}}}
	if x, ok := t.(*Trial); ok {
		f.trial = x
		o.Gap = x.engine.Hook(o.Gap)
	}
	also := o.OnEvent
	o.OnEvent = func(e streamstate.Event) {
		defer f.callback(e)()
		if also != nil {
			also(e)
		}
	}
	f.Book = streamstate.NewBook[*Index](o)
	if f.trial != nil {
		f.trial.adopt(f)
	}
	t.Cleanup(f.close)
	return f
}

// Open opens a key in the stream "test" and makes its source. It fails the test if the book refuses; on a [Trial] whose
// adversary has gone, the keyspace may have no session.
func (f *Feed) Open(keyspace string, o OpenOptions) *Keyspace {
	f.t.Helper()
	k := f.Add(keyspace, o)
	if _, err := k.TryOpen(); err != nil && !f.disturbed() {
		f.fatal("open %v: %v", k.Key, err)
	}
	return k
}

// Add is Open without opening: call [Keyspace.TryOpen].
func (f *Feed) Add(keyspace string, o OpenOptions) *Keyspace {
	if o.Partitions == 0 {
		o.Partitions = 1
	}
	k := &Keyspace{f: f, Key: streamstate.Key{Stream: "test", Keyspace: keyspace}, open: o}
	k.Source = NewSource(o.Partitions, k.take)
	k.claims, k.vouched, k.again = map[*Stream]*life{}, map[vouch]bool{}, map[int]int{}
	for p, pos := range o.Restart.All() {
		k.vouched[vouch{p, pos.Next}] = true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = append(f.keys, k)
	return k
}

// Keyspaces are those that were opened or added, in that order.
func (f *Feed) Keyspaces() []*Keyspace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.keys)
}

// Merge merges one key into another when ready says so; nil says yes. The index of the first is forgotten.
func (f *Feed) Merge(from, into *Keyspace, ready func(from, into streamstate.View) bool) *streamstate.Handle {
	return f.handle("Merge", func() *streamstate.Handle {
		a, b := from.Session(), into.Session()
		if a == nil || b == nil {
			return handle.Resolved(ErrNoSession)
		}
		return f.Book.Merge(a, b, ready, func(_, into Tx) error {
			_, err := into.Payload()
			return err
		})
	})
}

// Hold has one key keep the flush of another closed until Settle, unless it is released before.
func (f *Feed) Hold(holder, target *Keyspace) (h *streamstate.Hold, err error) {
	a, b := holder.Session(), target.Session()
	if a == nil || b == nil {
		return nil, ErrNoSession
	}
	err = f.call("Hold", func() (err error) {
		h, err = a.Hold(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds = append(f.holds, h)
	return h, nil
}

// handle makes a call that returns a handle, which must end by the end.
func (f *Feed) handle(what string, call func() *streamstate.Handle) (h *streamstate.Handle) {
	err := f.call(what, func() error {
		h = call()
		return h.Err()
	})
	if err == nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.handles = append(f.handles, tracked{what, h})
	}
	return h
}

// call makes a call of the book. Under an explorer a refusal is checked to have changed nothing.
func (f *Feed) call(name string, fn func() error) error {
	if f.trial == nil {
		return fn()
	}
	return f.trial.Call(name, fn)
}

// quietly runs f without an adversary.
func (f *Feed) quietly(fn func()) {
	if f.trial == nil {
		fn()
		return
	}
	f.trial.engine.Quietly(fn)
}

// disturbed tells whether an adversary has gone.
func (f *Feed) disturbed() bool { return f.trial != nil && f.trial.Disturbed() }

// violate notes what no book may do; it is reported by the Require methods and at clean-up.
func (f *Feed) violate(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audit.violate(format, args...)
}

// errorf fails the test and goes on.
func (f *Feed) errorf(format string, args ...any) {
	f.t.Helper()
	f.failed.Store(true)
	f.t.Errorf("streamtest: "+format, args...)
}

// fatal fails the test and ends it.
func (f *Feed) fatal(format string, args ...any) {
	f.t.Helper()
	f.errorf(format, args...)
	f.t.FailNow()
}

func (f *Feed) stopIfFailed() {
	f.t.Helper()
	if f.failed.Load() {
		f.t.FailNow()
	}
}

// close ends everything, at clean-up.
func (f *Feed) close() {
	f.t.Helper()
	f.letGo()
	h := f.Book.Close()
	for _, d := range f.Book.Dump() {
		f.errorf("close waits for\n%v", d)
	}
	if f.failed.Load() {
		return
	}
	if f.trial == nil {
		_ = h.Wait(context.Background()) // it resolves with nil
	} else if h.Wait(ended) != nil {
		f.errorf("close has not ended")
	}
	f.checkHandles()
	f.checkAudit(true)
}

// String is the dumps of all keys.
func (f *Feed) String() string {
	var s strings.Builder
	for _, d := range f.Book.Dump() {
		s.WriteString(d.String())
	}
	return s.String()
}
