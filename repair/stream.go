package repair

import (
	"context"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"github.com/staleproof/staleproof/streamstate"
)

// Source is where the partitions of one session come from. A [Stream] asks it for what is due; that it has done so is
// seen by the begins and ends that the caller's receivers hand to the session, in their own time.
//
// A nil error means that everything asked for is accepted or done. An error of Restart or Shutdown that is or wraps a
// [PartitionErrors] is of the partitions it names, and the others are done; any other error is of all that was asked for.
// What matches [ErrRefused] is not asked again; what matches [ErrPending] will begin when the source can; anything else is
// asked again after a pause.
//
// Restart and Shutdown may be called concurrently, and while an earlier call that names the same partition has not
// returned: a call is for many, and goes on for the others when one of them has moved on. Resubscribe is called alone. The
// context ends when nobody waits for the answer any more, because the session has ended or time is up; a method returns
// soon after that, since Stream waits for it. What a source may still carry out then does no harm: the session's tokens
// refuse what it sends.
type Source interface {
	// Restart has the source send partitions again, each from where it says. Accepted means that a begin will follow.
	Restart(ctx context.Context, batch []Restart) error
	// Shutdown ends claims at the source, so that nothing of them can come any more. One that has ended already is done.
	Shutdown(ctx context.Context, batch []Shutdown) error
	// Resubscribe closes all streams of the session at the source, and only then opens one for each partition given.
	// Done means that begins will follow; of a partition that could not be opened the caller says so by
	// [streamstate.Session.BeginFailed].
	Resubscribe(ctx context.Context, all []Restart) error
}

// Restart asks for one partition.
type Restart struct {
	Partition int
	From      streamstate.Position // what is received: the next number wanted. Zero if HasFrom is not set
	HasFrom   bool                 // not set: nothing is received, and the source begins where it begins
}

// Shutdown asks for the end of all claims of one partition.
type Shutdown struct {
	Partition int
	Claims    []streamstate.ClaimView
}

// Stream repairs one session until it ends: it takes what is due from the session, asks the source for it, and hands the
// answers in. It blocks, and returns
//
//   - a *[RecoveryDueError] when nothing but a recovery can help: the caller stops the session, rolls back, reopens it
//     and calls Stream with the next one;
//   - the session's refusal, [streamstate.ErrPhase] or [streamstate.ErrStaleSession], when the session has ended;
//   - the context's cause when that has ended. What has not been asked for is given back to the session then, so that
//     the next call of Stream takes it at once (S12);
//   - a *[streamstate.ArgumentError] if src is nil or an option cannot be; nothing has been taken then.
//
// In every case all calls of the source have returned, and nothing of this call is left but OnEvent; so a driver never
// acts for a session's successor (R15, S34). A session has one driver at a time: a second one is harmless, as each
// ticket is handed out once, but tells only half.
//
// The ladder is the session's: restart, shut down and restart, resubscribe, recover; see
// [streamstate.Session.NextDue]. A partition climbs when its ticket is refused or its deadline passes, never earlier,
// and the deadlines are those of [streamstate.Options]. Stream adds what a ticket does not know: it asks for many
// partitions in one call, asks again after a pause that doubles and is jittered, within the ticket and at most
// [StreamOptions].Attempts times, and pauses before a partition that keeps failing. Before a resubscribe all other calls
// have returned.
//
// When faults stop, so that a source accepts what it is asked for and what it accepts begins and stays, every partition
// has begun after at most three more tickets of its own and one resubscribe of its session; if a recovery is due instead,
// after at most one ticket of its own in the session that follows.
//
// While nothing is due a Stream is one goroutine that waits for the session, and with OnEvent a second; it has no timer.
func Stream[P any](ctx context.Context, s *streamstate.Session[P], src Source, o StreamOptions) error {
	if err := o.check(src); err != nil {
		return err
	}
	o.setDefaults()
	return newLadder(s, src, o).run(ctx)
}

