package nbd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"
)

// Defaults of Options.
const (
	DefaultMaxRequest       = 32 << 20
	DefaultMaxInFlight      = 256
	DefaultMaxInFlightBytes = 64 << 20
	DefaultMaxConns         = 64
	DefaultHandshakeTimeout = 10 * time.Second
)

// Export is a device that a server offers.
type Export struct {
	Name        string // up to 4096 bytes; the empty name is the default export
	Description string // for people; up to 4096 bytes
	Backend     Backend
}

// Options configure a Server. The zero value offers nothing and is otherwise ready.
type Options struct {
	// Exports, with distinct names.
	Exports []Export
	// MaxRequest is the longest read or write, in bytes. Zero: 32 MiB. At least 4096, at most 1 GiB.
	MaxRequest uint32
	// MaxInFlight is the number of requests of a connection whose reply has not been written. Zero: 256.
	MaxInFlight int
	// MaxInFlightBytes bounds the payloads of those, in bytes. Zero: the larger of 64 MiB and MaxRequest. At
	// least MaxRequest.
	MaxInFlightBytes int64
	// MaxConns is the number of connections; more are closed at once. Zero: 64.
	MaxConns int
	// HandshakeTimeout is how long a client may haggle. Zero: 10 s; negative: for ever.
	HandshakeTimeout time.Duration
	// Log hears of connections and of what ended them. Nil: silent.
	Log *slog.Logger
}

// withDefaults fills in what is zero.
func (o Options) withDefaults() Options {
	if o.MaxRequest == 0 {
		o.MaxRequest = DefaultMaxRequest
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = DefaultMaxInFlight
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = max(DefaultMaxInFlightBytes, int64(o.MaxRequest))
	}
	if o.MaxConns == 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate names the first field that cannot be used.
func (o Options) validate() error {
	switch {
	case o.MaxRequest < 4096 || o.MaxRequest > 1<<30:
		return fmt.Errorf("%w: MaxRequest is %d, not in 4096 to 1 GiB", ErrOptions, o.MaxRequest)
	case o.MaxInFlight < 1:
		return fmt.Errorf("%w: MaxInFlight is negative", ErrOptions)
	case o.MaxInFlightBytes < int64(o.MaxRequest):
		return fmt.Errorf("%w: MaxInFlightBytes is less than MaxRequest", ErrOptions)
	case o.MaxConns < 1:
		return fmt.Errorf("%w: MaxConns is negative", ErrOptions)
	}
	seen := make(map[string]bool, len(o.Exports))
	for i, e := range o.Exports {
		switch {
		case e.Backend == nil:
			return fmt.Errorf("%w: Exports[%d] has no Backend", ErrOptions, i)
		case len(e.Name) > maxString || len(e.Description) > maxString:
			return fmt.Errorf("%w: Exports[%d] has a name or description over %d bytes", ErrOptions, i, maxString)
		case seen[e.Name]:
			return fmt.Errorf("%w: Exports[%d] repeats the name %q", ErrOptions, i, e.Name)
		}
		seen[e.Name] = true
	}
	return nil
}

// Server offers exports to clients. All methods are safe for concurrent use.
type Server struct {
	opts    Options // immutable after NewServer
	buffers buffers

	// wg counts running Serve and ServeConn calls. Added to only under mu and while not closing.
	wg sync.WaitGroup

	mu sync.Mutex
	// closing means: no listener and no connection is taken any more. Never unset.
	// +checklocks:mu
	closing bool
	// +checklocks:mu
	listeners map[net.Listener]struct{}
	// +checklocks:mu
	conns map[*conn]struct{}
}

// NewServer returns a server that has no goroutine yet, or an error that matches ErrOptions.
func NewServer(opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Server{
		opts:      opts,
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[*conn]struct{}),
	}, nil
}

// Serve accepts connections from ln until the server or ln is closed, and closes ln. It returns
// ErrServerClosed after Shutdown or Close, else the error of Accept; the connections go on.
func (s *Server) Serve(ln net.Listener) error {
	defer func() { _ = ln.Close() }()
	if !s.addListener(ln) {
		return ErrServerClosed
	}
	defer s.removeListener(ln)
	for {
		nc, err := ln.Accept()
		if err != nil {
			if s.isClosing() {
				return ErrServerClosed
			}
			return fmt.Errorf("nbd: accept: %w", err)
		}
		c, err := s.addConn(nc)
		if err != nil {
			_ = nc.Close()
			s.opts.Log.Warn("nbd: connection refused", "peer", nc.RemoteAddr(), "err", err)
			continue
		}
		go func() { _ = s.run(c) }() // which logs the error
	}
}

// ServeConn serves one connection and closes it. It returns when the client has left and all its
// requests are answered (nil), or when the connection was lost or the server closed (why).
func (s *Server) ServeConn(nc net.Conn) error {
	c, err := s.addConn(nc)
	if err != nil {
		_ = nc.Close()
		return err
	}
	return s.run(c)
}

// run serves a connection that addConn admitted.
func (s *Server) run(c *conn) error {
	defer s.removeConn(c)
	s.opts.Log.Debug("nbd: connected", "peer", c.nc.RemoteAddr())
	err := c.serve()
	s.opts.Log.Debug("nbd: disconnected", "peer", c.nc.RemoteAddr(), "err", err)
	return err
}

// Shutdown takes no more connections, ends those still in the handshake, answers new requests with ESHUTDOWN,
// waits until what the backends have is answered and written, and closes. It returns nil when all is
// done, or the cause of ctx's end after a Close. It is idempotent. A client that is sending at the end may
// see its connection reset, which says nothing of what it has not been answered. What a backend still has of
// connections that were lost is not waited for, here as in Close: that is the backend's to do.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stopAccepting() {
		c.stop()
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		_ = s.Close()
		<-done
		return context.Cause(ctx)
	}
}

// Close ends everything at once and waits for the goroutines of the server, so for running calls of
// Submit, but not for requests that a backend has taken: their replies go nowhere. It is idempotent.
func (s *Server) Close() error {
	for _, c := range s.stopAccepting() {
		_ = c.kill(ErrServerClosed)
	}
	s.wg.Wait()
	return nil
}

// stopAccepting closes the listeners and returns the connections.
func (s *Server) stopAccepting() []*conn {
	s.mu.Lock()
	s.closing = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	listeners := make([]net.Listener, 0, len(s.listeners))
	for ln := range s.listeners {
		listeners = append(listeners, ln)
	}
	s.mu.Unlock()
	for _, ln := range listeners {
		_ = ln.Close()
	}
	return conns
}

func (s *Server) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

func (s *Server) addListener(ln net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.listeners[ln] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) removeListener(ln net.Listener) {
	s.mu.Lock()
	delete(s.listeners, ln)
	s.mu.Unlock()
	s.wg.Done()
}

// addConn admits a connection; removeConn must follow.
func (s *Server) addConn(nc net.Conn) (*conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, ErrServerClosed
	}
	if len(s.conns) >= s.opts.MaxConns {
		return nil, ErrTooManyConns
	}
	c := newConn(s, nc)
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	return c, nil
}

func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.wg.Done()
}

// find returns the export of that name.
func (s *Server) find(name string) (*Export, bool) {
	for i := range s.opts.Exports {
		if s.opts.Exports[i].Name == name {
			return &s.opts.Exports[i], true
		}
	}
	return nil, false
}
