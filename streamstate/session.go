package streamstate

import (
	"context"

	"github.com/staleproof/staleproof/internal/handle"
)

// Book keeps the state of every key that is followed. All methods of all types of this package are safe for concurrent
// use. See the package doc for what holds for all of them.
type Book[P any] struct{ c *common }

// NewBook makes an empty book.
func NewBook[P any](o Options) *Book[P] { return &Book[P]{newCommon(o)} }

// entry is a record with its payload. It has 320 bytes if the payload is a pointer: whole lines, so that two entries that lie
// side by side share none, and an odd number of them, so that the lines of many locks do not fall upon the same few places of
// a cache.
type entry[P any] struct {
	session *Session[P]
	pending P          // what a transaction has set
	slab    []Claim[P] // where the next claims come from; a claim is never used again
	used    int        // of slab
	_       [8]byte
	first   Session[P] // the first one's handle, all but its life in the line of the lock: see TestLines
	payload P
	record
}

// Session is one life of a key: a token, checked in the hold in which the state is used. It ends when it is stopped or
// dropped, not when its successor begins. It is cheap to keep, and keeps nothing of a key that is gone.
type Session[P any] struct {
	life *ending // guarded by the record's lock
	e    *entry[P]
	n    uint64
}

// Open begins the first session of a key. On error nothing has changed: *[ExistsError], *[ArgumentError], [ErrClosed].
func (b *Book[P]) Open(key Key, o OpenOptions[P]) (*Session[P], error) {
	err := key.check()
	if err == nil {
		err = o.check()
	}
	if err != nil {
		b.c.refused(err)
		return nil, err
	}
	e := &entry[P]{payload: o.Payload}
	e.book, e.gap, e.owner, e.serial = b.c, b.c.opts.Gap, e, b.c.serials.Inc()
	e.key = &key
	e.first = Session[P]{e: e, n: b.c.sessions.Inc()}
	s := &e.first
	err = e.do(token{op: opLook}, func(k *held) error {
		if err := b.c.reg.add(key, &e.record); err != nil {
			return err
		}
		k.core, k.aside = newCore(&b.c.lim, &key, o.Partitions), &aside{r: &e.record}
		e.begin(k, s)
		k.open(o.setup(s.n))
		return nil
	})
	if err != nil {
		return nil, err
	}
	b.c.stats.opened.Inc()
	return s, nil
}

// empty lets go of the payload, and of the claims that were not used. Under the lock.
func (e *entry[P]) empty() {
	var none P
	e.payload, e.pending = none, none
	e.slab, e.used = nil, 0
}

// begin makes s the present session. Under the lock.
func (e *entry[P]) begin(k *held, s *Session[P]) {
	e.session, k.life = s, &s.life
	k.home = home{&e.record, s.n, s}
}

// Reopen begins the next session of a key whose session has stopped; s is superseded. What is wanted stays so. On error
// nothing has changed: [ErrPhase] before the handle of [Session.Stop] has resolved, [ErrStaleSession], *[ArgumentError],
// what Carry returned.
func (b *Book[P]) Reopen(s *Session[P], o ReopenOptions[P]) (*Session[P], error) {
	e := s.e
	if err := b.owns(s); err != nil {
		return nil, err
	}
	next := &Session[P]{e: e, n: b.c.sessions.Inc()}
	err := e.run(s.token(OpReopen), func(k *held) error {
		restart := o.Restart
		if n := restart.Len(); n != 0 && n != len(k.parts) {
			return badArgument("Restart", itoa(n)+" partitions", itoa(len(k.parts)))
		} else if n == 0 {
			restart = k.reopenRestart()
		}
		var payload P
		if o.Carry != nil {
			var err error
			if payload, err = o.Carry(e.payload); err != nil {
				k.foreign = true
				return err
			}
		}
		e.payload = payload
		e.begin(k, next)
		k.reopen(next.n, o.Pending, restart)
		return nil
	})
	if err != nil {
		return nil, err
	}
	b.c.stats.reopened.Inc()
	return next, nil
}

