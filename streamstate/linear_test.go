package streamstate

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.uber.org/atomic"
)

// TestLinearizable has four clients work on two keys at once: open, stop, reopen, drop, begin, end, release, apply, flush
// and read, with each other's tokens, most of which are stale. Whatever they see must be what some order of the calls, one
// at a time, gives.
//
// Seen red with: a gate that does not check the session; an Apply that checks in one hold and applies in the next; a gate
// that lets go of the lock between its check and the call; a flush that vouches for what was given up.
func TestLinearizable(t *testing.T) {
	rounds := 20
	if *stress {
		rounds = 2000
	}
	var refusals, applied int
	for seed := range uint64(rounds) {
		x := newLinearRun(seed)
		x.run()
		require.NoError(t, x.wrong.Load())
		require.LessOrEqual(t, len(x.history), 400)
		require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(linearModel, x.history, time.Minute), "seed %d", seed)
		for _, op := range x.history {
			switch out := op.Output.(linearOut); {
			case out.why != 0:
				refusals++
			case op.Input.(linearIn).op == OpApply:
				applied++
			}
		}
		require.NoError(t, x.finish(t))
	}
	t.Logf("%d histories, %d calls refused, %d applied", rounds, refusals, applied)
	require.Positive(t, refusals)
	require.Positive(t, applied)
}

const (
	linearKeys    = 2
	linearParts   = 2
	linearClients = 4
	linearOps     = 100
)

// linearIn is a call. Tokens are numbers that the test gives: the one that it is made with, and the one that it makes.
type linearIn struct {
	key     int
	op      Op
	record  int // what a session is of
	session int
	part    int
	owner   int
	token   int    // the claim or flush that the call is made with
	made    int    // what a session, claim or flush that is made is called
	pos     uint64 // Apply
}

// linearOut is its answer.
type linearOut struct {
	why    Reason
	n      int // claims that ended; whether data was new; the payload
	at, to [linearParts]int
}

// linearState is one key, as the documents say it is after the calls so far. -1 is no position.
type linearState struct {
	record, session, flush int
	phase                  Phase
	payload                int
	parts                  [linearParts]linearPart
}

type linearPart struct {
	wanted, covered, broken   bool
	received, flushed, target int
	live                      [linearClients]linearClaim // by owner: each has at most one
}

type linearClaim struct{ token, next int }

var linearModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		parts := make([][]porcupine.Operation, linearKeys)
		for _, op := range history {
			key := op.Input.(linearIn).key
			parts[key] = append(parts[key], op)
		}
		return parts
	},
	Init: func() any { return linearState{phase: Gone} },
	Step: func(state, input, output any) (bool, any) {
		st := state.(linearState)
		out := st.step(input.(linearIn))
		return out == output.(linearOut), st
	},
}

// step is a call on one key with nothing beside it.
func (st *linearState) step(in linearIn) linearOut {
	switch in.op { //nolint:exhaustive // these are the calls that clients make
	case OpOpen:
		if st.phase != Gone {
			return linearOut{why: ReasonExists}
		}
		*st = linearState{record: in.made, session: in.made, phase: Active}
		for i := range st.parts {
			st.parts[i] = linearPart{wanted: true, received: -1, flushed: -1}
		}
		return linearOut{}
	case OpDrop:
		if st.record == in.record && st.phase < Closing {
			st.end(Closing, Gone)
		}
		return linearOut{}
	case OpFlushReply:
		return st.flushDone(in)
	}
	if in.session != st.session || st.phase >= Closing {
		return linearOut{why: ReasonStaleSession}
	}
	switch in.op { //nolint:exhaustive // these are the calls that clients make
	case OpStop:
		if st.phase < Stopping {
			st.end(Stopping, Stopped)
		}
		return linearOut{}
	case OpReopen:
		return st.reopen(in)
	case OpRead:
		return st.read()
	case OpWant:
		return st.want(in)
	}
	if st.phase != Active {
		return linearOut{why: ReasonPhase}
	}
	return st.active(in)
}

// end ends the session: the phase is the first of the two while a flush runs.
func (st *linearState) end(running, rest Phase) {
	if st.phase = running; st.flush == 0 {
		st.phase = rest
	}
	for i := range st.parts {
		st.parts[i].live = [linearClients]linearClaim{}
	}
}

func (st *linearState) reopen(in linearIn) linearOut {
	if st.phase != Stopped {
		return linearOut{why: ReasonPhase}
	}
	st.session, st.phase = in.made, Active
	for i := range st.parts {
		st.parts[i].received = st.parts[i].flushed
	}
	return linearOut{}
}

func (st *linearState) read() linearOut {
	out := linearOut{n: st.payload}
	for i := range st.parts {
		out.at[i], out.to[i] = st.parts[i].received, st.parts[i].flushed
	}
	return out
}

