package jobtracker

import "context"

// Reconciliation is the ticket of one reconciliation: the replicas that are here are made equal, before the activation
// begins. It ends when the caller says how it went, when a participant's connection ends, when the activation does, or when
// another begins; then every call on it is refused with [ErrSuperseded]. While it goes on the activation does not
// begin by itself. All methods are safe for concurrent use.
type Reconciliation[P any] struct {
	t       *Tracker[P]
	ticket  uint64
	members []Participant
	version version
	ctx     context.Context //nolint:containedctx // it is what the ticket hands to its users
	cancel  context.CancelCauseFunc
	ended   *Handle
}

// Reconcile begins the reconciliation of all replicas that are connected and not yet compared, as [ReconcileNeeded] asks
// for; package repair has the driver. There must be enough of them that one has everything flushed, n-W+1 not counting
// blanks (R26), and W in all. A reconciliation that goes on is ended. On error nothing has changed: *[PhaseError]
// unless activating, [ErrReadOnly], *[TooFewError].
func (t *Tracker[P]) Reconcile() (*Reconciliation[P], error) {
	r := &Reconciliation[P]{t: t, ended: newHandle()}
	err := t.do(nil, asking{}, func(k *core) error {
		ticket, members, err := k.startAgreement()
		if err != nil {
			return err
		}
		r.endFormerLocked() // +checklocksignore: the gate holds the lock
		r.ticket, r.members, r.version = ticket, members, version{k.generation, k.flushes}
		r.ctx, r.cancel = context.WithCancelCause(context.Background())
		t.agreement = r // +checklocksignore: the gate holds the lock
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// endFormerLocked ends the ticket that this one follows, in the hold in which the core has ended it.
//
// +checklocks:r.t.mu
func (r *Reconciliation[P]) endFormerLocked() {
	for _, e := range r.t.core.fx.agreements {
		r.t.endAgreementLocked(e)
	}
}

// endAgreementLocked ends a ticket as the core says; once.
//
// +checklocks:t.mu
func (t *Tracker[P]) endAgreementLocked(e agreementEnd) {
	r := t.agreement
	if r == nil || r.ticket != e.ticket {
		return
	}
	t.agreement = nil
	resolve(r.ended, e.err)
	cause := e.err
	if cause == nil {
		cause = &EndedError{What: "reconciliation", Cause: ErrRepaired}
	}
	t.cancels = append(t.cancels, cancel{r.cancel, cause})
}

// Participants are the replicas that take part, in the order of their numbers, as they were when it began.
func (r *Reconciliation[P]) Participants() []Participant {
	return append([]Participant(nil), r.members...)
}

// Version is what all participants are to remember at the end: the generation of the activation, and a flush number that no
// other reconciliation, and no flush of the activation, has. So two replicas that say the same hold the same, also
// when a reconciliation of some of them was cut short and they were made equal to others since.
func (r *Reconciliation[P]) Version() (generation, flush uint64) {
	return r.version.generation, r.version.flush
}

// Context ends with the reconciliation; its cause is an *[EndedError].
func (r *Reconciliation[P]) Context() context.Context { return r.ctx }

// Ended resolves when the reconciliation ends: nil when the activation has begun with it, else with an *[EndedError].
func (r *Reconciliation[P]) Ended() *Handle { return r.ended }

// Done says that all participants hold the same, have flushed it, and remember the Version. The activation begins with
// them. [ErrSuperseded] when the reconciliation has ended (R16).
func (r *Reconciliation[P]) Done() error {
	return r.t.do(nil, asking{}, func(k *core) error { return k.agreed(r.ticket) })
}

// Abort ends the reconciliation; the replicas stay where they are, and are compared again. Nil is [ErrAborted].
// [ErrSuperseded] when it has ended.
func (r *Reconciliation[P]) Abort(cause error) error {
	if cause == nil {
		cause = ErrAborted
	}
	return r.t.do(nil, asking{}, func(k *core) error { return k.abortAgreement(r.ticket, cause) })
}
