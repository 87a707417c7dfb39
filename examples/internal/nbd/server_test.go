package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestOptionsAreValidated(t *testing.T) {
	b := newManual()
	long := string(make([]byte, 4097))
	for _, tc := range []struct {
		field string
		opts  Options
	}{
		{"MaxRequest", Options{MaxRequest: 4095}},
		{"MaxRequest", Options{MaxRequest: 1<<30 + 1}},
		{"MaxInFlight", Options{MaxInFlight: -1}},
		{"MaxInFlightBytes", Options{MaxRequest: 8192, MaxInFlightBytes: 4096}},
		{"MaxConns", Options{MaxConns: -1}},
		{"Backend", Options{Exports: []Export{{Name: "x"}}}},
		{"name", Options{Exports: []Export{{Name: long, Backend: b}}}},
		{"description", Options{Exports: []Export{{Description: long, Backend: b}}}},
		{"repeats", Options{Exports: []Export{{Name: "x", Backend: b}, {Name: "x", Backend: b}}}},
	} {
		_, err := NewServer(tc.opts)
		require.ErrorIs(t, err, ErrOptions)
		require.ErrorContains(t, err, tc.field)
	}
	_, err := NewServer(Options{})
	require.NoError(t, err)
}

// TestServerRefusesRequests: the backend must not see any of them, and the connection goes on.
func TestServerRefusesRequests(t *testing.T) {
	b := &direct{info: Info{Size: testSize, Flags: allFlags, MinBlock: 512}, do: func(r *Request) error {
		if r.Command != CmdFlush {
			return errors.New("not to be seen")
		}
		return nil
	}}
	for _, tc := range []struct {
		name string
		call Call
		want Errno
	}{
		{"read past the end", call(CmdRead, 0, testSize, 512), EINVAL},
		{"read too much", call(CmdRead, 0, 0, 128<<10), EINVAL},
		{"read with an unknown flag", call(CmdRead, 1<<15, 0, 512), EINVAL},
		{"read nothing", call(CmdRead, 0, 512, 0), 0},
		{"write past the end", call(CmdWrite, 0, testSize-512, 1024), ENOSPC},
		{"write too much", call(CmdWrite, 0, 0, 128<<10), EINVAL},
		{"write off the grid", call(CmdWrite, 0, 1, 1024), EINVAL},
		{"write nothing", call(CmdWrite, FlagFUA, 0, 0), 0},
		{"trim past the end", call(CmdTrim, 0, 512, testSize), EINVAL},
		{"zero past the end", call(CmdWriteZeroes, 0, 512, testSize), ENOSPC},
		{"block status", call(7, 0, 0, 512), EINVAL},
		{"no such command", call(0xffff, 0, 0, 512), EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := oneExport(b)
			opts.MaxRequest = 64 << 10
			s := serve(t, opts)
			c := s.client(t)
			for range 3 {
				require.Equal(t, tc.want, do(t, c, tc.call, nil).Errno)
				require.NoError(t, do(t, c, call(CmdFlush, 0, 0, 0), nil).Err(), "the conversation is still in order")
			}
		})
	}
}

func TestServerHandsOverWhatWasAsked(t *testing.T) {
	m := newManual()
	_, c := backed(t, m)
	payload := bytes.Repeat([]byte("ab"), 256)
	for _, tc := range []struct {
		call Call
		fail error
	}{
		{Call{Header: Header{Command: CmdWrite, Flags: FlagFUA, Cookie: 1, Offset: 512, Length: 512}, Payload: payload}, nil},
		{call(CmdWrite, 0, 0, 512), ENOSPC},
		{call(CmdFlush, 0, 0, 0), nil},
		{call(CmdFlush, 0, 0, 0), errors.New("anything")},
		{call(CmdTrim, FlagFUA, 1, 2), nil},
		{call(CmdTrim, 0, 1, 2), EPERM},
		{call(CmdCache, 0, 1, 2), nil},
		{call(CmdWriteZeroes, FlagNoHole|FlagFastZero, 1, 2), ENOTSUP},
	} {
		answered := make(chan Call, 1)
		go func() {
			r := <-m.reqs
			answered <- Call{Header: r.Header, Payload: bytes.Clone(r.Data)}
			r.Release()
			r.Reply(tc.fail)
		}()
		got := do(t, c, tc.call, nil)
		require.Equal(t, ErrnoOf(tc.fail), got.Errno)
		require.Equal(t, tc.call, <-answered)
	}
}