// owns refuses a session of another book.
func (b *Book[P]) owns(s *Session[P]) error {
	if s.e.book == b.c {
		return nil
	}
	err := badArgument("session", "of another book", "a session of this book")
	b.c.refused(err)
	return err
}

// Session finds the session that an id names, or answers with a *[StaleError] that names the present one. So what comes
// in over the wire is checked by what it says, not by who it comes from.
func (b *Book[P]) Session(key Key, id SessionID) (*Session[P], error) {
	r := b.c.reg.find(key)
	if r == nil {
		err := &StaleError{Key: &key, Session: id}
		b.c.refused(err)
		return nil, err
	}
	e := r.owner.(*entry[P])
	var s *Session[P]
	err := e.do(token{op: OpSession}, func(k *held) error {
		if id != k.id {
			return &StaleError{Key: k.key, Session: id, Current: k.current()}
		}
		s = e.session
		return nil
	})
	return s, err
}

// Drop drops a key, whichever session it is in. It is for administrators: who has a session uses [Session.Drop], which
// never hits a successor. The handle resolves when the key is gone, at once if nothing is there.
func (b *Book[P]) Drop(key Key) *Handle {
	if err := key.check(); err != nil {
		b.c.refused(err)
		return resolvedHandle(err)
	}
	if r := b.c.reg.find(key); r != nil {
		return r.drop(ErrDropped)
	}
	return resolvedHandle(nil)
}

// DropStream drops every key of a stream. The handle resolves when all are gone. An empty name is an *[ArgumentError].
func (b *Book[P]) DropStream(stream string) *Handle {
	if err := checkName("stream", stream); err != nil {
		b.c.refused(err)
		return resolvedHandle(err)
	}
	var all []*Handle
	for _, r := range b.c.reg.all(func(k Key) bool { return k.Stream == stream }) {
		all = append(all, r.drop(ErrDropped))
	}
	return handle.Join(all)
}

// Close drops every key and refuses to open more. It is idempotent. The handle resolves when all keys are gone, the last
// callback has returned and the timers have stopped: a callback may call Close but not wait for it.
func (b *Book[P]) Close() *Handle {
	h := b.c.reg.close()
	for _, r := range b.c.reg.all(func(Key) bool { return true }) {
		r.drop(ErrClosed)
	}
	return h
}

// drop drops the record.
func (r *record) drop(cause error) *Handle {
	var h *Handle
	_ = r.do(token{op: OpDrop}, func(k *held) error { // allowed in every phase
		if k.phase < Closing {
			r.book.stats.dropped.Inc()
			h = k.drop(ended("session", cause))
			return nil
		}
		h = k.dropped
		return nil
	})
	return h
}

func (s *Session[P]) token(op Op) token { return token{session: s.n, op: op} }

// ID is the session's id, for the wire.
func (s *Session[P]) ID() SessionID { return s.e.book.id(s.n) }

// Key is the session's key.
func (s *Session[P]) Key() Key { return *s.e.key }

// Context ends with the session; its cause is an *[EndedError] that says why.
func (s *Session[P]) Context() context.Context { return s.e.context(&s.life) }

// context makes the context of what lives in *life.
func (r *record) context(life **ending) context.Context {
	var ctx context.Context
	_ = r.do(token{op: opLook}, func(*held) error { // allowed in every phase
		ctx = contextOf(life)
		return nil
	})
	return ctx
}

// Opened answers the open request of a pending session: it is [Active] from here on. A second answer is [ErrSuperseded].
func (s *Session[P]) Opened() error {
	return s.e.do(s.token(OpOpened), func(k *held) error {
		k.opened()
		return nil
	})
}

// OpenFailed answers the open request of a pending session: it is stopped, with the cause.
func (s *Session[P]) OpenFailed(cause error) error {
	why := ended("session", orElse(ErrOpenFailed, cause)) // outside the hold: it asks the cause
	return s.e.do(s.token(OpOpenFailed), func(k *held) error {
		k.stop(why, false)
		return nil
	})
}

