package main

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

// fault has the broker answer fetches of partition 0 with an error that no client heals, as long as holds says so. The
// channel is closed when it has done so.
func (p *pond) fault(holds func() bool) <-chan struct{} {
	done, once := make(chan struct{}), sync.Once{}
	faultPartition(p.cluster, p.topic.name, 0, func() bool {
		if !holds() {
			return false
		}
		once.Do(func() { close(done) })
		return true
	})
	return done
}

// claims are those of the topic's partitions.
func (r *rig) claims() map[int32]*claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[int32]*claim)
	for p, f := range r.topics[r.pond.topic.name].follows {
		all[p] = f.claim
	}
	return all
}

// steps are the tickets of repair that it has taken up.
func (r *rig) steps() rungs { return r.view().Repairs[r.pond.topic.name] }

// TestPartitionFaultedAtTheBroker: it is fetched again from what is received, under a new claim; the others go on.
func TestPartitionFaultedAtTheBroker(t *testing.T) {
	p := newPond(t, 2)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	former := a.claims()
	var once atomic.Bool
	<-p.fault(func() bool { return once.CompareAndSwap(false, true) })
	p.write(0, `late {"color":"red"}`)
	p.write(1, `late {"color":"blue"}`)
	p.caughtUp(a)
	p.requireLog(a)
	now := a.claims()
	require.NotSame(t, former[0], now[0])
	require.Same(t, former[1], now[1])
	require.Equal(t, rungs{"restart": 1}, a.steps())
	require.Equal(t, int64(42), a.applied.Load(), "each record once")
}

// TestPartitionStaysFaulted: the ladder climbs to another subscription, and all is indexed once the broker has recovered.
func TestPartitionStaysFaulted(t *testing.T) {
	p := newPond(t, 2)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	former := a.claims()
	<-p.fault(func() bool { return a.steps()["resubscribe"] == 0 })
	p.write(0, `late {"color":"red"}`)
	p.until("another subscription", func() bool { now := a.claims()[1]; return now != nil && now != former[1] })
	p.settle(a)
	p.caughtUp(a)
	p.requireLog(a)
}

// TestLeaderMovesAndBrokerIsLost: the client follows by itself, and no repair begins.
func TestLeaderMovesAndBrokerIsLost(t *testing.T) {
	p := newPond(t, 2)
	var nodes []int32
	for range 2 {
		id, _, err := p.cluster.AddNode(-1, 0)
		require.NoError(t, err)
		nodes = append(nodes, id)
	}
	noCut(p.cluster)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	former := a.claims()
	require.NoError(t, p.cluster.MoveTopicPartition(p.topic.name, 0, nodes[0]))
	p.write(0, `moved {"color":"red"}`)
	p.caughtUp(a)
	require.NoError(t, p.cluster.MoveTopicPartition(p.topic.name, 0, nodes[1]))
	require.NoError(t, p.cluster.RemoveNode(nodes[0]))
	p.write(0, `lost {"color":"red"}`)
	p.caughtUp(a)
	p.requireLog(a)
	for i, c := range a.claims() {
		require.Same(t, former[i], c)
	}
	require.Empty(t, a.steps())
}

// TestRecovery: a claim that must go back to nothing has the session stopped and read again from what is committed.
func TestRecovery(t *testing.T) {
	p := newPond(t, 2)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	p.write(0, `late {"color":"red"}`)
	p.caughtUp(a)
	former := a.claims()[0]
	s := former.Session()
	require.NoError(t, former.End(streamstate.HandOver))
	_, err := s.Begin(0, streamstate.Begin{Owner: "another", MustRollBack: true, RollBackTo: streamstate.Position{}})
	require.NoError(t, err)
	p.until("the next session has begun", func() bool {
		now := a.claims()[0]
		return now != nil && now.Session() != s
	})
	p.settle(a)
	p.caughtUp(a)
	p.requireLog(a)
	require.Equal(t, []int{0, 20}, a.froms(), "what is committed and need not be taken back is not read again")
	require.ErrorIs(t, former.Advance(streamstate.Position{Next: 99}), streamstate.ErrStaleSession)
}

