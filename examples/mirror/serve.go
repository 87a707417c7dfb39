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

	ready   chan struct{} // closed when the activation has begun, and nothing that was asked for it is on its way
	changed chan struct{} // has something when a replica has changed; for the start
	blank   int           // replicas that were here at the start, and blank
	blanks  chan struct{} // closed when the start cannot do without blank replicas
	ending  atomic.Bool   // stop was called
	failed  chan struct{} // closed when the activation has ended for want of replicas
	fail    func()
	final   chan struct{} // closed when all accepted flushes are in the book, after the activation
	clean   atomic.Int32  // replicas that were left with everything
	stopped context.CancelFunc
	over    <-chan struct{} // closed by stopped
	badJobs atomic.Uint64   // of clients
	running sync.WaitGroup
}

// start opens the replicas and activates the device; when it returns, every replica that takes part remembers the new
// generation. stop must follow. ctx bounds only the start.
func start(ctx context.Context, cfg config, sources []source, create bool, logger *log.Logger, debug *slog.Logger) (*mirror, error) {
	began := time.Now()
	m, links, err := prepare(ctx, cfg, sources, create, logger, debug)
	if err != nil {
		return nil, err
	}
	left := cfg.wait - time.Since(began)
	return m, m.await(ctx, m.launch(links), left)
}

// prepare opens the replicas and an activation; nobody is connected to it. What a new device needs beforehand is done.
func prepare(
	ctx context.Context, cfg config, sources []source, create bool, logger *log.Logger, debug *slog.Logger,
) (*mirror, []*link, error) {
	m := &mirror{
		cfg: cfg, log: logger, slog: debug, create: create, failed: make(chan struct{}), final: make(chan struct{}),
		ready: make(chan struct{}), changed: make(chan struct{}, 1), blanks: make(chan struct{}),
	}
	m.fail = sync.OnceFunc(func() { close(m.failed) })
	for i, s := range sources {
		m.drivers = append(m.drivers, newDriver(m, i, s))
	}
	links, err := m.open(ctx)
	if err == nil {
		err = m.settleOn(ctx, links)
	}
	if err == nil {
		err = m.activate(links)
	}
	if err != nil {
		closeLinks(links)
		return nil, nil, err
	}
	return m, links, nil
}

// open opens all replicas, and tries again until -wait has passed. Those that are still missing may come later, unless the
// device is being made.
func (m *mirror) open(ctx context.Context) ([]*link, error) {
	asked := ctx
	ctx, cancel := context.WithTimeoutCause(ctx, m.cfg.wait, errNoAnswer)
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
	return links, m.unopened(links, errs)
}

// unopened tells of the replicas that could not be opened.
func (m *mirror) unopened(links []*link, errs []error) error {
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
			return fmt.Errorf("replica %d (%s): %w%s", i, d.name(), errs[i], hint)
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
			return fmt.Errorf("%w: replica %d (%s): %w", errReconcile, i, m.drivers[i].name(), &foreignError{has: l.meta.geometry, want: *known})
		case twice:
			return fmt.Errorf("%w: replicas %d and %d are the same one (%x)", errReconcile, other, i, l.meta.replica)
		}
		names[l.meta.replica] = i
	}
	switch {
	case known == nil:
		return fmt.Errorf("%w: all that can be reached are blank; -create makes a new device of them", errReconcile)
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
	if r.Err != nil && !r.Payload.isCopy() { // a copy that ends with its repair has failed nobody
		m.badJobs.Add(1)
	}
	if m.cfg.onResolve != nil {
		m.cfg.onResolve()
	}
}

// launch connects the replicas that are here and starts all drivers. It returns the drivers that take part in the start.
func (m *mirror) launch(links []*link) (here []*driver) {
	ctx, cancel := context.WithCancel(context.Background())
	m.stopped, m.over = cancel, ctx.Done()
	sessions, here := m.admit(links)
	for i, d := range m.drivers {
		m.running.Go(func() {
			s := sessions[i]
			if l := links[i]; s == nil && l != nil && l.meta == nil && !m.create {
				s, _ = d.admitBlank(ctx, l) // else it is tried again
			}
			d.run(ctx, s)
		})
	}
	return here
}

// admit connects the replicas that are here and not blank, those that have the most first, so that they are the ones that
// the device begins with.
func (m *mirror) admit(links []*link) (sessions []*session, here []*driver) {
	order := make([]int, len(links))
	for i := range order {
		order[i] = i
	}
	sort.SliceStable(order, func(a, b int) bool { return before(links[order[a]], links[order[b]]) })
	sessions = make([]*session, len(links))
	for _, i := range order {
		l, d := links[i], m.drivers[i]
		if l != nil && l.meta == nil && !m.create {
			m.blank++
			continue
		}
		if l == nil {
			continue
		}
		var err error
		if sessions[i], err = d.admit(l); err != nil {
			d.trouble(err)
			continue
		}
		here = append(here, d)
	}
	return sessions, here
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
	err := m.begin(ctx, here, max(left, settleFor))
	if err == nil {
		close(m.ready)
		ctx, cancel := context.WithTimeoutCause(ctx, max(m.cfg.replyTimeout, settleFor), errors.New("its replicas gave no answer in time"))
		defer cancel()
		for _, d := range here {
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

// begin has the activation begin: by itself if enough replicas are here, or may come, that hold the same; else by a
// reconciliation.
func (m *mirror) begin(ctx context.Context, here []*driver, left time.Duration) error {
	if m.hasBegun() {
		return nil
	}
	deadline := time.Now().Add(left)
	if len(here)+m.blank < m.geometry.replicas && m.equalLater(here) {
		m.log.Printf("%d of %d replicas are here; the device needs %d, of which %d hold the same, or a reconciliation",
			len(here)+m.blank, m.geometry.replicas, m.geometry.replicas-m.geometry.quorum+1, m.geometry.quorum)
		coming, cancel := context.WithDeadline(ctx, deadline)
		err := m.begun.Wait(coming)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return m.reconcile(ctx, deadline)
}

// hasBegun tells whether the activation has begun, or ended without.
func (m *mirror) hasBegun() bool {
	select {
	case <-m.begun.Done():
		return true
	default:
		return false
	}
}

// equalLater tells whether replicas that are still away could make up a quorum with those that are here.
func (m *mirror) equalLater(here []*driver) bool {
	for _, d := range here {
		if l := d.current().link; l.meta.hello().Dirty && !before(here[0].current().link, l) {
			return false
		}
	}
	return true
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
	m.join()
	return errors.Join(err, m.tracker.Close().Wait(ctx))
}

// join waits until nothing runs any more; for replicas that do not end their connections, not for ever.
func (m *mirror) join() {
	force := time.AfterFunc(2*m.cfg.replyTimeout, func() {
		for _, d := range m.drivers {
			d.abandon()
		}
	})
	defer force.Stop()
	m.running.Wait()
}

// errKilled ends what goes on when a mirror is killed.
var errKilled = errors.New("mirror was killed")

// kill ends the device as the death of the process would: nothing more is sent to a replica, nothing is made durable, and
// no replica is told that it is clean. What replicas were sent they may still do; it waits until they have.
func (m *mirror) kill() {
	m.ending.Store(true)
	_ = m.tracker.Disable(errKilled)
	if m.server != nil {
		_ = m.server.Close()
	}
	m.stopped()
	m.join()
	<-m.tracker.Close().Done()
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