// Stop ends the session for its users, in one hold: its context, claims, holds, tickets and waiters end with the cause.
// The context of a running flush is cancelled. The handle resolves when that flush has ended: then the key is [Stopped],
// and [Book.Reopen] begins the next session. A second call gets the same handle. Nil is [ErrStopped].
func (s *Session[P]) Stop(cause error) *Handle {
	return s.stop(OpStop, ended("session", orElse(ErrStopped, cause)), false)
}

// Drain is Stop that leaves a running flush to end by itself. A Stop or Drop after it cancels the flush.
func (s *Session[P]) Drain() *Handle { return s.stop(OpDrain, ended("session", ErrDrained), true) }

func (s *Session[P]) stop(op Op, why *ending, drain bool) *Handle {
	var h *Handle
	err := s.e.do(s.token(op), func(k *held) error {
		h = k.stop(why, drain)
		return nil
	})
	if err != nil {
		return resolvedHandle(err)
	}
	return h
}

// Drop drops the record that s belongs to, whichever session it is in, and nothing else: a drop that is repeated after
// the key was opened again does not hit the successor. The handle resolves when the key is gone, which a running flush,
// whose context is cancelled, delays.
func (s *Session[P]) Drop() *Handle { return s.e.drop(ErrDropped) }

// Want makes a partition ours to follow; while the session has ended, from the next one on. A partition that is wanted
// stays as it is. [ErrReleasing] while a running flush covers what was given up.
func (s *Session[P]) Want(partition int) error {
	return s.e.do(s.token(OpWant), func(k *held) error { return k.want(partition) })
}

// Unwant gives a partition up: its claims and tickets end in this hold, late work is refused from here on, and its
// positions are forgotten. The handle resolves when no running flush covers the partition; until then what the flush
// reads of it must stay, and [Session.Want] of it is refused.
func (s *Session[P]) Unwant(partition int) *Handle {
	h := newHandle()
	err := s.e.do(s.token(OpUnwant), func(k *held) error { return k.unwant(partition, h) })
	if err != nil {
		return resolvedHandle(err)
	}
	return h
}

// Begin claims a partition. In the order in which they are looked for: [ErrStaleSession], [ErrPhase], [ErrArgument],
// [ErrStaleTerm], [ErrDuplicate], [ErrUnwanted], [ErrNotShutDown]. A claim that was refused is not ours: who reports it
// closes that stream at the source.
func (s *Session[P]) Begin(partition int, b Begin) (*Claim[P], error) {
	e := s.e
	k, err := e.enter(s.n, OpBegin)
	if err != nil {
		return nil, err
	}
	if e.used == len(e.slab) {
		e.slab, e.used = make([]Claim[P], min(claimSlab, max(len(k.parts), 1))), 0
	}
	c := &e.slab[e.used]
	if err = k.begin(partition, &b, &c.facts); err == nil {
		e.used++
	} else {
		c = nil
	}
	return c, e.leave(k, err)
}

// claimSlab is how many claims are allocated at once: with the allocator's header they fill 1,016 bytes of 1,024.
const claimSlab = 42

// BeginFailed takes an owner's word that its begin of a partition failed. Where none is waited for it is
// [ErrUnexpected], and nothing moves.
func (s *Session[P]) BeginFailed(partition int, owner string) error {
	return s.e.do(s.token(OpBeginFailed), func(k *held) error { return k.beginFailed(partition, owner) })
}

// OwnerGone says that a life of a node is over: its claims end, and it is not asked to shut any down. It returns how
// many claims ended; an owner that has none is no error.
func (s *Session[P]) OwnerGone(owner string) (ended int, err error) {
	err = s.e.do(s.token(OpOwnerGone), func(k *held) error {
		ended, err = k.ownerGone(owner, causeOwnerGone)
		return err
	})
	return ended, err
}
