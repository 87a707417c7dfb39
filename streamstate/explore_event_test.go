package streamstate

import (
	"context"
	"fmt"
	"slices"
)

// move is an event as the exploration counts them: what happens to which key, with small numbers for the rest.
type move struct{ what, key, a, b uint8 }

const (
	mvOpen uint8 = iota
	mvOpened
	mvOpenFailed
	mvStop
	mvDrain
	mvDrop
	mvReopen
	mvWant
	mvUnwant
	mvBegin
	mvBeginFailed
	mvOwnerGone
	mvHandOver
	mvFail
	mvRelease
	mvFence
	mvAdvance
	mvApply
	mvDeadline
	mvTicketDeadline
	mvRetryDeadline
	mvNextDue
	mvAccepted
	mvPending
	mvRefused
	mvShutDown
	mvShutDownFailed
	mvAbandon
	mvResubscribed
	mvSessionFailed
	mvSessionAbandon
	mvStartFlush
	mvFlushDone
	mvFlushFailed
	mvHold
	mvReleaseHold
	mvMerge

	numMoves = iota
)

var moveNames = [numMoves]string{
	"open", "opened", "open-failed", "stop", "drain", "drop", "reopen", "want", "unwant", "begin", "begin-failed", "owner-gone", "hand-over",
	"fail", "release", "fence", "advance", "apply", "deadline", "ticket-deadline", "retry-deadline", "next-due", "accepted", "pending", "refused",
	"shut-down", "shut-down-failed", "abandon", "resubscribed", "session-failed", "session-abandon", "start-flush", "flush-done", "flush-failed", "hold", "release-hold", "merge",
}

func (m move) String() string {
	return fmt.Sprintf("%s(%d; %d %d)", moveNames[m.what], m.key, m.a, m.b)
}

// mostClaims is how many claims a key knows at most that events are made of.
const mostClaims = 6

// moves are all events that there are in the scope; in most states few of them can be.
func (x *stage) moves() (out []move) {
	for key := range x.keys {
		each := func(what uint8, as, bs int) {
			if slices.Contains(x.without, what) {
				return
			}
			for a := range as {
				for b := range bs {
					out = append(out, move{what, uint8(key), uint8(a), uint8(b)})
				}
			}
		}
		for _, what := range []uint8{
			mvOpened, mvOpenFailed, mvStop, mvDrain, mvDrop, mvTicketDeadline, mvRetryDeadline, mvNextDue, mvResubscribed, mvSessionFailed, mvSessionAbandon,
			mvStartFlush, mvFlushDone, mvFlushFailed,
		} {
			each(what, 1, 1)
		}
		for _, what := range []uint8{mvWant, mvUnwant, mvBeginFailed, mvDeadline, mvAccepted, mvPending, mvRefused, mvShutDownFailed, mvAbandon} {
			each(what, x.parts, 1)
		}
		each(mvOpen, len(x.opens), 1)
		each(mvReopen, 2, 1)
		each(mvBegin, x.parts, len(x.begins)*len(x.owners))
		each(mvOwnerGone, len(x.owners), 1)
		for _, what := range []uint8{mvHandOver, mvFail, mvRelease, mvFence} {
			each(what, mostClaims, 1)
		}
		for _, what := range []uint8{mvAdvance, mvApply} {
			if x.top > 0 {
				each(what, mostClaims, int(x.top)+1)
			}
		}
		each(mvShutDown, x.parts, mostClaims)
		if x.keys > 1 {
			each(mvHold, min(x.holds, 1), 1)
			each(mvReleaseHold, x.holds, 1)
			each(mvMerge, min(x.most, 1), 1)
		}
	}
	return out
}

var ended0 = ends()

// play has an event happen; can is false where there is nothing for it to happen to.
func (x *stage) play(m move) (can bool, err error) {
	switch {
	case m.what <= mvReopen:
		return x.playPhase(m)
	case m.what <= mvOwnerGone, m.what == mvNextDue, m.what == mvStartFlush:
		return x.playSession(m)
	case m.what <= mvApply:
		c := x.claim(int(m.key), int(m.a))
		if c == nil {
			return false, nil
		}
		return true, x.playClaim(m.what, c, Position{Next: uint64(m.b)})
	case m.what >= mvFlushDone:
		return x.playFlush(m)
	default:
		return x.playRepair(m)
	}
}

func (x *stage) playPhase(m move) (can bool, err error) {
	s := x.s[m.key]
	switch m.what {
	case mvOpen:
		if x.h[m.key].phase != Gone {
			return false, nil
		}
		return true, x.open(int(m.key), int(m.a))
	case mvOpened:
		return true, s.Opened()
	case mvOpenFailed:
		return true, s.OpenFailed(nil)
	case mvStop:
		return true, refused(s.Stop(nil))
	case mvDrain:
		return true, refused(s.Drain())
	case mvDrop:
		s.Drop()
		return true, nil
	default:
		_, err = x.book.Reopen(s, ReopenOptions[int]{Pending: m.a == 1})
		return true, err
	}
}

