package streamtest

import (
	"context"
	"errors"

	"github.com/staleproof/staleproof/internal/handle"
	"github.com/staleproof/staleproof/streamstate"
)

// ErrNoSession is what a [Keyspace] answers that was never opened.
var ErrNoSession = errors.New("streamtest: no session")

// ErrNoClaim is what data of a stream is answered whose begin was never let in.
var ErrNoClaim = errors.New("streamtest: the stream has no claim")

// OpenOptions is what a key is opened with.
type OpenOptions struct {
	Partitions int // zero: 1
	Wanted     streamstate.Wanted
	Restart    streamstate.Timestamp
	Pending    bool // until Settle
}

// Keyspace is one key of a [Feed] over all its sessions, with its source and the disk that its flushes write to. What its
// methods are refused is returned as it is.
type Keyspace struct {
	Key    streamstate.Key
	Source *Source

	f    *Feed
	open OpenOptions

	// All below is guarded by f.mu.
	lives    int                // sessions that were begun, or refused
	sessions []*life            // in no order
	claims   map[*Stream]*life  // what the streams' begins were answered
	vouched  map[vouch]bool     // where an index may begin, or have a hole before
	again    map[int]int        // how often a partition was given up since it was applied to
	disk     []indexPart        // what is durable
	flushes  []*Flush           // that were not answered
	due      []streamstate.Work // that were not answered
}

// life is a session, or a claim, with the context that ends with it.
type life struct {
	n     int // of a session: its number
	s     *Session
	claim *Claim
	ctx   context.Context //nolint:containedctx // it says whether the token has ended
}

// vouch is a position that somebody vouches for.
type vouch struct {
	partition int
	next      uint64
}

// Session is the present or last session; nil if there was none.
func (k *Keyspace) Session() *Session {
	if l := k.present(); l != nil {
		return l.s
	}
	return nil
}

func (k *Keyspace) present() (last *life) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	for _, l := range k.sessions {
		if last == nil || l.n > last.n {
			last = l
		}
	}
	return last
}

// lifeOf is the number of a session, -1 if it is none of this key.
func (k *Keyspace) lifeOf(id streamstate.SessionID) int {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	for _, l := range k.sessions {
		if l.s.ID() == id {
			return l.n
		}
	}
	return -1
}

func (k *Keyspace) nextLife() int {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.lives++
	return k.lives
}

// began notes a session.
func (k *Keyspace) began(n int, s *Session, fresh bool) {
	ctx := s.Context()
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.sessions = append(k.sessions, &life{n: n, s: s, ctx: ctx})
	if fresh {
		k.disk = nil
	}
}

