// Package jobtracker keeps every I/O job of a block device that is replicated n times: ids, order, where each job stands
// on each replica, quorum acknowledgements, retirement and replay. The front end of network block storage imports it; it
// moves no data itself.
//
// A [Tracker] is activated, its replicas connect, jobs are submitted:
//
//	tr, err := jobtracker.New(jobtracker.Config[*request]{Replicas: 3, Blocks: 1 << 20, BlockSize: 4096})
//	begun, err := tr.Activate(jobtracker.ActivateOptions{Generation: 1, Create: true})
//	conn, err := tr.Connect(0, hello)                    // a driver for each replica
//	err = begun.Wait(ctx)
//	err = tr.Do(ctx, jobtracker.Op{Kind: jobtracker.Write, Start: 7, Blocks: 2}, req)
//
// A driver of a replica has a sender, which takes jobs with [Conn.NextBatch], and a receiver, which hands each reply to
// [Conn.Complete] of the [Conn] it came in on.
//
// # What it promises
//
//   - A late completion never does harm. What cannot be applied comes back as an *[OrphanError] with the exact reason,
//     whatever its age, in constant memory, and changes nothing but a count (issues 1121 and 1290 of oxidecomputer/crucible).
//   - A [Conn] is a token: it is checked in the same lock hold in which the state is used, and dies when the connection
//     ends, not when the next one begins (issue 1155 there). A peer that is not [Conn.Quiesced] cannot be followed by another.
//   - Nothing changes on error. After a non-nil error the state is as it was: [Tracker.Fingerprint] is the same.
//   - No panic from the outside: nothing that a peer, a late message, a second call or an ended context can do panics.
//   - Ending resolves everything: each job, waiter and ticket, once, with a typed cause.
//   - Once faults stop, every job resolves: no replica waits for a job it was never sent.
//   - Memory is bounded by the limits of [Config]: a job needs about 64 bytes, a link of 12 bytes for each replica and 8
//     for each dependency in the table, and a handle of about 64. The table holds at most what is outstanding (MaxJobs
//     for each replica, and the jobs that never wait: copies and automatic syncs) and AutoSyncJobs of what is done for
//     each flush or barrier outstanding: behind one slow replica up to OfflineJobs or MaxJobs of them. A replica that has
//     missed something needs 8 bytes for each extent.
//
// # Order
//
// Jobs are ordered by their blocks, in the order of Submit: a read waits for the last write of each of its blocks, a
// write for the reads since, else for the last write; flush and barrier for everything, everything for them. On each
// replica a dependency that is terminal there is replaced by its own dependencies, transitively, so that no skip lets a
// later write overtake an earlier one. See [Order] for who keeps it.
//
// Ids such as J30 or R24 in these docs name faults, each with what must come of it and a test: docs/SCENARIOS.md lists them.
//
// # Concurrency
//
// All methods of all types are safe for concurrent use. Each tracker has one lock, held for short, bounded work only, and
// one place that acquires it. Callbacks run with no lock held, one at a time, in the order of their Seq, on the goroutine
// of whichever call found none running; so a call may return before its own callback ran. A callback may call anything,
// and may wait for anything but another callback of the same tracker, and not for a job that only its own goroutine could
// complete: it may be that of a receiver. When 4·MaxJobs callbacks wait to be run, admission
// waits for them, so a callback that submits should bound the wait by its context. Lifecycle events are few, but not
// bounded: a callback that blocks for ever keeps those that follow. If a callback panics, the others run
// all the same, on the next call.
//
// An ended context makes [Conn.Next] and [Conn.NextBatch] a poll, and [Tracker.Submit] one that does not wait.
package jobtracker
