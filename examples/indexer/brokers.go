package main

import (
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The brokers in this process, and what is done to them.

// startBroker is a cluster of n brokers in this process, with the topics of the data set. It does not outlive the process.
func startBroker(n int, sessions time.Duration) (*kfake.Cluster, error) {
	c, err := kfake.NewCluster(kfake.NumBrokers(n), kfake.GroupMinSessionTimeout(sessions), kfake.ListenFn(listenCut))
	if err != nil {
		return nil, err
	}
	for _, g := range dataset {
		if err := c.CreateTopic(g.name, g.partitions, g.config()); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.ShufflePartitionLeaders() // so that epochs do not begin with zero
	return c, nil
}

// cutListener takes the connections that it has accepted along when it is closed, as a broker that is lost does.
type cutListener struct {
	net.Listener
	mu sync.Mutex
	// +checklocks:mu
	conns map[*cutConn]bool
}

// cutConn is a connection that its listener may close.
type cutConn struct {
	net.Conn
	of *cutListener
}

func listenCut(network, address string) (net.Listener, error) {
	ln, err := net.Listen(network, address) //nolint:noctx // kfake has no context for it, and it does not wait
	if err != nil {
		return nil, err
	}
	return &cutListener{Listener: ln, conns: make(map[*cutConn]bool)}, nil
}

func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &cutConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = true
	return c, nil
}

func (l *cutListener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Conn.Close()
	}
	clear(l.conns)
	return err
}

func (c *cutConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// noCut has the brokers answer, as real ones do, that no log was cut when a leader has moved: these say so only once a record
// has been written since.
func noCut(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.OffsetForLeaderEpoch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, t := range kreq.(*kmsg.OffsetForLeaderEpochRequest).Topics {
			topic := kmsg.NewOffsetForLeaderEpochResponseTopic()
			topic.Topic = t.Topic
			for _, q := range t.Partitions {
				part := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				part.Partition, part.LeaderEpoch, part.EndOffset = q.Partition, q.LeaderEpoch, 1<<40
				topic.Partitions = append(topic.Partitions, part)
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
}

// faultPartition has the brokers answer fetches with an error of one partition that no client heals, whenever holds says so.
func faultPartition(c *kfake.Cluster, name string, partition int32, holds func() bool) {
	id := c.TopicInfo(name).TopicID
	c.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if !holds() {
			return nil, nil, false
		}
		part := kmsg.NewFetchResponseTopicPartition()
		part.Partition, part.ErrorCode = partition, kerr.UnknownServerError.Code
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic, topic.TopicID, topic.Partitions = name, id, []kmsg.FetchResponseTopicPartition{part}
		resp := kreq.ResponseKind().(*kmsg.FetchResponse)
		resp.Topics = append(resp.Topics, topic)
		return resp, nil, true
	})
}

// withhold has the brokers say of a partition, for a while, that their disk cannot be read, which clients wait out. It is said
// only to who reads what is committed, as the indexers do.
func withhold(c *kfake.Cluster, name string, partition int32) (end func()) {
	h := c.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.Fetch}, Topic: name, Partitions: []int32{partition}, Err: kerr.KafkaStorageError, Count: -1,
		When: func(r kmsg.Request) bool { f, ok := r.(*kmsg.FetchRequest); return ok && f.IsolationLevel == 1 },
	})
	return h.Remove
}