func TestServerReadsIntoTheRequest(t *testing.T) {
	m := newManual()
	_, c := backed(t, m)
	length := make(chan int, 2)
	answer := func(err error) {
		r := <-m.reqs
		length <- len(r.Data)
		copy(r.Data, "hello")
		r.Release()
		r.Reply(err)
	}
	dst := make([]byte, 5)
	go answer(nil)
	r := do(t, c, call(CmdRead, 0, 0, 5), dst)
	require.Equal(t, Reply{Cookie: 42, Data: []byte("hello")}, r)
	require.Equal(t, 5, <-length)
	go answer(EIO)
	r = do(t, c, call(CmdRead, 0, 0, 5), dst)
	require.Equal(t, Reply{Cookie: 42, Errno: EIO}, r)
	require.Equal(t, 5, <-length)
}

func TestServerAnswersInTheOrderOfCompletion(t *testing.T) {
	m := newManual()
	_, c := backed(t, m)
	sent := make(chan error, 1)
	go func() {
		var calls []Call
		for cookie := range uint64(4) {
			one := call(CmdRead, 0, cookie, 1)
			one.Cookie = cookie
			calls = append(calls, one)
		}
		sent <- c.Send(calls...)
	}()
	var reqs [4]*Request
	for i := range reqs {
		reqs[i] = <-m.reqs
	}
	require.NoError(t, <-sent)
	for _, i := range []uint64{2, 0, 3, 1} {
		reqs[i].Data[0] = byte('a' + i)
		reqs[i].Reply(nil)
		dst := make([]byte, 1)
		r, err := c.Receive(into(dst))
		require.NoError(t, err)
		require.Equal(t, Reply{Cookie: i, Data: []byte{byte('a' + i)}}, r)
	}
}

// TestPayloadOutlivesTheReply: a write that was answered but not released keeps its buffer.
func TestPayloadOutlivesTheReply(t *testing.T) {
	m := newManual()
	_, c := backed(t, m)
	write := func(fill byte) *Request {
		one := call(CmdWrite, 0, 0, 4096)
		for i := range one.Payload {
			one.Payload[i] = fill
		}
		got := make(chan *Request, 1)
		go func() {
			r := <-m.reqs
			got <- r
			r.Reply(nil)
		}()
		require.NoError(t, do(t, c, one, nil).Err())
		return <-got
	}
	first := write('a')
	payload := first.Data
	for range 8 {
		r := write('b')
		require.NotSame(t, &payload[0], &r.Data[0])
		r.Release()
		r.Release() // the second is ignored: else the buffer would be handed out twice
	}
	require.Equal(t, bytes.Repeat([]byte("a"), 4096), payload)
	first.Release()
}

func TestBuffersComeBack(t *testing.T) {
	srv, err := NewServer(Options{})
	require.NoError(t, err)
	for name, last := range map[string]func(*Request){"released last": (*Request).Release, "sent last": (*Request).sent} {
		r := &Request{conn: newConn(srv, nil), buf: srv.buffers.get(5000)}
		r.Data = r.buf.b[:5000]
		require.Len(t, r.buf.b, 8192, name)
		first := (*Request).sent
		if name == "sent last" {
			first = (*Request).Release
		}
		first(r)
		require.NotNil(t, r.buf, name)
		last(r)
		require.Nil(t, r.buf, name)
		require.Nil(t, r.Data, name)
	}
}

func TestSizeClasses(t *testing.T) {
	for n, want := range map[uint32]int{0: 12, 1: 12, 4096: 12, 4097: 13, 8192: 13, 32 << 20: 25, 1 << 30: 30, 1<<30 + 1: 31} {
		require.Equal(t, want, sizeClass(n), n)
	}
}

