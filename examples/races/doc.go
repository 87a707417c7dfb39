// Command races shows real outages step by step. The same script of events drives two book-keepers: a naive one, which
// fails, and ours, which returns the typed error. See races -h.
//
// The exit status is 0 only if the naive one failed as expected and ours answered exactly what it promises. Everything
// runs on one goroutine, with no sleeps and no deadlines, so that the output is always the same.
//
// The races:
//
//   - stream: the stream race, Couchbase MB-37227. The script is in stream.go, the naive follower in stream_naive.go, the
//     one around package streamstate in stream_ours.go.
//   - orphan: the orphaned completion, Crucible #1121. The script is in orphan.go, the naive tracker in orphan_naive.go,
//     the one around package jobtracker in orphan_ours.go.
package main
