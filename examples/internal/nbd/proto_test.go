package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHeaderOnTheWire(t *testing.T) {
	h := Header{Command: CmdWriteZeroes, Flags: FlagFUA | FlagFastZero, Cookie: math.MaxUint64 - 1, Offset: 1 << 40, Length: math.MaxUint32}
	b := appendHeader(nil, &h)
	require.Equal(t, wireRequest(6, 0x11, h.Cookie, h.Offset, h.Length, nil), b)
	got, err := decodeHeader((*[sizeRequest]byte)(b))
	require.NoError(t, err)
	require.Equal(t, h, got)
	b[3]++
	_, err = decodeHeader((*[sizeRequest]byte)(b))
	require.ErrorIs(t, err, ErrProtocol)
}

func TestSimpleReplyOnTheWire(t *testing.T) {
	b := appendSimpleReply(nil, ENOSPC, 7)
	require.Equal(t, wireSimple(28, 7, nil), b)
	e, cookie, err := decodeSimpleReply((*[sizeSimpleReply]byte)(b))
	require.NoError(t, err)
	require.Equal(t, ENOSPC, e)
	require.Equal(t, uint64(7), cookie)
}

func TestNamesAreDistinct(t *testing.T) {
	var options, commands, replies []fmt.Stringer
	for n := range 12 {
		options = append(options, Option(n))
		commands = append(commands, Command(n))
		replies = append(replies, OptionReply(n), OptionReply(n)|1<<31)
		require.False(t, OptionReply(n).IsError())
		require.True(t, (OptionReply(n) | 1<<31).IsError())
	}
	for _, kind := range [][]fmt.Stringer{options, commands, replies} {
		seen := map[string]bool{}
		for _, s := range kind {
			require.False(t, seen[s.String()], s.String())
			seen[s.String()] = true
		}
	}
	require.Equal(t, "option 4", Option(4).String())
	require.Equal(t, "command 7", Command(7).String())
}

func TestErrnoOf(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want Errno
	}{
		{nil, 0},
		{ENOMEM, ENOMEM},
		{fmt.Errorf("wrapped: %w", EPERM), EPERM},
		{Errno(0), EIO}, // an error that says success is not one
		{syscall.EACCES, EPERM},
		{syscall.EROFS, EPERM},
		{&os.PathError{Op: "write", Err: syscall.ENOSPC}, ENOSPC},
		{syscall.EDQUOT, ENOSPC},
		{syscall.EFBIG, ENOSPC},
		{syscall.EOVERFLOW, EOVERFLOW},
		{syscall.EOPNOTSUPP, ENOTSUP},
		{syscall.ECONNRESET, EIO},
		{fs.ErrPermission, EPERM},
		{os.ErrClosed, ESHUTDOWN},
		{errors.ErrUnsupported, ENOTSUP},
		{context.Canceled, EIO},
		{io.ErrShortWrite, EIO},
	} {
		require.Equal(t, tc.want, ErrnoOf(tc.err), "%v", tc.err)
	}
}

func TestErrnoIs(t *testing.T) {
	require.ErrorIs(t, ENOSPC, syscall.ENOSPC)
	require.NotErrorIs(t, ENOSPC, syscall.EDQUOT)
	require.NotErrorIs(t, ENOSPC, syscall.EINVAL)
	require.ErrorIs(t, ESHUTDOWN, syscall.ESHUTDOWN)
	require.ErrorIs(t, Errno(77), EINVAL, "what the protocol does not know counts as EINVAL")
	require.ErrorIs(t, Errno(77), syscall.EINVAL)
	require.NotErrorIs(t, Errno(77), ENOSPC)
	require.NotErrorIs(t, Errno(0), EINVAL)
	require.EqualError(t, ENOSPC, "nbd: no space left on device")
	require.EqualError(t, Errno(77), "nbd: error 77")
	require.NoError(t, Reply{}.Err())
	require.ErrorIs(t, Reply{Errno: EIO}.Err(), syscall.EIO)
}

