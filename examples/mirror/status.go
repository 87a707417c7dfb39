package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/staleproof/staleproof/jobtracker"
)

const statusEvery = 10 * time.Second

// event is the tracker's OnEvent: it tells people of each change, and what it means.
func (m *mirror) event(e jobtracker.Event) {
	switch e.Kind {
	case jobtracker.ReplicaChanged:
		m.replicaChanged(e)
	case jobtracker.ActivationChanged:
		if e.Phase == jobtracker.Inactive && errors.Is(e.Cause, jobtracker.ErrAllFaulted) {
			m.log.Printf("the device has ENDED: no replica is left that has everything")
			m.fail()
		}
	case jobtracker.ReconcileNeeded: // the start sees to it when all that are here have been heard
	case jobtracker.ReadMismatch, jobtracker.WriteLost:
		m.log.Printf("%v: job %d, replica %d: %v", e.Kind, e.Job, e.Replica, e.Cause)
	}
	if m.cfg.onEvent != nil {
		m.cfg.onEvent(e)
	}
}

func (m *mirror) replicaChanged(e jobtracker.Event) {
	select {
	case m.changed <- struct{}{}:
	default: // there is something in it
	}
	d := m.drivers[e.Replica]
	why := ""
	if e.Cause != nil {
		why = fmt.Sprintf(" (%v)", e.Cause)
	}
	// With -v the tracker's own log has every change.
	if routine := e.To.Phase == jobtracker.Fresh || m.ending.Load(); !routine && !m.cfg.verbose {
		d.tell("%v -> %v%s", e.From, e.To, why)
	}
	if needsRepair(e.To) && !needsRepair(e.From) {
		what := "it is repaired as soon as it is here"
		if !m.cfg.repair {
			what = "it stays out, since -repair is false"
		}
		d.tell("NEEDS A REPAIR: %s; the device goes on with the others", what)
	}
}

// needsRepair tells whether a replica has fallen behind for good.
func needsRepair(s jobtracker.ReplicaState) bool {
	return s.Phase == jobtracker.RepairReady || !s.Connected() && (s.Home == jobtracker.HomeFaulted || s.Home == jobtracker.HomeReplaced)
}

// orphan takes note of a late answer; the tracker has counted it.
func (m *mirror) orphan(err error) { m.slog.Debug("late answer", "err", err) }

// statusLine is the device at a glance.
func (m *mirror) statusLine() string {
	s := m.tracker.Stats()
	states := make([]string, len(s.Replicas))
	for i, r := range s.Replicas {
		states[i] = r.State.String()
	}
	return fmt.Sprintf("jobs %d, acked %d, failed %d, in the table %d | replicas: %s | orphans: %s",
		s.Submitted, s.Acked, m.badJobs.Load(), s.Active, strings.Join(states, ", "), orphans(&s))
}

// strength is how many replicas are active.
func (m *mirror) strength() string {
	s, active := m.tracker.Stats(), 0
	for _, r := range s.Replicas {
		if r.State.Phase == jobtracker.Voting {
			active++
		}
	}
	if active == len(s.Replicas) {
		return fmt.Sprintf("%d replicas", active)
	}
	return fmt.Sprintf("%d of %d replicas", active, len(s.Replicas))
}

// orphans are the late answers by reason.
func orphans(s *jobtracker.Stats) string {
	var parts []string
	for i, n := range s.Orphans {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %v", n, jobtracker.OrphanReason(i)))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// status shows the status until ctx ends: at the bottom of a terminal, elsewhere a line now and then.
func (m *mirror) status(ctx context.Context, out io.Writer) {
	if off, ok := m.cfg.screen.status(m.statusLine); ok {
		defer off()
		<-ctx.Done()
		return
	}
	t := time.NewTicker(statusEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_, _ = fmt.Fprintln(out, m.statusLine())
		case <-ctx.Done():
			return
		}
	}
}

// summary is what is told at the end.
func (m *mirror) summary() {
	s := m.tracker.Stats()
	m.log.Printf("%d jobs, %d acked, %d failed; orphans: %s", s.Submitted, s.Acked, m.badJobs.Load(), orphans(&s))
	m.log.Printf("%d of %d replicas were left with everything", m.clean.Load(), len(m.drivers))
}
