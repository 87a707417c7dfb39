package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	demoRecords = 30_000
	demoBrokers = 3
	demoGroup   = "demo"
	demoLimit   = 40 * time.Second
	demoSession = 2500 * time.Millisecond // so that the death of an instance is noticed soon
	demoPause   = 20 * time.Millisecond   // between records that are written all the time
	demoDelay   = demoPause               // for each batch, so that work is under way whenever a partition moves
)

// demo shows several instances whose partitions are moved about, and proves that their indexes are right.
func demo(ctx context.Context, cfg config, logger *log.Logger, errOut io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "indexer-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, fmt.Errorf("the demonstration has taken more than %v", demoLimit))
	defer cancel()
	s := &show{
		ctx: ctx, log: logger, dir: dir, began: time.Now(), size: demoRecords, history: make(logs),
		children: make(map[string]*child), refused: make(map[string]uint64), deleted: make(map[string]map[int32]int64),
	}
	if cfg.given["records"] {
		s.size = cfg.records
	}
	if cfg.verbose {
		s.echo = errOut
	}
	if s.cluster, err = startBroker(demoBrokers, demoSession); err != nil {
		return err
	}
	noCut(s.cluster)
	defer s.cluster.Close()
	if s.producer, err = newProducer(s.cluster.ListenAddrs(), s.size); err != nil {
		return err
	}
	defer s.producer.cl.Close()
	err = s.acts()
	for _, c := range s.children {
		c.kill()
	}
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err == nil {
		logger.Printf("PROVEN in %v: no entry is lost, none is double, on any instance and on any disk", time.Since(s.began).Round(time.Millisecond))
	}
	return err
}

// show is a demonstration under way.
type show struct {
	ctx      context.Context //nolint:containedctx // the length of the show
	log      *log.Logger
	echo     io.Writer
	dir      string
	began    time.Time
	step     int
	size     int
	cluster  *kfake.Cluster
	producer *producer
	children map[string]*child // those that live
	refused  map[string]uint64
	history  logs                       // what was in the logs before records were deleted and the logs were compacted
	deleted  map[string]map[int32]int64 // up to where records were deleted that nobody had read

	stopTrickle context.CancelFunc
	trickled    chan error
}

func (s *show) say(format string, args ...any) {
	s.step++
	s.log.Printf("%4.1f s %2d. %s", time.Since(s.began).Seconds(), s.step, fmt.Sprintf(format, args...))
}

// acts are the story.
func (s *show) acts() error {
	for _, act := range []func() error{
		s.build, s.join, s.leaders, s.die, s.recreate, s.comeBack, s.fault, s.deleteUnread,
		s.goAway, s.compact, s.settle, s.disks, s.restart, s.tell,
	} {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if err := act(); err != nil {
			return err
		}
		if err := s.more(); err != nil {
			return err
		}
	}
	return nil
}

