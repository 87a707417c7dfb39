package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// fuzzBackend answers from another goroutine, in another order, and holds requests to what Request promises.
type fuzzBackend struct {
	t    *testing.T
	info Info
	reqs chan *Request
}

func (b *fuzzBackend) Info() Info { return b.info }

func (b *fuzzBackend) Submit(_ context.Context, r *Request) {
	end := r.Offset + uint64(r.Length)
	switch {
	case end < r.Offset || end > uint64(b.info.Size):
		b.t.Errorf("out of bounds: %+v", r.Header)
	case (r.Command == CmdRead || r.Command == CmdWrite) && (r.Length == 0 || r.Length > 8192 || len(r.Data) != int(r.Length)):
		b.t.Errorf("length: %+v with %d bytes", r.Header, len(r.Data))
	case r.Command == CmdDisc || r.Command > CmdWriteZeroes:
		b.t.Errorf("not to be carried out: %+v", r.Header)
	}
	b.reqs <- r
}

// answer answers until reqs is closed: whatever is there at a time, the last first.
func (b *fuzzBackend) answer() {
	for r := range b.reqs {
		batch := []*Request{r}
		for len(b.reqs) > 0 {
			batch = append(batch, <-b.reqs)
		}
		for _, r := range slices.Backward(batch) {
			clear(r.Data)
			if r.Cookie%3 == 0 {
				r.Release()
				r.Reply(nil)
			} else {
				r.Reply(EIO)
				r.Release()
			}
		}
	}
}

// hello is a whole handshake of a client.
func hello() []byte { return be(uint32(3), wireOption(7, wireGo("", 3))) }

// FuzzServer: whatever a client says, before the handshake or after, the server ends with it, hands
// on nothing that it should not, and answers no more than there was to answer.
func FuzzServer(f *testing.F) {
	f.Add(true, be(wireRequest(1, 1, 2, 0, 16, make([]byte, 16)), wireRequest(0, 0, 3, 0, 16, nil), wireRequest(2, 0, 0, 0, 0, nil)))
	f.Add(true, be(wireRequest(3, 0, 1, 0, 0, nil), wireRequest(4, 0, 3, 0, 1<<16, nil), wireRequest(6, 2, 5, 8, 16, nil), wireRequest(5, 0, 7, 0, 1, nil)))
	f.Add(true, be(wireRequest(1, 0, 2, 1<<63, 0xffffffff, nil), wireRequest(99, 0xffff, 2, 0, 0, nil)))
	f.Add(false, be(uint32(3), wireOption(3, nil), wireOption(6, wireGo("", 1, 2, 3)), wireOption(5, nil), wireOption(8, nil), wireOption(2, nil)))
	f.Add(false, be(uint32(0), wireOption(1, nil), wireRequest(0, 0, 3, 0, 16, nil)))
	f.Add(false, be(uint32(1), wireOption(7, be(uint32(0xffffffff), "x", uint16(0xffff))), wireOption(7, make([]byte, 9000))))
	f.Fuzz(func(t *testing.T, shaken bool, in []byte) {
		if shaken {
			in = append(hello(), in...)
		}
		b := &fuzzBackend{t: t, info: Info{Size: 1 << 16, Flags: allFlags, MaxBlock: 8192}, reqs: make(chan *Request, 4)}
		srv, err := NewServer(Options{
			Exports:    []Export{{Backend: b, Description: "for the fuzzer"}},
			MaxRequest: 8192, MaxInFlight: 4, MaxInFlightBytes: 3 * 8192,
		})
		if err != nil {
			t.Fatal(err)
		}
		var answers sync.WaitGroup
		answers.Go(b.answer)
		nc := &fuzzConn{newScript(bytes.NewReader(in))}
		err = srv.ServeConn(nc)
		close(b.reqs)
		answers.Wait()
		if err == nil && len(in) < sizeOptionHeader {
			t.Fatal("an orderly end of what cannot have begun")
		}
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
		// An option of 16 bytes is answered with at most some hundred, a request of 28 with at most 16 + 8192.
		if limit := 1024 + len(in)*(16+8192)/16; nc.out > limit {
			t.Fatalf("%d bytes of answers to %d bytes", nc.out, len(in))
		}
		select {
		case <-nc.closed:
		default:
			t.Fatal("connection left open")
		}
	})
}

