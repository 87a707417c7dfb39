package nbd

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// twoExports has a default export and one with a name, a description and odd block sizes.
func twoExports() Options {
	one := newManual()
	two := newManual()
	two.info = Info{Size: 8192, Flags: ReadOnly, MinBlock: 512, PreferredBlock: 1024, MaxBlock: 2048}
	broken := newManual()
	broken.info.Size = -1
	return Options{Exports: []Export{
		{Backend: one},
		{Name: "two", Description: "the second", Backend: two},
		{Name: "broken", Backend: broken},
	}}
}

// oneFlags is what the default export of twoExports shows.
const oneFlags = uint16(allFlags | HasFlags)

func exportInfo(size uint64, flags uint16) []byte { return be(uint16(0), size, flags) }

func blockInfo(minimum, preferred, maximum uint32) []byte {
	return be(uint16(3), minimum, preferred, maximum)
}

func TestServerAnswersOptions(t *testing.T) {
	name4k := string(make([]byte, 4096))
	for _, tc := range []struct {
		name    string
		option  uint32
		data    []byte
		replies []byte
	}{
		{
			"list", 3, nil,
			be(wireReply(3, 2, be(uint32(0))), wireReply(3, 2, be(uint32(3), "two", "the second")),
				wireReply(3, 2, be(uint32(6), "broken")), wireReply(3, 1, nil)),
		},
		{"list with data", 3, be("x"), wireReply(3, 1<<31+3, be("no data is allowed"))},
		{"starttls", 5, nil, wireReply(5, 1<<31+1, nil)},
		{"starttls with data", 5, be("x"), wireReply(5, 1<<31+3, be("no data is allowed"))},
		{"structured reply", 8, nil, wireReply(8, 1<<31+1, nil)},
		{"structured reply with data", 8, be("x"), wireReply(8, 1<<31+3, be("no data is allowed"))},
		{"meta context", 10, be(uint32(0), uint32(0)), wireReply(10, 1<<31+1, nil)},
		{"peek", 4, nil, wireReply(4, 1<<31+1, nil)},
		{"unknown, with the longest data that is skipped", 0xfffffff0, make([]byte, 1<<20), wireReply(0xfffffff0, 1<<31+1, nil)},
		{
			"info", 6, wireGo(""),
			be(wireReply(6, 3, exportInfo(testSize, oneFlags)), wireReply(6, 3, blockInfo(1, 4096, 32<<20)), wireReply(6, 1, nil)),
		},
		{
			"info, all that can be asked for, twice, and more", 6, wireGo("two", 0, 1, 2, 3, 1, 2, 99),
			be(wireReply(6, 3, exportInfo(8192, 3)), wireReply(6, 3, blockInfo(512, 1024, 2048)),
				wireReply(6, 3, be(uint16(1), "two")), wireReply(6, 3, be(uint16(2), "the second")), wireReply(6, 1, nil)),
		},
		{
			"info, a description that there is not", 6, wireGo("", 1, 2),
			be(wireReply(6, 3, exportInfo(testSize, oneFlags)), wireReply(6, 3, blockInfo(1, 4096, 32<<20)),
				wireReply(6, 3, be(uint16(1))), wireReply(6, 1, nil)),
		},
		{"info of what is not there", 6, wireGo("three"), wireReply(6, 1<<31+6, be("no such export"))},
		{"go to what is not there", 7, wireGo("three"), wireReply(7, 1<<31+6, be("no such export"))},
		{"the longest name", 7, wireGo(name4k), wireReply(7, 1<<31+6, be("no such export"))},
		{"a longer name", 7, wireGo(name4k + "x"), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go that is too long", 7, make([]byte, 8193), wireReply(7, 1<<31+9, be("option is too long"))},
		{"go without data", 7, nil, wireReply(7, 1<<31+3, be("malformed option"))},
		{"go with a name longer than the option", 7, be(uint32(4), "abc", uint16(0)), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go with a name of 4 GiB", 7, be(uint32(0xffffffff), "abc", uint16(0)), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go with too few requests", 7, be(uint32(0), uint16(2), uint16(0)), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go with too many requests", 7, be(uint32(0), uint16(0), uint16(0)), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go with half a request", 7, be(uint32(0), uint16(1), "x"), wireReply(7, 1<<31+3, be("malformed option"))},
		{"go to a broken export", 7, wireGo("broken"), wireReply(7, 1<<31+4, be("export cannot be offered"))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, twoExports())
			expect(t, s.peer, greeting)
			say(t, s.peer, be(uint32(3)))
			for range 2 { // the second shows that the first left the conversation in order
				say(t, s.peer, wireOption(tc.option, tc.data))
				expect(t, s.peer, tc.replies)
			}
			say(t, s.peer, wireOption(2, be("data that is ignored")))
			expect(t, s.peer, wireReply(2, 1, nil))
			require.ErrorIs(t, <-s.end, ErrAborted)
		})
	}
}