func (x *stage) playSession(m move) (can bool, err error) {
	s, a, b := x.s[m.key], int(m.a), int(m.b)
	switch m.what {
	case mvWant:
		return true, s.Want(a)
	case mvUnwant:
		if len(x.h[m.key].releases) > 0 { // one at a time waits for a flush
			return false, nil
		}
		return true, refused(s.Unwant(a))
	case mvBegin:
		begin := x.begins[b/len(x.owners)]
		begin.Owner = x.owners[b%len(x.owners)]
		_, err = s.Begin(a, begin)
		return true, err
	case mvBeginFailed:
		return true, s.BeginFailed(a, x.owners[0])
	case mvOwnerGone:
		_, err = s.OwnerGone(x.owners[a])
		return true, err
	case mvNextDue:
		if _, err = s.NextDue(ended0); err == context.Canceled { //nolint:errorlint // it is as it came
			err = nil
		}
		return true, err
	default:
		_, err = s.StartFlush()
		return true, err
	}
}

// refused is the refusal that a handle was returned with, if any.
func refused(h *Handle) error {
	if err, ok := h.Err().(refusal); ok { //nolint:errorlint // it is as it came
		return err
	}
	return nil
}

// open is what Book.Open does with a record that nobody has seen yet.
func (x *stage) open(key, how int) error {
	e, s, o := x.e[key], x.s[key], x.opens[how]
	o.Partitions = x.parts
	return e.do(token{op: opLook}, func(k *held) error {
		k.core = newCore(&x.book.c.lim, e.key, o.Partitions)
		k.ticks = true
		e.begin(k, s)
		s.life = nil
		x.listen(key)
		k.open(o.setup(s.n))
		return nil
	})
}

// playFlush is play for flushes, holds and merges.
func (x *stage) playFlush(m move) (can bool, err error) {
	k := x.h[m.key]
	switch m.what {
	case mvFlushDone, mvFlushFailed:
		if k.flush == nil {
			return false, nil
		}
		f := &FlushTicket{k.r, k.flush}
		if m.what == mvFlushFailed {
			return true, f.Fail(nil)
		}
		_, err = f.Done()
		return true, err
	case mvHold:
		if len(x.h[0].taken)+len(x.h[1].taken) >= x.holds {
			return false, nil
		}
		_, err = x.s[m.key].Hold(x.s[1-m.key])
		return true, err
	case mvReleaseHold:
		if int(m.a) >= len(k.taken) {
			return false, nil
		}
		return true, (&Hold{k.taken[m.a]}).Release()
	default:
		if len(x.merges) >= x.most {
			return false, nil
		}
		return true, x.merge(int(m.key))
	}
}

// merge begins a merge of one key into the other.
func (x *stage) merge(from int) error {
	h := x.book.Merge(x.s[from], x.s[1-from], nil, func(_, _ Tx[int]) error { return nil })
	for i := range x.keys {
		for _, m := range x.h[i].merges {
			if m.handle == h && !slices.Contains(x.merges, m) {
				x.merges = append(x.merges, m)
			}
		}
	}
	return refused(h)
}

func (x *stage) playClaim(what uint8, c *Claim[int], pos Position) error {
	switch what {
	case mvHandOver:
		return c.End(HandOver)
	case mvFail:
		return c.End(Failed)
	case mvRelease:
		return refused(c.Release())
	case mvFence:
		return c.Fence(nil)
	case mvAdvance:
		return c.Advance(pos)
	default:
		return c.Apply(pos, func(Tx[int]) error { return nil })
	}
}

// playRepair is play for deadlines and tickets.
func (x *stage) playRepair(m move) (can bool, err error) {
	k, s, a := x.h[m.key], x.s[m.key], int(m.a)
	switch m.what {
	case mvDeadline:
		if a >= len(k.parts) {
			return false, nil
		}
		return x.pass(k, &k.parts[a].at)
	case mvTicketDeadline:
		return x.pass(k, &k.ticketAt)
	case mvRetryDeadline:
		return x.pass(k, &k.retryAt)
	case mvResubscribed, mvSessionFailed, mvSessionAbandon:
		if k.ticket == nil || m.what == mvResubscribed && k.ticket.kind == workRecover {
			return false, nil
		}
		w := workTicket{k.r, s.n, k.ticket}
		switch m.what {
		case mvResubscribed:
			return true, (&ResubscribeTicket{w}).Done()
		case mvSessionFailed:
			return true, (&RecoverTicket{w}).Failed()
		}
		return true, w.Abandon()
	}
	if a >= len(k.parts) || k.parts[a].ticket() == nil {
		return false, nil
	}
	return playPart(m, workTicket{k.r, s.n, k.parts[a].ticket()})
}

func playPart(m move, w workTicket) (can bool, err error) {
	if m.what == mvAbandon {
		return true, w.Abandon()
	}
	if (w.t.kind == workRestart) != (m.what <= mvRefused) {
		return false, nil
	}
	restart, shut := &RestartTicket{w}, &ShutDownTicket{w}
	switch m.what {
	case mvAccepted:
		return true, restart.Accepted()
	case mvPending:
		return true, restart.Pending()
	case mvRefused:
		return true, restart.Refused()
	case mvShutDownFailed:
		return true, shut.Failed()
	}
	switch {
	case int(m.b) < len(w.t.claims):
		return true, shut.Done(w.t.claims[m.b].id())
	case m.b == mostClaims-1:
		return true, shut.Done(99) // never asked for
	}
	return false, nil
}

// pass has one deadline pass, whatever its length. The core is on the stage; at is in it.
func (x *stage) pass(k *held, at *alarm) (can bool, err error) {
	if *at == noAlarm {
		return false, nil
	}
	return true, k.r.do(token{op: opLook}, func(k *held) error {
		*at = alarm(1<<alarmBits) | alarm(at.what())
		k.tick(1)
		return nil
	})
}
