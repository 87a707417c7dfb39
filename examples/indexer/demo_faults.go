package main

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

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

// repairs is how many steps of repair of a topic the instances that live have begun, and how many records they have applied.
func (s *show) repairs(name string) (steps, applied int64, err error) {
	for _, c := range s.children {
		v, err := c.status(s.ctx)
		if err != nil {
			return 0, 0, err
		}
		steps, applied = steps+v.Repairs[name], applied+v.Applied
	}
	return steps, applied, nil
}

// until asks the instances until something holds.
func (s *show) until(what, name string, holds func(steps, applied int64) bool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		steps, applied, err := s.repairs(name)
		if err != nil || holds(steps, applied) {
			return err
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return fmt.Errorf("waiting until %s: %d steps of repair, %d records", what, steps, applied)
		}
	}
}

// faults shows what repair is for, and what it is not for.
func (s *show) faults() error {
	g := dataset[0]
	before, applied, err := s.repairs(g.name)
	if err != nil {
		return err
	}
	noCut(s.cluster)
	for _, p := range s.cluster.PartitionInfos(g.name) {
		to := (p.Leader + 1) % 3
		if err := s.cluster.MoveTopicPartition(g.name, p.Partition, to); err != nil {
			return err
		}
	}
	if err := s.until("the instances go on", g.name, func(_, now int64) bool { return now > applied+int64(s.size/10) }); err != nil {
		return err
	}
	after, _, err := s.repairs(g.name)
	switch {
	case err != nil:
		return err
	case after != before:
		return errors.New("the move of a leader has begun a repair")
	}
	s.say("all leaders of %s have moved: the clients follow, no repair begins", g.name)

	var faulty atomic.Bool
	var fetches atomic.Int64
	faulty.Store(true)
	faultPartition(s.cluster, g.name, 0, func() bool { return faulty.Load() && fetches.Add(1)%3 == 0 })
	err = s.until("the fault is noticed", g.name, func(now, _ int64) bool { return now > before })
	faulty.Store(false)
	if err != nil {
		return err
	}
	s.say("partition 0 of %s was FAULTED at its broker: the ladder has it fetched again, under a new claim", g.name)
	return nil
}
