package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// generated is one topic of the data set.
type generated struct {
	name       string
	partitions int32
	compacted  bool
	fields     []string
	share      int // of 10 records
	record     func(r *rand.Rand, n int) (key, value []byte)
}

// dataset is what is generated: an update stream, a compacted table with deletions, and events without keys.
var dataset = []generated{
	{"orders", 4, false, []string{"status", "total", "tags"}, 5, order},
	{"customers", 3, true, []string{"address.city", "age"}, 3, customer},
	{"events", 2, false, []string{"kind", "ok"}, 2, event},
}

func order(r *rand.Rand, n int) (key, value []byte) {
	states := []string{"new", "paid", "sent", "returned"}
	tags := []string{"gift", "express", "bulk"}
	return fmt.Appendf(nil, "order-%d", r.IntN(n/3+1)),
		fmt.Appendf(nil, `{"status":%q,"total":%d.%02d,"tags":[%q,%q]}`, states[r.IntN(4)], r.IntN(500), r.IntN(100), tags[r.IntN(3)], tags[r.IntN(3)])
}

func customer(r *rand.Rand, n int) (key, value []byte) {
	cities := []string{"Oslo", "Lima", "Kyoto", "Porto", "Turku"}
	key = fmt.Appendf(nil, "customer-%d", r.IntN(n/4+1))
	if r.IntN(8) == 0 {
		return key, nil // a tombstone
	}
	return key, fmt.Appendf(nil, `{"address":{"city":%q},"age":%d}`, cities[r.IntN(5)], 18+r.IntN(70))
}

func event(r *rand.Rand, _ int) (key, value []byte) {
	kinds := []string{"click", "view", "login", "logout"}
	if r.IntN(500) == 0 {
		return nil, []byte("not JSON")
	}
	return nil, fmt.Appendf(nil, `{"kind":%q,"ok":%t}`, kinds[r.IntN(4)], r.IntN(10) > 0)
}

// topicConfig is what a topic is created with.
func (g generated) config() map[string]string {
	if g.compacted {
		return map[string]string{"cleanup.policy": "compact"}
	}
	return nil
}

// producer writes records of the data set.
type producer struct {
	cl      *kgo.Client
	rand    *rand.Rand // of the one goroutine that produces
	size    int        // how many records the keys are chosen for
	written atomic.Int64
}

func newProducer(brokers []string, size int) (*producer, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerLinger(5*time.Millisecond), kgo.MetadataMinAge(250*time.Millisecond))
	if err != nil {
		return nil, err
	}
	return &producer{cl: cl, rand: rand.New(rand.NewPCG(1, 2)), size: size}, nil
}

// some produces n records over the topics given, and waits until they are written.
func (p *producer) some(ctx context.Context, n int, topics ...generated) error {
	sum := 0
	for _, g := range topics {
		sum += g.share
	}
	var failure atomic.Pointer[error]
	for range n {
		if err := ctx.Err(); err != nil {
			break
		}
		at := p.rand.IntN(sum)
		g := topics[0]
		for _, g = range topics {
			if at -= g.share; at < 0 {
				break
			}
		}
		key, value := g.record(p.rand, p.size*g.share/10)
		p.cl.Produce(ctx, &kgo.Record{Topic: g.name, Key: key, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failure.CompareAndSwap(nil, &err)
				return
			}
			p.written.Add(1)
		})
	}
	err := p.cl.Flush(ctx)
	if first := failure.Load(); first != nil {
		err = errors.Join(*first, err)
	}
	return err
}

// trickle produces some records now and then until ctx ends.
func (p *producer) trickle(ctx context.Context, n int, every time.Duration, topics ...generated) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := p.some(ctx, n, topics...); err != nil && ctx.Err() == nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