func TestServerGoEntersTransmission(t *testing.T) {
	s := serve(t, twoExports())
	expect(t, s.peer, greeting)
	say(t, s.peer, be(uint32(1)))
	say(t, s.peer, wireOption(7, wireGo("two", 3)))
	expect(t, s.peer, be(wireReply(7, 3, exportInfo(8192, 3)), wireReply(7, 3, blockInfo(512, 1024, 2048)), wireReply(7, 1, nil)))
	say(t, s.peer, wireRequest(1, 0, 9, 0, 512, make([]byte, 512)))
	expect(t, s.peer, wireSimple(1, 9, nil)) // EPERM: in transmission, and of the read-only export
	say(t, s.peer, wireRequest(2, 0, 0, 0, 0, nil))
	require.NoError(t, <-s.end)
}

func TestServerExportName(t *testing.T) {
	for _, tc := range []struct {
		name  string
		flags uint32
		pad   int
	}{{"with zeroes", 1, 124}, {"without", 3, 0}, {"by a client that is not fixed newstyle", 0, 124}} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, twoExports())
			expect(t, s.peer, greeting)
			say(t, s.peer, be(tc.flags))
			say(t, s.peer, wireOption(1, be("two")))
			expect(t, s.peer, be(uint64(8192), uint16(3), tc.pad))
			say(t, s.peer, wireRequest(4, 0, 9, 0, 512, nil))
			expect(t, s.peer, wireSimple(1, 9, nil))
			_ = s.peer.Close()
			require.NoError(t, <-s.end)
		})
	}
}

func TestServerEndsHandshake(t *testing.T) {
	long := make([]byte, 4097)
	for _, tc := range []struct {
		name string
		say  []byte
		want error
	}{
		{"unknown client flag", be(uint32(4)), ErrProtocol},
		{"no option magic", be(uint32(3), "NBDMAGIC", uint64(0)), ErrProtocol},
		{"option too long to skip", be(uint32(3), "IHAVEOPT", uint32(99), uint32(1<<20+1)), ErrProtocol},
		{"option of 4 GiB", be(uint32(3), "IHAVEOPT", uint32(7), uint32(0xffffffff)), ErrProtocol},
		{"export name that is not there", be(uint32(3), wireOption(1, be("three"))), ErrUnknownExport},
		{"export name that is too long", be(uint32(3), wireOption(1, long)[:16]), ErrProtocol},
		{"export that is broken", be(uint32(3), wireOption(1, be("broken"))), ErrInfo},
		{"silence", nil, io.ErrUnexpectedEOF},
		{"half an option", be(uint32(3), "IHAVE"), io.ErrUnexpectedEOF},
		{"half an option's data", be(uint32(3), "IHAVEOPT", uint32(7), uint32(100), "x"), io.ErrUnexpectedEOF},
		{"half of what is skipped", be(uint32(3), "IHAVEOPT", uint32(7), uint32(1<<20), "x"), io.ErrUnexpectedEOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serve(t, twoExports())
			expect(t, s.peer, greeting)
			say(t, s.peer, tc.say)
			if errors.Is(tc.want, io.ErrUnexpectedEOF) {
				_ = s.peer.Close()
			} else {
				_, err := s.peer.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF, "the server hung up, without a word")
			}
			require.ErrorIs(t, <-s.end, tc.want)
		})
	}
}

func TestHandshakeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, twoExports())
		expect(t, s.peer, greeting)
		start := time.Now()
		err := <-s.end
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
		require.Equal(t, DefaultHandshakeTimeout, time.Since(start))
	})
}

func TestHandshakeTimeoutEndsWithTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &direct{info: Info{Size: testSize}, do: func(*Request) error { return nil }}
		_, c := backed(t, b)
		time.Sleep(time.Hour) // of the bubble's time
		require.NoError(t, do(t, c, call(CmdWrite, 0, 0, 512), nil).Err())
	})
}

// run plays a server. The steps alternate between what to hear and what to say.
func (f *fakeServer) run(hello []byte, steps ...[]byte) {
	defer close(f.done)
	defer func() { _ = f.nc.Close() }()
	if _, f.err = f.nc.Write(hello); f.err != nil {
		return
	}
	for i, step := range steps {
		if i%2 == 1 {
			if len(step) == 0 {
				continue // on a pipe, nothing waits for a reader too
			}
			if _, f.err = f.nc.Write(step); f.err != nil {
				return
			}
			continue
		}
		got := make([]byte, len(step))
		if _, f.err = io.ReadFull(f.nc, got); f.err != nil {
			return
		}
		f.heard = append(f.heard, got)
	}
	f.rest, f.err = io.ReadAll(f.nc)
}

// fakeServer is a peer that follows a script; its fields are for reading after done.
type fakeServer struct {
	nc    net.Conn
	done  chan struct{}
	heard [][]byte
	rest  []byte
	err   error
}

// dialFake shakes hands with a scripted server for the export "x".
func dialFake(t *testing.T, hello []byte, steps ...[]byte) (*Client, *fakeServer, error) {
	t.Helper()
	near, far := net.Pipe()
	f := &fakeServer{nc: far, done: make(chan struct{})}
	go f.run(hello, steps...)
	c, err := NewClient(t.Context(), near, "x")
	t.Cleanup(func() {
		_ = near.Close()
		<-f.done
	})
	return c, f, err
}

// goX is what the client says to go to the export "x".
var goX = wireOption(7, wireGo("x", 3))

func TestClientGo(t *testing.T) {
	c, f, err := dialFake(t, greeting, be(uint32(3)), nil, goX,
		be(wireReply(7, 3, be(uint16(77), "ignored")), wireReply(7, 3, blockInfo(512, 8192, 1<<20)),
			wireReply(7, 3, exportInfo(1<<30, 0x1d)), wireReply(7, 1, nil)))
	require.NoError(t, err)
	require.Equal(t, Info{Size: 1 << 30, Flags: HasFlags | SendFlush | SendFUA | Rotational, MinBlock: 512, PreferredBlock: 8192, MaxBlock: 1 << 20}, c.Info())
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "idempotent")
	<-f.done
	require.Equal(t, [][]byte{be(uint32(3)), goX}, f.heard)
	require.Empty(t, f.rest)
}

func TestClientFallsBackToExportName(t *testing.T) {
	exportX := wireOption(1, be("x"))
	for _, tc := range []struct {
		name  string
		flags uint16
		steps [][]byte
	}{
		{"newstyle, not fixed", 0, [][]byte{be(uint32(0)), nil, exportX, be(uint64(512), uint16(1), 124)}},
		{"newstyle, not fixed, no zeroes", 2, [][]byte{be(uint32(2)), nil, exportX, be(uint64(512), uint16(1))}},
		{"fixed, no GO", 3, [][]byte{be(uint32(3)), nil, goX, wireReply(7, 1<<31+1, be("what?")), exportX, be(uint64(512), uint16(1))}},
		{"fixed, no GO, zeroes", 1, [][]byte{be(uint32(1)), nil, goX, wireReply(7, 1<<31+1, nil), exportX, be(uint64(512), uint16(1), 124)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, f, err := dialFake(t, be("NBDMAGIC", "IHAVEOPT", tc.flags), tc.steps...)
			require.NoError(t, err)
			require.Equal(t, Info{Size: 512, Flags: HasFlags, MinBlock: 1, PreferredBlock: 4096, MaxBlock: 0xffffffff}, c.Info())
			require.NoError(t, c.Close())
			<-f.done
			for i, heard := range f.heard {
				require.Equal(t, tc.steps[2*i], heard)
			}
			require.Empty(t, f.rest)
		})
	}
}

