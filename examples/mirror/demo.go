package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"os"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

const (
	demoSize   = 64 << 20
	demoDepth  = 32
	demoBefore = 40000           // requests with all replicas before, and after
	demoAway   = 2500            // requests while one is away
	demoAct    = 9 * time.Second // the longest that these take, if the disk is slow
	demoMemory = 512 << 20
	demoVictim = 1

	lateJobs = 24 // requests answered by others before a connection is cut
)

var errCut = errors.New("cut by the demonstration")

// demo is the whole of it.
func demo(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger) error {
	return play(ctx, cfg, logger, debug, demoBefore)
}

// play loses a replica under load, with answers on their way, takes it back, and proves that nothing went wrong.
func play(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger, before int) (err error) {
	for name := range cfg.given {
		if name != "demo" && name != "v" {
			return fmt.Errorf("-%s has no place in the demonstration, which takes -v only", name)
		}
	}
	dir, err := os.MkdirTemp("", "mirror-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg.size, cfg.dir, cfg.offlineBytes = demoSize, dir, demoMemory
	w := newWatcher(cfg.replicas)
	w.attach(&cfg)
	p, err := gather(cfg, logger)
	if err != nil {
		return err
	}
	s := &show{cfg: cfg, log: logger, watcher: w, parts: p, began: time.Now(), before: before}
	err = s.run(ctx, debug)
	if err == nil {
		err = s.compare()
	}
	if err == nil {
		logger.Printf("PROVEN in %v: no error and no wrong data reached the client, a late answer harmed nothing, and all %d replicas hold the same", time.Since(s.began).Round(time.Millisecond), len(p.locals))
	}
	p.close()
	return err
}

// show is a demonstration under way.
type show struct {
	cfg     config
	log     *log.Logger
	watcher *watcher
	parts   *parts
	began   time.Time
	before  int // requests before the cut, and after the return
	mirror  *mirror
	client  *client
	step    int
}

func (s *show) say(format string, args ...any) {
	s.step++
	s.log.Printf("%d. %s", s.step, fmt.Sprintf(format, args...))
}

// run serves the device, plays all acts with a client, and stops the device.
func (s *show) run(ctx context.Context, debug *slog.Logger) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	if s.mirror, err = start(ctx, s.cfg, s.parts.sources, s.parts.create, s.log, debug); err != nil {
		return err
	}
	if err = s.mirror.serve(ln); err == nil {
		s.say("a device of %s on %d replicas is served at %s; a client connects", bytesFlag(demoSize).text(), len(s.parts.locals), clientURI(ln.Addr()))
		err = s.connected(ctx, clientURI(ln.Addr()))
	}
	err = errors.Join(err, s.mirror.stop())
	s.mirror.summary()
	return err
}

func (s *show) connected(ctx context.Context, uri string) error {
	c, err := nbd.Dial(ctx, uri)
	if err != nil {
		return err
	}
	s.client = newClient(c, demoDepth)
	stop := context.AfterFunc(ctx, func() { s.client.wrong(context.Cause(ctx)) })
	defer stop()
	err = s.acts(ctx)
	if err != nil {
		_ = c.Close()
		<-s.client.done
		return err
	}
	return s.client.close()
}

// acts are the story.
func (s *show) acts(ctx context.Context) error {
	w, name, err := newWorkload(demoSize)
	if err != nil {
		return err
	}
	s.say("the client runs %s, %d requests at a time; each read is held to a model", name, demoDepth)
	if err := s.load(w, s.before, "with all replicas"); err != nil {
		return err
	}
	release, err := s.cut(ctx, w)
	defer release()
	if err != nil {
		return err
	}
	if err := s.load(w, demoAway, fmt.Sprintf("while replica %d is away, and nobody waits for it", demoVictim)); err != nil {
		return err
	}
	if err := s.late(ctx, release); err != nil {
		return err
	}
	if err := s.load(w, s.before, "with all replicas again"); err != nil {
		return err
	}
	s.say("a flush, and a read of the whole device")
	return errors.Join(s.client.sync(), s.client.check())
}

// load has the client send requests for a while.
func (s *show) load(w workload, n int, when string) error {
	ctx, cancel := context.WithTimeout(context.Background(), demoAct)
	defer cancel()
	sent, err := s.client.runUntil(w, n, ctx.Done())
	if err == nil {
		s.say("%d requests %s", sent, when)
	}
	return err
}

// cut strands a replica while the client goes on.
func (s *show) cut(ctx context.Context, w workload) (release func(), err error) {
	s.say("replica %d goes on executing, but its answers stay on their way", demoVictim)
	release, done := strand(ctx, s.mirror.drivers[demoVictim], s.parts.locals[demoVictim], s.watcher)
	_, err = s.client.runUntil(w, math.MaxInt, done)
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
	if _, err := t.Connect(demoVictim, jobtracker.Hello{}); !errors.Is(err, jobtracker.ErrNotQuiesced) {
		return fmt.Errorf("a second connection to a replica whose first one is not drained: %w", err)
	}
	before, joins := t.Stats(), s.watcher.joins(demoVictim)
	s.say("replica %d is %v; what it was sent may still be executed, so a new connection is refused: %v", demoVictim, before.Replicas[demoVictim].State, jobtracker.ErrNotQuiesced)
	s.say("its late answers come, each is handed to the tracker, and the connection is read to its end")
	release()
	err := s.watcher.await(ctx, func(seen *sight) bool {
		r := seen.replicas[demoVictim]
		return seen.joined[demoVictim] > joins || r.Phase == jobtracker.RepairReady
	})
	if err != nil {
		return err
	}
	after := t.Stats()
	n := after.Orphans[jobtracker.OrphanStaleConn]
	switch {
	case n == 0:
		return errors.New("no late answer came: nothing was shown")
	case after.Replicas[demoVictim].State.Phase != jobtracker.Voting:
		return fmt.Errorf("replica %d did not come back by replay: %v", demoVictim, after.Replicas[demoVictim].State)
	}
	s.say("orphans: %s, each refused with its reason and otherwise without effect; replica %d is active again, by replay", orphans(&after), demoVictim)
	return nil
}

// compare holds the files of all replicas against the client's model, but for the metadata.
func (s *show) compare() error {
	for i, l := range s.parts.locals {
		f, err := os.Open(l.path)
		if err != nil {
			return err
		}
		got := make([]byte, demoSize)
		_, err = io.ReadFull(f, got)
		_ = f.Close()
		if err != nil {
			return err
		}
		if !bytes.Equal(got, s.client.model) {
			return fmt.Errorf("replica %d does not hold what the client wrote", i)
		}
	}
	s.say("the files of all %d replicas are equal to the client's model outside of the metadata", len(s.parts.locals))
	return nil
}
