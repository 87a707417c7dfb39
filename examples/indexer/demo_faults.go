package main

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// seen is what the instances that live have done so far, in all.
type seen struct {
	tickets map[string]rungs // of repair, by topic
	applied int64            // records
	views   map[string]view  // by instance
}

func (s *show) look() (seen, error) {
	all := seen{tickets: make(map[string]rungs), views: make(map[string]view)}
	for name, c := range s.children {
		v, err := c.status(s.ctx)
		if err != nil {
			return all, err
		}
		all.views[name] = v
		all.applied += v.Applied
		for topic, r := range v.Repairs {
			if all.tickets[topic] == nil {
				all.tickets[topic] = make(rungs)
			}
			for work, n := range r {
				all.tickets[topic][work] += n
			}
		}
	}
	return all, nil
}

// since are the tickets of a topic that came since another look.
func (a seen) since(before seen, topic string) rungs {
	r := maps.Clone(a.tickets[topic])
	maps.DeleteFunc(r, func(work string, n uint64) bool { return n == before.tickets[topic][work] })
	for work := range r {
		r[work] -= before.tickets[topic][work]
	}
	return r
}

// until asks the instances until something holds.
func (s *show) until(what string, holds func(seen) bool) (now seen, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err = s.look()
		if err != nil || holds(now) {
			return now, err
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return now, fmt.Errorf("waiting until %s: repair %v, %d records", what, now.tickets, now.applied)
		}
	}
}

// goOn waits until the instances have applied some more records, and wants no repair of any topic to have begun since.
func (s *show) goOn(before seen, what string) error {
	now, err := s.until("the instances go on", func(now seen) bool { return now.applied > before.applied+int64(s.size/15) })
	if err != nil {
		return err
	}
	for topic := range now.tickets {
		if r := now.since(before, topic); len(r) > 0 {
			return fmt.Errorf("%s has begun a repair of %s: %s", what, topic, tally(r))
		}
	}
	return nil
}

// leaders shows what the client heals by itself: leaders that move, and a broker that is lost.
func (s *show) leaders() error {
	g := dataset[0]
	before, err := s.look()
	if err != nil {
		return err
	}
	for _, p := range s.cluster.PartitionInfos(g.name) {
		if err := s.cluster.MoveTopicPartition(g.name, p.Partition, (p.Leader+1)%demoBrokers); err != nil {
			return err
		}
	}
	if err := s.goOn(before, "the move of leaders"); err != nil {
		return err
	}
	s.say("all leaders of %s have moved: the clients follow, no repair of any topic begins", g.name)

	lost := s.cluster.LeaderFor(g.name, 0)
	if before, err = s.look(); err != nil {
		return err
	}
	if err := s.cluster.RemoveNode(lost); err != nil {
		return err
	}
	if err := s.goOn(before, "the loss of a broker"); err != nil {
		return err
	}
	s.say("broker %d is LOST with all its connections, others lead its partitions: the clients follow, no repair of any topic begins", lost)
	if _, _, err := s.cluster.AddNode(-1, 0); err != nil {
		return err
	}
	return nil
}

// fault shows what repair is for: a partition that the client does not heal by itself.
func (s *show) fault() error {
	g := dataset[0]
	before, err := s.look()
	if err != nil {
		return err
	}
	var faulty atomic.Bool
	var fetches atomic.Int64
	faulty.Store(true)
	faultPartition(s.cluster, g.name, 0, func() bool { return faulty.Load() && fetches.Add(1)%3 == 0 })
	now, err := s.until("the fault is noticed", func(now seen) bool { return len(now.since(before, g.name)) > 0 })
	faulty.Store(false)
	if err != nil {
		return err
	}
	s.say("partition 0 of %s was FAULTED at its broker; tickets of repair: %s: it is fetched again, under a new claim", g.name, tally(now.since(before, g.name)))
	return nil
}

// deleteUnread deletes records that no instance has read yet: the offset that the client wants next is out of range.
func (s *show) deleteUnread() error {
	g, p := dataset[0], int32(1)
	if err := s.pause(); err != nil {
		return err
	}
	before, err := s.look()
	if err != nil {
		return err
	}
	first, point, err := s.cutOff(g, p)
	if err != nil {
		return err
	}
	s.deleted[g.name] = map[int32]int64{p: point}
	s.produce()
	anew := func(now seen) bool {
		for _, v := range now.views {
			for _, part := range v.Partitions {
				if part.Topic == g.name && part.Partition == p && part.From == uint64(point) && part.Next > part.From {
					return now.since(before, g.name)["resubscribe"] > 0
				}
			}
		}
		return false
	}
	now, err := s.until(fmt.Sprintf("%s/%d is indexed anew", g.name, p), anew)
	if err != nil {
		return err
	}
	s.say("records of %s/%d were DELETED up to %d, those from %d on unread; tickets of repair: %s: it is indexed anew, from what the log still has",
		g.name, p, point, first, tally(now.since(before, g.name)))
	return nil
}

// cutOff writes records while the brokers withhold a partition, and deletes the first of them there, with all that are older.
// Those from first to point, exclusive, have been read by nobody.
func (s *show) cutOff(g generated, p int32) (first, point int64, err error) {
	end := withhold(s.cluster, g.name, p)
	defer end()
	// A fetch that the broker has in hand is answered with the first records that are written.
	if err := s.producer.some(s.ctx, s.size/60, g); err != nil {
		return 0, 0, err
	}
	first = s.cluster.PartitionInfo(g.name, p).HighWatermark
	if err := s.producer.some(s.ctx, s.size/30, g); err != nil {
		return 0, 0, err
	}
	now, err := readLogs(s.ctx, s.cluster, dataset...)
	if err != nil {
		return 0, 0, err
	}
	s.remember(now)
	point = s.cluster.PartitionInfo(g.name, p).HighWatermark
	if err := s.producer.some(s.ctx, s.size/60, g); err != nil {
		return 0, 0, err
	}
	at := make(kadm.Offsets)
	at.AddOffset(g.name, p, point, -1)
	done, err := kadm.NewClient(s.producer.cl).DeleteRecords(s.ctx, at)
	if err == nil {
		err = done.Error()
	}
	if err == nil && point <= first {
		err = errors.New("no records were there to be deleted")
	}
	return first, point, err
}
