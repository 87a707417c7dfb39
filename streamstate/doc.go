// Package streamstate keeps the books of every open stream: sessions, partition claims, positions, flushes and pending
// repair. A service that follows a partitioned change feed (Kafka, DCP, …) imports it; it moves no data itself.
//
// A [Book] has a record for each [Key]. A [Session] is one life of a key, a [Claim] one life of a partition within it:
//
//	book := streamstate.NewBook[*index](streamstate.Options{})
//	s, err := book.Open(key, streamstate.OpenOptions[*index]{
//		Partitions: 12, Wanted: streamstate.None, Restart: at, Payload: ix,
//	})
//
//	err = s.Want(p) // assigned
//	c, err := s.Begin(p, streamstate.Begin{Owner: "me", Term: generation, From: from})
//	err = c.Apply(next, func(tx streamstate.Tx[*index]) error { … }) // checked, applied and advanced in one hold
//	err = s.Flush(ctx, func(ctx context.Context, t streamstate.Timestamp) error { … })
//	err = s.Unwant(p).Wait(ctx) // revoked
//	err = s.Drop().Wait(ctx)
//
// # What it promises
//
//   - State is reachable only through a call that checks the caller's token in the same lock hold in which the state is
//     used. After a clean-up the caller gets a typed error and nothing has changed (Couchbase MB-37227).
//   - Tokens (session, claim, ticket, hold) are never reused, and die when what they name ends. [Session.ID] is for the
//     wire: those of two lives of a process do not collide.
//   - Nothing changes on error: [Session.Fingerprint] is the same. What starts something takes no context; it returns a
//     handle, and the context of its Wait bounds only the wait.
//   - What is refused is returned with its reason and counted ([Book.Stats]); the first [Reason] that applies counts.
//   - No panic from the outside: nothing that a peer, a late message, a second call or an ended context can do panics.
//   - Ending resolves everything that hangs on it, once, with a typed cause.
//   - What is refused for now is kept as state, and looked at again after every change that could unblock it.
//   - A key takes about 72 bytes for each partition, 24 for each claim (made 42 at a time), and 32 for each
//     position in a [Timestamp] that is kept and differs from the others; one alone keeps at most three times its own
//     positions. At most MaxEvents events of a key wait to be told, and a call keeps no more until its end.
//
// Ids such as S01 or S42 in these docs name faults, each with what must come of it and a test: docs/SCENARIOS.md lists them.
//
// # Concurrency
//
// All methods of all types are safe for concurrent use. Each key has one lock, and one place that acquires it; two keys
// never contend. The functions given to Read, Update, When, Apply, ApplyBatch, Pair, Merge, Carry and the ends of
// [Exchange] run under it: they are to be short, and may use nothing of this package but what they are given. If one
// panics, the lock is released with nothing changed. Callbacks and logs run with no lock held, in order, one at a time
// for each key, on the goroutine of whichever call found none running; so a call may return before its own event was
// told. A callback may call anything, and may wait for anything but another callback of its key.
package streamstate
