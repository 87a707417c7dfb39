package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/staleproof/staleproof/repair"
	"github.com/staleproof/staleproof/streamstate"
)

// errAnother is what a partition answers that only another subscription can bring back.
var errAnother = fmt.Errorf("%w: it takes another subscription", repair.ErrRefused)

var errCut = errors.New("the log does not go together with what is indexed")

// repairer drives the repair of one session until it ends. What the client heals by itself, such as the move of a leader or
// the loss of a broker, never comes here: no claim ends of it.
func (n *node) repairer(t *topic, s *session) {
	told := make(chan struct{})
	err := repair.Stream(n.living, s, &feed{n, t, s}, repair.StreamOptions{OnEvent: func(e repair.StreamEvent) {
		if n.onRepair(t, e); e.Kind == repair.StreamEnded {
			close(told)
		}
	}})
	<-told
	if due, ok := errors.AsType[*repair.RecoveryDueError](err); ok {
		n.log.Printf("topic %s: %v; it is read again from what is committed", t.name, due)
		if err := s.Stop(due).Wait(n.living); err != nil {
			n.slog.Debug("recovery", "topic", t.name, "err", err)
			return // it was dropped meanwhile, or the node ends
		}
		if err := n.rollBack(t, due.Restart); err != nil {
			n.fail(err)
			return
		}
		n.renewTopic(t.name) // who begins there next finds the session stopped, and reopens it
	}
}

// rollBack has what the store has beyond a recovery's restart dropped before the topic is subscribed to anew. What is indexed
// cannot be taken back in part: such a partition is indexed anew.
func (n *node) rollBack(t *topic, to streamstate.Timestamp) error {
	at, err := n.store.positions(t.id, t.partitions)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for p, has := range at.All() {
		if back, ok := to.At(p); ok && back.Next < has.Next {
			n.wipeLocked(t.id, int32(p))
		}
	}
	return nil
}

// rungs are how many tickets of repair were taken up, by what they are for: restart, shut-down, resubscribe, recover.
type rungs map[string]uint64

// onRepair tells of a repair. Every rung above restart is told once as the escalation that it is.
func (n *node) onRepair(t *topic, e repair.StreamEvent) {
	n.slog.Debug("repair", "topic", t.name, "event", e.Kind, "work", e.Work, "partition", e.Partition, "attempt", e.Attempt, "err", e.Err)
	if e.Kind == repair.StreamEscalated || e.Kind == repair.StreamAsked && e.Attempt == 1 && e.Work == "restart" {
		n.mu.Lock()
		if n.repairs[t.name] == nil {
			n.repairs[t.name] = make(rungs)
		}
		n.repairs[t.name][e.Work]++
		n.mu.Unlock()
		n.log.Printf("topic %s: repair: %s of %s", t.name, e.Work, nameOfPart(e.Partition))
	}
}

func nameOfPart(p int) string {
	if p < 0 {
		return "all partitions"
	}
	return fmt.Sprintf("partition %d", p)
}

// feed is the source of one session: the client's subscription to one life of a topic.
type feed struct {
	n *node
	t *topic
	s *session
}

// restarting is what a feed asks of the goroutine that polls.
type restarting struct {
	ctx   context.Context //nolint:containedctx // it is the question's
	f     *feed
	batch []repair.Restart
	done  chan error
}

