package nbd

import (
	"context"
	"sync/atomic"
)

// Backend is what an export does. Submit is called by one goroutine per connection, so by
// several at once where several clients are connected.
type Backend interface {
	// Info is asked for at each handshake; what it says holds for that connection.
	Info() Info
	// Submit takes a request over: some goroutine, this one or another, must call Reply once and Release
	// once. Requests may be executed and answered in any order; a flush covers the writes that have been
	// answered. Submit may block, which holds back this connection only. ctx ends when the connection has
	// been lost or the server closes: it bounds Submit's own waiting, not the request.
	Submit(ctx context.Context, req *Request)
}

// Request is a checked request of a client: in bounds, aligned, not longer than allowed, its flags among
// those that the export offers. It is safe for concurrent use by value of its two calls; the fields
// are read-only until Release.
type Request struct {
	// Header is what the client asked for. The command is one of read, write, flush, trim, cache and write
	// zeroes. Length is not zero except for a flush. FlagFUA is set only on what writes. The
	// cookie is the client's and need not be unique.
	Header
	// Data is Length bytes: of a write the payload; of a read the place for the answer, all of which must have
	// been filled before Reply(nil), its content until then being arbitrary. Nil for other commands. It
	// must not be touched after Release, and a read's not after Reply.
	Data []byte

	conn  *conn
	buf   *buffer       // holds Data; nil for none
	cost  uint32        // bytes of MaxInFlightBytes until the reply is written
	state atomic.Uint32 // of the request* bits
	errno Errno         // written before the request is queued, read by the writer
	// admitted says that the request went to the backend. Immutable after Submit.
	admitted bool
}

const (
	requestReplied  uint32 = 1 << iota // Reply was called
	requestReleased                    // the backend no longer touches Data
	requestSent                        // the connection no longer touches Data

	requestDone = requestReleased | requestSent
)

// Reply answers the request: nil for success, an error as [ErrnoOf] maps it. Only the first call
// counts. It never blocks on the client, and calls nothing of the backend. The reply of a connection that
// has ended goes nowhere.
func (r *Request) Reply(err error) {
	if r.state.Or(requestReplied)&requestReplied != 0 {
		return
	}
	r.errno = wireErrno(err, &r.Header)
	r.conn.enqueue(r)
}

// Release says that the backend no longer touches Data, which may then become another request's. It may
// come before or after Reply, from any goroutine; only the first call counts. Without it the memory is
// not lost for good, but is left to the garbage collector.
func (r *Request) Release() { r.finish(requestReleased) }

// sent is Release for the connection's side.
func (r *Request) sent() { r.finish(requestSent) }

// finish marks one side as done; who comes second recycles the buffer.
func (r *Request) finish(side uint32) {
	old := r.state.Or(side)
	if old&side != 0 || (old|side)&requestDone != requestDone || r.buf == nil {
		return
	}
	buf := r.buf
	r.buf, r.Data = nil, nil
	r.conn.srv.buffers.put(buf)
}
