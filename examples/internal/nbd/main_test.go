package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testSize = 1 << 20

// allFlags is everything that a backend can offer to write with.
const allFlags = SendFlush | SendFUA | SendTrim | SendWriteZeroes | SendFastZero | SendCache | CanMultiConn

// manual is a backend whose requests the test answers.
type manual struct {
	info Info
	reqs chan *Request
}

func newManual() *manual {
	return &manual{info: Info{Size: testSize, Flags: allFlags}, reqs: make(chan *Request)}
}

func (m *manual) Info() Info { return m.info }

func (m *manual) Submit(ctx context.Context, req *Request) {
	select {
	case m.reqs <- req:
	case <-ctx.Done():
		req.Release()
		req.Reply(ESHUTDOWN)
	}
}

// direct is a backend that answers at once.
type direct struct {
	info Info
	do   func(*Request) error
}

func (d *direct) Info() Info { return d.info }

func (d *direct) Submit(_ context.Context, req *Request) {
	err := d.do(req)
	req.Release()
	req.Reply(err)
}

// memory is a Storage that counts its syncs and can fail.
type memory struct {
	mu    sync.Mutex
	b     []byte
	syncs int
	err   error
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, m.err
	}
	if off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, m.err
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.syncs++
	return m.err
}

// served is a server with one connection, over a pipe.
type served struct {
	srv  *Server
	peer net.Conn   // the client's end
	end  chan error // what ServeConn returned
}

// serve starts a server with one connection; it ends with the test.
func serve(t *testing.T, opts Options) *served {
	t.Helper()
	srv, err := NewServer(opts)
	require.NoError(t, err)
	s := &served{srv: srv}
	s.peer, s.end = s.connect()
	t.Cleanup(func() {
		_ = s.peer.Close()
		_ = srv.Close()
	})
	return s
}

func (s *served) connect() (net.Conn, chan error) {
	near, far := net.Pipe()
	end := make(chan error, 1)
	go func() { end <- s.srv.ServeConn(far) }()
	return near, end
}

// client shakes hands for the default export.
func (s *served) client(t *testing.T) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), s.peer, "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// oneExport offers b as the default export.
func oneExport(b Backend) Options { return Options{Exports: []Export{{Backend: b}}} }

// backed serves b and returns a client of it.
func backed(t *testing.T, b Backend) (*served, *Client) {
	t.Helper()
	s := serve(t, oneExport(b))
	return s, s.client(t)
}

// noData is the Lookup of calls that bring no data, whatever their cookie.
func noData(uint64) (uint32, []byte, bool) { return 0, nil, true }

// into is the Lookup of a read into dst.
func into(dst []byte) Lookup {
	return func(uint64) (uint32, []byte, bool) { return uint32(len(dst)), dst, true }
}

// do sends one call and returns the reply.
func do(t *testing.T, c *Client, call Call, dst []byte) Reply {
	t.Helper()
	sent := make(chan error, 1) // a pipe has no buffer: the reply may come before the last byte was taken
	go func() { sent <- c.Send(call) }()
	r, err := c.Receive(into(dst))
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.Equal(t, call.Cookie, r.Cookie)
	return r
}

// call makes a Call; a write's payload is zeros.
func call(cmd Command, flags CommandFlags, off uint64, n uint32) Call {
	c := Call{Header: Header{Command: cmd, Flags: flags, Cookie: 42, Offset: off, Length: n}}
	if cmd == CmdWrite {
		c.Payload = make([]byte, n)
	}
	return c
}

// script is a connection whose peer has said all it will say. Writes are counted and go nowhere.
type script struct {
	net.Conn // nil: the other methods must not be called
	in       io.Reader
	closed   chan struct{}
	close    func()
	mu       sync.Mutex
	out      int
}

func newScript(in io.Reader) *script {
	s := &script{in: in, closed: make(chan struct{})}
	s.close = sync.OnceFunc(func() { close(s.closed) })
	return s
}

func (s *script) Read(p []byte) (int, error) {
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	default:
		return s.in.Read(p)
	}
}

func (s *script) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out += len(p)
	return len(p), nil
}

func (s *script) Close() error {
	s.close()
	return nil
}

func bufioReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, readBuffer) }

// The wire, written down once more for tests that must not believe the package.

func be(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case uint16:
			b = binary.BigEndian.AppendUint16(b, v)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		case string:
			b = append(b, v...)
		case []byte:
			b = append(b, v...)
		case int:
			b = append(b, make([]byte, v)...) // so many zeros
		default:
			panic(errors.New("be: unknown type"))
		}
	}
	return b
}

// wireOption is an option as a client sends it.
func wireOption(option uint32, data []byte) []byte {
	return be("IHAVEOPT", option, uint32(len(data)), data)
}

// wireReply is an option reply as a server sends it.
func wireReply(option, kind uint32, data []byte) []byte {
	return be(uint64(0x3e889045565a9), option, kind, uint32(len(data)), data)
}

// wireGo is the data of INFO and GO.
func wireGo(name string, infos ...uint16) []byte {
	b := be(uint32(len(name)), name, uint16(len(infos)))
	for _, i := range infos {
		b = be(b, i)
	}
	return b
}

// wireRequest is a request as a client sends it.
func wireRequest(cmd, flags uint16, cookie, off uint64, n uint32, payload []byte) []byte {
	return be(uint32(0x25609513), flags, cmd, cookie, off, n, payload)
}

// wireSimple is a simple reply as a server sends it.
func wireSimple(errno uint32, cookie uint64, data []byte) []byte {
	return be(uint32(0x67446698), errno, cookie, data)
}

// greeting is what a server says first.
var greeting = be("NBDMAGIC", "IHAVEOPT", uint16(3))

// expect reads exactly want.
func expect(t *testing.T, r io.Reader, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(r, got)
	require.Equal(t, want, got[:n])
	require.NoError(t, err)
}

// say writes b; the pipe's other end must take it all.
func say(t *testing.T, w io.Writer, b []byte) {
	t.Helper()
	if len(b) == 0 {
		return // on a pipe, nothing waits for a reader too
	}
	_, err := w.Write(b)
	require.NoError(t, err)
}
