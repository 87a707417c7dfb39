// Package jobtest has what tests of code around a [jobtracker.Tracker] need: scripted replicas with contents that can be
// compared, a [Cluster] of them on one tracker, and a gap explorer, [Explore], which lets an adversary go first at every
// acquisition of the tracker's lock; [ExploreInTurns] does so with code that has goroutines of its own. It is to
// jobtracker what net/http/httptest is to net/http.
//
//	c := jobtest.New(t, jobtracker.Config[*jobtest.Payload]{Replicas: 3})
//	c.Replica(1).HoldReplies()
//	job := c.Submit(jobtest.Write(7, 2))
//	c.Settle()
//	old := c.Replica(1).Cut() // the replies stay in hand
//	require.ErrorIs(t, old.Deliver(job.ID()), jobtracker.ErrStaleConn)
//	c.Replica(1).Heal() // no more holding back
//	c.Replica(1).Reconnect()
//	c.Settle()
//	c.RequireResolved()
//	c.RequireSame()
//
// # Deterministic
//
// A cluster has no goroutine of its own and no clock: nothing moves but in [Cluster.Settle], which moves everything
// until nothing is left to do, and [Cluster.Step], which makes one move chosen by a seeded source. The same calls give
// the same run. So the tracker's ReplyTimeout and OfflineFor are off unless the configuration names them; a test that
// does uses testing/synctest. [Cluster.Run] is the exception: it gives each connection goroutines, for race tests.
//
// # What is checked all the time
//
// Whatever a test does, a cluster reports what no tracker and no replica may do: a job dispatched twice on one
// connection; one dispatched before what it must wait for; a dependency that the replica was never sent; a reply on a
// live connection refused; writes that reach a block in another order than that of their ids; an id used twice; a
// callback lost, repeated or out of order. At clean-up it closes the tracker and checks that everything was resolved
// and retired, that no charge is left, and [jobtracker.Tracker.Check].
//
// # Concurrency
//
// All methods are safe for concurrent use, and may be called from the tracker's callbacks and from Config.Gap: no lock
// of this package is held while it calls the tracker. A replica's lock comes before its cluster's and a payload's.
package jobtest
