package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// limited is a context that ends before the test run does.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pond is a broker with one topic of small records, and a client that writes.
type pond struct {
	t       *testing.T
	mu      sync.Mutex
	rung    chan struct{} // closed, and replaced, when something has happened to an instance
	cluster *kfake.Cluster
	cl      *kgo.Client
	topic   generated
}

func newPond(t *testing.T, partitions int32) *pond {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	p := &pond{t: t, rung: make(chan struct{}), cluster: c, topic: generated{name: "things", partitions: partitions, fields: []string{"color", "size"}}}
	require.NoError(t, c.CreateTopic(p.topic.name, partitions, nil))
	p.cl, err = kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(p.cl.Close)
	return p
}

// write writes records "key document" to a partition; no document is a tombstone.
func (p *pond) write(partition int32, records ...string) {
	p.t.Helper()
	for _, r := range records {
		key, doc, _ := strings.Cut(r, " ")
		k := &kgo.Record{Topic: p.topic.name, Partition: partition, Key: []byte(key)}
		if doc != "" {
			k.Value = []byte(doc)
		}
		require.NoError(p.t, p.cl.ProduceSync(limited(p.t), k).FirstErr())
	}
}

// things writes n different records to each partition.
func (p *pond) things(n int) {
	p.t.Helper()
	var all []*kgo.Record
	for i := range n {
		for partition := range p.topic.partitions {
			all = append(all, &kgo.Record{
				Topic: p.topic.name, Partition: partition, Key: fmt.Appendf(nil, "thing-%d", i),
				Value: fmt.Appendf(nil, `{"color":%q,"size":%d}`, []string{"red", "blue"}[i%2], i),
			})
		}
	}
	require.NoError(p.t, p.cl.ProduceSync(limited(p.t), all...).FirstErr())
}

// rig is an instance under test.
type rig struct {
	*node
	pond  *pond
	said  said
	ended bool
}

// said is what an instance has logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
	to   io.Writer
	ring func()
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	s.text.Write(b)
	s.mu.Unlock()
	s.ring()
	return s.to.Write(b)
}

func (s *said) count(words string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.text.String(), words)
}

// rig starts an instance on a directory; change may change it before it joins.
func (p *pond) rig(dir string, change func(*config)) *rig {
	p.t.Helper()
	cfg, err := parse([]string{
		"-brokers", strings.Join(p.cluster.ListenAddrs(), ","), "-index", p.topic.name + "=" + strings.Join(p.topic.fields, ","), "-dir", dir,
		"-listen", "127.0.0.1:0", "-session-timeout", "3s", "-flush-every", "1h",
	}, io.Discard)
	require.NoError(p.t, err)
	cfg.watchEvery = time.Hour
	if change != nil {
		change(&cfg)
	}
	then := cfg.onApply
	cfg.onChange, cfg.onApply = p.ring, func(q *parcel, err error) {
		if then != nil {
			then(q, err)
		}
		p.ring()
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(p.t, err)
	r := &rig{pond: p, said: said{to: p.t.Output(), ring: p.ring}}
	r.node, err = startNode(limited(p.t), cfg, ln, log.New(&r.said, "", 0), slog.New(slog.DiscardHandler))
	require.NoError(p.t, err)
	p.t.Cleanup(r.end)
	return r
}

// end ends the instance in good order, once.
func (r *rig) end() {
	if !r.ended {
		r.ended = true
		require.NoError(r.pond.t, r.stop())
	}
}

// ring wakes who waits for something to happen.
func (p *pond) ring() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.rung)
	p.rung = make(chan struct{})
}

// until waits until something holds.
func (p *pond) until(what string, holds func() bool) {
	p.t.Helper()
	ctx := limited(p.t)
	for {
		p.mu.Lock()
		rung := p.rung
		p.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-rung:
		case <-ctx.Done():
			require.FailNow(p.t, "in vain", "waiting until %s", what)
		}
	}
}

// following is how far the instance has come with each partition that it follows of the topic's present life.
func (r *rig) following() map[int32]uint64 {
	r.mu.Lock()
	t := r.topics[r.pond.topic.name]
	if t == nil || t.id != topicID(r.pond.cluster.TopicInfo(t.name).TopicID) {
		r.mu.Unlock()
		return nil
	}
	s, next := t.session, make(map[int32]uint64)
	for p := range t.follows {
		next[p] = 0
	}
	r.mu.Unlock()
	at, err := s.Timestamp()
	if err != nil {
		return nil
	}
	for p := range next {
		pos, _ := at.At(int(p))
		next[p] = pos.Next
	}
	return next
}

// settle waits until the instances have all partitions between them, and returns how many each has.
func (p *pond) settle(rigs ...*rig) (shares []int) {
	p.t.Helper()
	p.until("the partitions are shared out", func() bool { shares = p.shares(false, rigs); return shares != nil })
	return shares
}

// caughtUp waits until, between them, the instances have indexed what is in the log now.
func (p *pond) caughtUp(rigs ...*rig) {
	p.t.Helper()
	p.until("the log is indexed", func() bool { return p.shares(true, rigs) != nil })
}

// shares are how many partitions each instance has; nil while an instance has none, or one is nobody's, or is
// not indexed if that is wanted.
func (p *pond) shares(indexed bool, rigs []*rig) (shares []int) {
	left := make(map[int32]uint64)
	for _, i := range p.cluster.PartitionInfos(p.topic.name) {
		left[i.Partition] = uint64(i.HighWatermark)
	}
	for _, r := range rigs {
		following := r.following()
		if len(following) == 0 {
			return nil // it has not joined
		}
		shares = append(shares, len(following))
		for f, next := range following {
			if !indexed || next >= left[f] {
				delete(left, f)
			}
		}
	}
	if len(left) > 0 {
		return nil
	}
	return shares
}

// requireLog holds what each instance answers against the log.
func (p *pond) requireLog(rigs ...*rig) {
	p.t.Helper()
	now, err := readLogs(limited(p.t), p.cluster, p.topic)
	require.NoError(p.t, err)
	var want []string
	ends := make(map[int32]int64)
	for _, i := range p.cluster.PartitionInfos(p.topic.name) {
		ends[i.Partition] = i.HighWatermark
		want = append(want, indexOf(i.Partition, now[p.topic.name][i.Partition], i.HighWatermark, p.topic.fields)...)
	}
	require.NotEmpty(p.t, want)
	for _, r := range rigs {
		got, whole, err := indexAt(limited(p.t), r.url, p.topic, ends)
		require.NoError(p.t, err)
		require.True(p.t, whole, "%s does not answer for every partition up to its end", r.url)
		require.NoError(p.t, compare(got, want), "what %s answers is not what the log has", r.url)
	}
}

// get asks the instance; the answer must have that status.
func (r *rig) get(path string, status int, v any) {
	r.pond.t.Helper()
	req, err := http.NewRequestWithContext(limited(r.pond.t), http.MethodGet, r.url+path, nil)
	require.NoError(r.pond.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.pond.t, err)
	defer func() { require.NoError(r.pond.t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(r.pond.t, err)
	require.Equal(r.pond.t, status, resp.StatusCode, "%s: %s", path, body)
	if v != nil {
		require.NoError(r.pond.t, jsonInto(body, v), "%s: %s", path, body)
	}
}
