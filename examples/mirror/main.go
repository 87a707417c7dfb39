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
	cfg, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGood
	case err != nil:
		_, _ = fmt.Fprintf(errOut, "mirror: %v\nmirror -h says more\n", err)
		return exitUsage
	}
	logger := log.New(out, "mirror: ", 0)
	if cfg.plan == planJSON {
		logger.SetOutput(errOut)
	}
	debug := slog.New(slog.DiscardHandler)
	if cfg.verbose {
		debug = slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: slog.LevelDebug}))
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
	network, address, err := cfg.address()
	if err != nil {
		return err
	}
	ln, err := listenOn(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
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
	showing, hide := context.WithCancel(ctx)
	m.running.Go(func() {
		m.status(showing, errOut, cli.IsTerminal(errOut))
	})
	err = m.until(ctx)
	hide()
	again()
	logger.Printf("ending: what was admitted runs to its end and is made durable")
	err = errors.Join(err, m.stop())
	m.summary()
	return err
}

// listenOn opens the address for clients. A socket that a killed process has left is taken over.
func listenOn(ctx context.Context, network, address string) (net.Listener, error) {
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
	locals  []*local // those in this process
	create  bool
	remove  string // a temporary directory
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
			p.sources = append(p.sources, absent(path, err))
			continue
		}
		p.locals = append(p.locals, l)
		p.sources = append(p.sources, l.source())
	}
	return nil
}

// absent is a replica in this process whose file cannot be opened.
func absent(path string, err error) source {
	return source{name: path, dial: func(context.Context) (net.Conn, string, error) { return nil, "", err }}
}

func (p *parts) close() {
	for _, l := range p.locals {
		l.close()
	}
	if p.remove != "" {
		_ = os.RemoveAll(p.remove)
	}
}