func TestClientIsRefused(t *testing.T) {
	for _, kind := range []OptionReply{RepErrUnknown, RepErrPolicy, RepErrShutdown, RepErrTLSReqd, RepErrBlockSizeReqd, 1<<31 + 4711} {
		long := make([]byte, 5000)
		c, f, err := dialFake(t, greeting, be(uint32(3)), nil, goX, wireReply(7, uint32(kind), long))
		require.Nil(t, c)
		require.ErrorIs(t, err, ErrRefused)
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, &RefusedError{Option: OptGo, Reply: kind, Message: string(long[:4096])}, refused)
		<-f.done
		require.Equal(t, wireOption(2, nil), f.rest, "the client takes its leave")
	}
}

func TestClientRefusesServers(t *testing.T) {
	answer := func(b []byte) [][]byte { return [][]byte{be(uint32(3)), nil, goX, b} }
	size := wireReply(7, 3, exportInfo(1<<30, 1))
	var many []byte
	for range 257 {
		many = append(many, wireReply(7, 3, be(uint16(77)))...)
	}
	for _, tc := range []struct {
		name  string
		hello []byte
		steps [][]byte
	}{
		{"another protocol", be("HTTP/1.1 400 Bad Re"), nil},
		{"oldstyle", be("NBDMAGIC", uint64(0x00420281861253), uint64(512)), nil},
		{"another handshake", be("NBDMAGIC", uint64(1), uint64(512)), nil},
		{"no reply magic", greeting, answer(be("IHAVEOPT", 12))},
		{"reply to another option", greeting, answer(wireReply(6, 1, nil))},
		{"reply of another kind", greeting, answer(wireReply(7, 2, nil))},
		{"reply too long", greeting, answer(wireReply(7, 3, make([]byte, 64<<10+1))[:20])},
		{"acknowledged without a size", greeting, answer(wireReply(7, 1, nil))},
		{"information without a type", greeting, answer(wireReply(7, 3, be("x")))},
		{"size too short", greeting, answer(wireReply(7, 3, be(uint16(0), uint64(1))))},
		{"size too long", greeting, answer(wireReply(7, 3, be(uint16(0), uint64(1), uint32(1))))},
		{"size over 2^63", greeting, answer(wireReply(7, 3, exportInfo(1<<63, 1)))},
		{"block sizes too short", greeting, answer(wireReply(7, 3, be(uint16(3), uint32(1))))},
		{"block sizes that nobody can use", greeting, answer(be(size, wireReply(7, 3, blockInfo(3, 4096, 1<<20)), wireReply(7, 1, nil)))},
		{"block size of zero", greeting, answer(be(size, wireReply(7, 3, blockInfo(0, 4096, 1<<20)), wireReply(7, 1, nil)))},
		{"more replies than anyone needs", greeting, answer(many)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, _, err := dialFake(t, tc.hello, tc.steps...)
			require.Nil(t, c)
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
}

func TestClientHearsAServerHangUp(t *testing.T) {
	near, far := net.Pipe()
	require.NoError(t, far.Close())
	_, err := NewClient(t.Context(), near, "x")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)

	s := serve(t, twoExports())
	_, err = NewClient(t.Context(), s.peer, string(make([]byte, 4097)))
	require.ErrorIs(t, err, ErrUnknownExport)
}

func TestClientExportNameUnknown(t *testing.T) {
	near, far := net.Pipe()
	done := make(chan struct{})
	go func() { // a server without GO that hangs up, as it must
		defer close(done)
		_, _ = far.Write(be("NBDMAGIC", "IHAVEOPT", uint16(2)))
		_, _ = io.ReadFull(far, make([]byte, 4+17))
		_ = far.Close()
	}()
	_, err := NewClient(t.Context(), near, "x")
	require.ErrorIs(t, err, ErrUnknownExport)
	<-done
}

func TestClientHandshakeEndsWithItsContext(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	ctx, cancel := context.WithCancelCause(t.Context())
	why := io.ErrNoProgress
	got := make(chan error)
	go func() {
		_, err := NewClient(ctx, near, "x")
		got <- err
	}()
	cancel(why)
	require.ErrorIs(t, <-got, why)
	_, err := far.Write([]byte("x"))
	require.ErrorIs(t, err, io.ErrClosedPipe, "the connection is closed")
}
