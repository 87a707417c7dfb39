// Package streamtest has what tests of code around a [streamstate.Book] need: scripted sources whose streams say what real
// ones say, late and twice as well, a [Feed] of them on one book, and a gap explorer, [Explore], which lets an adversary go
// first at every acquisition of a lock. It is to streamstate what net/http/httptest is to net/http.
//
//	f := streamtest.New(t, streamstate.Options{})
//	k := f.Open("orders", streamtest.OpenOptions{Partitions: 2})
//	st := k.Start(0, "node-a") // a stream of partition 0; its begin was handed in
//	k.Source.Produce(0, 5)
//	st.Send(3)
//	err := st.Deliver() // checked, applied and advanced
//	st.Send(2)          // these stay in hand
//	k.Stop(nil)
//	k.TryReopen(streamstate.Timestamp{}, false)
//	require.ErrorIs(t, st.Deliver(), streamstate.ErrStaleSession)
//	f.Settle()
//	f.RequireSettled()
//	f.RequireFollowed()
//
// # Sources
//
// A [Source] has the items of each partition and the streams that send them. A [Stream] keeps what it says in hand until it
// is handed in: in order, late, or once more; after its claim or its session has ended as well. A source can lose items
// as a failover does, so that who goes on from there must roll back; lose a node; and fail what repair asks of it. It
// knows no book: with [NewSource], what it says goes to the user's own code.
//
// # Deterministic
//
// A feed has no goroutine of its own and no clock: nothing moves but in [Feed.Settle] and in what a test calls itself. The
// same calls give the same run. So the deadlines of the book are off unless the options name them; a test that does uses
// testing/synctest.
//
// # What is checked all the time
//
// Whatever a test does, a feed reports what no book may do: data let in of a claim that is not live or of another session;
// an item let in twice, or with a hole before it that nobody vouched for; a begin let in with a session that had ended;
// an event lost, repeated, out of order, or that does not go on where the last one led. At clean-up it closes the book and
// checks that every key is gone and every handle has ended. The checks know what goes through the feed: a test that ends
// partitions or flushes does so by a [Keyspace], or drops the key in the end.
//
// # Concurrency
//
// All methods are safe for concurrent use, and may be called from the book's callbacks and from Options.Gap: no lock of
// this package is held while it calls the book. The lock of a key comes before those of this package.
package streamtest
