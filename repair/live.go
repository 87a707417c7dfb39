package repair

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/staleproof/staleproof/jobtracker"
)

// Live brings back a replica that is repair-ready, while the device goes on. From its start the target gets every change, but
// no read and no vote; its extents are compared, by what replicas remember of them if there is [LiveOptions].Meta, by
// checksum with [LiveOptions].Checksum, and what is left is copied, each extent as one job in the order. At last the target
// itself flushes, and remembers the activation's generation and that flush's number with it; then it is active and Live
// returns nil.
//
// What is done and what is left stands in the tracker, so a Live that ends in any way leaves nothing to undo, and the
// next one for the same replica goes on where it ended: it copies again only what no flush of the target has made
// durable, or what the target has missed since.
//
// payload makes the payload of an extent's copy or comparison: room for what the source's half reads, or its checksum, for the
// target's half. It is called on several goroutines. A comparison and the copy that follows it are two jobs, and what the guest
// writes in between reaches source and target alike.
//
// An error of a source fails the copy, and another source is asked; one that has stopped voting while it was copied from is
// not relied on, and the extent is copied again. Whatever ends the ticket (the target fails, drops, is replaced; the
// activation ends) ends Live with the ticket's cause, an *[jobtracker.EndedError]. The end of ctx ends the repair with
// ctx's cause; *[CopyError], *[OptionError], what Meta returned, and the refusals of [jobtracker.Tracker.Repair] are the
// other errors. Copies that were sent stay outstanding at the replicas after it has returned.
//
// How long a copy may take is not Live's to say: it is a job, and a replica that owes answers for longer than
// [jobtracker.Config].ReplyTimeout loses its connection.
func Live[P any](
	ctx context.Context, tr *jobtracker.Tracker[P], target int, payload func(jobtracker.Extent) P, o LiveOptions,
) (err error) {
	if err = o.setDefaults(); err != nil {
		return err
	}
	if err = notNil("tr", tr != nil, "payload", payload != nil); err != nil {
		return err
	}
	ticket, err := tr.Repair(target)
	if err != nil {
		return err
	}
	l := &liveRun[P]{tr: tr, target: target, ticket: ticket, payload: payload, o: o}
	l.teller = newLiveTeller(target, ticket.Extents, o.OnProgress)
	ctx, cancel := join(ctx, ticket.Context())
	defer cancel()
	err = errPanicked // stays if Meta does not return: the ticket goes with the driver (S12)
	defer func() { l.teller.end(err) }()
	defer func() { err = end(ctx, err, ticket) }()
	err = l.run(ctx)
	return err
}

// errPanicked is the cause of what ends because the caller's code has panicked, or ended its goroutine.
var errPanicked = errors.New("repair: the caller's code has not returned")

// ending is a ticket of a driver.
type ending interface {
	Abort(cause error) error
	Ended() *jobtracker.Handle
}

// end ends the ticket of a driver that has failed, and returns what that failed with.
func end(ctx context.Context, err error, ticket ending) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // what it was caused by, not what came of it
	}
	if ticket.Abort(err) != nil {
		return ticket.Ended().Err() // it had ended: the cause is the ticket's, if it did not end well after all
	}
	return err
}

// liveRun is one call of [Live].
type liveRun[P any] struct {
	tr      *jobtracker.Tracker[P]
	target  int
	ticket  *jobtracker.Repair[P]
	payload func(jobtracker.Extent) P
	o       LiveOptions
	teller  *liveTeller
	next    time.Time // when the next extent may begin; of run's goroutine
}

func (l *liveRun[P]) run(ctx context.Context) error {
	if err := l.compare(ctx); err != nil {
		return err
	}
	if err := l.copyLeft(ctx); err != nil {
		return err
	}
	if err := l.ticket.Finish(); err != nil {
		return err // nobody else copies under this ticket, so nothing is left
	}
	return l.ticket.Ended().Wait(ctx)
}

// compare leaves out what target and source remember alike.
func (l *liveRun[P]) compare(ctx context.Context) error {
	if l.o.Meta == nil {
		return nil
	}
	sources := l.sources(0)
	if len(sources) == 0 {
		return ErrNoSource
	}
	want, err := l.remembered(ctx, sources[0])
	if err != nil {
		return err
	}
	have, err := l.remembered(ctx, l.target)
	if err != nil {
		return err
	}
	for i := range want {
		if !want[i].Same(have[i]) {
			continue
		}
		if err := l.ticket.Same(i); err != nil && !errors.Is(err, jobtracker.ErrUnrepaired) {
			return err
		}
	}
	l.teller.poke()
	return nil
}