// fuzzConn has the methods of a connection that a script lacks.
type fuzzConn struct{ *script }

func (*fuzzConn) RemoteAddr() net.Addr        { return &net.UnixAddr{Name: "fuzz", Net: "unix"} }
func (*fuzzConn) SetDeadline(time.Time) error { return nil }

// FuzzClient: whatever a server says, before the handshake or after, the client ends with it and reads no
// more into a buffer than it was told to.
func FuzzClient(f *testing.F) {
	shake := be(greeting, wireReply(7, 3, exportInfo(1<<20, 1)), wireReply(7, 1, nil))
	f.Add(true, be(wireSimple(0, 16, make([]byte, 16)), wireSimple(5, 1, nil), wireSimple(0, 3, nil)))
	f.Add(true, be(uint32(0x668e33ef), uint16(1), uint16(0), uint64(1), uint32(0)))
	f.Add(false, be(greeting, wireReply(7, 3, blockInfo(1, 512, 1<<20)), wireReply(7, 3, exportInfo(1<<20, 1)), wireReply(7, 1, nil), wireSimple(0, 1, nil)))
	f.Add(false, be(greeting, wireReply(7, 1<<31+1, nil), uint64(512), uint16(1), wireSimple(0, 1, nil)))
	f.Add(false, be("NBDMAGIC", "IHAVEOPT", uint16(0), uint64(512), uint16(1), 124))
	f.Add(false, be(greeting, wireReply(7, 1<<31+6, be("gone"))))
	f.Fuzz(func(t *testing.T, shaken bool, in []byte) {
		if shaken {
			in = append(bytes.Clone(shake), in...)
		}
		nc := &fuzzConn{newScript(bytes.NewReader(in))}
		c, err := NewClient(t.Context(), nc, "x")
		if err != nil {
			select {
			case <-nc.closed:
			default:
				t.Fatal("connection left open")
			}
			return
		}
		if c.Info().check() != nil {
			t.Fatalf("offer %+v", c.Info())
		}
		guarded := make([]byte, 256)
		for replies := 0; ; replies++ {
			r, err := c.Receive(func(cookie uint64) (uint32, []byte, bool) {
				n := uint32(cookie % 251)
				return n, guarded[:n/2], cookie%13 != 0
			})
			if bytes.Count(guarded[128:], []byte{0}) != 128 {
				t.Fatal("read past the buffer")
			}
			if err != nil {
				break
			}
			if r.Errno != 0 && r.Data != nil || len(r.Data) > 125 {
				t.Fatalf("reply %+v", r)
			}
			if replies > len(in)/sizeSimpleReply {
				t.Fatal("more replies than bytes")
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzParseURI: what it accepts can be written down and read again.
func FuzzParseURI(f *testing.F) {
	for _, s := range []string{
		"nbd://example.com:10809/export", "nbd://[fe80::1%25eth0]/x", "nbd+unix:///export?socket=nbd.sock",
		"nbd+unix:////x?socket=/tmp/a%20b", "nbds://h", "nbd://h//x%2Fy%3F", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURI(s)
		if err != nil {
			if !errors.Is(err, ErrURI) {
				t.Fatal(err)
			}
			return
		}
		again, err := ParseURI(u.String())
		if err != nil || again != u {
			t.Fatalf("%q: %+v became %+v (%v) by way of %q", s, u, again, err, u.String())
		}
		if u.Address == "" || len(u.Export) > maxString {
			t.Fatalf("%q: %+v", s, u)
		}
	})
}
