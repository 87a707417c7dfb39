package main

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/staleproof/staleproof/streamstate"
)

// parcel is what a worker gets: records of one partition, and the claim they were polled for.
type parcel struct {
	claim   *claim
	topic   *topic
	records []*kgo.Record
}

// poll hands what the client fetches to the workers.
func (n *node) poll() {
	queued := 0
	for {
		for queued > 0 {
			if queued < maxQueued {
				select {
				case k := <-n.freed:
					queued -= k
					continue
				default:
				}
				break
			}
			select {
			case k := <-n.freed:
				queued -= k
			case <-n.polling.Done():
				return
			}
		}
		fetches := n.cl.PollRecords(n.pollContext(), maxPoll)
		if n.polling.Err() != nil || fetches.IsClientClosed() {
			n.cl.AllowRebalance()
			return
		}
		// No assignment can change between the poll and the end of deal, so what was polled belongs to the claims that it finds.
		sick := n.fetchErrors(fetches)
		queued += n.deal(fetches, sick)
		n.restartAsked()
		n.cl.AllowRebalance()
		for name, is := range sick {
			if is {
				n.renewTopic(name)
			}
		}
	}
}

// deal gives each partition's records to its worker. Its queue has room for all that poll lets be queued.
func (n *node) deal(fetches kgo.Fetches, sick map[string]bool) (queued int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fetches.EachTopic(func(ft kgo.FetchTopic) {
		t := n.topics[ft.Topic]
		for _, fp := range ft.Partitions {
			switch {
			case len(fp.Records) == 0:
			case t == nil || ft.TopicID != t.id && ft.TopicID != topicID{}:
				sick[ft.Topic] = true // another life of the topic
				n.foreign += len(fp.Records)
			case t.follows[fp.Partition] == nil:
				n.foreign += len(fp.Records)
			default:
				f := t.follows[fp.Partition]
				n.boundsLocked(ft.Topic, fp.Partition, f, bounds{uint64(max(fp.LogStartOffset, 0)), uint64(max(fp.LastStableOffset, 0))})
				f.polled, f.fresh = uint64(fp.Records[len(fp.Records)-1].Offset+1), false
				n.queueOf(t, fp.Partition) <- &parcel{f.claim, t, fp.Records}
				queued += len(fp.Records)
			}
		}
	})
	return queued
}

var seed = maphash.MakeSeed()

// queueOf is the queue of the worker that has a partition: always the same one, so that its order is kept.
func (n *node) queueOf(t *topic, p int32) chan<- *parcel {
	return n.queues[(maphash.Comparable(seed, t.id)+uint64(p))%uint64(len(n.queues))]
}

// fetchErrors looks at what could not be fetched; the client has retried what can be. It returns the topics to be
// subscribed to anew.
func (n *node) fetchErrors(fetches kgo.Fetches) map[string]bool {
	sick := make(map[string]bool)
	fetches.EachError(func(name string, p int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed): // a poll that was woken, or the end
			return
		case name == "" || p < 0: // of the group, of a broker, or of what the brokers know of a topic: the client goes on trying
			n.tell(name, err)
		case errors.As(err, &loss):
			n.log.Printf("%s/%d: the log was cut below what is indexed: %v; the partition is indexed anew", name, p, err)
			sick[name] = sick[name] || !n.cut(name, p)
		default:
			n.cl.PauseFetchPartitions(map[string][]int32{name: {p}}) // nothing is to be fetched for a claim that has ended
			n.mu.Lock()
			sick[name] = sick[name] || !n.faulted(name, p, lostFor(err), err)
			n.mu.Unlock()
		}
	})
	return sick
}

// telling is an error that the log has.
type telling struct {
	text string
	at   time.Time
}

