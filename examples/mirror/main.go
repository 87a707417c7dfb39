package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/staleproof/staleproof/examples/internal/cli"
)

// The exit status.
const (
	exitGood      = 0
	exitFailed    = 1
	exitUsage     = 2
	exitReconcile = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program.
func run(args []string, out, errOut io.Writer) int {
	if len(args) > 0 && commands[args[0]] != nil {
		return command(args[0], args[1:], out, errOut)
	}
	cfg, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGood
	case err != nil:
		_, _ = fmt.Fprintf(errOut, "mirror: %v\nmirror -h says more\n", err)
		return exitUsage
	}
	if (cfg.plan == "" || cfg.demo) && cli.IsTerminal(errOut) {
		cfg.screen = newScreen(errOut)
		defer cfg.screen.end()
	}
	logger := log.New(cfg.screen.above(errOut, out), "mirror: ", 0)
	if cfg.plan == planJSON {
		logger.SetOutput(errOut)
	}
	debug := slog.New(slog.DiscardHandler)
	if cfg.verbose {
		debug = slog.New(slog.NewTextHandler(cfg.screen.above(errOut, errOut), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case cfg.demo:
		err = demo(ctx, cfg, logger, debug)
	case cfg.plan != "":
		err = showPlan(ctx, cfg, logger, debug, out)
	default:
		err = serve(ctx, stop, cfg, logger, debug, errOut)
	}
	cfg.screen.end()
	switch {
	case errors.Is(err, errReconcile):
		_, _ = fmt.Fprintf(errOut, "mirror: cannot start: %v\n", err)
		return exitReconcile
	case err != nil:
		_, _ = fmt.Fprintf(errOut, "mirror: failed: %v\n", err)
		return exitFailed
	}
	return exitGood
}

// serve runs the device until ctx ends; a second signal kills.
func serve(ctx context.Context, again context.CancelFunc, cfg config, logger *log.Logger, debug *slog.Logger, errOut io.Writer) (err error) {
	ln, err := listenOn(ctx, "listen", cfg.listen)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	var controlled net.Listener
	if cfg.control != "" {
		if controlled, err = listenOn(ctx, "control", cfg.control); err != nil {
			return err
		}
		defer func() { _ = controlled.Close() }()
	}
	p, err := gather(cfg, logger)
	if err != nil {
		return err
	}
	defer p.close()
	m, err := start(ctx, cfg, p.sources, p.create, logger, debug)
	switch {
	case err != nil && ctx.Err() != nil && !errors.Is(err, errReconcile):
		return errors.New("interrupted before it could start")
	case err != nil:
		return err
	}
	if err := m.serve(ln); err != nil {
		return errors.Join(err, m.stop())
	}
	logger.Printf("serving %s, %d bytes, on %s; a write is acknowledged by %d", clientURI(ln.Addr()), m.geometry.size, m.strength(), m.geometry.quorum)
	hush := m.control(controlled)
	showing, hide := context.WithCancel(ctx)
	m.running.Go(func() {
		m.status(showing, errOut)
	})
	err = m.until(ctx)
	hide()
	hush()
	again()
	logger.Printf("ending: what was admitted runs to its end and is made durable")
	err = errors.Join(err, m.stop())
	m.summary()
	return err
}

// listenOn opens the address that a flag names. A socket that a killed process has left is taken over.
func listenOn(ctx context.Context, flag, value string) (net.Listener, error) {
	network, address, err := address(flag, value)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, network, address)
	if network != "unix" || !errors.Is(err, syscall.EADDRINUSE) {
		return ln, err
	}
	var d net.Dialer
	nc, dialed := d.DialContext(ctx, network, address)
	if dialed == nil {
		_ = nc.Close()
		return nil, err
	}
	if i, lost := os.Lstat(address); !errors.Is(dialed, syscall.ECONNREFUSED) || lost != nil || i.Mode()&os.ModeSocket == 0 {
		return nil, err
	}
	if err := os.Remove(address); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, network, address)
}

// until waits for the end that is asked for, or comes by itself.
func (m *mirror) until(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-m.failed:
		return errors.New("the device cannot go on")
	}
}

func clientURI(a net.Addr) string {
	if a.Network() == "unix" {
		return "nbd+unix:///?socket=" + a.String()
	}
	return "nbd://" + a.String()
}

// parts are the replicas as the command line names them.
type parts struct {
	sources []source
	create  bool
	remove  string // a temporary directory

	mu       sync.Mutex // while a device runs on them
	locals   []*local   // those in this process
	replaced []*local   // those that others have been put in the place of
}

// gather finds the replicas, or makes them.
func gather(cfg config, logger *log.Logger) (p *parts, err error) {
	p = &parts{create: cfg.create}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	for _, uri := range cfg.uris {
		s, err := remote(uri)
		if err != nil {
			return p, err
		}
		p.sources = append(p.sources, s)
	}
	if len(cfg.uris) > 0 {
		return p, nil
	}
	dir := cfg.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "mirror-"); err != nil {
			return p, err
		}
		p.remove = dir
	}
	return p, p.openLocals(dir, cfg, logger)
}

// openLocals opens the files of the replicas in dir; where there is none of them, a new device is made.
func (p *parts) openLocals(dir string, cfg config, logger *log.Logger) error {
	if cfg.plan == "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	n := cfg.replicas
	if !cfg.given["replicas"] {
		if known := replicasIn(dir); known > 0 {
			n = known
		}
	}
	paths, found, err := localPaths(dir, n)
	if err != nil {
		return err
	}
	if p.create = !found; p.create && cfg.plan != "" {
		return fmt.Errorf("there is no device in %s", dir)
	}
	var size int64
	if p.create {
		size = cfg.size + metaSpace
		logger.Printf("making a device of %s with %d replicas in %s", bytesFlag(cfg.size).text(), n, dir)
	}
	for _, path := range paths {
		l, err := newLocal(path, size)
		if err != nil && (p.create || errors.Is(err, errInUse)) {
			return err
		}
		if err != nil {
			p.sources = append(p.sources, p.renewable(path, absent(path, err)))
			continue
		}
		p.sources = append(p.sources, p.renewable(path, l.source()))
		p.add(l)
	}
	return nil
}

// renewable is a source in this process whose file can be set aside for a blank one.
func (p *parts) renewable(path string, s source) source {
	s.renew = func(size int64) (source, error) {
		aside, err := setAside(path)
		if err != nil {
			return source{}, err
		}
		l, err := newLocal(path, size)
		if err != nil {
			return source{}, errors.Join(err, os.Remove(path), aside.back())
		}
		p.add(l)
		return p.renewable(path, l.source()), nil
	}
	return s
}

// add takes a replica in, in the place of another one if that has its path.
func (p *parts) add(l *local) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.locals {
		if other.path == l.path {
			p.replaced = append(p.replaced, other) // it may still be asked for something
			p.locals[i] = l
			return
		}
	}
	p.locals = append(p.locals, l)
}

// absent is a replica in this process whose file cannot be opened.
func absent(path string, err error) source {
	return source{name: path, dial: func(context.Context) (net.Conn, string, error) { return nil, "", err }}
}

func (p *parts) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range append(p.locals, p.replaced...) {
		l.close()
	}
	if p.remove != "" {
		_ = os.RemoveAll(p.remove)
	}
}