func (st *linearState) want(in linearIn) linearOut {
	p := &st.parts[in.part]
	if st.phase == Active && !p.wanted && p.covered {
		return linearOut{why: ReasonReleasing}
	}
	p.wanted = true
	return linearOut{}
}

func (st *linearState) flushDone(in linearIn) linearOut {
	if st.flush != in.token || in.token == 0 {
		return linearOut{why: ReasonSuperseded}
	}
	st.flush = 0
	for i := range st.parts {
		p := &st.parts[i]
		if p.covered && !p.broken {
			p.flushed = p.target
		}
		p.covered, p.broken, p.target = false, false, 0
	}
	switch st.phase {
	case Stopping:
		st.phase = Stopped
	case Closing:
		st.phase = Gone
	case Opening, Active, Stopped, Gone:
	}
	return linearOut{}
}

func (st *linearState) active(in linearIn) linearOut {
	p := &st.parts[in.part]
	switch in.op { //nolint:exhaustive // these are the calls that clients make
	case OpBegin:
		switch {
		case p.live[in.owner].token != 0:
			return linearOut{why: ReasonDuplicate}
		case !p.wanted:
			return linearOut{why: ReasonUnwanted}
		}
		p.live[in.owner] = linearClaim{token: in.made}
		p.received = max(p.received, 0)
		return linearOut{}
	case OpOwnerGone:
		n := 0
		for i := range st.parts {
			if l := &st.parts[i].live[in.owner]; l.token != 0 {
				*l = linearClaim{}
				n++
			}
		}
		return linearOut{n: n}
	case OpStartFlush:
		return st.startFlush(in)
	}
	l := &p.live[in.owner]
	if l.token != in.token {
		return linearOut{why: ReasonStaleClaim}
	}
	if in.op == OpApply {
		return st.apply(p, l, int(in.pos))
	}
	if *l = (linearClaim{}); in.op == OpRelease && p.live == [linearClients]linearClaim{} {
		p.wanted, p.broken = false, p.covered
		p.received, p.flushed = -1, -1
	}
	return linearOut{}
}

func (st *linearState) startFlush(in linearIn) linearOut {
	if st.flush != 0 {
		return linearOut{why: ReasonFlushRunning}
	}
	st.flush = in.made
	var out linearOut
	for i := range st.parts {
		p := &st.parts[i]
		out.to[i] = -1
		if p.wanted {
			p.covered, p.target = true, p.received
			out.to[i] = p.received
		}
	}
	return out
}

func (st *linearState) apply(p *linearPart, l *linearClaim, pos int) linearOut {
	if pos < l.next {
		return linearOut{why: ReasonPosition}
	}
	l.next = pos
	if pos <= p.received {
		return linearOut{}
	}
	p.received = pos
	st.payload++
	return linearOut{n: 1}
}

// linearRun is one history.
type linearRun struct {
	seed    uint64
	book    *Book[int]
	clock   atomic.Int64
	wrong   atomic.Error
	mu      sync.Mutex
	history []porcupine.Operation
	// +checklocks:mu
	keys [linearKeys]linearTokens
	// +checklocks:mu
	made int
}

// linearTokens are those of a key that any client may use.
type linearTokens struct {
	sessions []linearSession
	claims   []linearWorker
	flushes  []linearFlush
}

type linearSession struct {
	linearIn
	s *Session[int]
}

type linearWorker struct {
	linearIn
	c *Claim[int]
}

type linearFlush struct {
	token int
	f     *FlushTicket
}

func newLinearRun(seed uint64) *linearRun {
	return &linearRun{seed: seed, book: NewBook[int](Options{Gap: runtime.Gosched})}
}

func (x *linearRun) run() {
	gate := make(chan struct{})
	var clients sync.WaitGroup
	for c := range linearClients {
		clients.Go(func() {
			<-gate
			r := rand.New(rand.NewPCG(x.seed, uint64(c)))
			for range linearOps {
				x.once(r, c)
			}
		})
	}
	close(gate)
	clients.Wait()
}

func (x *linearRun) finish(t *testing.T) error {
	h := x.book.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range x.keys {
		for _, f := range k.flushes {
			_ = f.f.Abort() // most have ended
		}
	}
	return h.Wait(t.Context())
}

// lately is mostly one of the last few tokens, else any of the last eight.
func lately[E any](r *rand.Rand, from []E, few int) (e E) {
	if r.IntN(4) == 0 {
		few = 8
	}
	if len(from) > 0 {
		e = from[len(from)-1-r.IntN(min(few, len(from)))]
	}
	return e
}