// tell logs what is wrong with a topic, or with the group if it has no name: once until it changes or all is well again, and
// not more often than every tellEvery.
func (n *node) tell(name string, err error) {
	n.slog.Debug("fetch", "topic", name, "err", err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if last := n.told[name]; last.text == err.Error() || time.Since(last.at) < tellEvery {
		return
	}
	n.told[name] = telling{err.Error(), time.Now()}
	if name == "" {
		n.log.Printf("group %s: %v; trying again", n.cfg.group, err)
	} else {
		n.log.Printf("topic %s: %v; trying again", name, err)
	}
}

// cut ends the claim of a partition whose log was cut, so that nothing of the new log is applied on top of the old, and has
// what is in the store of it dropped before it begins again.
func (n *node) cut(name string, p int32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cutLocked(name, p)
}

// +checklocks:n.mu
func (n *node) cutLocked(name string, p int32) bool {
	if t := n.topics[name]; t != nil {
		n.wipeLocked(t.id, p)
	}
	return n.faulted(name, p, true, errCut)
}

// wipeLocked has a partition of one life of a topic begin from nothing the next time.
//
// +checklocks:n.mu
func (n *node) wipeLocked(id topicID, p int32) {
	if n.wipe[id] == nil {
		n.wipe[id] = make(map[int32]bool)
	}
	n.wipe[id][p] = true
}

// work decodes and applies until the queue is closed. A claim that has ended meanwhile refuses what was polled for it: late
// work is handed in all the same, and has no effect.
func (n *node) work(q <-chan *parcel) {
	for p := range q {
		b, o := n.decoded(p)
		if n.cfg.beforeApply != nil {
			n.cfg.beforeApply(p)
		}
		partition := int32(p.claim.Partition())
		err := p.claim.Apply(b.pos, func(tx streamstate.Tx[*memtable]) error {
			err := apply(tx, partition, b)
			if err == nil {
				n.applied.Add(int64(len(p.records)))
			}
			return err
		})
		n.freed <- len(p.records)
		if n.cfg.onApply != nil {
			n.cfg.onApply(p, err)
		}
		if err != nil { // the book has counted it, by its reason
			n.slog.Debug("refused", "topic", p.topic.name, "partition", partition, "records", len(p.records), "err", err)
			continue
		}
		if o != (odd{}) {
			n.mu.Lock()
			n.odd.add(o)
			n.mu.Unlock()
		}
		n.flushIfFull(p.topic, p.claim.Session())
	}
}

// decoded makes a batch of a parcel. That of a claim which has ended is not worth the time: it is refused in any case, and the
// next claim's records wait behind it.
func (n *node) decoded(p *parcel) (*batch, odd) {
	if p.claim.Context().Err() != nil {
		return &batch{pos: positionAfter(p.records[len(p.records)-1])}, odd{}
	}
	n.delay()
	return decode(p.records, p.topic.fields)
}

// apply puts a batch into the memtable, in the hold in which the claim was found to be live.
func apply(tx streamstate.Tx[*memtable], partition int32, b *batch) error {
	m, err := tx.Payload()
	if err != nil {
		return err
	}
	v, err := tx.Partition(int(partition))
	if err != nil {
		return err
	}
	news := slices.IndexFunc(b.rows, func(r row) bool { return uint64(r.offset) >= v.Received.Next })
	if news < 0 {
		news = len(b.rows)
	}
	m.add(partition, &batch{b.pos, b.rows[news:]}) // what is before it was applied already
	return nil
}

// delay makes the work as heavy as the command line wants it.
func (n *node) delay() {
	if n.cfg.decodeDelay <= 0 {
		return
	}
	t := time.NewTimer(n.cfg.decodeDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-n.polling.Done():
	}
}

// renewTopic has a topic subscribed to anew: its partitions are given up and come back by an assignment. The client does
// not follow a topic into another life by itself.
func (n *node) renewTopic(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ours := n.cfg.indexes[name]; ours && !n.renewing[name] {
		n.renewing[name] = true
		n.renew <- name // it has room for each topic once
	}
}

// renewFrom has the topic subscribed to anew if the client still follows a life of it that is over.
func (n *node) renewFrom(old *topic) {
	n.mu.Lock()
	purged := old.purged
	n.mu.Unlock()
	if !purged {
		n.renewTopic(old.name)
	}
}

// renewer subscribes to topics anew, one after the other.
func (n *node) renewer() {
	for {
		select {
		case name := <-n.renew:
			n.renewNow(name)
		case <-n.polling.Done():
			return
		}
	}
}

// renewNow purges a topic, and adds it again when the client has told of the end of the old subscription.
func (n *node) renewNow(name string) {
	n.mu.Lock()
	wait := time.Until(n.renewed[name].Add(renewAfter))
	n.mu.Unlock()
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-n.polling.Done():
			return
		}
	}
	n.mu.Lock()
	if t := n.topics[name]; t != nil {
		t.purged = true
	}
	n.mu.Unlock()
	n.cl.PurgeTopicsFromConsuming(name)
	for {
		n.mu.Lock()
		assigned, changed := len(n.assigned[name]), n.changed
		n.mu.Unlock()
		if assigned == 0 {
			break
		}
		select {
		case <-changed:
		case <-n.polling.Done():
			return
		}
	}
	n.addAgain(name)
}

// addAgain subscribes to a topic of which nothing is assigned.
func (n *node) addAgain(name string) {
	n.mu.Lock()
	n.renewed[name], n.renewing[name] = time.Now(), false
	if t := n.topics[name]; t != nil {
		t.purged = false
	}
	n.mu.Unlock()
	n.cl.AddConsumeTopics(name)
}
