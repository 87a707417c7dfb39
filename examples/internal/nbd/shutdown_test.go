package nbd

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManual()
		s, c := backed(t, m)
		require.NoError(t, c.Send(call(CmdTrim, 0, 0, 1)))
		r := <-m.reqs
		idle, idleEnd := s.connect()
		idleClient, err := NewClient(t.Context(), idle, "")
		require.NoError(t, err)
		haggling, hagglingEnd := s.connect()
		expect(t, haggling, greeting)

		down := make(chan error, 1)
		go func() { down <- s.srv.Shutdown(t.Context()) }()
		require.ErrorIs(t, <-idleEnd, ErrServerClosed)
		require.ErrorIs(t, <-hagglingEnd, ErrServerClosed)
		_, err = idleClient.Receive(noData)
		require.ErrorIs(t, err, io.EOF)
		require.ErrorIs(t, s.srv.ServeConn(haggling), ErrServerClosed)

		require.Equal(t, ESHUTDOWN, do(t, c, call(CmdTrim, 0, 0, 1), nil).Errno, "nothing new is taken")
		synctest.Wait()
		require.Empty(t, down, "it waits for what the backend has")
		r.Reply(nil)
		got, err := c.Receive(noData)
		require.NoError(t, err)
		require.NoError(t, got.Err())
		require.NoError(t, <-down)
		require.ErrorIs(t, <-s.end, ErrServerClosed)
		require.NoError(t, s.srv.Shutdown(t.Context()), "idempotent")
		require.NoError(t, s.srv.Close())
	})
}

func TestShutdownGivesUp(t *testing.T) {
	m := newManual()
	s, c := backed(t, m)
	require.NoError(t, c.Send(call(CmdTrim, 0, 0, 1)))
	r := <-m.reqs
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	require.ErrorIs(t, s.srv.Shutdown(ctx), io.ErrNoProgress)
	require.ErrorIs(t, <-s.end, ErrServerClosed)
	r.Reply(nil)
}

func TestTooManyConnections(t *testing.T) {
	opts := oneExport(newManual())
	opts.MaxConns = 1
	s := serve(t, opts)
	s.client(t)
	second, end := s.connect()
	require.ErrorIs(t, <-end, ErrTooManyConns)
	_, err := second.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// listen serves opts on the loopback until the test ends and returns the URI of the default export.
func listen(t testing.TB, opts Options) (*Server, string) {
	t.Helper()
	srv, err := NewServer(opts)
	require.NoError(t, err)
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		require.ErrorIs(t, <-served, ErrServerClosed)
	})
	return srv, URI{Network: "tcp", Address: ln.Addr().String()}.String()
}

func TestServe(t *testing.T) {
	opts := oneExport(newManual())
	opts.MaxConns = 1
	srv, uri := listen(t, opts)
	c, err := Dial(t.Context(), uri)
	require.NoError(t, err)
	require.Equal(t, int64(testSize), c.Info().Size)
	_, err = Dial(t.Context(), uri)
	require.Error(t, err, "one connection is the limit")
	require.NoError(t, c.Close())

	require.NoError(t, srv.Shutdown(t.Context()))
	_, err = Dial(t.Context(), uri)
	require.Error(t, err)
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.ErrorIs(t, srv.Serve(ln), ErrServerClosed)
	_, err = ln.Accept()
	require.ErrorIs(t, err, net.ErrClosed, "Serve closes the listener")
}

func TestServeEndsWithItsListener(t *testing.T) {
	srv, err := NewServer(Options{})
	require.NoError(t, err)
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	err = srv.Serve(ln)
	require.ErrorIs(t, err, net.ErrClosed)
	require.NotErrorIs(t, err, ErrServerClosed)
}