// Restart has the client fetch partitions again from what is received, under new claims. It is done by the goroutine that
// polls, between what it has dealt and its next poll: so no record that was fetched before is taken for the new claim's.
func (f *feed) Restart(ctx context.Context, batch []repair.Restart) error {
	r := restarting{ctx, f, batch, make(chan error, 1)}
	select {
	case f.n.restarts <- r:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	f.n.wakePoll()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Shutdown has nothing to end: the claims are this instance's own, and whatever is polled for one is refused from its end on.
func (f *feed) Shutdown(context.Context, []repair.Shutdown) error { return nil }

// Resubscribe gives the topic up and subscribes to it anew; the assignment that follows begins, in this session or, if it is
// of another life of the topic, in the next one.
func (f *feed) Resubscribe(context.Context, []repair.Restart) error {
	f.n.renewTopic(f.t.name)
	return nil
}

// pollContext is for one poll: it ends when a restart is asked for.
func (n *node) pollContext() context.Context {
	ctx, wake := context.WithCancel(n.polling)
	n.mu.Lock()
	n.wake = wake
	n.mu.Unlock()
	if len(n.restarts) > 0 {
		wake()
	}
	return ctx
}

func (n *node) wakePoll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wake()
}

// restartAsked does the restarts that were asked for. It is called between a poll and the end of its time, so that no
// assignment can change.
func (n *node) restartAsked() {
	n.wakePoll() // that poll is over
	for {
		select {
		case r := <-n.restarts:
			if r.ctx.Err() == nil {
				r.done <- n.restart(r.f, r.batch)
			}
		default:
			return
		}
	}
}

// restart begins what can be begun by this subscription. No assignment can change meanwhile.
func (n *node) restart(f *feed, batch []repair.Restart) error {
	member, generation := n.cl.GroupMetadata()
	failed := repair.PartitionErrors{}
	offsets := make(map[int32]kgo.EpochOffset)
	for _, b := range batch {
		p := int32(b.Partition)
		old := f.present(p)
		if old == nil {
			failed[b.Partition] = errAnother
			continue
		}
		c, err := f.s.Begin(b.Partition, streamstate.Begin{Owner: member, Term: uint64(generation), From: b.From})
		if err != nil {
			failed[b.Partition] = err
			continue
		}
		n.log.Printf("%s/%d: is fetched again from %v, in generation %d", f.t.name, p, b.From, generation)
		next := b.From.Next
		n.mu.Lock()
		f.t.follows[p] = &follow{claim: c, from: old.from, goal: old.goal, end: old.end, polled: next, fresh: next == 0 || old.fresh}
		n.mu.Unlock()
		if offsets[p] = (kgo.EpochOffset{Epoch: int32(b.From.Branch), Offset: int64(next)}); next == 0 {
			offsets[p] = kgo.EpochOffset{Epoch: -1}
		}
	}
	if len(offsets) > 0 {
		n.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{f.t.name: offsets})
		n.cl.ResumeFetchPartitions(map[string][]int32{f.t.name: slices.Collect(maps.Keys(offsets))})
	}
	if len(failed) > 0 {
		return failed
	}
	return nil
}

// present is what is known of a partition that can be fetched again by this subscription, nil if it cannot be.
func (f *feed) present(p int32) *follow {
	n := f.n
	n.mu.Lock()
	defer n.mu.Unlock()
	old := f.t.follows[p]
	if n.topics[f.t.name] != f.t || f.t.session != f.s || old == nil || old.lost || !n.assigned[f.t.name][p] {
		return nil
	}
	return old
}

// faulted ends the claim of a partition that cannot be fetched, and leaves the rest to the repair of its session. One that
// is lost comes back by another subscription only. It tells whether there was a claim.
//
// +checklocks:n.mu
func (n *node) faulted(name string, p int32, lost bool, cause error) bool {
	t := n.topics[name]
	if t == nil || t.follows[p] == nil {
		return false
	}
	f := t.follows[p]
	f.lost = f.lost || lost
	if f.claim.End(streamstate.Failed) == nil { // or it has failed before
		n.log.Printf("%s/%d: has FAILED: %v", name, p, cause)
	}
	return true
}

// lostFor tells whether an error says that the topic has another life, or none.
func lostFor(err error) bool {
	return errors.Is(err, kerr.UnknownTopicID) || errors.Is(err, kerr.InconsistentTopicID) || errors.Is(err, kerr.UnknownTopicOrPartition)
}