func (l *liveRun[P]) remembered(ctx context.Context, replica int) ([]ExtentMeta, error) {
	e, err := l.ticket.Extents()
	if err != nil {
		return nil, err
	}
	m, err := l.o.Meta.Extents(ctx, replica)
	if err == nil && len(m) != e.Total {
		err = fmt.Errorf("%w: replica %d remembers %d extents of %d", ErrMeta, replica, len(m), e.Total)
	}
	return m, err
}

// sources are the replicas that can be copied from; which one is first changes with the turn.
func (l *liveRun[P]) sources(turn int) (rs []int) {
	all := l.tr.Stats().Replicas
	for i := range all {
		if r := (turn + i) % len(all); all[r].State.Phase == jobtracker.Voting {
			rs = append(rs, r)
		}
	}
	return rs
}

// copyLeft copies once all extents that are left.
func (l *liveRun[P]) copyLeft(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(l.o.Parallel)
	all, err := l.ticket.Extents()
	for from := 0; err == nil; {
		var e jobtracker.Extent
		var ok bool
		if e, ok, err = l.ticket.Next(from); err != nil || !ok {
			break
		}
		bytes := e.Blocks * all.BlockSize
		if err = l.pace(ctx, bytes); err == nil {
			from = e.Index + 1
			g.Go(func() error { return l.bring(ctx, e, bytes) })
		}
	}
	if first := g.Wait(); first != nil {
		return first
	}
	return err
}

// pace waits until an extent may begin.
func (l *liveRun[P]) pace(ctx context.Context, bytes uint64) error {
	if l.o.BytesPerSecond == 0 {
		return ctx.Err()
	}
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	wait := time.NewTimer(l.next.Sub(now))
	defer wait.Stop()
	l.next = l.next.Add(time.Duration(float64(bytes) / float64(l.o.BytesPerSecond) * float64(time.Second)))
	select {
	case <-wait.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bring has the target hold an extent as a source does.
func (l *liveRun[P]) bring(ctx context.Context, e jobtracker.Extent, bytes uint64) error {
	if l.o.Checksum {
		if same, err := l.same(ctx, e); err != nil || same {
			return err
		}
	}
	return l.copy(ctx, e, bytes)
}

// same compares an extent by checksum. Where that fails it is copied, which says why if it fails as well.
func (l *liveRun[P]) same(ctx context.Context, e jobtracker.Extent) (bool, error) {
	sources := l.sources(e.Index)
	if len(sources) == 0 {
		return false, nil
	}
	job, err := l.ticket.Compare(sources[0], e.Index, l.payload(e))
	switch {
	case errors.Is(err, jobtracker.ErrLifecycle): // it has just stopped voting
		return false, nil
	case err != nil:
		return false, err
	}
	_ = job.Wait(ctx) // what came of it, the extent says
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	now, err := l.ticket.Extent(e.Index)
	if err != nil || now.State <= jobtracker.ExtentCopying {
		return false, err
	}
	l.teller.found()
	return true, nil
}

// copy copies an extent from whatever source can be copied from.
func (l *liveRun[P]) copy(ctx context.Context, e jobtracker.Extent, bytes uint64) error {
	failed := &CopyError{Extent: e.Index, Err: ErrNoSource}
	for range l.o.Attempts {
		for _, r := range l.sources(e.Index) {
			job, err := l.ticket.Copy(r, e.Start, e.Blocks, l.payload(e))
			switch {
			case errors.Is(err, jobtracker.ErrLifecycle): // it has just stopped voting
				failed.Err = err
				continue
			case err != nil:
				return err
			}
			if failed.Err = job.Wait(ctx); ctx.Err() != nil {
				return ctx.Err()
			}
			now, err := l.ticket.Extent(e.Index)
			if err != nil {
				return err
			}
			if now.State > jobtracker.ExtentCopying { // the source was looked at again when the target was done
				l.teller.did(bytes)
				return nil
			}
		}
	}
	return failed
}