// more waits until some more has been written, if anything is being written.
func (s *show) more() error {
	if s.stopTrickle == nil {
		return nil
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for want := s.producer.written.Load() + int64(s.size/60); s.producer.written.Load() < want; {
		select {
		case <-tick.C:
		case err := <-s.trickled:
			return errors.Join(errors.New("the writing has ended by itself"), err)
		}
	}
	return nil
}

// start starts instances, and waits until the group has settled with them.
func (s *show) start(names ...string) error {
	for _, name := range names {
		args := []string{
			"-brokers", strings.Join(s.cluster.ListenAddrs(), ","), "-group", demoGroup, "-session-timeout", demoSession.String(),
			"-decode-delay", demoDelay.String(), "-workers", "16", "-flush-every", "200ms", "-flush-rows", "2000",
		}
		if s.echo != nil {
			args = append(args, "-v")
		}
		for _, g := range dataset {
			args = append(args, "-index", g.name+"="+strings.Join(g.fields, ","))
		}
		c, err := startChild(s.ctx, name, filepath.Join(s.dir, name), s.echo, args...)
		if err != nil {
			return err
		}
		s.children[name] = c
	}
	return s.stable()
}

// stable waits until the group has settled: its members are the instances that live, and every partition is assigned.
func (s *show) stable() error {
	partitions := 0
	for _, g := range dataset {
		partitions += len(s.cluster.PartitionInfos(g.name))
	}
	_, err := s.cluster.WaitGroupInfo(s.ctx, demoGroup, func(g *kfake.GroupInfo) bool {
		return g != nil && g.State == "Stable" && len(g.Members) == len(s.children) && g.NumAssigned() == partitions
	})
	if err != nil {
		return fmt.Errorf("the group does not settle with %d members and %d partitions: %w", len(s.children), partitions, err)
	}
	return nil
}

// produce has records written continuously.
func (s *show) produce() {
	ctx, stop := context.WithCancel(s.ctx)
	s.stopTrickle, s.trickled = stop, make(chan error, 1)
	go func() { s.trickled <- s.producer.trickle(ctx, max(s.size/500, 3), demoPause, dataset...) }()
}

// pause ends the continuous writing.
func (s *show) pause() error {
	s.stopTrickle()
	s.stopTrickle = nil
	return <-s.trickled
}

func (s *show) build() error {
	if err := s.producer.some(s.ctx, s.size, dataset...); err != nil {
		return err
	}
	s.say("3 brokers in this process, %d records in orders, customers (compacted, with tombstones) and events (without keys)", s.size)
	s.produce()
	if err := s.start("a", "b"); err != nil {
		return err
	}
	s.say("instances a and b have joined and build their indexes; records are written all the time")
	return nil
}

func (s *show) join() error {
	if err := s.start("c"); err != nil {
		return err
	}
	s.say("c has joined in the middle: partitions are revoked with work under way")
	return nil
}

func (s *show) die() error {
	b := s.children["b"]
	v, err := b.status(s.ctx)
	if err != nil {
		return err
	}
	s.count(v.Refused)
	delete(s.children, "b")
	b.kill()
	s.say("b, which had %d partitions in generation %d, is KILLED", len(v.Partitions), v.Generation)
	if err := s.stable(); err != nil {
		return err
	}
	s.say("the group has noticed; a and c have taken over")
	return nil
}

// recreate deletes a topic and creates it again, larger, and with other records.
func (s *show) recreate() error {
	g := dataset[2]
	if err := s.pause(); err != nil {
		return err
	}
	old := s.cluster.TopicInfo(g.name).TopicID
	if err := s.cluster.DeleteTopic(g.name); err != nil {
		return err
	}
	if err := s.cluster.CreateTopic(g.name, g.partitions+1, g.config()); err != nil {
		return err
	}
	s.producer.cl.PurgeTopicsFromProducing(g.name)
	if err := s.producer.some(s.ctx, s.size/10, g); err != nil {
		return err
	}
	s.say("topic %s is deleted and created again: id %v has become %v", g.name, topicID(old), topicID(s.cluster.TopicInfo(g.name).TopicID))
	s.produce()
	return nil
}

func (s *show) comeBack() error {
	if err := s.start("b"); err != nil {
		return err
	}
	s.say("b is back, on the disk that it left")
	return nil
}

func (s *show) goAway() error {
	c := s.children["c"]
	delete(s.children, "c")
	if err := c.leave(s.ctx); err != nil {
		return err
	}
	s.count(c.refusals())
	if err := s.stable(); err != nil {
		return err
	}
	s.say("c has left in good order")
	return nil
}

// compact has the brokers compact the logs, and two instances join: one from its disk, one from nothing.
func (s *show) compact() error {
	if err := s.pause(); err != nil {
		return err
	}
	now, err := readLogs(s.ctx, s.cluster, dataset...)
	if err != nil {
		return err
	}
	s.remember(now)
	s.cluster.Compact()
	s.produce()
	s.say("the logs are compacted")
	if err := s.start("c", "d"); err != nil {
		return err
	}
	s.say("c is back from its disk, and d has joined with none")
	return nil
}

// settle ends the writing, and compares what every instance answers with the log.
func (s *show) settle() error {
	if err := s.pause(); err != nil {
		return err
	}
	s.say("the writing ends after %d records", s.producer.written.Load())
	return s.compare()
}

// compare holds what every instance answers against the log.
func (s *show) compare() error {
	now, err := readLogs(s.ctx, s.cluster, dataset...)
	if err != nil {
		return err
	}
	for _, g := range dataset {
		var want []string
		ends := make(map[int32]int64)
		for _, p := range s.cluster.PartitionInfos(g.name) {
			ends[p.Partition] = p.HighWatermark
			want = append(want, indexOf(p.Partition, now[g.name][p.Partition], p.HighWatermark, g.fields)...)
		}
		for _, name := range slices.Sorted(maps.Keys(s.children)) {
			got, err := s.whole(s.children[name], g, ends)
			if err != nil {
				return fmt.Errorf("topic %s at instance %s: %w", g.name, name, err)
			}
			if err := compare(got, want); err != nil {
				return fmt.Errorf("topic %s at instance %s: %w", g.name, name, err)
			}
		}
		except := ""
		for p, point := range s.deleted[g.name] {
			except = fmt.Sprintf("; what was deleted of %d, below %d, is in no index", p, point)
		}
		s.say("topic %s, as %s tell it: the %d entries that the log has, none lost, none double%s",
			g.name, strings.Join(slices.Sorted(maps.Keys(s.children)), ", "), len(want), except)
	}
	s.remember(now)
	return nil
}

// whole reads a topic's index from an instance, as soon as every partition is indexed to its end.
func (s *show) whole(c *child, g generated, ends map[int32]int64) ([]string, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		lines, ok, err := indexAt(s.ctx, c.url, g, ends)
		if ok || err != nil && s.ctx.Err() != nil {
			return lines, err
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return nil, errors.Join(fmt.Errorf("the index does not reach the end of the log: %w", context.Cause(s.ctx)), err)
		}
	}
}

