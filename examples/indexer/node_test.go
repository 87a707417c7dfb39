package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

func jsonInto(b []byte, v any) error { return json.Unmarshal(b, v) }

func TestTwoInstancesShareTheWork(t *testing.T) {
	p := newPond(t, 4)
	p.things(50)
	a := p.rig(t.TempDir(), nil)
	b := p.rig(t.TempDir(), nil)
	require.Equal(t, []int{2, 2}, p.settle(a, b))
	p.caughtUp(a, b)
	p.requireLog(a, b)

	p.write(0, "thing-1", "thing-2 {\"size\":1000}", "new {\"color\":[\"red\",\"green\"]}")
	p.write(3, "thing-1")
	p.caughtUp(a, b)
	p.requireLog(a, b)
	var got answer
	a.get("/v1/lookup?topic=things&field=size&value=1", http.StatusOK, &got)
	require.True(t, got.Complete)
	require.Len(t, got.Hits, 2, "the tombstones in 0 and 3 took theirs away")
	a.get("/v1/lookup?topic=things&field=color&value=green", http.StatusOK, &got)
	require.Len(t, got.Hits, 1)
	require.Equal(t, "new", *got.Hits[0].Key)

	require.NoError(t, a.flushAll(limited(t)))
	p.requireLog(a, b)
	b.end()
	require.Equal(t, []int{4}, p.settle(a))
	p.caughtUp(a)
	p.requireLog(a)
}

func TestRestartGoesOnWhereTheStoreLeftOff(t *testing.T) {
	p := newPond(t, 2)
	p.cluster.ShufflePartitionLeaders() // epochs begin with one
	p.things(30)
	dir := t.TempDir()
	a := p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	at, known, err := a.store.position(a.topic(p.topic.name).id, 1)
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, streamstate.Position{Next: 30, Branch: uint64(p.cluster.PartitionInfo(p.topic.name, 1).Epoch)}, at, "the branch is the leader epoch")
	require.NotZero(t, at.Branch)
	for _, part := range a.view().Partitions {
		require.Equal(t, uint64(a.view().Generation), part.Term, "the term is the group's generation")
	}
	a.end()
	p.things(40) // those there were, again, and more

	a = p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	v := a.view()
	require.Equal(t, int64(80), a.applied.Load(), "only what came since is read")
	for _, part := range v.Partitions {
		require.Equal(t, uint64(30), part.From)
	}
	require.False(t, v.Building)
	require.Equal(t, v.Goal, v.Done)
	p.requireLog(a)
}

// TestLateWorkIsRefused stops the workers with records in hand, has half of the partitions revoked, and lets them go on.
func TestLateWorkIsRefused(t *testing.T) {
	p := newPond(t, 4)
	p.things(25)
	gate := make(chan struct{})
	var late sync.Map
	a := p.rig(t.TempDir(), func(c *config) {
		c.beforeApply = func(*parcel) { <-gate }
		c.onApply = func(q *parcel, err error) {
			if err != nil {
				late.Store(q.claim.Partition(), err)
			}
		}
	})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	require.Equal(t, []int{4}, p.settle(a))
	b := p.rig(t.TempDir(), nil)
	require.Equal(t, []int{2, 2}, p.settle(a, b), "what is in a worker's hands keeps no partition from going")
	p.things(1) // the last of what a polled for the partitions that it gave up is older
	open()
	p.caughtUp(a, b)
	a.end()
	n := 0
	late.Range(func(partition, err any) bool {
		n++
		require.ErrorIs(t, err.(error), streamstate.ErrStaleClaim, "partition %v", partition)
		require.ErrorIs(t, err.(error), streamstate.ErrGivenUp, "partition %v", partition)
		return true
	})
	require.NotZero(t, n, "nothing was late")
	require.NotZero(t, a.refused()[streamstate.ReasonStaleClaim.String()])
	require.Equal(t, []int{4}, p.settle(b))
	p.caughtUp(b)
	p.requireLog(b)
}

// TestComesBackInTheSameLife: a partition is given up and comes back to the same instance, which has late work of its
// former claim in hand. It goes on at the store's position, and the late work does not count.
func TestComesBackInTheSameLife(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	var parcels sync.Map
	a := p.rig(t.TempDir(), func(c *config) {
		c.beforeApply = func(q *parcel) { parcels.Store(q.records[0].Offset, q) }
	})
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	p.write(0, `thing-3 {"color":"gold"}`)
	p.caughtUp(a) // received, not committed
	former, ok := parcels.Load(int64(10))
	require.True(t, ok)

	a.renewTopic(p.topic.name)
	p.until("the partition has come back", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		f := a.topics[p.topic.name].follows[0]
		return f != nil && f.claim != former.(*parcel).claim
	})
	a.mu.Lock()
	require.Equal(t, uint64(10), a.topics[p.topic.name].follows[0].from, "it goes on from what was committed")
	a.mu.Unlock()
	err := former.(*parcel).claim.Apply(streamstate.Position{Next: 99}, func(streamstate.Tx[*memtable]) error {
		t.Error("late work was applied")
		return nil
	})
	require.ErrorIs(t, err, streamstate.ErrStaleClaim)
	p.caughtUp(a)
	p.requireLog(a)
}