// TestDeletedWhileItCannotBeFetched: the partition comes back, and records that had not been read are gone. A restart does not
// do then: what is indexed does not go together with the log any more.
func TestDeletedWhileItCannotBeFetched(t *testing.T) {
	p := newPond(t, 1)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	var deleted atomic.Bool
	<-p.fault(func() bool { return !deleted.Load() })
	p.write(0, `thing-1 {"color":"unread"}`, `thing-2 {"color":"unread"}`, `thing-3 {"color":"read"}`)
	require.NoError(t, p.cluster.DeleteRecords(p.topic.name, 0, 22))
	deleted.Store(true)
	p.caughtUp(a)
	p.until("it is indexed anew", func() bool {
		froms := a.froms()
		return len(froms) == 1 && froms[0] == 22 && a.following()[0] == 23
	})
	p.requireLog(a)
	require.Positive(t, a.steps()["resubscribe"])
}

// TestDeletedWhileItIsWithheld: what the client wants next is not in the log any more when the broker can read its disk again.
// Until then the client waits by itself.
func TestDeletedWhileItIsWithheld(t *testing.T) {
	p := newPond(t, 2)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	other := a.claims()[1]
	end := withhold(p.cluster, p.topic.name, 0)
	p.write(0, `answers-a-fetch-in-hand {"color":"red"}`)
	p.write(0, `thing-1 {"color":"unread"}`, `thing-2 {"color":"unread"}`, `thing-3 {"color":"read"}`)
	p.write(1, `other {"color":"red"}`)
	p.until("the other partition goes on", func() bool { return a.following()[1] == 21 })
	require.Same(t, other, a.claims()[1])
	require.Empty(t, a.steps(), "what the client waits out is not repaired")
	require.NoError(t, p.cluster.DeleteRecords(p.topic.name, 0, 23))
	end()
	p.until("it is indexed anew", func() bool { return a.following()[0] == 24 && slices.Equal([]int{23, 20}, a.froms()) })
	p.caughtUp(a)
	p.requireLog(a)
	require.Positive(t, a.steps()["resubscribe"])
	require.Zero(t, a.steps()["recover"])
}

// TestClaimThatHasEndedIsNotDecoded: the records of its successor wait behind it.
func TestClaimThatHasEndedIsNotDecoded(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	parcels := make(chan *parcel, 10)
	a := p.rig(t.TempDir(), func(c *config) { c.beforeApply = func(q *parcel) { parcels <- q } })
	p.settle(a)
	p.caughtUp(a)
	q := <-parcels
	a.cfg.decodeDelay = time.Hour // but for the protection, this test would never end
	require.NoError(t, q.claim.End(streamstate.HandOver))
	b, o := a.decoded(q)
	require.Equal(t, uint64(10), b.pos.Next)
	require.Empty(t, b.rows)
	require.Equal(t, odd{}, o)
	require.ErrorIs(t, q.claim.Apply(b.pos, func(streamstate.Tx[*memtable]) error { return nil }), streamstate.ErrStaleClaim)
}

// TestAllIsDeletedUnread: nothing comes that would tell of it, but that the log begins behind what is indexed.
func TestAllIsDeletedUnread(t *testing.T) {
	p := newPond(t, 1)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	require.NoError(t, a.lookAtLogs(limited(t)))
	require.Equal(t, []int{0}, a.froms(), "nothing is wrong")
	former := a.claims()[0]
	end := withhold(p.cluster, p.topic.name, 0)
	p.write(0, `answers-a-fetch-in-hand {"color":"red"}`)
	p.write(0, `thing-1 {"color":"unread"}`, `thing-2 {"color":"unread"}`)
	require.NoError(t, a.lookAtLogs(limited(t)))
	require.Positive(t, a.view().Behind, "there is more than can be fetched")
	require.Same(t, former, a.claims()[0])
	require.NoError(t, p.cluster.DeleteRecords(p.topic.name, 0, 23))
	end()
	require.NoError(t, a.lookAtLogs(limited(t)))
	p.until("it is indexed anew", func() bool { now := a.claims()[0]; return now != nil && now != former && a.following()[0] == 23 })
	var got answer
	a.get("/v1/lookup?topic=things&field=color", http.StatusOK, &got)
	require.True(t, got.Complete)
	require.Zero(t, got.Behind, "there is nothing to be read")
	require.Empty(t, got.Hits)
	p.write(0, `thing-3 {"color":"read"}`)
	p.caughtUp(a)
	p.requireLog(a)
	a.get("/v1/lookup?topic=things&field=color", http.StatusOK, &got)
	require.Len(t, got.Hits, 1, "only what the log still has")
}