// once makes one call, and notes it.
func (x *linearRun) once(r *rand.Rand, client int) {
	x.mu.Lock()
	key := r.IntN(linearKeys)
	k := &x.keys[key]
	s, c, f := lately(r, k.sessions, 1), lately(r, k.claims, 3), lately(r, k.flushes, 1)
	x.made++
	made := x.made
	x.mu.Unlock()
	ops := []Op{
		OpApply, OpApply, OpApply, OpApply, OpApply, OpApply, OpApply, OpApply, OpBegin, OpBegin, OpBegin, OpEnd, OpRelease, OpWant, OpStartFlush, OpStartFlush,
		OpFlushReply, OpFlushReply, OpRead, OpRead, OpOwnerGone, OpReopen, OpReopen, OpReopen, OpOpen, OpOpen,
	}
	if r.IntN(25) == 0 { // what ends much
		ops = []Op{OpRelease, OpRelease, OpStop, OpStop, OpDrop}
	}
	in := linearIn{op: ops[r.IntN(len(ops))], pos: uint64(made)/4 + r.Uint64N(30), part: r.IntN(linearParts), owner: client}
	switch {
	case s.s == nil:
		in.op = OpOpen
	case slices.Contains([]Op{OpApply, OpEnd, OpRelease}, in.op):
		if c.c == nil {
			return
		}
		in.part, in.owner, in.session, in.token = c.part, c.owner, c.session, c.token
	case in.op == OpFlushReply:
		if f.f == nil {
			return
		}
		in.token = f.token
	default:
		in.session, in.record = s.session, s.record
	}
	in.key, in.made = key, made
	call := x.clock.Inc()
	runtime.Gosched()
	out := x.call(in, s.s, c.c, f.f)
	done := x.clock.Inc()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.history = append(x.history, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: done})
}

// why is what a call was refused for.
func (x *linearRun) why(err error) Reason {
	e, ok := errors.AsType[refusal](err)
	if ok {
		return e.reason()
	}
	if err != nil {
		x.wrong.Store(err)
	}
	return 0
}

func (x *linearRun) call(in linearIn, s *Session[int], c *Claim[int], f *FlushTicket) (out linearOut) {
	var err error
	switch in.op { //nolint:exhaustive // these are the calls that clients make
	case OpOpen:
		s, err = x.book.Open(walkKeys[in.key], OpenOptions[int]{Partitions: linearParts})
		x.begun(in, in.made, s, err)
	case OpReopen:
		s, err = x.book.Reopen(s, ReopenOptions[int]{Carry: func(n int) (int, error) { return n, nil }})
		x.begun(in, in.record, s, err)
	case OpStop:
		err = refused(s.Stop(nil))
	case OpDrop:
		s.Drop()
	case OpBegin:
		c, err = s.Begin(in.part, Begin{Owner: string(rune('A' + in.owner))})
		x.publish(err, func(k *linearTokens) {
			w := in
			w.token = in.made
			k.claims = append(k.claims, linearWorker{w, c})
		}, in.key)
	case OpEnd:
		err = c.End(Failed)
	case OpRelease:
		err = refused(c.Release())
	case OpOwnerGone:
		out.n, err = s.OwnerGone(string(rune('A' + in.owner)))
	case OpWant:
		err = s.Want(in.part)
	case OpApply:
		out.n, err = x.apply(c, in.pos)
	case OpStartFlush:
		if f, err = s.StartFlush(); err == nil {
			out.to = linearAt(f.Target())
		}
		x.publish(err, func(k *linearTokens) { k.flushes = append(k.flushes, linearFlush{in.made, f}) }, in.key)
	case OpFlushReply:
		_, err = f.Done()
	case OpRead:
		err = s.Read(func(tx ReadTx[int]) error {
			out.at, out.to = linearAt(tx.Received()), linearAt(tx.Flushed())
			out.n, err = tx.Payload()
			return err
		})
	}
	out.why = x.why(err)
	return out
}

func (x *linearRun) apply(c *Claim[int], pos uint64) (n int, err error) {
	err = c.Apply(Position{Next: pos}, func(tx Tx[int]) error {
		n = 1
		count, err := tx.Payload()
		if err != nil {
			return err
		}
		return tx.SetPayload(count + 1)
	})
	return n, err
}

func linearAt(ts Timestamp) (out [linearParts]int) {
	for i := range out {
		out[i] = -1
		if pos, ok := ts.At(i); ok {
			out[i] = int(pos.Next)
		}
	}
	return out
}

func (x *linearRun) begun(in linearIn, record int, s *Session[int], err error) {
	x.publish(err, func(k *linearTokens) {
		in.record, in.session = record, in.made
		k.sessions = append(k.sessions, linearSession{in, s})
	}, in.key)
}

// publish lets everybody use a new token.
func (x *linearRun) publish(err error, add func(*linearTokens), key int) {
	if err == nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		add(&x.keys[key])
	}
}
