package nbd

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scripted is a client whose server has said all that it will.
func scripted(in ...[]byte) *Client {
	s := newScript(bytes.NewReader(bytes.Join(in, nil)))
	return newClient(s, bufioReader(s), Info{})
}

func TestSendOnTheWire(t *testing.T) {
	near, far := net.Pipe()
	c := newClient(near, bufioReader(near), Info{})
	heard := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(far)
		heard <- b
	}()
	payload := []byte("payload")
	require.NoError(t, c.Send())
	require.NoError(t, c.Send(
		Call{Header: Header{Command: CmdFlush, Cookie: 1}},
		Call{Header: Header{Command: CmdWrite, Flags: FlagFUA, Cookie: 2, Offset: 512, Length: 7}, Payload: payload},
		Call{Header: Header{Command: CmdRead, Cookie: 3, Offset: 1 << 40, Length: 9}},
		Call{Header: Header{Command: CmdTrim, Cookie: 4, Length: 1}},
	))
	require.NoError(t, c.Send(Call{Header: Header{Command: CmdWrite, Cookie: 5, Length: 7}, Payload: payload}, Call{Header: Header{Command: CmdDisc}}))
	require.ErrorIs(t, c.Send(Call{}), ErrWriteClosed)
	require.NoError(t, c.Close())
	require.Equal(t, be(
		wireRequest(3, 0, 1, 0, 0, nil),
		wireRequest(1, 1, 2, 512, 7, payload),
		wireRequest(0, 0, 3, 1<<40, 9, nil),
		wireRequest(4, 0, 4, 0, 1, nil),
		wireRequest(1, 0, 5, 0, 7, payload),
		wireRequest(2, 0, 0, 0, 0, nil),
	), <-heard)
	require.Equal(t, []byte("payload"), payload, "Send only reads it")
}

func TestSendRefusesCalls(t *testing.T) {
	c := scripted()
	good := Call{Header: Header{Command: CmdTrim, Length: 1}}
	for _, tc := range []struct {
		reason string
		calls  []Call
	}{
		{"payload and length differ", []Call{good, {Header: Header{Command: CmdWrite, Length: 2}, Payload: []byte("x")}}},
		{"payload and length differ", []Call{{Header: Header{Command: CmdWrite, Length: 1}}}},
		{"payload and length differ", []Call{{Header: Header{Command: CmdRead, Length: 1}, Payload: []byte("x")}}},
		{"calls after a disconnect", []Call{{Header: Header{Command: CmdDisc}}, good}},
	} {
		err := c.Send(tc.calls...)
		require.ErrorIs(t, err, ErrCall)
		var e *CallError
		require.ErrorAs(t, err, &e)
		require.Equal(t, tc.reason, e.Reason)
	}
	require.Zero(t, c.nc.(*script).out, "nothing was written")
	require.NoError(t, c.Send(good), "and the connection is as it was")
}

func TestSendFailsForGood(t *testing.T) {
	near, far := net.Pipe()
	c := newClient(near, bufioReader(near), Info{})
	require.NoError(t, far.Close())
	first := c.Send(Call{})
	require.ErrorIs(t, first, io.ErrClosedPipe)
	require.Equal(t, first, c.Send(Call{}))
	require.NoError(t, c.Close())
}

func TestReceive(t *testing.T) {
	data := []byte("0123456789")
	dst := make([]byte, 16)
	for _, tc := range []struct {
		name   string
		in     []byte
		length uint32
		dst    []byte
		want   Reply
	}{
		{"no data", wireSimple(0, 7, nil), 0, nil, Reply{Cookie: 7}},
		{"no data, though there is room", wireSimple(0, 7, nil), 0, dst, Reply{Cookie: 7}},
		{"data", wireSimple(0, 7, data), 10, dst, Reply{Cookie: 7, Data: data}},
		{"data, of which some is skipped", wireSimple(0, 7, data), 10, dst[:3], Reply{Cookie: 7, Data: data[:3]}},
		{"data, all of it skipped", wireSimple(0, 7, data), 10, nil, Reply{Cookie: 7, Data: nil}},
		{"a failed read has no data", wireSimple(5, 7, nil), 10, dst, Reply{Cookie: 7, Errno: EIO}},
		{"an error that nobody knows", wireSimple(4711, 7, nil), 10, dst, Reply{Cookie: 7, Errno: 4711}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := scripted(tc.in, tc.in)
			for range 2 {
				r, err := c.Receive(func(cookie uint64) (uint32, []byte, bool) {
					require.Equal(t, uint64(7), cookie)
					return tc.length, tc.dst, true
				})
				require.NoError(t, err)
				require.Equal(t, tc.want, r)
			}
			for range 2 {
				_, err := c.Receive(noData)
				require.Equal(t, io.EOF, err, "alone")
			}
		})
	}
}

