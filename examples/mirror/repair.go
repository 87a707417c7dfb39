package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

// repair has the replica repaired for as long as its connection lives: when that ends, the next one goes on where this one was.
func (s *session) repair() {
	ctx := s.conn.Context()
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		progress, told := s.progress()
		err := repair.Live(ctx, s.d.m.tracker, s.d.index, newCopy, repair.LiveOptions{
			Meta: s.d.m, BytesPerSecond: s.d.m.cfg.repairRate, OnProgress: progress,
		})
		if repairBegan(err) {
			<-told // by a goroutine that Live leaves behind
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, jobtracker.ErrPhase) || errors.Is(err, jobtracker.ErrDeactivated) {
			return
		}
		s.d.tell("its repair has failed and is tried again: %v", err)
		if !s.d.rest(ctx, pause) {
			return
		}
	}
}

// repairBegan tells whether a repair that has ended so had begun: else the tracker has refused it.
func repairBegan(err error) bool {
	lifecycle := errors.Is(err, jobtracker.ErrLifecycle) && !errors.Is(err, repair.ErrCopy) // of a source, that one
	return !lifecycle && !errors.Is(err, jobtracker.ErrPhase) && !errors.Is(err, jobtracker.ErrReplica)
}

// progress is what is told how one repair goes: it shows it, and tells of its beginning and its end. told is closed when it has
// heard of the end.
func (s *session) progress() (hook func(repair.LiveProgress), told <-chan struct{}) {
	var now *repair.LiveProgress
	var g *gauge
	ended := make(chan struct{})
	return func(p repair.LiveProgress) {
		if p.Kind == repair.LiveStarted {
			s.d.tell("its repair begins: %d of %d extents are not known to be clean", p.Total-p.Done, p.Total)
			g = s.d.gauge("repair", "extents", int64(p.Total))
		}
		s.mu.Lock()
		was := now
		if now = &p; p.Kind != repair.LiveEnded {
			s.repairing = now
		} else if s.repairing == was { // else there is another one by now
			s.repairing = nil
		}
		s.mu.Unlock()
		g.set(int64(p.Done), pace(p.Rate, p.Left))
		if p.Kind == repair.LiveEnded {
			g.end()
			s.repaired(&p)
		}
		if s.d.m.cfg.onRepair != nil {
			s.d.m.cfg.onRepair(p)
		}
		if p.Kind == repair.LiveEnded {
			close(ended)
		}
	}, ended
}

// repaired tells how a repair has ended.
func (s *session) repaired(p *repair.LiveProgress) {
	if p.Err == nil {
		s.d.tell("it is repaired: %d extents copied, %d bytes in %v", p.Copied, p.Bytes, p.Elapsed.Round(1e6))
	} else {
		s.d.tell("its repair has ended with %d of %d extents done: %v", p.Done, p.Total, p.Err)
	}
}

// Extents implements [repair.Meta]: a dirty bit covers several extents of the tracker's where those are smaller. A bit that
// is not durable yet is of a write that is not dispatched there yet: the target gets it as well, or has skipped it, and then
// the tracker knows. At a start a replica may be asked for before it has joined.
func (m *mirror) Extents(ctx context.Context, replica int) ([]repair.ExtentMeta, error) {
	s := m.drivers[replica].current()
	if s == nil {
		return nil, fmt.Errorf("replica %d has never been here", replica)
	}
	select {
	case <-s.known:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	dirty := s.remembered()
	size := min(m.geometry.extent, minExtent*4)
	all := make([]repair.ExtentMeta, (m.geometry.size+size-1)/size)
	for i := range all {
		all[i].Dirty = dirty == nil || dirty.has(int(int64(i)*size/m.geometry.extent))
	}
	return all, nil
}