func TestReplyCountsOnce(t *testing.T) {
	m := newManual()
	s, c := backed(t, m)
	go func() {
		r := <-m.reqs
		r.Reply(EIO)
		r.Reply(nil)
		r.Release()
	}()
	require.Equal(t, EIO, do(t, c, call(CmdTrim, 0, 0, 1), nil).Errno)
	require.NoError(t, c.Close())
	require.NoError(t, <-s.end)
}

// TestInFlightLimits: what is beyond them is not taken from the connection until a reply is written.
func TestInFlightLimits(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts Options
		call Call
	}{
		{"count", Options{MaxInFlight: 2}, call(CmdTrim, 0, 0, 1)},
		{"bytes", Options{MaxRequest: 4096, MaxInFlightBytes: 10000}, call(CmdWrite, 0, 0, 4096)},
		{"bytes of reads", Options{MaxRequest: 4096, MaxInFlightBytes: 10000}, call(CmdRead, 0, 0, 4096)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newManual()
				tc.opts.Exports = []Export{{Backend: m}}
				c := serve(t, tc.opts).client(t)
				sent := make(chan error, 1)
				go func() { sent <- c.Send(tc.call, tc.call, tc.call) }()
				first, second := <-m.reqs, <-m.reqs
				synctest.Wait()
				select {
				case <-m.reqs:
					require.Fail(t, "a third request was taken")
				default:
				}
				first.Reply(EIO)
				synctest.Wait()
				select {
				case <-m.reqs:
					require.Fail(t, "a third request was taken before the reply was written")
				default:
				}
				_, err := c.Receive(noData)
				require.NoError(t, err)
				third := <-m.reqs
				second.Reply(EIO)
				third.Reply(EIO)
				for range 2 {
					_, err := c.Receive(noData)
					require.NoError(t, err)
				}
				require.NoError(t, <-sent)
			})
		})
	}
}

// TestRefusalsAreBoundedToo: a client that sends nonsense and reads nothing is not queued for without end.
func TestRefusalsAreBoundedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := oneExport(newManual())
		opts.MaxInFlight = 4
		s := serve(t, opts)
		c := s.client(t)
		sent := 0
		done := make(chan struct{})
		go func() {
			defer close(done)
			for c.Send(call(0xff, 0, 0, 0)) == nil {
				sent++
			}
		}()
		synctest.Wait()
		require.Less(t, sent, 4+2+readBuffer/sizeRequest, "no more than the limit and what buffers hold")
		require.NoError(t, c.Close())
		<-done
	})
}

