// Command mirror is a network block device that is kept on several replicas. In front it is an NBD server, behind it are
// NBD servers that hold a replica each; a jobtracker.Tracker keeps the book of every job in between. See mirror -h.
//
// # What it promises
//
//   - A write is acknowledged when a quorum of the replicas (-ack) has done it, a flush when a quorum has made durable
//     everything acknowledged before it. What was flushed survives a crash of mirror and of any minority of the replicas.
//   - A replica that is killed comes back by replay within the limits of -offline-jobs, -offline-bytes and -offline-for.
//     Past them, and when it has failed a change or is a blank in the place of another, it is repaired while clients go on:
//     what it has missed is copied to it, and it counts again when all of it is durable there (-repair, -repair-rate).
//   - Replicas that may differ at the start, after a crash of mirror, are made equal before clients are served, by what they
//     remember; everything that was flushed is there, and whatever interrupts that, nothing is lost (-plan).
//   - A replica is replaced while clients go on, by what is at another place or by a blank file (mirror replace): whatever the
//     former one still answers is an orphan, and one that never comes to its end is no hindrance.
//   - A reply that comes late, on a connection that has ended, is counted as an orphan and changes nothing.
//   - No new connection to a replica is opened before the old one was read to its end: a stopped server still executes
//     what lies in its socket.
//
// # Parts
//
// The front (front.go) turns requests of NBD clients into jobs. A driver for each replica (driver.go) opens a link
// (link.go), reads the metadata, and runs a session (session.go) for each life of the connection, with a receiver and a
// sender (sender.go). The metadata in the last MiB of each replica (meta.go) and the rules of its dirty bits (dirty.go)
// are pure. serve.go starts and stops all of it; create.go makes a new device on servers; reconcile.go makes replicas
// equal at the start, through repair.Reconcile, and plan.go says what that would do; repair.go drives the repair of a
// replica, through repair.Live and the jobs of the tracker; replace.go puts another device in a replica's place. control.go
// is the endpoint for that and for the state of it all (report.go), command.go the commands that ask it. screen.go has
// the status line and the bars of a terminal.
//
// # Concurrency
//
// A session is three goroutines: one takes jobs from the tracker, one owns the sending half of the connection and the
// replica's metadata, one receives. What they share is the table of calls on their way. The extents' book is shared by
// all sessions under a lock of its own. No lock is held over I/O or over a call of the tracker.
//
// # What NBD cannot give
//
// NBD has no fencing. If mirror itself is killed while a replica's server is stopped, that server still has requests in
// its socket, and executes them when it goes on, under the feet of the next mirror. Restart such a server first.
//
// Never run two mirrors on the same replicas: NBD cannot tell them apart, and neither can mirror. Files of -dir are
// locked, on Linux, so that a second mirror is refused.
package main
