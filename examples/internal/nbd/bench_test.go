package nbd

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRoundTrip is a request and its reply, one at a time, over the loopback; allocations are of both sides.
// The plain line is as many bytes there and back with no protocol.
func BenchmarkRoundTrip(b *testing.B) {
	backend := &direct{info: Info{Size: testSize, Flags: allFlags}, do: func(*Request) error { return nil }}
	dst := make([]byte, 4096)
	for _, bc := range []struct {
		name string
		call Call
	}{{"write 4k", call(CmdWrite, 0, 0, 4096)}, {"read 4k", call(CmdRead, 0, 0, 4096)}, {"flush", call(CmdFlush, 0, 0, 0)}} {
		b.Run(bc.name, func(b *testing.B) {
			_, uri := listen(b, oneExport(backend))
			c, err := Dial(b.Context(), uri)
			require.NoError(b, err)
			defer func() { _ = c.Close() }()
			lookup := noData
			if bc.call.Command == CmdRead {
				lookup = into(dst)
			}
			b.ReportAllocs()
			b.SetBytes(int64(bc.call.Length))
			for b.Loop() {
				if err := c.Send(bc.call); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Receive(lookup); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("plain 4k", benchmarkPlain)
}

func benchmarkPlain(b *testing.B) {
	near, far := socketPair(b)
	go func() { _, _ = io.Copy(far, onlyReader{far}) }()
	out := make([]byte, 4096)
	in := make([]byte, 4096)
	b.ReportAllocs()
	b.SetBytes(4096)
	for b.Loop() {
		if _, err := near.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkQueue is the same with 64 requests on their way, sent 16 at a time.
func BenchmarkQueue(b *testing.B) {
	backend := &direct{info: Info{Size: testSize, Flags: allFlags}, do: func(*Request) error { return nil }}
	_, uri := listen(b, oneExport(backend))
	c, err := Dial(b.Context(), uri)
	require.NoError(b, err)
	defer func() { _ = c.Close() }()
	calls := make([]Call, 16)
	for i := range calls {
		calls[i] = call(CmdWrite, 0, 0, 4096)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(calls)) * 4096)
	room := make(chan struct{}, 4)
	received := make(chan error, 1)
	go func() {
		for n := 1; ; n++ {
			if _, err := c.Receive(noData); err != nil {
				received <- err
				return
			}
			if n%len(calls) == 0 {
				<-room
			}
		}
	}()
	for b.Loop() {
		room <- struct{}{}
		if err := c.Send(calls...); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, c.CloseWrite())
	require.ErrorIs(b, <-received, io.EOF)
}

// BenchmarkWire is the protocol alone: a server that reads a script of writes and answers into nothing.
func BenchmarkWire(b *testing.B) {
	const n = 1000
	request := wireRequest(1, 0, 1, 0, 4096, make([]byte, 4096))
	in := append(hello(), bytes.Repeat(request, n)...)
	backend := &direct{info: Info{Size: testSize}, do: func(*Request) error { return nil }}
	srv, err := NewServer(oneExport(backend))
	require.NoError(b, err)
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	for b.Loop() {
		if err := srv.ServeConn(&fuzzConn{newScript(bytes.NewReader(in))}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/request")
}

// onlyReader hides that a socket can copy itself.
type onlyReader struct{ io.Reader }

// socketPair is two ends of a connection over the loopback.
func socketPair(t testing.TB) (near, far net.Conn) {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var d net.Dialer
	near, err = d.DialContext(t.Context(), "tcp", ln.Addr().String())
	require.NoError(t, err)
	far, err = ln.Accept()
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		_ = near.Close()
		_ = far.Close()
	})
	return near, far
}
