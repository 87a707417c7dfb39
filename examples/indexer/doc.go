// Command indexer is a secondary-index service over Kafka topics: it follows JSON records, indexes them by chosen fields, and
// answers lookups over HTTP. Several instances share the work as a consumer group; each has a store of its own on disk. A
// streamstate.Book keeps the state of what an instance follows. See indexer -h.
//
// # What it promises
//
//   - The index of a partition is that of a prefix of its log. Entries and position are committed in one transaction, so that
//     a crash loses work and never consistency: what is missing is read again.
//   - What was polled for a partition that has been given up since is refused, by its type, in the hold in which it would
//     have been applied; it does not matter how late it comes, nor that the partition has come back.
//   - A partition that comes back goes on where this store left off, whatever other instances have done meanwhile.
//   - A topic that is deleted and created again is another topic: nothing of its former life shows in it.
//   - An answer says whether every partition took part in it, and how far behind their logs they are. What another instance
//     says is looked at before it is believed; one that hangs or talks nonsense is missing from the answer, and no more.
//
// # How Kafka maps to streamstate
//
// A key is one life of a topic (its id), in the name of the group. OnPartitionsAssigned is Want and Begin from the store's
// position; the group's generation is the term, the member id the owner. OnPartitionsRevoked is Unwant and Wait, and
// OnPartitionsLost is Unwant. The leader epoch of a record is the branch of the position after it. A new id is Drop and
// Open; a group that has begun anew (its generations as well) is Stop and Reopen.
//
// What the client heals by itself (a leader that moves, a broker that is lost) is none of the book's business. What it does
// not heal ends the claim as failed, and repair.Stream takes over: a partition that is faulted at its broker is fetched again
// from what is received, under a new claim; should that not last, the topic is subscribed to anew. A topic that has another
// life, or a log that does not go together with what is indexed, takes another subscription at once.
//
// # Parts
//
// node.go starts and stops an instance, group.go has the callbacks of the group, bounds.go tells where a log begins and ends,
// follow.go polls, decodes and applies, flush.go commits, repair.go is the source that a session's driver of repair asks. The memtable (memtable.go) is the payload
// of a session; the store (store.go, scan.go) is a bbolt file. query.go, http.go and lookup.go answer; value.go and decode.go
// make entries of records. brokers.go and generate.go have the brokers and the data set that are used without -brokers; demo.go,
// demo_faults.go, child.go and verify.go are the demonstration.
//
// # Concurrency
//
// The callbacks of the group run one at a time, and never between a poll and the dealing of what it gave to the workers, so
// that a parcel carries the claim that its records were polled for. From there on only the claim is asked. Each partition
// has one worker, which keeps its order. A worker that has filled the memtable commits it itself; polling pauses when too
// much is queued. node.mu guards what callbacks and requests share; no call of the book, the store or the client happens
// under it but Unwant and End, which do not block.
//
// # What it leaves out
//
// What a recovery takes back is indexed anew, not in part. Retention deletes records, not entries: only a tombstone or
// a later record of the same key does. Records that are deleted before this instance has read them are another matter: which
// entries they replaced cannot be known, so the partition is indexed anew from what the log still has. They are in no index
// then, nor is what came before them; an instance that had read them keeps its entries. Numbers are indexed as float64. A tombstone must be read before the brokers remove it
// (delete.retention.ms), so an instance must not be away for longer and come back on its old store.
package main
