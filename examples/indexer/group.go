package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/staleproof/staleproof/streamstate"
)

// clientPrefix is what the client id of an indexer begins with; its address follows. A description of the group has the
// client ids of all members, which is how an instance finds the others.
const clientPrefix = "indexer="

var errGroupAnew = errors.New("the group was forgotten and has begun anew")

func (n *node) options() []kgo.Opt {
	return []kgo.Opt{
		kgo.SeedBrokers(strings.Split(n.cfg.brokers, ",")...),
		kgo.ClientID(clientPrefix + n.url),
		kgo.ConsumerGroup(n.cfg.group),
		kgo.ConsumeTopics(slices.Sorted(maps.Keys(n.cfg.indexes))...),
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(n.cfg.sessionTimeout),
		kgo.HeartbeatInterval(n.cfg.sessionTimeout / 16),
		kgo.RebalanceTimeout(6 * n.cfg.sessionTimeout),
		kgo.DisableAutoCommit(),    // the position is the store's, in the same transaction as the entries
		kgo.BlockRebalanceOnPoll(), // what was polled belongs to the claim that is found for it
		kgo.KeepControlRecords(),   // a log that ends with one is indexed up to its end
		kgo.MetadataMinAge(250 * time.Millisecond),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMaxAge(30 * time.Second), // so that a topic that has grown is noticed
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(n.onAssigned),
		kgo.OnPartitionsRevoked(n.onRevoked),
		kgo.OnPartitionsLost(n.onLost),
		kgo.AdjustFetchOffsetsFn(n.startOffsets),
		kgo.WithLogger(kafkaLog{n.slog}), kgo.WithHooks(n.reach),
	}
}

// backoff is how long the client waits before it tries again.
func backoff(tries int) time.Duration { return min(50*time.Millisecond<<min(tries, 5), time.Second) }

