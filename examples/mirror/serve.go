package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// errReconcile: the replicas hold different contents, or may.
var errReconcile = errors.New("the replicas need a reconcile, which this version of mirror cannot do")

// mirror is a device: its tracker, its replicas, its front.
type mirror struct {
	cfg        config
	log        *log.Logger
	slog       *slog.Logger
	geometry   geometry
	create     bool // the replicas are blank and are to be formatted
	tracker    *jobtracker.Tracker[*request]
	book       sharedBook
	generation uint64
	begun      *jobtracker.Handle
	drivers    []*driver
	server     *nbd.Server

	reconcile atomic.Bool   // the tracker has said so
	ending    atomic.Bool   // stop was called
	failed    chan struct{} // closed when the activation has ended for want of replicas
	fail      func()
	final     chan struct{} // closed when all accepted flushes are in the book, after the activation
	clean     atomic.Int32  // replicas that were left with everything
	stopped   context.CancelFunc
	running   sync.WaitGroup
}

// start opens the replicas and activates the device; when it returns, every replica that takes part remembers the new
// generation. stop must follow. ctx bounds only the start.
func start(ctx context.Context, cfg config, sources []source, create bool, logger *log.Logger, debug *slog.Logger) (*mirror, error) {
	m := &mirror{cfg: cfg, log: logger, slog: debug, create: create, failed: make(chan struct{}), final: make(chan struct{})}
	m.fail = sync.OnceFunc(func() { close(m.failed) })
	for i, s := range sources {
		m.drivers = append(m.drivers, newDriver(m, i, s))
	}
	began := time.Now()
	links, err := m.open(ctx)
	left := cfg.wait - time.Since(began)
	if err == nil {
		err = m.settleOn(ctx, links)
	}
	if err == nil {
		err = m.activate(links)
	}
	if err != nil {
		closeLinks(links)
		return nil, err
	}
	return m, m.await(ctx, m.launch(links), left)
}