// remember adds to the history what was written since the last time.
func (s *show) remember(now logs) {
	for name, ps := range now {
		if s.history[name] == nil {
			s.history[name] = make(map[int32][]logRecord)
		}
		for p, records := range ps {
			had := s.history[name][p]
			for _, r := range records {
				if len(had) == 0 || r.offset > had[len(had)-1].offset {
					had = append(had, r)
				}
			}
			s.history[name][p] = had
		}
	}
}

// disks ends all instances, and holds every store against the log up to the store's own positions.
func (s *show) disks() error {
	names := slices.Sorted(maps.Keys(s.children))
	for _, name := range names {
		c := s.children[name]
		delete(s.children, name)
		if err := c.leave(s.ctx); err != nil {
			return err
		}
		s.count(c.refusals())
	}
	ids := make(map[string]topicID)
	for _, g := range dataset {
		ids[g.name] = s.cluster.TopicInfo(g.name).TopicID
	}
	partitions := 0
	for _, name := range names {
		st, err := storeIn(filepath.Join(s.dir, name))
		if err != nil {
			return fmt.Errorf("instance %s: %w", name, err)
		}
		n, err := checkStore(st, s.history, s.deleted, ids)
		if err := errors.Join(err, st.close()); err != nil {
			return fmt.Errorf("on the disk of %s: %w", name, err)
		}
		partitions += n
	}
	s.say("all have left; on their %d disks, each of %d partitions has just the entries of its log up to its position", len(names), partitions)
	return nil
}

// restart has one instance go on alone from its disk.
func (s *show) restart() error {
	if err := s.start("a"); err != nil {
		return err
	}
	if err := s.compare(); err != nil {
		return err
	}
	a := s.children["a"]
	v, err := a.status(s.ctx)
	if err != nil {
		return err
	}
	resumed, saved := 0, uint64(0)
	for _, p := range v.Partitions {
		if p.From > uint64(s.deleted[p.Topic][p.Partition]) {
			resumed++
			saved += p.From
		}
	}
	if resumed == 0 {
		return errors.New("a went on with no partition from its disk: nothing was shown")
	}
	s.say("a was started again, alone: %d of its %d partitions went on from its disk, %d records were not read again", resumed, len(v.Partitions), saved)
	delete(s.children, "a")
	err = a.leave(s.ctx)
	s.count(a.refusals())
	return err
}

func (s *show) count(refused map[string]uint64) {
	for reason, n := range refused {
		s.refused[reason] += n
	}
}

// tell tells what was refused.
func (s *show) tell() error {
	if s.refused["stale-claim"] == 0 {
		return errors.New("no late work was refused: nothing was shown")
	}
	s.say("refused, each by its type and otherwise without effect: %s", tally(s.refused))
	return nil
}