// onAssigned begins to follow partitions: each where this store left off, whatever the group knows of them. The group's
// generation is the term. The group waits for it.
func (n *node) onAssigned(ctx context.Context, cl *kgo.Client, added map[string][]int32) {
	member, generation := cl.GroupMetadata()
	cl.ResumeFetchPartitions(added) // one may have failed before
	n.mu.Lock()
	n.generation = generation
	delete(n.told, "")
	for name, ps := range added {
		delete(n.told, name)
		if n.assigned[name] == nil {
			n.assigned[name] = make(map[int32]bool)
		}
		for _, p := range ps {
			n.assigned[name][p] = true
		}
	}
	n.mu.Unlock()
	err := n.resolve(ctx)
	var logs map[string]map[int32]bounds
	if err == nil && len(added) > 0 {
		logs, err = n.bounds(ctx, slices.Sorted(maps.Keys(added)))
	}
	for name, ps := range added {
		failure := err
		if failure == nil {
			failure = n.beginAll(ctx, name, ps, logs[name], member, generation)
		}
		if failure != nil {
			n.log.Printf("topic %s: cannot begin: %v; trying again", name, failure)
			n.renewTopic(name)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groupChanged()
}

// resolve finds out which lives of the topics are the present ones, and opens the books of those that are new.
func (n *node) resolve(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest() // the admin client would answer out of a cache, and a life of a topic may be short
	for name := range n.cfg.indexes {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = &name
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, n.asks)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		name, id := *t.Topic, topicID(t.TopicID)
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil || len(t.Partitions) == 0 {
			n.slog.Debug("topic is not there", "topic", name, "err", err)
			continue
		}
		if id == (topicID{}) {
			return fmt.Errorf("topic %s has no id: Kafka 3.1 or newer is needed", name)
		}
		if err := n.live(ctx, name, id, len(t.Partitions)); err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
	}
	return nil
}

// live makes a life of a topic the present one.
func (n *node) live(ctx context.Context, name string, id topicID, partitions int) error {
	old := n.topic(name)
	if old != nil && old.id == id {
		if partitions <= old.partitions {
			return nil
		}
		n.mu.Lock()
		busy := len(old.follows) > 0
		n.mu.Unlock()
		if busy { // it has grown; its claims must end before its books can
			n.log.Printf("topic %s has grown from %d to %d partitions; it is subscribed to anew", name, old.partitions, partitions)
			n.renewTopic(name)
			return nil
		}
	}
	if old != nil {
		if err := old.session.Drop().Wait(ctx); err != nil {
			return err
		}
		if old.id != id {
			n.log.Printf("topic %s was deleted and created again: %v is dropped, %v begins from nothing", name, old.id, id)
			n.renewFrom(old)
			n.mu.Lock()
			delete(n.wipe, old.id)
			n.mu.Unlock()
		}
	}
	if err := n.dropOthers(name, id); err != nil {
		return err
	}
	t, err := n.open(name, id, partitions)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.topics[name] = t
	return nil
}

// dropOthers removes from the store what it has of former topics of a name.
func (n *node) dropOthers(name string, id topicID) error {
	known, err := n.store.topics()
	for other, meta := range known {
		if err == nil && meta.Name == name && other != id {
			err = n.store.dropTopic(other)
		}
	}
	return err
}

// open opens the books of a topic, at what the store has.
func (n *node) open(name string, id topicID, partitions int) (*topic, error) {
	t := &topic{
		name: name, id: id, fields: n.cfg.indexes[name], partitions: partitions,
		follows: make(map[int32]*follow), leaving: make(map[int32]*streamstate.Handle),
	}
	anew, err := n.store.ensure(id, name, t.fields)
	if err != nil {
		return nil, err
	}
	if anew {
		n.log.Printf("topic %s was indexed by other fields: its index begins from nothing", name)
	}
	restart, err := n.store.positions(id, partitions)
	if err != nil {
		return nil, err
	}
	t.session, err = n.book.Open(streamstate.Key{Stream: n.cfg.group, Keyspace: id.String()}, streamstate.OpenOptions[*memtable]{
		Partitions: partitions, Wanted: streamstate.None, Restart: restart, Payload: newMemtable(),
	})
	if err == nil {
		s := t.session
		n.drivers.Go(func() { n.repairer(t, s) })
	}
	return t, err
}

// beginAll begins partitions of one topic.
func (n *node) beginAll(ctx context.Context, name string, ps []int32, logs map[int32]bounds, member string, generation int32) error {
	t := n.topic(name)
	if t == nil {
		return errNoTopic
	}
	for _, p := range ps {
		if int(p) >= t.partitions {
			return fmt.Errorf("partition %d is not among the %d that were there", p, t.partitions)
		}
		err := n.left(ctx, t, p)
		var at start
		if err == nil {
			at, err = n.startOf(ctx, t, p, logs)
		}
		if err == nil {
			err = n.begin(ctx, t, p, at, member, generation)
		}
		if err != nil {
			return fmt.Errorf("partition %d: %w", p, err)
		}
	}
	return nil
}

// begin claims a partition.
func (n *node) begin(ctx context.Context, t *topic, p int32, at start, member string, generation int32) error {
	how := streamstate.Begin{Owner: member, Term: uint64(generation), From: at.from}
	c, err := claimOf(t.session, p, how)
	if errors.Is(err, streamstate.ErrStaleTerm) || errors.Is(err, streamstate.ErrPhase) { // or a recovery has stopped the session
		if err = n.reopen(ctx, t); err == nil {
			c, err = claimOf(t.session, p, how)
		}
	}
	if err != nil {
		return err
	}
	if at.known {
		n.log.Printf("%s/%d: goes on from %v, in generation %d", t.name, p, at.from, generation)
	} else {
		n.log.Printf("%s/%d: begins from nothing, at %d, in generation %d", t.name, p, at.from.Next, generation)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	t.follows[p] = &follow{claim: c, from: at.from.Next, goal: at.end, end: at.end, polled: at.from.Next, fresh: !at.known}
	return nil
}

func claimOf(s *session, p int32, how streamstate.Begin) (*claim, error) {
	if err := s.Want(int(p)); err != nil {
		return nil, err
	}
	return s.Begin(int(p), how)
}

// reopen begins the next session of a topic. A group that all have left is forgotten by the brokers after a while, and its
// generations begin anew: what the former ones have claimed is over.
func (n *node) reopen(ctx context.Context, t *topic) error {
	if err := t.session.Stop(errGroupAnew).Wait(ctx); err != nil && !errors.Is(err, errGroupAnew) {
		return err
	}
	restart, err := n.store.positions(t.id, t.partitions)
	if err != nil {
		return err
	}
	s, err := n.book.Reopen(t.session, streamstate.ReopenOptions[*memtable]{
		Carry:   func(*memtable) (*memtable, error) { return newMemtable(), nil },
		Restart: restart,
	})
	if err != nil {
		return err
	}
	n.drivers.Go(func() { n.repairer(t, s) })
	n.mu.Lock()
	defer n.mu.Unlock()
	t.session, t.follows, t.leaving = s, make(map[int32]*follow), make(map[int32]*streamstate.Handle)
	return nil
}

// left waits until nothing covers a partition that was given up, and forgets what the memtable has of it.
func (n *node) left(ctx context.Context, t *topic, p int32) error {
	n.mu.Lock()
	h := t.leaving[p]
	n.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := h.Wait(ctx); err != nil {
		return err
	}
	err := t.session.Update(func(tx streamstate.Tx[*memtable]) error {
		m, err := tx.Payload()
		if err == nil {
			m.forget(p)
		}
		return err
	})
	if errors.Is(err, streamstate.ErrPhase) { // a recovery has stopped the session: its memtable is used no more
		err = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(t.leaving, p)
	return err
}

// startOffsets tells the client where to begin, in place of what the group has committed. A partition that was not begun is
// left out: nothing of it is fetched.
func (n *node) startOffsets(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for name, ps := range offsets {
		t := n.topic(name)
		for p := range ps {
			from, known, ok := n.received(t, p)
			if !ok {
				delete(ps, p)
				continue
			}
			ps[p] = offsetOf(from, known)
		}
	}
	return offsets, nil
}

// received is how far a partition that is followed has come.
func (n *node) received(t *topic, p int32) (pos streamstate.Position, known, ok bool) {
	if t == nil {
		return pos, false, false
	}
	n.mu.Lock()
	f := t.follows[p]
	n.mu.Unlock()
	if f == nil {
		return pos, false, false
	}
	err := t.session.Read(func(tx streamstate.ReadTx[*memtable]) error {
		v, err := tx.Partition(int(p))
		pos, known = v.Received, v.HasReceived && v.Received.Next > 0
		return err
	})
	return pos, known, err == nil
}

// onRevoked gives partitions up. From here on late work is refused; the group waits until no running commit covers them.
func (n *node) onRevoked(ctx context.Context, _ *kgo.Client, gone map[string][]int32) {
	n.giveUp(gone, "given up")
	for name, ps := range gone {
		t := n.topic(name)
		for _, p := range ps {
			if t == nil {
				break
			}
			if err := n.left(context.WithoutCancel(ctx), t, p); err != nil {
				n.slog.Debug("given up", "topic", name, "partition", p, "err", err)
			}
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groupChanged()
}

// onLost gives up partitions that others may have by now. There is nobody to wait for us.
func (n *node) onLost(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
	n.giveUp(gone, "LOST")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groupChanged()
}

func (n *node) giveUp(gone map[string][]int32, how string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, ps := range gone {
		t := n.topics[name]
		for _, p := range ps {
			delete(n.assigned[name], p)
			if t == nil || t.follows[p] == nil {
				continue
			}
			t.leaving[p] = t.session.Unwant(int(p))
			delete(t.follows, p)
		}
		n.log.Printf("%s: %s: %v", name, how, ps)
	}
}
