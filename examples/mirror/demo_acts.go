package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

const (
	demoReplayed = 1    // the replica that comes back by replay
	demoRepaired = 2    // and the one that has missed too much for that
	demoMiddle   = 48   // extents that are copied before it is lost again
	demoKillIn   = 1500 // requests before mirror is killed
)

// faults is the first life of mirror: a replica is lost and replays, another one is faulted and repaired, and mirror is killed.
func (s *show) faults(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.load(s.before, "with all replicas"); err != nil {
		return err
	}
	s.say("replica %d goes on executing, but its answers stay on their way", demoReplayed)
	release, err := s.cut(ctx, demoReplayed)
	defer release()
	if err != nil {
		return err
	}
	if err := s.load(demoAway, fmt.Sprintf("while replica %d is away, and nobody waits for it", demoReplayed)); err != nil {
		return err
	}
	if err := s.late(ctx, release); err != nil {
		return err
	}
	if err := s.load(s.before, "with all replicas again"); err != nil {
		return err
	}
	if err := s.beyondReplay(ctx); err != nil {
		return err
	}
	s.say("a flush, and a read of the whole device")
	if err := errors.Join(s.client.sync(), s.client.check()); err != nil {
		return err
	}
	return s.kill(ctx)
}

// beyondReplay has a replica miss too much, and has it repaired under load; in the middle of that it is lost again.
func (s *show) beyondReplay(ctx context.Context) error {
	before := s.mirror.tracker.Stats()
	s.say("now the answers of replica %d stay on their way, until it has missed more than %d jobs", demoRepaired, demoMissed)
	release, err := s.cut(ctx, demoRepaired)
	defer release()
	if err == nil {
		err = s.busy(ctx, func(seen *sight) bool { return seen.replicas[demoRepaired].Home == jobtracker.HomeFaulted })
	}
	if err != nil {
		return err
	}
	s.say("replica %d is faulted: a replay is not possible any more; its late answers come, and it is back", demoRepaired)
	release()
	err = s.busy(ctx, func(seen *sight) bool { return seen.repairs[demoRepaired].Copied >= demoMiddle })
	if err != nil {
		return err
	}
	again, err := s.cut(ctx, demoRepaired)
	defer again()
	if is := s.mirror.tracker.Stats().Replicas[demoRepaired].State; err == nil && is.Home != jobtracker.HomeFaulted {
		err = fmt.Errorf("replica %d was to be lost in the middle of its repair, and is %v", demoRepaired, is)
	}
	if err != nil {
		return err
	}
	joins := s.watcher.joins(demoRepaired)
	s.say("it is repaired while the client goes on, and lost a second time in the middle of that; " +
		"it comes back, and the repair goes on")
	again()
	if err = s.busy(ctx, func(seen *sight) bool { return seen.joined[demoRepaired] > joins }); err != nil {
		return err
	}
	after := s.mirror.tracker.Stats()
	if late := after.Orphaned() - before.Orphaned(); late == 0 {
		return errors.New("no late answer came: nothing was shown")
	}
	s.say("replica %d is active again, by repair; orphans until now: %s", demoRepaired, orphans(&after))
	return s.load(s.before, "with all replicas once more")
}

// kill ends mirror in the middle of the load, with answers on their way.
func (s *show) kill(ctx context.Context) error {
	s.flushed = bytes.Clone(s.client.model)
	s.since = newBitmap(demoSize / blockSize)
	s.say("all that is flushed; the client goes on, and in the middle of it mirror is killed: " +
		"no last flush, no farewell to any replica")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dead := make(chan error, 1)
	go func() {
		err := s.watcher.more(ctx, demoKillIn)
		s.mirror.kill()
		dead <- err
	}()
	_, lost := s.client.runUntil(s.changing(), math.MaxInt, nil)
	cancel() // nothing more comes
	s.killed = true
	if err := <-dead; err != nil {
		return errors.Join(lost, err)
	}
	if wrong := errors.Join(lost, s.client.error()); errors.Is(wrong, errWrongData) || errors.Is(wrong, nbd.EIO) {
		return wrong
	}
	final := s.mirror.tracker.Stats()
	s.say("it is dead; the client's last word: %v; orphans of its life: %s", lost, orphans(&final))
	return nil
}