// TryOpen opens the key, with nothing of a former session.
func (k *Keyspace) TryOpen() (s *Session, err error) {
	n := k.nextLife()
	o := streamstate.OpenOptions[*Index]{
		Partitions: k.open.Partitions, Wanted: k.open.Wanted, Restart: k.open.Restart, Pending: k.open.Pending,
		Payload: newIndex(n, k.open.Partitions),
	}
	err = k.f.call("Open", func() (err error) {
		s, err = k.f.Book.Open(k.Key, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	k.began(n, s, true)
	return s, nil
}

// TryReopen begins the next session, from the restart vector if it has partitions, with what is durable.
func (k *Keyspace) TryReopen(restart streamstate.Timestamp, pending bool) (*Session, error) {
	if s := k.Session(); s != nil {
		return k.reopen(s, restart, pending)
	}
	return nil, ErrNoSession
}

func (k *Keyspace) reopen(s *Session, restart streamstate.Timestamp, pending bool) (next *Session, err error) {
	n := 0
	carry := func(*Index) (*Index, error) {
		n = k.nextLife()
		ix := newIndex(n, k.open.Partitions)
		k.f.mu.Lock()
		defer k.f.mu.Unlock()
		copy(ix.parts, k.disk)
		return ix, nil
	}
	err = k.f.call("Reopen", func() (err error) {
		next, err = k.f.Book.Reopen(s, streamstate.ReopenOptions[*Index]{Carry: carry, Restart: restart, Pending: pending})
		return err
	})
	if err != nil {
		return nil, err
	}
	k.began(n, next, false)
	return next, nil
}

// Stop stops the present session.
func (k *Keyspace) Stop(cause error) *streamstate.Handle {
	return k.end("Stop", func(s *Session) *streamstate.Handle { return s.Stop(cause) })
}

// Drain drains the present session.
func (k *Keyspace) Drain() *streamstate.Handle { return k.end("Drain", (*Session).Drain) }

// Drop drops the key.
func (k *Keyspace) Drop() *streamstate.Handle { return k.end("Drop", (*Session).Drop) }

func (k *Keyspace) end(what string, end func(*Session) *streamstate.Handle) *streamstate.Handle {
	return k.f.handle(what, func() *streamstate.Handle {
		if s := k.Session(); s != nil {
			return end(s)
		}
		return handle.Resolved(ErrNoSession)
	})
}

// Start opens a stream at the source for the present session, from what is received, and hands its begin in. It fails the
// test if that is refused.
func (k *Keyspace) Start(partition int, owner string) *Stream {
	k.f.t.Helper()
	st, err := k.TryStart(partition, owner, 0)
	if err != nil {
		k.f.fatal("start of %v partition %d by %q: %v\n%v", k.Key, partition, owner, err, k.f)
	}
	return st
}

// TryStart is Start with a term. The stream is returned even if its begin was refused; nil if there was none.
func (k *Keyspace) TryStart(partition int, owner string, term uint64) (*Stream, error) {
	s := k.Session()
	if s == nil {
		return nil, ErrNoSession
	}
	from, err := k.received(s, partition)
	if err != nil {
		return nil, err
	}
	st := k.Source.Open(Request{Session: s.ID(), Partition: partition, Owner: owner, Term: term, From: from})
	return st, st.Deliver()
}

// StartFrom is TryStart from a position that the caller vouches for, with a term.
func (k *Keyspace) StartFrom(partition int, owner string, term uint64, from streamstate.Position) (*Stream, error) {
	s := k.Session()
	if s == nil {
		return nil, ErrNoSession
	}
	k.vouch(partition, from.Next)
	st := k.Source.Open(Request{Session: s.ID(), Partition: partition, Owner: owner, Term: term, From: from})
	return st, st.Deliver()
}

// received is what a session has received of a partition, the beginning if nothing.
func (k *Keyspace) received(s *Session, partition int) (pos streamstate.Position, err error) {
	err = k.f.call("Read", func() error {
		return s.Read(func(tx streamstate.ReadTx[*Index]) error {
			v, err := tx.Partition(partition)
			pos = v.Received
			return err
		})
	})
	return pos, err
}

// Claim is what the begin of a stream was answered; nil if it was refused, or not handed in.
func (k *Keyspace) Claim(st *Stream) *Claim {
	if l := k.claimOf(st); l != nil {
		return l.claim
	}
	return nil
}

func (k *Keyspace) claimOf(st *Stream) *life {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.claims[st]
}

// Release releases the claim of a stream, which is cut.
func (k *Keyspace) Release(st *Stream) *streamstate.Handle {
	c := k.Claim(st)
	if c == nil {
		return handle.Resolved(ErrNoClaim)
	}
	defer st.Cut()
	return k.giveUp(st.Partition(), c.Release)
}

// Fence fences the claim of a stream.
func (k *Keyspace) Fence(st *Stream) error {
	c := k.Claim(st)
	if c == nil {
		return ErrNoClaim
	}
	return k.f.call("Fence", func() error { return c.Fence(nil) })
}

// Want makes a partition wanted.
func (k *Keyspace) Want(partition int) error {
	s := k.Session()
	if s == nil {
		return ErrNoSession
	}
	return k.f.call("Want", func() error { return s.Want(partition) })
}

// Unwant gives a partition up. What is durable of it is forgotten.
func (k *Keyspace) Unwant(partition int) *streamstate.Handle {
	s := k.Session()
	if s == nil {
		return handle.Resolved(ErrNoSession)
	}
	return k.giveUp(partition, func() *streamstate.Handle { return s.Unwant(partition) })
}

// giveUp makes a call that gives a partition up.
func (k *Keyspace) giveUp(partition int, call func() *streamstate.Handle) *streamstate.Handle {
	k.addAgain(partition, 1)
	h := k.f.handle("give up", call)
	if h.Err() != nil {
		k.addAgain(partition, -1)
	} else {
		k.forget(partition)
	}
	return h
}

func (k *Keyspace) addAgain(partition, n int) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.again[partition] = max(0, k.again[partition]+n)
}

// forget removes a partition from the disk, if nobody follows it.
func (k *Keyspace) forget(partition int) {
	s := k.Session()
	gone := true
	_ = k.f.call("Read", func() error { // who cannot read does not follow
		return s.Read(func(tx streamstate.ReadTx[*Index]) error {
			v, err := tx.Partition(partition)
			gone = err == nil && v.State == streamstate.Unwanted
			return err
		})
	})
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	if gone && partition < len(k.disk) {
		k.disk[partition] = indexPart{}
	}
}

func (k *Keyspace) vouch(partition int, next uint64) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	k.vouched[vouch{partition, next}] = true
}

func (k *Keyspace) isVouched(partition int, next uint64) bool {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	return k.vouched[vouch{partition, next}]
}

// mayBegin tells whether an index may have a hole before a number, and whether it may begin again below what it has.
func (k *Keyspace) mayBegin(partition int, first uint64) (vouched, again bool) {
	k.f.mu.Lock()
	defer k.f.mu.Unlock()
	again = k.again[partition] > 0
	delete(k.again, partition)
	return k.vouched[vouch{partition, first}], again
}