func TestWireErrno(t *testing.T) {
	zero := Header{Command: CmdWriteZeroes}
	fast := Header{Command: CmdWriteZeroes, Flags: FlagFastZero}
	write := Header{Command: CmdWrite}
	require.Equal(t, ENOTSUP, wireErrno(ENOTSUP, &fast))
	require.Equal(t, EINVAL, wireErrno(ENOTSUP, &zero))
	require.Equal(t, EINVAL, wireErrno(ENOTSUP, &write))
	require.Equal(t, EINVAL, wireErrno(EOVERFLOW, &fast))
	require.Equal(t, EIO, wireErrno(EIO, &write))
	require.Equal(t, Errno(0), wireErrno(nil, &write))
}

func TestErrorsSayWhichOne(t *testing.T) {
	for _, tc := range []struct {
		err  error
		is   []error
		not  error
		text string
	}{
		{&URIError{URI: "x:y", Reason: "why"}, []error{ErrURI}, ErrProtocol, `nbd: bad URI "x:y": why`},
		{&ProtocolError{What: "magic", Got: 255}, []error{ErrProtocol}, ErrURI, "nbd: protocol violation: magic (0xff)"},
		{&ProtocolError{What: "offer", Err: ErrInfo}, []error{ErrProtocol, ErrInfo}, ErrURI, "nbd: protocol violation: offer: nbd: bad export information"},
		{&UnknownCookieError{Cookie: 16, Errno: EIO}, []error{ErrProtocol, ErrUnknownCookie}, ErrRefused, "nbd: reply with an unknown cookie 0x10 (errno 5)"},
		{&RefusedError{Option: OptGo, Reply: RepErrUnknown}, []error{ErrRefused, ErrUnknownExport}, ErrProtocol, "nbd: server refused GO: ERR_UNKNOWN"},
		{&RefusedError{Option: OptGo, Reply: RepErrPolicy, Message: "no"}, []error{ErrRefused}, ErrUnknownExport, `nbd: server refused GO: ERR_POLICY: "no"`},
		{&CallError{Call: Header{Command: CmdTrim}, Reason: "why"}, []error{ErrCall}, ErrProtocol, "nbd: TRIM cannot be sent: why"},
	} {
		require.EqualError(t, tc.err, tc.text)
		require.NotErrorIs(t, tc.err, tc.not)
		for _, is := range tc.is {
			require.ErrorIs(t, tc.err, is)
		}
	}
}

func TestParseURI(t *testing.T) {
	long := strings.Repeat("x", 4096)
	for _, tc := range []struct {
		in   string
		want URI
	}{
		{"nbd://example.com", URI{"tcp", "example.com:10809", ""}},
		{"nbd://example.com/", URI{"tcp", "example.com:10809", ""}},
		{"nbd://example.com/disk", URI{"tcp", "example.com:10809", "disk"}},
		{"nbd://example.com//disk", URI{"tcp", "example.com:10809", "/disk"}},
		{"nbd://example.com/hello%20world", URI{"tcp", "example.com:10809", "hello world"}},
		{"nbd://127.0.0.1:1/a/b", URI{"tcp", "127.0.0.1:1", "a/b"}},
		{"nbd://[::1]:65535/a", URI{"tcp", "[::1]:65535", "a"}},
		{"nbd://[::1]", URI{"tcp", "[::1]:10809", ""}},
		{"NBD://h/a%2Fb%3F", URI{"tcp", "h:10809", "a/b?"}},
		{"nbd://h:/x", URI{"tcp", "h:10809", "x"}},
		{"nbd://h/" + long, URI{"tcp", "h:10809", long}},
		{"nbd+unix:///disk?socket=sock", URI{"unix", "sock", "disk"}},
		{"nbd+unix:///?socket=/tmp/a%20b", URI{"unix", "/tmp/a b", ""}},
		{"nbd+unix://?socket=s", URI{"unix", "s", ""}},
		{"nbd+unix:////x?socket=s", URI{"unix", "s", "/x"}},
	} {
		got, err := ParseURI(tc.in)
		require.NoError(t, err, tc.in)
		require.Equal(t, tc.want, got, tc.in)
		again, err := ParseURI(got.String())
		require.NoError(t, err, got.String())
		require.Equal(t, got, again)
	}
}