// changing is the workload, with a note of what it changes.
func (s *show) changing() workload {
	return func() step {
		next := s.workload()
		if next.command == nbd.CmdWrite || next.command == nbd.CmdWriteZeroes || next.command == nbd.CmdTrim {
			for at := next.off / blockSize; at < (next.off+int64(next.length))/blockSize; at++ {
				s.since.set(int(at))
			}
		}
		return next
	}
}

// afterwards is the second life of mirror, which has begun with a reconciliation.
func (s *show) afterwards(context.Context) error {
	if !s.watcher.reconciled() {
		return errors.New("the replicas were alike: nothing was shown")
	}
	if err := s.client.learn(); err != nil {
		return err
	}
	same := 0
	for at := range demoSize / blockSize {
		switch here, was := s.client.model[at*blockSize:][:blockSize], s.flushed[at*blockSize:][:blockSize]; {
		case s.since.has(at):
		case !bytes.Equal(here, was):
			return fmt.Errorf("what was flushed is lost: block %d", at)
		default:
			same++
		}
	}
	s.say("the replicas were made equal at the start; %d blocks that were not changed after the flush hold what was flushed, "+
		"and %d were on their way", same, s.since.count())
	if err := s.load(s.before, "on what is there now"); err != nil {
		return err
	}
	s.say("a flush, and a read of the whole device")
	return errors.Join(s.client.sync(), s.client.check())
}

// load has the client send requests for a while.
func (s *show) load(n int, when string) error {
	ctx, cancel := context.WithTimeout(context.Background(), demoAct)
	defer cancel()
	sent, err := s.client.runUntil(s.workload, n, ctx.Done())
	if err == nil {
		s.say("%d requests %s", sent, when)
	}
	return err
}

// busy has the client send requests until something has happened.
func (s *show) busy(ctx context.Context, happened func(*sight) bool) error {
	var seen error
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen = s.watcher.await(ctx, happened)
	}()
	_, err := s.client.runUntil(s.workload, math.MaxInt, done)
	if err != nil {
		return err // and the demonstration ends, and whoever waits with it
	}
	return seen
}

// cut strands a replica while the client goes on.
func (s *show) cut(ctx context.Context, victim int) (release func(), err error) {
	release, done := strand(ctx, s.mirror.drivers[victim], s.parts.locals[victim], s.watcher)
	_, err = s.client.runUntil(s.workload, math.MaxInt, done)
	return release, err
}

// strand ends the connection of a replica that has executed jobs whose answers have not come: they are held back until
// release is called. Until done is closed, clients must go on.
func strand(ctx context.Context, d *driver, l *local, w *watcher) (release func(), done <-chan struct{}) {
	caught, release := l.hold()
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		select {
		case <-caught:
		case <-ctx.Done():
			return
		}
		// A few more, if they can be had: a client that waits for what this replica alone was asked is helped by the cut.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = w.more(ctx, lateJobs)
		d.cut(errCut)
	}()
	return release, cut
}

// late lets the answers come, on a connection that has ended, and waits for the replica to come back.
func (s *show) late(ctx context.Context, release func()) error {
	t := s.mirror.tracker
	if _, err := t.Connect(demoReplayed, jobtracker.Hello{}); !errors.Is(err, jobtracker.ErrNotQuiesced) {
		return fmt.Errorf("a second connection to a replica whose first one is not drained: %w", err)
	}
	before, joins := t.Stats(), s.watcher.joins(demoReplayed)
	s.say("replica %d is %v; what it was sent may still be executed, so a new connection is refused: %v",
		demoReplayed, before.Replicas[demoReplayed].State, jobtracker.ErrNotQuiesced)
	s.say("its late answers come, each is handed to the tracker, and the connection is read to its end")
	release()
	err := s.watcher.await(ctx, func(seen *sight) bool {
		r := seen.replicas[demoReplayed]
		return seen.joined[demoReplayed] > joins || r.Phase == jobtracker.RepairReady
	})
	if err != nil {
		return err
	}
	after := t.Stats()
	n := after.Orphans[jobtracker.OrphanStaleConn]
	switch {
	case n == 0:
		return errors.New("no late answer came: nothing was shown")
	case after.Replicas[demoReplayed].State.Phase != jobtracker.Voting:
		return fmt.Errorf("replica %d did not come back by replay: %v", demoReplayed, after.Replicas[demoReplayed].State)
	}
	s.say("orphans: %s, each refused with its reason and otherwise without effect; replica %d is active again, by replay",
		orphans(&after), demoReplayed)
	return nil
}
