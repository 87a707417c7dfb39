package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

// errReconcile: no device can be made of what is here, whatever is copied.
var errReconcile = errors.New("the replicas that are here do not make up the device")

// errJustCome: a replica has connected between the beginning of an attempt and the one before.
var errJustCome = errors.New("it has come just now")

const (
	maxStrikes = 3       // reconciliations that a replica may break off before they go on without it
	copyPiece  = 4 << 20 // bytes of an extent that are copied at once
)

// reconcile makes the replicas that are here equal, and has the activation begin with them. A participant that is lost, or
// fails, is left out of the next attempt unless it is back by then. Whenever there are too few, more may come: for the
// first time until the deadline, later for -wait.
func (m *mirror) reconcile(ctx context.Context, deadline time.Time) error {
	waiting := false
	for !m.hasBegun() {
		r := newReconciler(m)
		err := repair.Reconcile(ctx, m.tracker, r, repair.ReconcileOptions{OnPlan: func(p repair.Plan) error {
			deadline, waiting = time.Time{}, false
			return r.planned(p)
		}})
		r.over()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			r.tell()
		case m.hasBegun(): // by a replica that has come and made up a quorum
		case errors.Is(err, jobtracker.ErrTooFew):
			if deadline.IsZero() {
				deadline = time.Now().Add(m.cfg.wait)
			}
			if !waiting {
				waiting = true
				m.log.Printf("too few replicas are here to be made equal; waiting %v for more", time.Until(deadline).Round(time.Millisecond))
			}
			if err := m.more(ctx, deadline, err); err != nil {
				return err
			}
		case errors.Is(err, errJustCome):
			_ = m.drivers[0].rest(ctx, firstPause)
		case errors.Is(err, repair.ErrNoSource), errors.Is(err, repair.ErrMeta):
			return fmt.Errorf("%w: %w", errReconcile, err)
		default:
			m.log.Printf("the reconciliation has ended, nothing is lost, and it is begun again with whoever is here: %v", err)
		}
	}
	return m.begun.Err()
}