func TestParseURIRefuses(t *testing.T) {
	for _, tc := range []struct{ in, reason string }{
		{"", "scheme"},
		{"disk", "scheme"},
		{"http://h/x", "scheme"},
		{"nbds://h/x", "TLS"},
		{"nbds+unix:///x?socket=s", "TLS"},
		{"nbd:h", "opaque"},
		{"nbd://h/x#y", "fragment"},
		{"nbd://u@h/x", "user"},
		{"nbd:///x", "host"},
		{"nbd://:10809/x", "host"},
		{"nbd://h:0/x", "port"},
		{"nbd://h:65536/x", "port"},
		{"nbd://h:y/x", "port"},
		{"nbd://h/x?socket=s", "socket"},
		{"nbd://h/x?tls-type=psk", `"tls-type"`},
		{"nbd://h/x?%zz", "query"},
		{"nbd://h/a%00b", "NUL"},
		{"nbd://h/" + strings.Repeat("x", 4097), "4096"},
		{"nbd+unix:///x", "socket"},
		{"nbd+unix:///x?socket=", "one value"},
		{"nbd+unix:///x?socket=a&socket=b", "one value"},
		{"nbd+unix:///x?socket=%00a", "NUL"},
		{"nbd+unix://h/x?socket=s", "host"},
		{"nbd://h/%", "escape"},
		{"nbd://::", "host"},
		{"nbd://:::1/x", "host"},
		{"nbd://a%25b/x", "host"},
		{"nbd://[::1", "host"},
		{"nbd://[fe80::1%25\xb2]/x", "host"},
		{"nbd://[fe80::1%25a b]/x", "host"},
	} {
		_, err := ParseURI(tc.in)
		require.ErrorIs(t, err, ErrURI, tc.in)
		var e *URIError
		require.ErrorAs(t, err, &e)
		require.Equal(t, tc.in, e.URI)
		require.Contains(t, e.Reason, tc.reason, tc.in)
	}
	_, err := Dial(t.Context(), "nbds://h")
	require.ErrorIs(t, err, ErrURI)
}

func TestInfoDefaultsAndChecks(t *testing.T) {
	const limit = 32 << 20
	got, err := Info{Size: 100, Flags: SendDF | SendResize | SendFastZero | ReadOnly}.effective(limit)
	require.NoError(t, err)
	require.Equal(t, Info{Size: 100, Flags: HasFlags | ReadOnly, MinBlock: 1, PreferredBlock: 4096, MaxBlock: limit}, got)
	got, err = Info{Size: 1 << 40, MinBlock: 1 << 16, MaxBlock: 1 << 31}.effective(limit + 5)
	require.NoError(t, err)
	require.Equal(t, Info{Size: 1 << 40, Flags: HasFlags, MinBlock: 1 << 16, PreferredBlock: 1 << 16, MaxBlock: limit}, got)
	for _, bad := range []Info{
		{Size: -1},
		{MinBlock: 3},
		{MinBlock: 1 << 17},
		{PreferredBlock: 256},
		{PreferredBlock: 5000},
		{MinBlock: 8192, PreferredBlock: 4096},
		{Size: 1 << 20, MaxBlock: 2048},
		{Size: 1 << 20, MinBlock: 4096, MaxBlock: 4097},
	} {
		_, err := bad.effective(limit)
		require.ErrorIs(t, err, ErrInfo, "%+v", bad)
	}
}

