package main

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/staleproof/staleproof/streamstate"
)

// Where a log begins and ends, and what that means for what is indexed of it.

// bounds are where a log begins and ends.
type bounds struct{ start, end uint64 }

// bounds asks for those of topics; a partition that cannot tell is left out.
func (n *node) bounds(ctx context.Context, names []string) (map[string]map[int32]bounds, error) {
	starts, err := n.adm.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, err
	}
	ends, err := n.adm.ListCommittedOffsets(ctx, names...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[int32]bounds)
	starts.Each(func(s kadm.ListedOffset) {
		e, ok := ends.Lookup(s.Topic, s.Partition)
		if !ok || s.Err != nil || e.Err != nil || s.Offset < 0 || e.Offset < 0 {
			return
		}
		if all[s.Topic] == nil {
			all[s.Topic] = make(map[int32]bounds)
		}
		all[s.Topic][s.Partition] = bounds{uint64(s.Offset), uint64(e.Offset)}
	})
	return all, nil
}

// watch looks at the logs now and then.
func (n *node) watch() {
	tick := time.NewTicker(n.cfg.watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := n.lookAtLogs(n.living); err != nil {
				n.slog.Debug("the logs", "err", err)
			}
		case <-n.living.Done():
			return
		}
	}
}

// lookAtLogs asks where the logs that are followed begin and end. A client that waits for records is not told that there are some
// which it cannot fetch, nor that what it waits for was deleted with all that came after it.
func (n *node) lookAtLogs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.peerWait)
	defer cancel()
	n.mu.Lock()
	topics := maps.Clone(n.topics)
	n.mu.Unlock()
	logs, err := n.bounds(ctx, slices.Sorted(maps.Keys(topics)))
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, t := range topics {
		if n.topics[name] != t {
			continue // it has another life
		}
		for p, f := range t.follows {
			n.boundsLocked(name, p, f, logs[name][p])
		}
	}
	return nil
}

// boundsLocked takes in where a log begins and ends, before anything else of it is dealt.
//
// +checklocks:n.mu
func (n *node) boundsLocked(name string, p int32, f *follow, log bounds) {
	if log.start > f.polled && !f.fresh && !f.lost {
		n.log.Printf("%s/%d: records from %d to %d were deleted before they were read; it is indexed anew", name, p, f.polled, log.start)
		n.cutLocked(name, p)
	}
	f.end = max(f.end, log.end)
}

// start is where a partition begins.
type start struct {
	from  streamstate.Position
	known bool   // else it begins from nothing
	end   uint64 // of the log
}

// startOf is where the store left off, when no commit covers the partition any more, unless what it has does not go together with the log: then it begins from nothing.
func (n *node) startOf(ctx context.Context, t *topic, p int32, logs map[int32]bounds) (start, error) {
	from, known, err := n.store.position(t.id, p)
	if err != nil {
		return start{}, err
	}
	n.mu.Lock()
	wipe := n.wipe[t.id][p]
	n.mu.Unlock()
	at := start{from, known, from.Next}
	log, ok := logs[p]
	why := ""
	switch {
	case wipe:
		why = errCut.Error()
	case !ok:
		return at, nil
	case known && from.Next > log.end:
		why = "the log was cut"
	case known && from.Next < log.start:
		why = "records were deleted that had not been read"
	}
	if why != "" {
		n.log.Printf("%s/%d: %s: it is indexed up to %v, and the log is from %d to %d; it is indexed anew", t.name, p, why, from, log.start, log.end)
		if err := n.forget(ctx, t, p); err != nil {
			return start{}, err
		}
		at.known = false
	}
	if !at.known { // what was deleted before is not waited for
		at.from = streamstate.Position{Next: log.start, Branch: noEpoch}
	}
	at.end = max(log.end, at.from.Next)
	return at, nil
}

// forget has a partition begin from nothing.
func (n *node) forget(ctx context.Context, t *topic, p int32) error {
	if err := n.store.dropPartition(t.id, p); err != nil {
		return err
	}
	// The session was opened at the position that the store had: what is given up is forgotten.
	if err := t.session.Want(int(p)); err != nil {
		return err
	}
	if err := t.session.Unwant(int(p)).Wait(ctx); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.wipe[t.id], p)
	return nil
}
