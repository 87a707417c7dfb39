package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/staleproof/staleproof/streamstate"
)

const (
	peerWait   = 2 * time.Second        // for one answer of another instance, or of the brokers
	settleWait = 2 * time.Second        // for partitions that nobody has at the moment
	askAgain   = 100 * time.Millisecond // meanwhile, unless the group tells of a change before
)

// found is what one look at the store gives.
type found struct {
	parts []owned
	hits  []hit
	last  string // the place of the last hit, if there are more
}

// here answers for the partitions that this instance has. The lock is not held while the store is read: the session is
// checked before and after, and what it has lost in between is left out.
func (n *node) here(ctx context.Context, q query) (answer, error) {
	n.mu.Lock()
	t := n.topics[q.topic]
	if t == nil {
		n.mu.Unlock()
		return answer{}, &requestError{http.StatusServiceUnavailable, fmt.Sprintf("topic %s does not exist yet", q.topic)}
	}
	s := t.session
	ends := make(map[int32]follow, len(t.follows))
	for p, f := range t.follows {
		ends[p] = *f
	}
	n.mu.Unlock()
	if q.id != "" && q.id != t.id.String() {
		return answer{}, &requestError{http.StatusConflict, fmt.Sprintf("topic %s is %v here", q.topic, t.id)}
	}
	a := answer{Topic: t.name, ID: t.id.String(), Field: q.field}
	err := streamstate.Exchange(ctx, s, ownedNow,
		func(_ context.Context, parts []owned) (f found, err error) {
			f.parts = parts
			err = n.store.view(t.id, func(v storeView) error {
				var more bool
				if f.hits, more = v.scan(q.span, parts); more {
					f.last = f.hits[len(f.hits)-1].at
				}
				return nil
			})
			return f, err
		},
		func(tx streamstate.Tx[*memtable], f found) error {
			f.forget(tx.View)
			a.fill(f, n.url, ends)
			return nil
		})
	if err != nil && over(err) {
		err = &requestError{http.StatusConflict, err.Error()}
	}
	a.finish(t.partitions)
	return a, err
}

// ownedNow is what a session has of the partitions that it follows.
func ownedNow(tx streamstate.ReadTx[*memtable]) ([]owned, error) {
	m, err := tx.Payload()
	if err != nil {
		return nil, err
	}
	var parts []owned
	for p, v := range tx.Partitions() {
		if v.State == streamstate.Begun && len(v.Claims) == 1 {
			c := v.Claims[0]
			parts = append(parts, owned{int32(p), uint64(c.ID), c.Term, v.Received.Next, m.parts[int32(p)]})
		}
	}
	return parts, nil
}

// forget leaves out what was given up since, even if it has come back.
func (f *found) forget(v streamstate.View) {
	kept := make(map[int32]bool, len(f.parts))
	f.parts = slices.DeleteFunc(f.parts, func(o owned) bool {
		now, err := v.Partition(int(o.partition))
		gone := err != nil || len(now.Claims) != 1 || uint64(now.Claims[0].ID) != o.claim
		kept[o.partition] = !gone
		return gone
	})
	f.hits = slices.DeleteFunc(f.hits, func(h hit) bool {
		_, p, _, err := splitEntryKey([]byte(h.at))
		return err != nil || !kept[p]
	})
}

func (a *answer) fill(f found, url string, ends map[int32]follow) {
	for _, h := range f.hits {
		a.Hits = append(a.Hits, itemOf(h))
	}
	if f.last != "" {
		a.Next = encodePlace(f.last)
	}
	for _, o := range f.parts {
		a.Partitions = append(a.Partitions, partAnswer{
			Partition: o.partition, Term: o.term, Next: o.next, End: ends[o.partition].end, From: ends[o.partition].from, URL: url,
		})
	}
}

