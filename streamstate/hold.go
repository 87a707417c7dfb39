package streamstate

import "slices"

// hold keeps the flush of one session closed, for another. Its facts but the cause do not change; it is its own identity.
type hold struct {
	id             uint64
	holder, target *record
	cause          *ending // why it ended; guarded by the target's lock
}

// Hold is a token that keeps another session's flush closed. It ends when it is released, or with either session.
type Hold struct{ h *hold }

// Hold keeps the flush of target closed until the hold is released or s ends. A flush that runs is not touched. Two
// holds of one session are two. [ErrPhase], [ErrStaleSession], [ErrSameSession].
func (s *Session[P]) Hold(target *Session[P]) (*Hold, error) {
	h := &hold{id: s.e.book.others.Inc(), holder: &s.e.record, target: &target.e.record}
	err := pairUp(h.holder, h.target, s.token(OpHold), target.token(OpHold), func(kh, kt *held) error {
		kh.taken = append(kh.taken, h)
		kt.hold(h)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &Hold{h}, nil
}

// Release ends the hold. A second time, or after the end of either session, it is [ErrStaleHold].
func (h *Hold) Release() error { return h.h.release() }

func (h *hold) release() error {
	look := token{op: opLook}
	return pairUp(h.holder, h.target, look, look, func(kh, kt *held) error {
		if !slices.Contains(kh.taken, h) || !slices.Contains(kt.holds, h) {
			cause := h.cause.error()
			if cause == nil {
				cause = kh.cause.error()
			}
			return &TicketError{Key: kt.key, Reason: ReasonStaleHold, Op: OpReleaseHold, Ticket: h.id, Cause: cause}
		}
		kh.untake(h)
		kt.unhold(h, causeResolved)
		return nil
	})
}

// letGo takes a hold off both records, because the session of one has ended. It comes after that one's hold of its lock,
// never inside it, and before callbacks.
func (h *hold) letGo(a *after) {
	h.target.doInto(a, func(k *held) { k.unhold(h, causeHolderEnded) })
	h.holder.doInto(a, func(k *held) { k.untake(h) })
}
