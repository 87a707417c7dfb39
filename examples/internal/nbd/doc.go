// Package nbd speaks the Network Block Device protocol, both sides of it: fixed newstyle handshake,
// simple replies, no TLS, as the protocol document describes them
// (https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md).
//
// # Server
//
// A [Server] offers [Export] values. Each has a [Backend], which takes a [Request] in Submit and answers it
// whenever it is done, from any goroutine: there is no goroutine per request. Replies leave in the
// order of completion. What a client may not ask for is answered by the server with the protocol's error
// and never reaches the backend.
//
// A request has two ends. [Request.Reply] is the answer; [Request.Release] says that the backend
// no longer touches [Request.Data]. They are apart because a replicated device answers a write
// while it is still sending the payload to a slow replica. The buffer is used again only after both, so
// forgetting Release costs memory and never corrupts. A Request itself is never used again: a late or
// second Reply cannot reach another request.
//
// # Client
//
// A [Client] is one connection, in two halves: one goroutine calls [Client.Send], another [Client.Receive].
// The caller chooses the cookies and keeps the book of what is in flight; Receive asks it where
// the data of a reply go. To leave a server quiet, send all, optionally [CmdDisc], then
// [Client.CloseWrite] and Receive until [io.EOF]: nothing sent before can be executed after that.
//
// # Concurrency properties
//
//   - Server: all methods are safe for concurrent use. Serve, ServeConn, Shutdown and Close block; Close waits for
//     every goroutine of the server, so a Backend must not call it from Submit.
//   - Each connection is one reader (which calls Submit, in the order of arrival) and one writer. A Submit
//     that blocks holds back its own connection only.
//   - Reply and Release never block on the network. The replies that wait for a slow client are
//     bounded by the connection's in-flight limits: the reader takes no request beyond them.
//   - Client: Send is for one goroutine at a time, Receive for one goroutine at a time; everything else is
//     safe from any. Send blocks while the peer does not read, Receive while it does not answer;
//     CloseWrite ends the first, Close both.
//   - No lock is held over I/O, over a Backend or over a [Lookup].
//
// # Memory
//
// Per connection: two fixed buffers, and the payloads of at most Options.MaxInFlight requests and
// Options.MaxInFlightBytes bytes (rounded up to powers of two, so at most twice that) until their replies are
// written. No length that a peer sends is allocated before it has been checked against a limit. What a
// backend keeps between Reply and Release is the backend's own to bound.
package nbd
