package repair

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/atomic"
	"golang.org/x/sync/errgroup"

	"github.com/staleproof/staleproof/streamstate"
)

// job is a ticket that is asked for: what it asks of the source, and what each answer does to it.
type job struct {
	ticket    streamstate.Work
	what      string
	partition int // -1: of the session
	restart   Restart
	shutdown  Shutdown

	done, refused func() error
	pending       func() error // nil: the source is asked again
}

func (l *ladder) restart(t *streamstate.RestartTicket) job {
	from, ok := t.From()
	return job{
		ticket: t, what: "restart", partition: t.Partition(), restart: Restart{t.Partition(), from, ok},
		done: t.Accepted, refused: t.Refused, pending: t.Pending,
	}
}

func (l *ladder) shutDown(t *streamstate.ShutDownTicket) job {
	claims := t.Claims()
	done := func() (err error) {
		for _, c := range claims {
			err = t.Done(c.ID) // one that has been struck off meanwhile is refused, and the others go on
		}
		return err
	}
	return job{
		ticket: t, what: "shut-down", partition: t.Partition(), shutdown: Shutdown{t.Partition(), claims},
		done: done, refused: t.Failed,
	}
}

func (l *ladder) resubscribe(t *streamstate.ResubscribeTicket) job {
	return job{ticket: t, what: "resubscribe", partition: -1, done: t.Done, refused: t.Failed}
}

func (l *ladder) callRestart(ctx context.Context, jobs []job) error {
	batch := make([]Restart, len(jobs))
	for i := range jobs {
		batch[i] = jobs[i].restart
	}
	return l.src.Restart(ctx, batch)
}

func (l *ladder) callShutdown(ctx context.Context, jobs []job) error {
	batch := make([]Shutdown, len(jobs))
	for i := range jobs {
		batch[i] = jobs[i].shutdown
	}
	return l.src.Shutdown(ctx, batch)
}

func (l *ladder) callResubscribe(ctx context.Context, _ []job) error {
	all, err := l.wanted()
	if err != nil || ctx.Err() != nil {
		return err // the session has ended, and the ticket with it
	}
	return l.src.Resubscribe(ctx, all)
}

// batches are tickets that go to the source in one call: of one kind, and to be paused before for the same time.
type batches [][]job

func (b *batches) add(j job, most int) {
	for i, other := range *b {
		if o := &other[0]; o.what == j.what && o.ticket.Tries() == j.ticket.Tries() && len(other) < most {
			(*b)[i] = append(other, j)
			return
		}
	}
	*b = append(*b, []job{j})
}

// ask asks the source for what the jobs want, and hands its answers in, until every ticket is answered or has ended. It
// gives back what it leaves unanswered.
func (l *ladder) ask(ctx context.Context, jobs []job, call func(context.Context, []job) error) {
	tries := jobs[0].ticket.Tries()
	for attempt := 1; len(jobs) > 0; attempt++ {
		jobs = l.askOnce(ctx, jobs, call, tries, attempt)
		if ctx.Err() != nil {
			for _, j := range jobs {
				_ = j.ticket.Abandon() // or it has ended
			}
			return
		}
	}
}

// askOnce returns the jobs that are to be asked again.
func (l *ladder) askOnce(
	ctx context.Context, jobs []job, call func(context.Context, []job) error, tries, attempt int,
) []job {
	while, stop := whileAny(ctx, tickets(jobs))
	defer stop()
	d := l.o.backoff(tries+attempt-1, jobs[0].ticket.Within())
	pause(while, d-time.Duration(l.chance(int64(d/2)+1)))
	jobs = live(jobs)
	if len(jobs) == 0 || ctx.Err() != nil {
		return jobs
	}
	for i := range jobs {
		l.tell.about(StreamAsked, &jobs[i], attempt, nil)
	}
	err := call(while, jobs)
	some, partly := errors.AsType[PartitionErrors](err)
	var again []job
	for i := range jobs {
		j := &jobs[i]
		if partly && j.partition >= 0 {
			err = some[j.partition]
		}
		if l.answer(ctx, j, attempt, err) {
			again = append(again, *j)
		}
	}
	return again
}

// answer hands in what the source said; again tells that it is to be asked once more. A ticket that has ended meanwhile
// refuses the answer, and nothing moves (R11).
func (l *ladder) answer(ctx context.Context, j *job, attempt int, err error) (again bool) {
	l.tell.about(StreamAnswered, j, attempt, err)
	switch {
	case err == nil:
		_ = j.done()
	case errors.Is(err, ErrRefused):
		_ = j.refused()
	case errors.Is(err, ErrPending) && j.pending != nil:
		_ = j.pending()
	case ctx.Err() != nil:
		return true // it is not the source's fault
	case attempt >= l.o.Attempts:
		_ = j.refused()
	default:
		return true
	}
	return false
}

// watch tells how a ticket ended, if anybody wants to know.
func (l *ladder) watch(ctx context.Context, calls *errgroup.Group, j job) {
	if l.tell == nil {
		return
	}
	calls.Go(func() error {
		life := j.ticket.Context()
		select {
		case <-life.Done():
		case <-ctx.Done():
		}
		if life.Err() != nil {
			l.tell.about(StreamOutcome, &j, 0, context.Cause(life))
		}
		return nil
	})
}

func tickets(jobs []job) []streamstate.Work {
	out := make([]streamstate.Work, len(jobs))
	for i := range jobs {
		out[i] = jobs[i].ticket
	}
	return out
}

// live are the jobs whose tickets have not ended.
func live(jobs []job) []job {
	return slices.DeleteFunc(slices.Clone(jobs), func(j job) bool { return j.ticket.Context().Err() != nil })
}

// whileAny is a context that ends with ctx, and when all tickets have ended.
func whileAny(ctx context.Context, work []streamstate.Work) (while context.Context, stop func()) {
	while, cancel := context.WithCancelCause(ctx)
	left := atomic.NewInt64(int64(len(work)))
	stops := make([]func() bool, len(work))
	for i, w := range work {
		life := w.Context()
		stops[i] = context.AfterFunc(life, func() {
			if left.Dec() == 0 {
				cancel(context.Cause(life))
			}
		})
	}
	return while, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

// pause waits for d, or for the end of the context.
func pause(ctx context.Context, d time.Duration) {
	if d <= 0 || ctx.Err() != nil {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// backoff is how long to pause after n failures, before up to half of it is left out by chance: it doubles with each. It
// leaves a ticket, which may be unanswered for within, time to be asked for again and again.
func (o *StreamOptions) backoff(n int, within time.Duration) time.Duration {
	if n == 0 {
		return 0
	}
	d := o.MinBackoff
	for i := 1; i < n && d < o.MaxBackoff; i++ {
		if d > o.MaxBackoff/2 {
			d = o.MaxBackoff
		} else {
			d *= 2
		}
	}
	if within > 0 {
		d = min(d, max(within/8, 1))
	}
	return d
}