// open opens all replicas, and tries again until -wait has passed. Those that are still missing may come later, unless the
// device is being made.
func (m *mirror) open(ctx context.Context) ([]*link, error) {
	asked := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.wait, errors.New("no answer in time"))
	defer cancel()
	links, errs := make([]*link, len(m.drivers)), make([]error, len(m.drivers))
	var wg sync.WaitGroup
	for i, d := range m.drivers {
		wg.Go(func() {
			for pause := firstPause; links[i] == nil; pause = min(2*pause, longPause) {
				links[i], errs[i] = d.openIn(ctx, openFor)
				if refuses(errs[i]) {
					return
				}
				if links[i] == nil && pause == firstPause && ctx.Err() == nil {
					d.awaited(errs[i])
				}
				if links[i] == nil && !d.rest(ctx, pause) {
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(asked); err != nil {
		closeLinks(links)
		return nil, err
	}
	return links, m.report(links, errs)
}

// report tells of the replicas that could not be opened.
func (m *mirror) report(links []*link, errs []error) error {
	here := 0
	for i, d := range m.drivers {
		switch {
		case links[i] != nil:
			here++
		case m.create || refuses(errs[i]):
			closeLinks(links)
			hint := ""
			if m.create && errors.Is(errs[i], errOther) {
				hint = "; to make a device of it, write zeros over its last MiB: what it holds will be lost"
			}
			return fmt.Errorf("replica %d (%s): %w%s", i, d.name, errs[i], hint)
		default:
			d.trouble(errs[i])
		}
	}
	if here == 0 {
		return errors.New("no replica can be reached")
	}
	return nil
}

func closeLinks(links []*link) {
	for _, l := range links {
		if l != nil {
			_ = l.client.Close()
		}
	}
}

// settleOn finds out which device the replicas are of, or makes one up.
func (m *mirror) settleOn(ctx context.Context, links []*link) error {
	if m.create {
		return m.invent(ctx, links)
	}
	var known *geometry
	names := make(map[jobtracker.ID]int)
	for i, l := range links {
		if l == nil || l.meta == nil {
			continue
		}
		switch other, twice := names[l.meta.replica]; {
		case known == nil:
			known = &l.meta.geometry
		case *known != l.meta.geometry:
			return fmt.Errorf("replica %d (%s): %w", i, m.drivers[i].name, &foreignError{has: l.meta.geometry, want: *known})
		case twice:
			return fmt.Errorf("replicas %d and %d are the same one (%x)", other, i, l.meta.replica)
		}
		names[l.meta.replica] = i
	}
	switch {
	case known == nil:
		return errors.New("all replicas that can be reached are blank: -create makes a new device of them")
	case known.replicas != len(links):
		return fmt.Errorf("the device has %d replicas, and %d are given", known.replicas, len(links))
	case m.cfg.ack != 0 && m.cfg.ack != known.quorum:
		return fmt.Errorf("the device was made with -ack %d, and %d is given", known.quorum, m.cfg.ack)
	case len(m.cfg.uris) == 0 && m.cfg.given["size"] && known.size != m.cfg.size:
		return fmt.Errorf("the device has %d bytes, and -size is %d", known.size, m.cfg.size)
	}
	m.geometry = *known
	return nil
}

// activate makes the tracker and opens an activation newer than any that a replica remembers.
func (m *mirror) activate(links []*link) (err error) {
	m.book.book = newExtentBook(m.geometry.extents(), m.geometry.replicas)
	m.tracker, err = jobtracker.New(jobtracker.Config[*request]{
		Replicas: m.geometry.replicas, Blocks: uint64(m.geometry.size) / blockSize, BlockSize: blockSize,
		WriteQuorum: m.geometry.quorum, ExtentBlocks: uint64(min(m.geometry.extent, minExtent*4)) / blockSize,
		MaxJobs: 2 * m.cfg.offlineJobs, MaxBytes: 2 * m.cfg.offlineBytes,
		OfflineJobs: m.cfg.offlineJobs, OfflineBytes: m.cfg.offlineBytes, OfflineFor: m.cfg.offlineFor,
		ReplyTimeout: m.cfg.replyTimeout,
		AutoSyncJobs: m.cfg.offlineJobs / 8, AutoSyncBytes: m.cfg.offlineBytes / 8,
		OnResolve: m.resolved, OnRetire: retired, OnEvent: m.event, Logger: m.slog,
	})
	if err != nil {
		return err
	}
	m.generation = uint64(time.Now().UnixNano())
	for _, l := range links {
		if l != nil && l.meta != nil {
			m.generation = max(m.generation, l.meta.generation+1)
		}
	}
	m.begun, err = m.tracker.Activate(jobtracker.ActivateOptions{Generation: m.generation, Create: m.create})
	return err
}

func (m *mirror) resolved(r jobtracker.Resolved[*request]) {
	resolved(r)
	if m.cfg.onResolve != nil {
		m.cfg.onResolve()
	}
}

// launch connects the replicas that are here, those that have the most first, so that they are the ones that the device
// begins with, and starts all drivers. It returns the drivers that take part in the start.
func (m *mirror) launch(links []*link) (here []*driver) {
	order := make([]int, len(links))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return before(links[order[a]], links[order[b]]) })
	ctx, cancel := context.WithCancel(context.Background())
	m.stopped = cancel
	for _, i := range order {
		d := m.drivers[i]
		var s *session
		if links[i] != nil {
			var err error
			if s, err = d.admit(links[i]); err != nil {
				d.trouble(err)
			} else {
				here = append(here, d)
			}
		}
		m.running.Go(func() { d.run(ctx, s) })
	}
	return here
}

// before tells whether replica a has more than b.
func before(a, b *link) bool {
	rank := func(l *link) (generation, flush uint64, clean int) {
		if l == nil || l.meta == nil {
			return 0, 0, 0
		}
		if h := l.meta.hello(); !h.Dirty {
			clean = 1
		}
		return l.meta.generation, l.meta.flush, clean
	}
	ag, af, ac := rank(a)
	bg, bf, bc := rank(b)
	switch {
	case ag != bg:
		return ag > bg
	case af != bf:
		return af > bf
	}
	return ac > bc
}

// await waits until the activation has begun and every replica of it remembers its generation. More replicas may come for
// what is left of -wait; those that are here may take as long as for any answer. On error the device is stopped.
func (m *mirror) await(ctx context.Context, here []*driver, left time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, max(left, m.cfg.replyTimeout, settleFor), errors.New("its replicas gave no answer in time"))
	defer cancel()
	err := m.judge(here)
	if err == nil {
		coming, cancel := context.WithTimeoutCause(ctx, max(left, settleFor), errors.New("not enough replicas in time"))
		err = m.begun.Wait(coming)
		cancel()
	}
	for _, d := range here {
		if err == nil {
			select {
			case <-d.first:
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
	}
	if err != nil {
		_ = m.stop()
	}
	return err
}

// judge looks whether those that are here are enough. More of them would not help if what they hold differs.
func (m *mirror) judge(here []*driver) error {
	needed := m.geometry.replicas - m.geometry.quorum + 1
	select {
	case <-m.begun.Done():
		return nil
	default:
	}
	if m.reconcile.Load() && (len(here) == m.geometry.replicas || !m.equalLater(here)) {
		m.explain(here)
		return errReconcile
	}
	m.log.Printf("%d of %d replicas are here; the device needs %d, of which %d hold the same", len(here), m.geometry.replicas, needed, m.geometry.quorum)
	return nil
}

// equalLater tells whether replicas that are still away could make up a quorum with those that are here.
func (m *mirror) equalLater(here []*driver) bool {
	top := here[0].current().link
	for _, d := range here {
		if l := d.current().link; l.meta != nil && l.meta.hello().Dirty && !before(top, l) {
			return false
		}
	}
	return true
}

// explain tells what each replica holds, and what can be done.
func (m *mirror) explain(here []*driver) {
	defer m.advise(here)
	for _, d := range here {
		l := d.current().link
		if l.meta == nil {
			d.tell("it is blank")
			continue
		}
		h := l.meta.hello()
		state := "clean"
		if h.Dirty {
			state = fmt.Sprintf("DIRTY: mirror did not end as it should, and %d of %d extents of %s may differ",
				l.meta.dirty.count(), l.meta.extents(), bytesFlag(l.meta.extent).text())
		}
		d.tell("generation %d, flush %d, %s", h.Generation, h.Flush, state)
	}
}

// advise tells how to get the device back. A flush was answered when a quorum had remembered it, so that if all but less
// than a quorum are here, the newest of them has everything that was flushed.
func (m *mirror) advise(here []*driver) {
	var newest *driver
	known := 0
	for _, d := range here {
		if l := d.current().link; l.meta != nil {
			known++
			if newest == nil || flushedAfter(l.meta, newest.current().link.meta) {
				newest = d
			}
		}
	}
	if newest == nil || known <= m.geometry.replicas-m.geometry.quorum {
		return
	}
	has := newest.current().link.meta
	m.log.Printf("nothing that was flushed is lost: each replica holds the device in all but its last MiB; the newest is replica %d (generation %d, flush %d): it can be copied to a new device, at least as large as the replica, with nbdcopy",
		newest.index, has.generation, has.flush)
}

// flushedAfter tells whether a's last flush is later than b's.
func flushedAfter(a, b *meta) bool {
	return a.generation > b.generation || a.generation == b.generation && a.flush > b.flush
}

// serve offers the device to clients; the error is that of the listener.
func (m *mirror) serve(ln net.Listener) error {
	var err error
	m.server, err = nbd.NewServer(nbd.Options{
		Exports:    []nbd.Export{{Description: "mirror", Backend: &front{tracker: m.tracker, size: m.geometry.size}}},
		MaxRequest: maxRequest, MaxConns: 16, Log: m.slog,
	})
	if err != nil {
		return err
	}
	m.running.Go(func() {
		if err := m.server.Serve(ln); !errors.Is(err, nbd.ErrServerClosed) {
			m.log.Printf("no more clients can connect: %v", err)
			m.fail()
		}
	})
	return nil
}

// stop lets what clients have asked for come to its end, makes it durable, and leaves every replica that has everything
// as a clean one. The error says that something is not durable.
func (m *mirror) stop() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 2*m.cfg.replyTimeout+m.cfg.wait, errors.New("the end takes too long"))
	defer cancel()
	m.ending.Store(true)
	if m.server != nil {
		_ = m.server.Shutdown(ctx) // what it could not wait for ends with the activation
	}
	err := m.deactivate(ctx)
	for _, d := range m.drivers {
		if s := d.current(); s != nil {
			select {
			case <-s.settled:
			case <-ctx.Done():
			}
		}
	}
	close(m.final)
	m.stopped()
	force := time.AfterFunc(2*m.cfg.replyTimeout, func() {
		for _, d := range m.drivers {
			d.abandon()
		}
	})
	defer force.Stop()
	m.running.Wait()
	return errors.Join(err, m.tracker.Close().Wait(ctx))
}

// deactivate ends the activation with a last flush, or by force.
func (m *mirror) deactivate(ctx context.Context) error {
	err := m.tracker.Deactivate().Wait(ctx)
	if ctx.Err() != nil {
		return errors.Join(err, m.tracker.Disable(context.Cause(ctx)))
	}
	if errors.Is(err, jobtracker.ErrPhase) { // it has ended before, and m.fail was called
		return fmt.Errorf("the device had ended before: %w", err)
	}
	return err
}

// left notes that a replica was left with everything.
func (m *mirror) left(int) { m.clean.Add(1) }