// TestReplyDoesNotWaitForTheClient, which does not read: all are answered before the first is read.
func TestReplyDoesNotWaitForTheClient(t *testing.T) {
	m := newManual()
	_, c := backed(t, m)
	const n = 100
	sent := make(chan error, 1)
	go func() {
		for range n {
			if err := c.Send(call(CmdRead, 0, 0, 4096)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range n {
		(<-m.reqs).Reply(nil)
	}
	require.NoError(t, <-sent)
	dst := make([]byte, 4096)
	for range n {
		_, err := c.Receive(into(dst))
		require.NoError(t, err)
	}
}

// TestOversizedWriteIsNotAllocated: it is refused, skipped, and the connection goes on. It must
// not wait for room either, of which there is never enough.
func TestOversizedWriteIsNotAllocated(t *testing.T) {
	const size = 32 << 20
	b := &direct{info: Info{Size: size, Flags: SendFlush}, do: func(*Request) error { return nil }}
	opts := oneExport(b)
	opts.MaxRequest, opts.MaxInFlightBytes = 4096, 4096
	s := serve(t, opts)
	c := s.client(t)
	payload := make([]byte, size)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := do(t, c, Call{Header: Header{Command: CmdWrite, Length: size}, Payload: payload}, nil)
	runtime.ReadMemStats(&after)
	require.Equal(t, EINVAL, r.Errno)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(size/4))
	require.NoError(t, do(t, c, call(CmdFlush, 0, 0, 0), nil).Err())
}

func TestServerEndsTransmission(t *testing.T) {
	for _, tc := range []struct {
		name string
		say  []byte
		want error
	}{
		{"bad magic", be(make([]byte, 28)), ErrProtocol},
		{"half a request", wireRequest(0, 0, 0, 0, 512, nil)[:20], io.ErrUnexpectedEOF},
		{"half a payload", wireRequest(1, 0, 0, 0, 512, make([]byte, 100)), io.ErrUnexpectedEOF},
		{"half a payload that is refused", wireRequest(1, 0, 0, 0, 1<<31, make([]byte, 100)), io.ErrUnexpectedEOF},
		{"disconnect", wireRequest(2, 0, 0, 0, 0, nil), nil},
		{"silence", nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c := backed(t, newManual())
			require.Equal(t, EINVAL, do(t, c, call(0xff, 0, 0, 0), nil).Errno, "the handshake is over on both sides")
			say(t, c.nc, tc.say)
			if tc.want == nil && tc.say != nil || errors.Is(tc.want, ErrProtocol) {
				_, err := c.Receive(noData)
				require.ErrorIs(t, err, io.EOF, "the server hung up")
			}
			require.NoError(t, c.Close())
			require.ErrorIs(t, <-s.end, tc.want)
		})
	}
}

// TestDisconnectIsAnsweredLast: what is in flight is served first.
func TestDisconnectIsAnsweredLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManual()
		s, c := backed(t, m)
		go func() { _ = c.Send(call(CmdTrim, 0, 0, 1), call(CmdDisc, 0, 0, 0)) }()
		r := <-m.reqs
		synctest.Wait()
		require.Empty(t, s.end, "it waits for the request")
		require.ErrorIs(t, c.Send(call(CmdTrim, 0, 0, 1)), ErrWriteClosed)
		r.Reply(nil)
		_, err := c.Receive(noData)
		require.NoError(t, err)
		_, err = c.Receive(noData)
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, <-s.end)
	})
}

func TestLateReplyGoesNowhere(t *testing.T) {
	m := newManual()
	s, c := backed(t, m)
	sent := make(chan error, 1)
	go func() { sent <- c.Send(call(CmdWrite, 0, 0, 512), call(CmdWrite, 0, 0, 512)) }()
	queued, late := <-m.reqs, <-m.reqs
	require.NoError(t, <-sent)
	require.NoError(t, s.srv.Close())
	require.ErrorIs(t, <-s.end, ErrServerClosed)
	queued.Reply(nil)
	late.Reply(nil)
	require.NotNil(t, late.Data, "the payload is the backend's until Release")
	late.Release()
	require.Nil(t, late.buf)
	_, err := c.Receive(noData)
	require.ErrorIs(t, err, io.EOF)
}

func TestLostClientLosesItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManual()
		s, c := backed(t, m)
		go func() { _ = c.Send(call(CmdRead, 0, 0, 512), call(CmdRead, 0, 0, 512)) }()
		first, second := <-m.reqs, <-m.reqs
		first.Release()
		second.Release()
		first.Reply(nil)
		synctest.Wait() // the writer is in the middle of the first
		second.Reply(nil)
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-s.end, io.ErrClosedPipe)
		require.Nil(t, first.buf)
		require.Nil(t, second.buf)
	})
}

func TestSubmitContextEndsWithTheConnection(t *testing.T) {
	began := make(chan struct{})
	s, c := backed(t, submitFunc(func(ctx context.Context, r *Request) {
		close(began)
		<-ctx.Done()
		r.Reply(context.Cause(ctx))
	}))
	require.NoError(t, c.Send(call(CmdTrim, 0, 0, 1)))
	<-began
	require.NoError(t, s.srv.Close())
	require.ErrorIs(t, <-s.end, ErrServerClosed)
}

type submitFunc func(context.Context, *Request)

func (f submitFunc) Info() Info                               { return Info{Size: testSize, Flags: allFlags} }
func (f submitFunc) Submit(ctx context.Context, req *Request) { f(ctx, req) }
