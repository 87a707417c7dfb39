package main

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// impostor is a member of the group that answers lookups with whatever the handler says. It takes its share of the partitions.
func (p *pond) impostor(handler http.HandlerFunc) {
	p.t.Helper()
	srv := httptest.NewServer(handler)
	p.t.Cleanup(srv.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(p.cluster.ListenAddrs()...), kgo.ClientID(clientPrefix+srv.URL), kgo.ConsumerGroup("indexer"),
		kgo.ConsumeTopics(p.topic.name), kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.DisableAutoCommit())
	require.NoError(p.t, err)
	p.t.Cleanup(cl.Close)
	_, err = p.cluster.WaitGroupStable(limited(p.t), "indexer", 2)
	require.NoError(p.t, err)
}

// TestPeerHangs: a lookup waits for an instance that does not answer no longer than it must, and says what is missing and why.
func TestPeerHangs(t *testing.T) {
	p := newPond(t, 2)
	p.things(4)
	a := p.rig(t.TempDir(), func(c *config) { c.settle, c.peerWait = time.Nanosecond, 100*time.Millisecond })
	p.settle(a)
	p.caughtUp(a)
	p.impostor(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	p.until("one partition is given up", func() bool { return len(a.following()) == 1 })
	var got answer
	a.get("/v1/lookup?topic=things&field=size", http.StatusOK, &got)
	require.False(t, got.Complete)
	require.Len(t, got.Missing, 1)
	require.Len(t, got.Hits, 4, "of the other partition")
	require.Len(t, got.Silent, 1)
	require.Contains(t, got.Silent[0], "deadline exceeded")
}

// TestPeerAnswersNonsense: an answer that would hide hits, or send who follows its next round and round, is none.
func TestPeerAnswersNonsense(t *testing.T) {
	p := newPond(t, 2)
	p.things(4)
	a := p.rig(t.TempDir(), func(c *config) { c.settle = time.Nanosecond })
	p.settle(a)
	p.caughtUp(a)
	id := a.topic(p.topic.name).id
	p.impostor(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"topic":"things","topic_id":%q,"field":"size","next":"AAAA","partitions":[{"partition":0,"term":99},{"partition":1,"term":99}]}`, id)
	})
	p.until("one partition is given up", func() bool { return len(a.following()) == 1 })
	var got answer
	a.get("/v1/lookup?topic=things&field=size", http.StatusOK, &got)
	require.False(t, got.Complete)
	require.Len(t, got.Hits, 4)
	require.Empty(t, got.Next)
	require.Contains(t, got.Silent[0], errAnswer.Error())
}

func TestCheckOfAnswers(t *testing.T) {
	at := func(value string, p int32) item {
		v, err := encodeValue(value)
		require.NoError(t, err)
		return itemOf(hit{string(entryKey(entry{0, v}, p, "kx")[1:]), int64(p)})
	}
	from, err := encodeValue("b")
	require.NoError(t, err)
	to, err := encodeValue("y")
	require.NoError(t, err)
	c := at("c", 1)
	q := query{topic: "things", field: "size", id: "1", span: span{from: from, to: to, after: c.place(), limit: 3}}
	whole := func() answer {
		return answer{
			Topic: "things", ID: "1", Field: "size", Partitions: []partAnswer{{Partition: 0}, {Partition: 1}},
			Hits: []item{at("d", 0), at("d", 1), at("e", 0)}, Next: at("e", 0).At,
		}
	}
	good := whole()
	require.NoError(t, good.check(q))
	good.Hits, good.Next = good.Hits[:1], at("x", 0).At
	require.NoError(t, good.check(q), "hits may have been left out of a page")
	good.Hits, good.Next = nil, ""
	require.NoError(t, good.check(q))
	for what, spoil := range map[string]func(*answer){
		"another topic":                    func(a *answer) { a.Topic = "others" },
		"another life":                     func(a *answer) { a.ID = "2" },
		"another field":                    func(a *answer) { a.Field = "color" },
		"too many":                         func(a *answer) { a.Hits, a.Next = append(a.Hits, at("f", 0)), at("f", 0).At },
		"out of order":                     func(a *answer) { a.Hits[0], a.Hits[1] = a.Hits[1], a.Hits[0] },
		"twice":                            func(a *answer) { a.Hits[1] = a.Hits[0] },
		"before the page":                  func(a *answer) { a.Hits[0] = at("c", 0) },
		"below from":                       func(a *answer) { a.Hits[0] = at("a", 0) },
		"above to":                         func(a *answer) { a.Hits[2] = at("z", 0) },
		"no place":                         func(a *answer) { a.Hits[0].At = "AAAA" },
		"of a partition that is not in it": func(a *answer) { a.Hits[2] = at("e", 7) },
		"of two partitions at once":        func(a *answer) { a.Hits[0].Partition = 1 },
		"a partition twice":                func(a *answer) { a.Partitions[1].Partition = 0 },
		"no partition":                     func(a *answer) { a.Partitions[1].Partition = -1 },
		"next is no place":                 func(a *answer) { a.Next = "AAAA" },
		"next is not base64":               func(a *answer) { a.Next = "!" },
		"next is before the hits":          func(a *answer) { a.Next = at("d", 0).At },
		"next is where it began":           func(a *answer) { a.Hits, a.Next = nil, at("c", 1).At },
		"next goes back":                   func(a *answer) { a.Hits, a.Next = nil, at("b", 1).At },
		"next is beyond":                   func(a *answer) { a.Next = at("z", 0).At },
	} {
		a := whole()
		spoil(&a)
		require.ErrorIs(t, a.check(q), errAnswer, what)
	}
}

// TestBrokersDoNotAnswer: what an instance has itself it answers without them.
func TestBrokersDoNotAnswer(t *testing.T) {
	p := newPond(t, 1)
	p.things(4)
	a := p.rig(t.TempDir(), func(c *config) { c.settle, c.peerWait = time.Nanosecond, 100*time.Millisecond })
	p.settle(a)
	p.caughtUp(a)
	h := p.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DescribeGroups}, Err: kerr.CoordinatorLoadInProgress, Count: -1})
	defer h.Remove()
	var got answer
	a.get("/v1/lookup?topic=things&field=size", http.StatusOK, &got)
	require.True(t, got.Complete, "it has all partitions")
	require.Len(t, got.Hits, 4)
}

// TestTopicIsCreatedAgainWhileAWipeIsPending: what was to go of a former life is gone with it.
func TestTopicIsCreatedAgainWhileAWipeIsPending(t *testing.T) {
	p := newPond(t, 1)
	p.things(10)
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.NoError(t, a.flushAll(limited(t)))
	former := a.topic(p.topic.name)
	a.mu.Lock()
	a.wipeLocked(former.id, 0)
	a.mu.Unlock()
	require.NoError(t, p.cluster.DeleteTopic(p.topic.name))
	require.NoError(t, p.cluster.CreateTopic(p.topic.name, 1, nil))
	p.cl.PurgeTopicsFromProducing(p.topic.name)
	p.write(0, `other {"color":"black"}`)
	require.NoError(t, a.store.dropTopic(former.id)) // as who opens the next life does, before it is the present one
	a.renewTopic(p.topic.name)
	p.settle(a)
	p.caughtUp(a)
	p.requireLog(a)
	require.False(t, a.broken())
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Empty(t, a.wipe)
	require.False(t, a.topics[p.topic.name].purged)
}

// TestTroubleIsTold: what the client tries again and again is told to whoever reads the log, once.
func TestTroubleIsTold(t *testing.T) {
	p := newPond(t, 1)
	p.things(4)
	group := p.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.GroupAuthorizationFailed, Count: 2})
	defer group.Remove()
	a := p.rig(t.TempDir(), nil)
	p.settle(a)
	p.caughtUp(a)
	require.Equal(t, 1, a.said.count("GROUP_AUTHORIZATION_FAILED"))
	former := a.claims()[0]
	topic := p.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Metadata}, Topic: p.topic.name, Err: kerr.TopicAuthorizationFailed, Count: -1})
	a.cl.ForceMetadataRefresh()
	p.until("it is told", func() bool { return a.said.count("TOPIC_AUTHORIZATION_FAILED") == 1 })
	topic.Remove()
	p.write(0, `late {"color":"red"}`)
	p.caughtUp(a)
	require.Same(t, former, a.claims()[0])
	require.Empty(t, a.steps())
	p.requireLog(a)
}

func TestReach(t *testing.T) {
	var out strings.Builder
	r := reach{log: log.New(&out, "", 0), lost: make(map[string]bool)}
	b := kgo.BrokerMetadata{NodeID: 1, Host: "there", Port: 9092}
	refused := errors.New("refused")
	for _, err := range []error{nil, refused, refused, nil, nil} {
		r.OnBrokerConnect(b, 0, nil, err)
	}
	require.Equal(t, "broker there:9092 cannot be reached: refused; trying again\nbroker there:9092 is reached again\n", out.String())
}

// TestDiskIsFull: the first commit that fails ends the instance. What waits in queues and for its turn does not try again, each
// time for as long as a commit takes.
func TestDiskIsFull(t *testing.T) {
	p := newPond(t, 4)
	gate := make(chan struct{})
	a := p.rig(t.TempDir(), func(c *config) {
		c.flushRows = 1
		c.beforeApply = func(*parcel) { <-gate }
	})
	var commits atomic.Int32
	full := errors.New("no space left")
	a.store.beforeCommit = func() error { commits.Add(1); return full }
	p.settle(a)
	for range 5 {
		p.things(10)
	}
	close(gate)
	<-a.failed
	a.ended = true
	err := a.stop()
	require.ErrorIs(t, err, full)
	require.Equal(t, 1, strings.Count(err.Error(), full.Error()), "told once")
	require.Equal(t, int32(1), commits.Load())
}

// TestDirectory: what is wrong with -dir is told, and is no panic.
func TestDirectory(t *testing.T) {
	p := newPond(t, 1)
	used, file, nonsense := t.TempDir(), filepath.Join(t.TempDir(), "file"), t.TempDir()
	s, err := openStore(used)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(nonsense, "index.db"), make([]byte, 1<<16), 0o600))
	for dir, want := range map[string]string{
		used: "index.db: another process has it open", file: "not a directory", nonsense: "index.db: invalid database",
	} {
		c := program(t, "-brokers", p.cluster.ListenAddrs()[0], "-index", "things=color", "-dir", dir, "-listen", "127.0.0.1:0")
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Equal(t, exitFailed, exit.ExitCode(), "%s", out)
		require.Contains(t, string(out), "indexer: failed: ")
		require.Contains(t, string(out), want)
	}
}
