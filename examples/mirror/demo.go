package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

const (
	demoSize   = 64 << 20
	demoDepth  = 32
	demoBefore = 12000           // requests with all replicas, several times
	demoAway   = 1000            // requests while one is away
	demoAct    = 4 * time.Second // the longest that these take, if the disk is slow
	demoMost   = 2 * time.Minute // and of all, if something hangs
	demoMemory = 512 << 20
	demoMissed = 3000     // jobs that a replica may miss and come back by replay
	demoRate   = 24 << 20 // bytes a second that a repair copies, so that it has a middle

	lateJobs = 24 // requests answered by others before a connection is cut
)

var errCut = errors.New("cut by the demonstration")

// demo is the whole of it.
func demo(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger) error {
	ctx, cancel := context.WithTimeoutCause(ctx, demoMost, errors.New("the demonstration takes too long"))
	defer cancel()
	return play(ctx, cfg, logger, debug, demoBefore)
}

// play loses replicas under load, with answers on their way, takes them back, by replay and by repair, kills mirror, and proves
// that nothing went wrong.
func play(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger, before int) (err error) {
	dir, err := os.MkdirTemp("", "mirror-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg.size, cfg.dir = demoSize, dir
	cfg.offlineBytes, cfg.offlineJobs, cfg.repairRate = demoMemory, demoMissed, demoRate
	w, name, err := newWorkload(demoSize)
	if err != nil {
		return err
	}
	s := &show{cfg: cfg, log: logger, debug: debug, workload: w, began: time.Now(), before: before}
	s.say("the client runs %s, %d requests at a time; each read is held to a model", name, demoDepth)
	if err = s.life(ctx, s.faults); err == nil {
		err = s.life(ctx, s.afterwards)
	}
	if err == nil {
		err = s.compare()
	}
	if err == nil {
		logger.Printf("PROVEN in %v: no error and no wrong data reached a client, late answers harmed nothing, "+
			"what was flushed survived, and all %d replicas hold the same", time.Since(s.began).Round(time.Millisecond), s.cfg.replicas)
	}
	return err
}

// show is a demonstration under way.
type show struct {
	cfg      config
	log      *log.Logger
	debug    *slog.Logger
	workload workload
	began    time.Time
	before   int // requests of an act with all replicas
	step     int
	flushed  []byte // what a flush has vouched for before mirror was killed
	since    bitmap // blocks that were changed after that

	// Of one life of mirror.
	watcher *watcher
	parts   *parts
	mirror  *mirror
	client  *client
	killed  bool
}

func (s *show) say(format string, args ...any) {
	s.step++
	s.log.Printf("%d. %s", s.step, fmt.Sprintf(format, args...))
}

// life is one life of mirror, with a client that plays some acts; they may end it.
func (s *show) life(ctx context.Context, acts func(context.Context) error) (err error) {
	s.watcher, s.killed = newWatcher(s.cfg.replicas), false
	s.watcher.attach(&s.cfg)
	if s.parts, err = gather(s.cfg, s.log); err != nil {
		return err
	}
	defer s.parts.close()
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	if s.mirror, err = start(ctx, s.cfg, s.parts.sources, s.parts.create, s.log, s.debug); err != nil {
		return err
	}
	if err = s.mirror.serve(ln); err == nil {
		uri := clientURI(ln.Addr())
		s.say("a device of %s on %s is served at %s; a client connects", bytesFlag(demoSize).text(), s.mirror.strength(), uri)
		err = s.connected(ctx, uri, acts)
	}
	if s.killed {
		return err
	}
	err = errors.Join(err, s.mirror.stop())
	s.mirror.summary()
	return err
}

func (s *show) connected(ctx context.Context, uri string, acts func(context.Context) error) error {
	c, err := nbd.Dial(ctx, uri)
	if err != nil {
		return err
	}
	s.client = newClient(c, demoDepth)
	stop := context.AfterFunc(ctx, func() { s.client.wrong(context.Cause(ctx)) })
	defer stop()
	if err = acts(ctx); err != nil || s.killed {
		_ = c.Close()
		<-s.client.done
		return err
	}
	return s.client.close()
}

// compare holds the files of all replicas against the client's model, but for the metadata.
func (s *show) compare() error {
	paths, _, err := localPaths(s.cfg.dir, s.cfg.replicas)
	if err != nil {
		return err
	}
	for i, path := range paths {
		f, err := os.Open(path)
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
	s.say("the files of all %d replicas are equal to the client's model outside of the metadata", len(paths))
	return nil
}