// TestGivenUpDuringCommit gives a partition up while a commit covers it (S41). What the commit reads of it stays until the
// commit has ended; only then is the partition free to come back, and it goes on from that commit.
func TestGivenUpDuringCommit(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	tp := a.topic(p.topic.name)
	former := tp.follows[0].claim
	committing, goOn := make(chan struct{}), make(chan struct{})
	a.store.beforeCommit = func() error {
		close(committing)
		<-goOn
		return nil
	}
	flushed := make(chan error, 1)
	go func() { flushed <- a.flushAll(t.Context()) }()
	<-committing
	a.renewTopic(p.topic.name)
	<-former.Context().Done()
	require.ErrorIs(t, former.Advance(streamstate.Position{Next: 99}), streamstate.ErrGivenUp)
	require.ErrorIs(t, tp.session.Want(0), streamstate.ErrReleasing)
	require.NoError(t, tp.session.Read(func(tx streamstate.ReadTx[*memtable]) error {
		m, err := tx.Payload()
		require.Equal(t, 10, m.rows(), "what the commit covers is still there")
		return err
	}))
	close(goOn)
	require.NoError(t, <-flushed)
	p.until("the partition has come back", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		f := tp.follows[0]
		return f != nil && f.claim != former
	})
	a.store.beforeCommit = nil
	require.Equal(t, []int{10}, a.froms())
	p.requireLog(a)
}

// TestNobodyAnswers has an instance that is in the group and answers nothing.
func TestNobodyAnswers(t *testing.T) {
	p := newPond(t, 2)
	p.things(4)
	a := p.rig(t.TempDir(), func(c *config) { c.settle = time.Nanosecond })
	b := p.rig(t.TempDir(), nil)
	p.settle(a, b)
	p.caughtUp(a, b)
	require.NoError(t, b.http.Close())
	var got answer
	a.get("/v1/lookup?topic=things&field=size", http.StatusOK, &got)
	require.False(t, got.Complete)
	require.Len(t, got.Missing, 1)
	require.Len(t, got.Partitions, 1)
	require.NotEqual(t, got.Missing[0], got.Partitions[0].Partition)
	require.Len(t, got.Hits, 4)
}

func TestTopicIsCreatedAgain(t *testing.T) {
	p := newPond(t, 2)
	p.things(20)
	a := p.rig(t.TempDir(), nil)
	b := p.rig(t.TempDir(), nil)
	p.settle(a, b)
	p.caughtUp(a, b)
	require.NoError(t, a.flushAll(limited(t)))
	former := a.topic(p.topic.name)

	require.NoError(t, p.cluster.DeleteTopic(p.topic.name))
	require.NoError(t, p.cluster.CreateTopic(p.topic.name, 3, nil))
	p.cl.PurgeTopicsFromProducing(p.topic.name)
	p.write(0, `other {"color":"black"}`)
	p.write(2, `other {"color":"white"}`)
	p.settle(a, b)
	p.caughtUp(a, b)
	p.requireLog(a, b)
	require.ErrorIs(t, former.session.Read(func(streamstate.ReadTx[*memtable]) error { return nil }), streamstate.ErrStaleSession)
	known, err := a.store.topics()
	require.NoError(t, err)
	require.NotContains(t, known, former.id, "nothing of the former life is left on the disk")
	require.Len(t, known, 1)
}

func TestTopicGrows(t *testing.T) {
	p := newPond(t, 1)
	p.things(5)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	id := a.topic(p.topic.name).id
	resp, err := a.adm.CreatePartitions(limited(t), 2, p.topic.name)
	require.NoError(t, err)
	require.NoError(t, resp.Error())
	p.cl.PurgeTopicsFromProducing(p.topic.name)
	p.write(2, `late {"color":"red"}`)
	a.cl.ForceMetadataRefresh()
	require.Equal(t, []int{3}, p.settle(a))
	require.Equal(t, id, a.topic(p.topic.name).id)
	p.caughtUp(a)
	p.requireLog(a)
}

// TestLogThatWasCut: the store has an entry of a record that the log does not have any more.
func TestLogThatWasCut(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	dir := t.TempDir()
	a := p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	a.end()
	s, err := openStore(dir)
	require.NoError(t, err)
	value, err := encodeValue("ghost")
	require.NoError(t, err)
	ghost := map[int32][]*batch{0: {{streamstate.Position{Next: 11}, []row{{"kghost", 10, []entry{{0, value}}}}}}}
	require.NoError(t, s.commit(topicID(p.cluster.TopicInfo(p.topic.name).TopicID), ghost))
	require.NoError(t, s.close())

	a = p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	require.Equal(t, []int{0}, a.froms(), "what does not go together with the log is indexed anew")
	require.Equal(t, int64(10), a.applied.Load(), "once")
	p.requireLog(a)
}