// everywhere asks all instances of the group. While the group moves partitions it waits a little for those that nobody has.
func (n *node) everywhere(ctx context.Context, q query, v url.Values) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.settle+4*n.cfg.peerWait)
	defer cancel()
	until := time.Now().Add(n.cfg.settle)
	for {
		n.mu.Lock()
		changed := n.changed
		n.mu.Unlock()
		a, err := n.ask(ctx, q, v)
		if err != nil || a.Complete || time.Now().After(until) {
			return a, err
		}
		again := time.NewTimer(askAgain)
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// ask asks all instances once.
func (n *node) ask(ctx context.Context, q query, v url.Values) (answer, error) {
	t := n.topic(q.topic)
	if t == nil {
		return answer{}, &requestError{http.StatusServiceUnavailable, fmt.Sprintf("topic %s does not exist yet", q.topic)}
	}
	peers, err := n.others(ctx)
	silent := make([]string, len(peers)+1)
	if err != nil {
		silent[0] = fmt.Sprintf("the brokers do not tell which other instances there are: %v", err)
	}
	v.Set("local", "1")
	v.Set("id", t.id.String())
	q.id = t.id.String()
	answers := make([]answer, len(peers)+1)
	var asked sync.WaitGroup
	for i, peer := range peers {
		asked.Go(func() {
			err := n.askPeer(ctx, peer+"/v1/lookup?"+v.Encode(), &answers[i+1])
			if err == nil {
				err = answers[i+1].check(q)
			}
			if err != nil {
				n.slog.Debug("no answer", "from", peer, "err", err)
				answers[i+1], silent[i+1] = answer{}, fmt.Sprintf("%s: %v", peer, err)
			}
		})
	}
	answers[0], err = n.here(ctx, q)
	asked.Wait()
	if wrong, ok := errors.AsType[*requestError](err); ok && wrong.status == http.StatusConflict {
		answers[0], err = answer{}, nil // the topic's life has just ended
	}
	if err != nil {
		return answer{}, err
	}
	a := merge(answers, q.span.limit)
	a.Topic, a.ID, a.Field = t.name, t.id.String(), q.field
	a.finish(t.partitions)
	if !a.Complete {
		a.Silent = slices.DeleteFunc(silent, func(s string) bool { return s == "" })
	}
	return a, nil
}

var errAnswer = errors.New("it is no answer to this question")

// check looks at another instance's answer. What would send the asker back, past hits or round and round is not taken.
func (a *answer) check(q query) error {
	has := make(map[int32]bool, len(a.Partitions))
	for _, p := range a.Partitions {
		if p.Partition < 0 || has[p.Partition] {
			return fmt.Errorf("%w: partition %d is there twice, or cannot be", errAnswer, p.Partition)
		}
		has[p.Partition] = true
	}
	last := q.span.after
	for _, h := range a.Hits {
		at, p, err := q.span.place(h.At)
		if err != nil || at <= last || p != h.Partition || !has[p] {
			return fmt.Errorf("%w: a hit at %q", errAnswer, h.At)
		}
		last = at
	}
	if a.Next != "" {
		if at, _, err := q.span.place(a.Next); err != nil || at < last || at == q.span.after {
			return fmt.Errorf("%w: next is %q", errAnswer, a.Next)
		}
	}
	if a.ID != q.id || a.Topic != q.topic || a.Field != q.field || len(a.Hits) > q.span.limit {
		return fmt.Errorf("%w: %d hits of %s in topic %s, %s", errAnswer, len(a.Hits), a.Field, a.Topic, a.ID)
	}
	return nil
}

// place reads a place of an answer, which must be within the span.
func (s span) place(text string) (at string, p int32, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		_, p, _, err = splitEntryKey(b)
	}
	if at = string(b); err == nil && (at < s.from || s.to != "" && at >= s.to) {
		err = errAnswer
	}
	return at, p, err
}

// merge makes one answer out of several. Of two that answer for a partition the one counts that got it in the later
// generation: the other one has not heard yet.
func merge(answers []answer, limit int) answer {
	type owner struct {
		part partAnswer
		by   int
	}
	owners := make(map[int32]owner)
	for i, a := range answers {
		for _, p := range a.Partitions {
			if o, ok := owners[p.Partition]; !ok || p.Term > o.part.Term {
				owners[p.Partition] = owner{p, i}
			}
		}
	}
	var m answer
	cut, end := false, "" // an answer that was cut says nothing about what is behind its last hit
	for i, a := range answers {
		for _, h := range a.Hits {
			if owners[h.Partition].by == i {
				m.Hits = append(m.Hits, h)
			}
		}
		if a.Next != "" {
			last := item{At: a.Next}
			if at := last.place(); !cut || at < end {
				cut, end = true, at
			}
		}
	}
	for _, o := range owners {
		m.Partitions = append(m.Partitions, o.part)
	}
	slices.SortFunc(m.Hits, func(x, y item) int { return strings.Compare(x.place(), y.place()) })
	if cut {
		m.Hits = slices.DeleteFunc(m.Hits, func(h item) bool { return h.place() > end })
		m.Next = encodePlace(end)
	}
	if len(m.Hits) > limit {
		m.Hits = m.Hits[:limit]
		m.Next = m.Hits[limit-1].At
	}
	return m
}

// others are the addresses of the other members of the group.
func (n *node) others(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.peerWait)
	defer cancel()
	groups, err := n.adm.DescribeGroups(ctx, n.cfg.group)
	if err != nil {
		return nil, err
	}
	var urls []string
	for _, m := range groups[n.cfg.group].Members {
		if url, ok := strings.CutPrefix(m.ClientID, clientPrefix); ok && url != n.url && !slices.Contains(urls, url) {
			urls = append(urls, url)
		}
	}
	return urls, groups[n.cfg.group].Err
}

// askPeer gets a lookup's answer of another instance.
func (n *node) askPeer(ctx context.Context, url string, a *answer) error {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.peerWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := n.peers.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(words)))
	}
	return json.NewDecoder(resp.Body).Decode(a)
}