func TestReceiveEndsForGood(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []byte
		want error
		text string
	}{
		{"another magic", be(uint32(1), 12), ErrProtocol, "reply magic (0x1)"},
		{"a structured reply", be(uint32(0x668e33ef), 16), ErrProtocol, "never negotiated"},
		{"half a reply", wireSimple(0, 7, nil)[:15], io.ErrUnexpectedEOF, ""},
		{"half of the data", wireSimple(0, 7, []byte("01234")), io.ErrUnexpectedEOF, ""},
		{"half of what is skipped", wireSimple(0, 8, []byte("01234")), io.ErrUnexpectedEOF, ""},
		{"unknown cookie", wireSimple(5, 9, nil), ErrUnknownCookie, "0x9 (errno 5)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := scripted(tc.in)
			lookup := func(cookie uint64) (uint32, []byte, bool) {
				return 10, make([]byte, 10*(8-min(cookie, 8))), cookie != 9
			}
			_, first := c.Receive(lookup)
			require.ErrorIs(t, first, tc.want)
			require.ErrorContains(t, first, tc.text)
			_, err := c.Receive(lookup)
			require.Equal(t, first, err)
		})
	}
	for _, lookup := range []Lookup{nil, func(uint64) (uint32, []byte, bool) { return 0, nil, false }} {
		_, err := scripted(wireSimple(5, 9, nil)).Receive(lookup)
		var unknown *UnknownCookieError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, &UnknownCookieError{Cookie: 9, Errno: EIO}, unknown)
	}
}

// TestHalfCloseDrains: after CloseWrite everything sent is answered, and then comes io.EOF.
func TestHalfCloseDrains(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, disc := range []bool{false, true} {
			m := newManual()
			c, end := dialLocal(t, network, m)
			const n = 50
			for i := range uint64(n) {
				require.NoError(t, c.Send(Call{Header: Header{Command: CmdTrim, Cookie: i, Length: 1}}))
			}
			if disc {
				require.NoError(t, c.Send(Call{Header: Header{Command: CmdDisc}}))
			}
			require.NoError(t, c.CloseWrite())
			require.ErrorIs(t, c.Send(Call{}), ErrWriteClosed)
			var reqs []*Request
			for range n {
				reqs = append(reqs, <-m.reqs)
			}
			require.Empty(t, end, "the server waits for them")
			for _, r := range reqs {
				r.Reply(nil)
			}
			for i := range uint64(n) {
				r, err := c.Receive(noData)
				require.NoError(t, err)
				require.Equal(t, i, r.Cookie)
			}
			_, err := c.Receive(noData)
			require.Equal(t, io.EOF, err)
			require.NoError(t, <-end)
			require.NoError(t, c.Close())
		}
	}
}

// dialLocal connects over a real socket; end has what ServeConn returned.
func dialLocal(t *testing.T, network string, b Backend) (c *Client, end chan error) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), network, address)
	require.NoError(t, err)
	srv, err := NewServer(Options{Exports: []Export{{Name: "x y", Backend: b}}})
	require.NoError(t, err)
	end = make(chan error, 1)
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			err = srv.ServeConn(nc)
		}
		end <- err
	}()
	c, err = Dial(t.Context(), URI{Network: network, Address: ln.Addr().String(), Export: "x y"}.String())
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, srv.Close())
		require.NoError(t, ln.Close())
	})
	return c, end
}

// TestCloseWriteEndsASend that a server, which has stopped reading, holds.
func TestCloseWriteEndsASend(t *testing.T) {
	near, far := socketPair(t)
	c := newClient(near, bufioReader(near), Info{})
	began := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		huge := make([]byte, 64<<20) // more than the buffers of both sockets
		close(began)
		ended <- c.Send(Call{Header: Header{Command: CmdWrite, Length: uint32(len(huge))}, Payload: huge})
	}()
	<-began
	_, err := io.ReadFull(far, make([]byte, sizeRequest)) // Send is on its way
	require.NoError(t, err)
	require.NoError(t, c.CloseWrite())
	require.ErrorIs(t, <-ended, ErrWriteClosed)
	require.ErrorIs(t, c.Send(Call{}), ErrWriteClosed)
	n, err := io.Copy(io.Discard, far)
	require.NoError(t, err, "an end, not a reset")
	require.Less(t, n, int64(64<<20), "the call was cut short")
	say(t, far, wireSimple(0, 7, nil))
	r, err := c.Receive(noData)
	require.NoError(t, err)
	require.Equal(t, uint64(7), r.Cookie)
	require.NoError(t, far.Close())
	_, err = c.Receive(noData)
	require.Equal(t, io.EOF, err)
	require.NoError(t, c.Close())
}

// TestCloseWriteWithoutHalfClose: it ends a Send all the same.
func TestCloseWriteWithoutHalfClose(t *testing.T) {
	near, far := net.Pipe()
	c := newClient(near, bufioReader(near), Info{})
	ended := make(chan error, 1)
	go func() { ended <- c.Send(call(CmdWrite, 0, 0, 512)) }()
	_, err := io.ReadFull(far, make([]byte, sizeRequest)) // Send is on its way
	require.NoError(t, err)
	require.ErrorIs(t, c.CloseWrite(), ErrNoHalfClose)
	require.ErrorIs(t, <-ended, ErrWriteClosed)
	require.ErrorIs(t, c.Send(Call{}), ErrWriteClosed)
	require.NoError(t, c.Close())
}

func TestCloseEndsReceive(t *testing.T) {
	_, c := backed(t, newManual())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Receive(noData)
		ended <- err
	}()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-ended, io.ErrClosedPipe)
}

func TestDialFails(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.ErrNoProgress)
	_, err := Dial(ctx, "nbd://127.0.0.1:1/x")
	require.ErrorIs(t, err, context.Canceled)
	_, err = Dial(t.Context(), "nbd+unix:///?socket="+filepath.Join(t.TempDir(), "none"))
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	_, uri := listen(t, oneExport(newManual()))
	_, err = Dial(t.Context(), uri+"unknown")
	require.ErrorIs(t, err, ErrUnknownExport)
	_, err = Dial(t.Context(), uri+strings.Repeat("x", 4096))
	require.ErrorIs(t, err, ErrUnknownExport)
}