// more waits for a change of a replica until the deadline. Blank ones are let in if it takes them.
func (m *mirror) more(ctx context.Context, deadline time.Time, few error) error {
	if f, ok := errors.AsType[*jobtracker.TooFewError](few); ok && f.Counted >= f.Need {
		m.letBlanksIn()
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-m.changed:
		return nil
	case <-m.begun.Done():
		return nil
	case <-t.C:
		return m.incomplete(few)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// letBlanksIn has blank replicas take part in the start. It is for the goroutine that starts.
func (m *mirror) letBlanksIn() {
	select {
	case <-m.blanks:
	default:
		close(m.blanks)
	}
}

// stayOut waits for the activation to begin, or for leave to take part in that.
func (m *mirror) stayOut(ctx context.Context, leave <-chan struct{}) error {
	select {
	case <-m.begun.Done():
	case <-leave:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// incomplete says what is here, and what is missing.
func (m *mirror) incomplete(few error) error {
	f, ok := errors.AsType[*jobtracker.TooFewError](few)
	if !ok {
		return fmt.Errorf("%w: %w", errReconcile, few)
	}
	var missing []string
	for i, r := range m.tracker.Stats().Replicas {
		if r.State.Phase != jobtracker.Fresh {
			missing = append(missing, m.drivers[i].missing())
		}
	}
	return fmt.Errorf("%w: of those that know what they hold %d are here, and it takes %d so that one has everything that was "+
		"flushed; in all %d are here, and it takes %d; missing: %s",
		errReconcile, f.Counted, f.Need, f.Here, f.Quorum, strings.Join(missing, "; "))
}

// missing says why a replica does not take part.
func (d *driver) missing() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	why := d.complain
	switch {
	case d.strikes.Load() >= maxStrikes:
		why = "it has failed in a reconciliation, or was lost, too often"
	case why == "" && d.session != nil:
		why = "its connection was lost"
	case why == "":
		why = errBlank.Error()
	}
	return fmt.Sprintf("replica %d (%s): %s", d.index, d.at.name, why)
}

// reconciler is what one attempt does to the replicas that are here: on the connections on which they will get their jobs,
// and before they get any.
type reconciler struct {
	m        *mirror
	sessions []*session // those there were before it began: nothing of it reaches a later connection
	began    time.Time
	total    int // extents to copy
	copied   atomic.Int64
	bytes    atomic.Int64
	gauge    *gauge
}

func newReconciler(m *mirror) *reconciler {
	r := &reconciler{m: m}
	for _, d := range m.drivers {
		r.sessions = append(r.sessions, d.current())
	}
	return r
}

// planned tells what is going to be done.
func (r *reconciler) planned(p repair.Plan) error {
	r.began = time.Now()
	for _, participant := range p.Participants {
		r.total += len(participant.Copies)
	}
	for line := range strings.Lines(p.String()) {
		r.m.log.Printf("reconcile: %s", strings.TrimSuffix(line, "\n"))
	}
	r.gauge = r.m.cfg.screen.gauge("reconcile: copied", "extents", int64(r.total), func(text string) {
		r.m.log.Printf("reconcile: copied %s", text)
	})
	return nil
}

// over ends the attempt.
func (r *reconciler) over() {
	if r.gauge != nil {
		r.gauge.end()
	}
}

func (r *reconciler) tell() {
	took := time.Since(r.began).Round(time.Millisecond)
	r.m.log.Printf("reconciled: %d extents copied, %d bytes in %v", r.copied.Load(), r.bytes.Load(), took)
}

// Extents implements [repair.Meta].
func (r *reconciler) Extents(_ context.Context, replica int) ([]repair.ExtentMeta, error) {
	if r.sessions[replica] == nil {
		return nil, errJustCome
	}
	m := r.sessions[replica].link.meta
	all := make([]repair.ExtentMeta, r.m.geometry.extents())
	for i := range all {
		all[i].Dirty = m == nil || m.dirty.has(i)
	}
	return all, nil
}

// Copy implements [repair.Replicas].
func (r *reconciler) Copy(ctx context.Context, source, target, extent int) error {
	g := &r.m.geometry
	off := int64(extent) * g.extent
	end := min(off+g.extent, g.size)
	data := make([]byte, min(copyPiece, end-off))
	for off < end {
		piece := data[:min(copyPiece, end-off)]
		if err := r.ask(ctx, source, nbd.CmdRead, 0, off, piece); err != nil {
			return err
		}
		if err := r.ask(ctx, target, nbd.CmdWrite, 0, off, piece); err != nil {
			return err
		}
		off += int64(len(piece))
		r.bytes.Add(int64(len(piece)))
	}
	n := r.copied.Add(1)
	rate := float64(r.bytes.Load()) / time.Since(r.began).Seconds()
	left := time.Duration(float64(r.total-int(n)) * float64(g.extent) / rate * float64(time.Second))
	r.gauge.set(n, pace(rate, left))
	return nil
}

// Flush implements [repair.Replicas].
func (r *reconciler) Flush(ctx context.Context, replica int) error {
	return r.ask(ctx, replica, nbd.CmdFlush, 0, 0, nil)
}

// Remember implements [repair.Replicas].
func (r *reconciler) Remember(ctx context.Context, replica int, mem repair.Memory) error {
	l := r.sessions[replica].link
	next, place := r.m.drivers[replica].remembered(l)
	next.seq++
	next.generation, next.flush, next.clean = mem.Generation, mem.Flush, mem.Equal
	next.dirty = newBitmap(next.extents())
	for i, dirty := range mem.Dirty {
		if dirty {
			next.dirty.set(i)
		}
	}
	err := r.ask(ctx, replica, nbd.CmdWrite, nbd.FlagFUA, l.metaAt+int64(place)*metaStride, next.encode())
	if err == nil {
		l.meta, l.place = &next, place^1
	}
	return err
}

// ask has a participant do something. One that fails it is not asked again in this attempt: its connection ends.
func (r *reconciler) ask(ctx context.Context, replica int, do nbd.Command, flags nbd.CommandFlags, off int64, data []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s := r.sessions[replica]
	err := s.ask(do, flags, off, int64(len(data)), data)
	if err != nil {
		err = fmt.Errorf("%v of %d bytes at %d: %w", do, len(data), off, err)
		s.d.strikes.Add(1)
		s.conn.Close(err)
	}
	return err
}