func newLadder[P any](s *streamstate.Session[P], src Source, o StreamOptions) *ladder {
	l := &ladder{s: s, src: src, o: o, tell: newTeller(s, o), chance: rand.Int64N}
	l.wanted = func() (all []Restart, err error) {
		err = s.Read(func(tx streamstate.ReadTx[P]) error {
			for p, v := range tx.Partitions() {
				if v.State != streamstate.Unwanted {
					all = append(all, Restart{p, v.Received, v.HasReceived})
				}
			}
			return nil
		})
		return all, err
	}
	return l
}

// session is what the ladder needs of a session, whatever its payload.
type session interface {
	NextDue(context.Context) ([]streamstate.Work, error)
	ID() streamstate.SessionID
	Key() streamstate.Key
}

// ladder is one call of Stream. Its fields do not change.
type ladder struct {
	s      session
	src    Source
	o      StreamOptions
	tell   *teller
	wanted func() ([]Restart, error)
	chance func(n int64) int64 // below n
}

// run takes what is due until there is nothing to be taken any more.
func (l *ladder) run(ctx context.Context) (err error) {
	defer func() { l.tell.finish(StreamEvent{Kind: StreamEnded, Partition: -1, Err: err}) }()
	var calls errgroup.Group // for partitions; each ends with its tickets or the context
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		_ = calls.Wait() // they return none
	}()
	for {
		if ctx.Err() != nil { // what this driver gives back it is not to take again
			return context.Cause(ctx)
		}
		work, err := l.take(ctx)
		if err != nil {
			return err
		}
		if err := l.hand(ctx, &calls, work); err != nil {
			return err
		}
	}
}

// take waits until something is due. Partitions seldom fail alone: it waits a little more for others to go with them.
func (l *ladder) take(ctx context.Context) ([]streamstate.Work, error) {
	work, err := l.s.NextDue(ctx)
	if err != nil || ofSession(work) {
		return work, err
	}
	idle, stop := whileAny(ctx, work)
	pause(idle, l.o.Gather)
	stop()
	now, cancel := context.WithCancel(ctx)
	cancel()
	more, _ := l.s.NextDue(now) // a poll: what it refuses, the next call refuses as well
	return append(work, more...), nil
}

func ofSession(work []streamstate.Work) bool {
	switch work[0].(type) {
	case *streamstate.ResubscribeTicket, *streamstate.RecoverTicket:
		return true
	}
	return false
}

// hand has tickets asked for: those of partitions in the background, those of the session here.
func (l *ladder) hand(ctx context.Context, calls *errgroup.Group, work []streamstate.Work) error {
	var batches batches
	for _, w := range work {
		switch t := w.(type) {
		case *streamstate.RestartTicket:
			batches.add(l.restart(t), l.o.MaxBatch)
		case *streamstate.ShutDownTicket:
			j := l.shutDown(t)
			l.tell.about(StreamEscalated, &j, 0, nil)
			batches.add(j, l.o.MaxBatch)
		case *streamstate.ResubscribeTicket:
			_ = calls.Wait() // their tickets have ended; what they opened is to be closed
			j := l.resubscribe(t)
			l.tell.about(StreamEscalated, &j, 0, nil)
			l.ask(ctx, []job{j}, l.callResubscribe)
			l.tell.about(StreamOutcome, &j, 0, context.Cause(t.Context()))
		case *streamstate.RecoverTicket:
			l.tell.about(StreamEscalated, &job{ticket: t, what: "recover", partition: -1}, 0, nil)
			return &RecoveryDueError{Key: l.s.Key(), Session: l.s.ID(), Restart: t.Restart(), Ticket: t}
		default:
			return fmt.Errorf("repair: bug: a ticket that is a %T", w)
		}
	}
	for _, b := range batches {
		call := l.callRestart
		if b[0].what == "shut-down" {
			call = l.callShutdown
		}
		calls.Go(func() error {
			l.ask(ctx, b, call)
			return nil
		})
		for _, j := range b {
			l.watch(ctx, calls, j)
		}
	}
	return nil
}
