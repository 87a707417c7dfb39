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
	"strings"
	"syscall"
	"time"

	"github.com/staleproof/staleproof/examples/internal/cli"
)

// The exit status.
const (
	exitGood   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program.
func run(args []string, out, errOut io.Writer) int {
	cfg, err := parse(args, errOut)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGood
	case err != nil:
		_, _ = fmt.Fprintf(errOut, "indexer: %v\nindexer -h says more\n", err)
		return exitUsage
	}
	logger := log.New(out, "indexer: ", 0)
	debug := slog.New(slog.DiscardHandler)
	if cfg.verbose {
		debug = slog.New(slog.NewTextHandler(errOut, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case cfg.demo:
		err = demo(ctx, cfg, logger, errOut)
	default:
		err = listen(ctx, stop, cfg, logger, debug, errOut)
	}
	if err != nil {
		_, _ = fmt.Fprintf(errOut, "indexer: failed: %v\n", err)
		return exitFailed
	}
	return exitGood
}

// errEarly is what comes of a signal while nothing is served yet.
var errEarly = errors.New("interrupted before it could start")

// listen takes the address, before anything that takes time, and serves on it.
func listen(
	ctx context.Context, again context.CancelFunc, cfg config, logger *log.Logger, debug *slog.Logger, errOut io.Writer,
) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.listen)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }()
	if cfg.brokers == "" {
		return alone(ctx, again, cfg, ln, logger, debug, errOut)
	}
	return serve(ctx, again, cfg, ln, logger, debug, errOut)
}

// serve runs an instance until ctx ends; a second signal kills.
func serve(
	ctx context.Context, again context.CancelFunc, cfg config, ln net.Listener, logger *log.Logger, debug *slog.Logger, errOut io.Writer,
) error {
	n, err := startNode(ctx, cfg, ln, logger, debug)
	if err != nil {
		if ctx.Err() != nil {
			return errEarly
		}
		return err
	}
	logger.Printf("serving http://%s for group %s; the index is in %s", ln.Addr(), cfg.group, cfg.dir)
	showing, hide := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		n.show(showing, errOut, cli.IsTerminal(errOut))
	}()
	select {
	case <-ctx.Done():
		logger.Printf("ending: what was read is committed, then the partitions are given up")
	case <-n.failed:
	}
	hide()
	<-shown
	again()
	err = n.stop()
	n.summary()
	return err
}

// alone runs an instance on a broker in this process, with generated data. Others may join it there.
func alone(
	ctx context.Context, again context.CancelFunc, cfg config, ln net.Listener, logger *log.Logger, debug *slog.Logger, errOut io.Writer,
) (err error) {
	dir, err := os.MkdirTemp("", "indexer-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := startBroker(1, time.Second)
	if err != nil {
		return err
	}
	defer cluster.Close()
	p, err := newProducer(cluster.ListenAddrs(), cfg.records)
	if err != nil {
		return err
	}
	defer p.cl.Close()
	cfg.brokers, cfg.dir = strings.Join(cluster.ListenAddrs(), ","), dir
	logger.Printf("a broker in this process, at %s; generating %d records", cfg.brokers, cfg.records)
	if err := p.some(ctx, cfg.records, dataset...); ctx.Err() != nil {
		return errEarly
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	produced := make(chan error, 1)
	go func() { produced <- p.trickle(ctx, 20, 200*time.Millisecond, dataset...) }()
	var indexes strings.Builder
	for _, g := range dataset {
		cfg.indexes[g.name] = g.fields
		_, _ = fmt.Fprintf(&indexes, " -index %s=%s", g.name, strings.Join(g.fields, ","))
	}
	logger.Printf("ask it:               curl 'http://%s/v1/lookup?topic=orders&field=status&value=paid&limit=5'", ln.Addr())
	logger.Printf("start a second one:   indexer -brokers %s%s -dir DIR -listen 127.0.0.1:0", cfg.brokers, indexes.String())
	err = serve(ctx, again, cfg, ln, logger, debug, errOut)
	cancel()
	return errors.Join(err, <-produced)
}