// TestDeletedUnread: records that were deleted before they were read may have replaced some that are indexed.
func TestDeletedUnread(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	dir := t.TempDir()
	a := p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	a.end()
	p.write(0, `thing-1 {"color":"unread"}`, `thing-2 {"color":"unread"}`, `thing-3 {"color":"read"}`)
	require.NoError(t, p.cluster.DeleteRecords(p.topic.name, 0, 12))

	a = p.rig(dir, nil)
	p.settle(a)
	p.caughtUp(a)
	require.Equal(t, []int{12}, a.froms())
	p.requireLog(a)
	var got answer
	a.get("/v1/lookup?topic=things&field=color&from=a", http.StatusOK, &got)
	require.Len(t, got.Hits, 1, "only what the log still has")
}

// TestEpochThatIsNotKnown: a client is told that the log was cut while it follows it, by a broker that has no record of the
// epoch which it has read.
func TestEpochThatIsNotKnown(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	former := a.topic(p.topic.name).follows[0].claim
	p.cluster.ShufflePartitionLeaders()
	p.until("it has begun again", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		f := a.topics[p.topic.name].follows[0]
		return f != nil && f.claim != former
	})
	require.Equal(t, []int{0}, a.froms())
	require.ErrorIs(t, former.Advance(streamstate.Position{Next: 99}), streamstate.ErrStaleClaim)
	p.caughtUp(a)
	p.requireLog(a)
}

// froms are where the claims began.
func (r *rig) froms() (froms []int) {
	for _, p := range r.view().Partitions {
		froms = append(froms, int(p.From))
	}
	return froms
}

// TestGroupBeginsAnew: the brokers have forgotten the group, and number its generations from one again.
func TestGroupBeginsAnew(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	p.write(0, `thing-1 {"color":"lost with the memtable"}`)
	p.caughtUp(a)
	tp := a.topic(p.topic.name)
	a.mu.Lock()
	generation, former := a.generation, tp.follows[0].claim
	a.mu.Unlock()
	require.NoError(t, claimUp(tp.session, 0, uint64(generation+5)))
	a.onLost(t.Context(), a.cl, map[string][]int32{p.topic.name: {0}})

	require.NoError(t, a.left(limited(t), tp, 0))
	at, err := a.startOf(limited(t), tp, 0, nil)
	require.NoError(t, err)
	require.NoError(t, a.begin(limited(t), tp, 0, at, "member", 1), "a lower generation, after the loss of all that was assigned")
	a.mu.Lock()
	f := tp.follows[0]
	a.mu.Unlock()
	require.Equal(t, uint64(10), f.from)
	require.Equal(t, uint64(1), f.claim.Term())
	require.ErrorIs(t, former.Advance(streamstate.Position{Next: 12}), streamstate.ErrStaleSession)
}

// claimUp has somebody claim in a higher term.
func claimUp(s *session, p int, term uint64) error {
	_, err := s.Begin(p, streamstate.Begin{Owner: "another", Term: term})
	return err
}

func TestHTTP(t *testing.T) {
	p := newPond(t, 1)
	p.things(3)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	a.get("/healthz", http.StatusOK, nil)
	var v view
	a.get("/v1/status", http.StatusOK, &v)
	require.Len(t, v.Partitions, 1)
	require.Equal(t, int64(3), v.Applied)

	var got answer
	a.get("/v1/lookup?topic=things&field=size&from=1&limit=1", http.StatusOK, &got)
	require.Equal(t, []any{float64(1)}, []any{got.Hits[0].Value})
	require.Len(t, got.Hits, 1)
	next := got.Next
	require.NotEmpty(t, next)
	got = answer{}
	a.get("/v1/lookup?topic=things&field=size&from=1&limit=1&after="+next, http.StatusOK, &got)
	require.Len(t, got.Hits, 1)
	require.Equal(t, "thing-2", *got.Hits[0].Key)
	require.Empty(t, got.Next)
	got = answer{}
	a.get("/v1/lookup?topic=things&field=color&value=none", http.StatusOK, &got)
	require.True(t, got.Complete)
	require.NotNil(t, got.Hits)
	require.Empty(t, got.Hits)
}

func TestHTTPErrors(t *testing.T) {
	p := newPond(t, 1)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	var wrong struct{ Error string }
	for path, status := range map[string]int{
		"/": http.StatusNotFound, "/v1/nothing": http.StatusNotFound, "/v1/lookup?topic=nothing&field=size": http.StatusNotFound,
		"/v1/lookup?topic=things&field=size&limit=x":      http.StatusBadRequest,
		"/v1/lookup?topic=things&field=size&value=%zz":    http.StatusBadRequest,
		"/v1/lookup?topic=things&field=size&value=1;to=2": http.StatusBadRequest,
		"/v1/lookup?topic=things&field=size&local=1&id=0": http.StatusConflict,
	} {
		wrong.Error = ""
		a.get(path, status, &wrong)
		require.NotEmpty(t, wrong.Error, path)
	}
	req, err := http.NewRequestWithContext(limited(t), http.MethodPost, a.url+"/v1/lookup", strings.NewReader("{}"))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)

	a.fail(fmt.Errorf("the disk is full"))
	a.get("/healthz", http.StatusServiceUnavailable, &wrong)
	require.Contains(t, wrong.Error, "the disk is full")
	a.ended = true
	require.ErrorContains(t, a.stop(), "the disk is full")
}