func TestVet(t *testing.T) {
	const size = 1 << 20
	full, err := Info{Size: size, Flags: allFlags, MinBlock: 512, MaxBlock: 64 << 10}.effective(32 << 20)
	require.NoError(t, err)
	bare, err := Info{Size: size}.effective(64 << 10)
	require.NoError(t, err)
	readOnly := full
	readOnly.Flags |= ReadOnly
	for _, tc := range []struct {
		name string
		info Info
		h    Header
		want Errno
	}{
		{"read", full, Header{Command: CmdRead, Offset: size - 512, Length: 512}, 0},
		{"read nothing at the end", full, Header{Command: CmdRead, Offset: size}, 0},
		{"read past the end", full, Header{Command: CmdRead, Offset: size - 512, Length: 1024}, EINVAL},
		{"read with an offset that overflows", full, Header{Command: CmdRead, Offset: math.MaxUint64 - 511, Length: 512}, EINVAL},
		{"read too much", full, Header{Command: CmdRead, Length: 64<<10 + 512}, EINVAL},
		{"read off the grid", full, Header{Command: CmdRead, Offset: 1, Length: 512}, EINVAL},
		{"read off the grid in length", full, Header{Command: CmdRead, Length: 1}, EINVAL},
		{"read with FUA", full, Header{Command: CmdRead, Flags: FlagFUA, Length: 512}, 0},
		{"read with FUA, not offered", bare, Header{Command: CmdRead, Flags: FlagFUA, Length: 512}, EINVAL},
		{"read with DF", full, Header{Command: CmdRead, Flags: FlagDF, Length: 512}, EINVAL},
		{"read, read-only", readOnly, Header{Command: CmdRead, Length: 512}, 0},
		{"write", full, Header{Command: CmdWrite, Flags: FlagFUA, Length: 512}, 0},
		{"write past the end", full, Header{Command: CmdWrite, Offset: size, Length: 512}, ENOSPC},
		{"write too much", full, Header{Command: CmdWrite, Length: math.MaxUint32}, ENOSPC},
		{"write too much, in bounds", full, Header{Command: CmdWrite, Length: 128 << 10}, EINVAL},
		{"write with NO_HOLE", full, Header{Command: CmdWrite, Flags: FlagNoHole, Length: 512}, EINVAL},
		{"write, read-only", readOnly, Header{Command: CmdWrite, Length: 512}, EPERM},
		{"flush", full, Header{Command: CmdFlush}, 0},
		{"flush, not offered", bare, Header{Command: CmdFlush}, EINVAL},
		{"flush with a length", full, Header{Command: CmdFlush, Length: 512}, EINVAL},
		{"flush with an offset", full, Header{Command: CmdFlush, Offset: 512}, EINVAL},
		{"trim longer than a write", full, Header{Command: CmdTrim, Length: size}, 0},
		{"trim past the end", full, Header{Command: CmdTrim, Offset: 512, Length: size}, EINVAL},
		{"trim, not offered", bare, Header{Command: CmdTrim, Length: 512}, EINVAL},
		{"trim, read-only", readOnly, Header{Command: CmdTrim, Length: 512}, EPERM},
		{"zero", full, Header{Command: CmdWriteZeroes, Flags: FlagFUA | FlagNoHole, Length: 512}, 0},
		{"zero too much", full, Header{Command: CmdWriteZeroes, Length: size}, EINVAL},
		{"zero fast", full, Header{Command: CmdWriteZeroes, Flags: FlagFastZero, Length: size}, 0},
		{"zero past the end", full, Header{Command: CmdWriteZeroes, Offset: size, Length: 512}, ENOSPC},
		{"zero, not offered", bare, Header{Command: CmdWriteZeroes, Length: 512}, EINVAL},
		{"zero, read-only", readOnly, Header{Command: CmdWriteZeroes, Length: 512}, EPERM},
		{"cache", full, Header{Command: CmdCache, Length: 512}, 0},
		{"cache, not offered", bare, Header{Command: CmdCache, Length: 512}, EINVAL},
		{"block status", full, Header{Command: 7, Length: 512}, EINVAL},
		{"unknown", full, Header{Command: math.MaxUint16, Length: 512}, EINVAL},
		{"disconnect is nothing to carry out", full, Header{Command: CmdDisc}, EINVAL},
	} {
		require.Equal(t, tc.want, tc.info.vet(&tc.h), tc.name)
	}
	noFast := full
	noFast.Flags &^= SendFastZero
	require.Equal(t, EINVAL, noFast.vet(&Header{Command: CmdWriteZeroes, Flags: FlagFastZero, Length: 512}))
	read := Header{Command: CmdRead, Flags: FlagFUA, Length: 512}
	require.Zero(t, full.vet(&read))
	require.Zero(t, read.Flags, "FUA means nothing on what does not write")
	write := Header{Command: CmdTrim, Flags: FlagFUA, Length: 512}
	require.Zero(t, full.vet(&write))
	require.Equal(t, FlagFUA, write.Flags)
}
