package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// What the demonstration holds the indexes against: an index made straight from the log, by other code than the indexer's.

// logRecord is one record of a log.
type logRecord struct {
	offset     int64
	key, value []byte // nil where there is none
}

// logs are records of topics, by topic and partition, in order.
type logs map[string]map[int32][]logRecord

// readLogs reads what the brokers have of topics, up to where the logs end now.
func readLogs(ctx context.Context, c *kfake.Cluster, topics ...generated) (logs, error) {
	all := make(logs)
	starts := make(map[string]map[int32]kgo.Offset)
	left := make(map[string]map[int32]int64) // the last offset of each partition that is still to come
	for _, g := range topics {
		starts[g.name], left[g.name] = make(map[int32]kgo.Offset), make(map[int32]int64)
		all[g.name] = make(map[int32][]logRecord)
		for _, p := range c.PartitionInfos(g.name) {
			all[g.name][p.Partition] = nil
			if p.HighWatermark > p.LogStartOffset {
				starts[g.name][p.Partition], left[g.name][p.Partition] = kgo.NewOffset().AtStart(), p.HighWatermark-1
			}
		}
		if len(left[g.name]) == 0 {
			delete(left, g.name)
		}
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.ConsumePartitions(starts))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("reading the logs: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			all[r.Topic][r.Partition] = append(all[r.Topic][r.Partition], logRecord{r.Offset, r.Key, r.Value})
			if end, ok := left[r.Topic][r.Partition]; ok && r.Offset >= end {
				if delete(left[r.Topic], r.Partition); len(left[r.Topic]) == 0 {
					delete(left, r.Topic)
				}
			}
		})
	}
	return all, nil
}

// indexLine is one entry of an index, for comparing.
func indexLine(field string, value any, p int32, key string, offset int64) string {
	v, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s=%s in %d/%q at %d", field, v, p, key, offset)
}

// indexOf makes the index of one partition from its records below next. Each key has the entries of its last record.
func indexOf(p int32, records []logRecord, next int64, fields []string) []string {
	last := make(map[string]logRecord)
	for _, r := range records {
		if r.offset >= next {
			break
		}
		if r.key == nil {
			last[fmt.Sprintf("offset %d", r.offset)] = r
		} else {
			last["key "+string(r.key)] = r
		}
	}
	var lines []string
	for _, r := range last {
		for _, field := range fields {
			found := make(map[string]bool)
			for _, v := range valuesAt(r.value, field) {
				found[indexLine(field, v, p, string(r.key), r.offset)] = true
			}
			lines = slices.AppendSeq(lines, maps.Keys(found))
		}
	}
	slices.Sort(lines)
	return lines
}

// valuesAt are the scalars that a document has at a path.
func valuesAt(doc []byte, path string) []any {
	var v any
	if json.NewDecoder(bytes.NewReader(doc)).Decode(&v) != nil {
		return nil
	}
	for name := range strings.SplitSeq(path, ".") {
		object, _ := v.(map[string]any)
		var ok bool
		if v, ok = object[name]; !ok {
			return nil
		}
	}
	if all, ok := v.([]any); ok {
		return all
	}
	return []any{v}
}

// indexAt reads the whole index of a topic, over HTTP from one instance, page by page. ok is false while a partition has no
// owner or is behind its log.
func indexAt(ctx context.Context, base string, g generated, ends map[int32]int64) (lines []string, ok bool, err error) {
	for _, field := range g.fields {
		after := ""
		for {
			q := url.Values{"topic": {g.name}, "field": {field}, "limit": {fmt.Sprint(maxLimit)}}
			if after != "" {
				q.Set("after", after)
			}
			var a answer
			if err := getJSON(ctx, base+"/v1/lookup?"+q.Encode(), &a); err != nil {
				return nil, false, err
			}
			if !a.upTo(ends) {
				return nil, false, nil
			}
			for _, h := range a.Hits {
				key := ""
				if h.Key != nil {
					key = *h.Key
				}
				lines = append(lines, indexLine(field, h.Value, h.Partition, key, h.Offset))
			}
			if after = a.Next; after == "" {
				break
			}
		}
	}
	slices.Sort(lines)
	return lines, true, nil
}

// upTo tells whether every partition has answered, with its log indexed to the end.
func (a *answer) upTo(ends map[int32]int64) bool {
	if len(a.Partitions) != len(ends) {
		return false
	}
	for _, p := range a.Partitions {
		if end, known := ends[p.Partition]; !known || p.Next != uint64(end) {
			return false
		}
	}
	return a.Complete
}

// compare tells how two sorted indexes differ. What is twice in one of them and once in the other differs as well.
func compare(got, want []string) error {
	count := make(map[string]int)
	for _, l := range want {
		count[l]++
	}
	var lost, extra []string
	for _, l := range got {
		if count[l]--; count[l] < 0 {
			extra = append(extra, l)
		}
	}
	for l, n := range count {
		if n > 0 {
			lost = append(lost, l)
		}
	}
	if len(lost)+len(extra) == 0 {
		return nil
	}
	slices.Sort(lost)
	return fmt.Errorf("%d entries are lost (%s) and %d are double or wrong (%s)", len(lost), few(lost), len(extra), few(extra))
}

func few(lines []string) string {
	if len(lines) > 3 {
		lines = append(slices.Clone(lines[:3]), "…")
	}
	return strings.Join(lines, "; ")
}

// checkStore holds what is on a disk against the log, for every partition of which there is a position: entries and position
// must belong together, whenever the process was killed. What has gone past a point up to which unread records were deleted
// must have begun anew, behind it. It returns how many partitions it looked at.
func checkStore(s *store, history logs, deleted map[string]map[int32]int64, ids map[string]topicID) (partitions int, err error) {
	known, err := s.topics()
	if err != nil {
		return 0, err
	}
	for id, meta := range known {
		if ids[meta.Name] != id {
			continue // of a topic that is no more: it goes when this instance hears of the new one
		}
		err := s.view(id, func(v storeView) error {
			for p, records := range history[meta.Name] {
				pos, ok := v.position(p)
				var got []string
				err := v.everything(p, func(field uint8, value any, key string, offset int64) {
					if key[0] == 'k' {
						key = key[1:]
					} else {
						key = ""
					}
					got = append(got, indexLine(meta.Fields[field], value, p, key, offset))
				})
				if err != nil {
					return err
				}
				if point := deleted[meta.Name][p]; int64(pos.Next) > point {
					records = slices.DeleteFunc(slices.Clone(records), func(r logRecord) bool { return r.offset < point })
				}
				if err := compare(got, indexOf(p, records, int64(pos.Next), meta.Fields)); err != nil {
					return fmt.Errorf("%s/%d up to %v: %w", meta.Name, p, pos, err)
				}
				if ok {
					partitions++
				}
			}
			return nil
		})
		if err != nil {
			return partitions, err
		}
	}
	return partitions, nil
}
