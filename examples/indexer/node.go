package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/staleproof/staleproof/streamstate"
)

const (
	maxPoll    = 1024      // records of one poll
	maxQueued  = 16 * 1024 // records that wait for a worker, before polling pauses
	stopWait   = 30 * time.Second
	httpWait   = time.Second      // for answers under way, at the end
	askWait    = 10 * time.Second // for a question to be asked
	sendWait   = 30 * time.Second // and answered, and the answer taken
	idleWait   = 2 * time.Minute
	renewAfter = time.Second // between two renewals of one topic
	tellEvery  = 10 * time.Second
	watchEvery = 5 * time.Second
)

type (
	session = streamstate.Session[*memtable]
	claim   = streamstate.Claim[*memtable]
)

// node is one instance: a member of the consumer group, with a store and an HTTP server of its own.
type node struct {
	cfg   config
	url   string // where the others find it
	log   *log.Logger
	slog  *slog.Logger
	store *store
	book  *streamstate.Book[*memtable]
	cl    *kgo.Client  // the member of the group
	asks  *kgo.Client  // for questions to the brokers: callbacks of cl have some
	adm   *kadm.Client // on asks
	peers *http.Client
	reach *reach
	began time.Time

	queues []chan *parcel
	freed  chan int // records that a worker is done with
	renew  chan string

	applied atomic.Int64 // records
	commits atomic.Int64

	polling context.Context //nolint:containedctx // ends when nothing more is to be polled
	pause   context.CancelFunc
	living  context.Context //nolint:containedctx // ends when everything is to end
	kill    context.CancelFunc
	pollers sync.WaitGroup // poll and renew
	workers sync.WaitGroup
	serving sync.WaitGroup // the flusher, who watches the logs, and the HTTP server
	drivers sync.WaitGroup // of repair, one for each session

	restarts chan restarting // for the goroutine that polls
	http     *http.Server

	failOnce sync.Once
	failed   chan struct{} // closed when it cannot go on
	failure  error         // set before failed is closed

	mu sync.Mutex
	// changed is closed, and replaced, when the group has changed.
	// +checklocks:mu
	changed chan struct{}
	// +checklocks:mu
	topics map[string]*topic
	// assigned is what the client has been assigned and not lost.
	// +checklocks:mu
	assigned map[string]map[int32]bool
	// renewing are the topics that are being forgotten and subscribed to anew, and when the last such began.
	// +checklocks:mu
	renewing map[string]bool
	// +checklocks:mu
	renewed map[string]time.Time
	// wipe are partitions of which the store has what does not go together with the log: it goes before they begin again.
	// +checklocks:mu
	wipe map[topicID]map[int32]bool
	// +checklocks:mu
	generation int32
	// +checklocks:mu
	odd odd
	// repairs are the tickets of repair that were taken up, by topic.
	// +checklocks:mu
	repairs map[string]rungs
	// wake ends the present poll.
	// +checklocks:mu
	wake func()
	// told are the errors that the log has of topics, or of the group as a whole.
	// +checklocks:mu
	told map[string]telling
	// +checklocks:mu
	foreign int // records of a topic or partition that is not followed
}

// topic is one life of a topic, from its creation to its deletion.
type topic struct {
	name       string
	id         topicID
	fields     []string
	partitions int

	// What follows is guarded by node.mu; only callbacks of the group change it, and those never run at once.
	session *session
	follows map[int32]*follow
	leaving map[int32]*streamstate.Handle // partitions that were given up, until their memtable is forgotten
	purged  bool                          // the client has been told to forget this life
}

// follow is one claim.
type follow struct {
	claim *claim
	from  uint64 // where it began
	goal  uint64 // where the log ended then; below that it is building
	end   uint64 // where the log ended when last heard of

	polled uint64 // up to where it was polled
	fresh  bool   // it began from nothing, and nothing was polled yet
	lost   bool   // it has failed, and only another subscription can bring it back
}

// startNode joins the group and serves on ln.
func startNode(ctx context.Context, cfg config, ln net.Listener, logger *log.Logger, debug *slog.Logger) (n *node, err error) {
	n = &node{
		cfg: cfg, url: "http://" + cfg.reachable(ln.Addr()), log: logger, slog: debug, began: time.Now(),
		peers:   &http.Client{Timeout: cfg.peerWait, Transport: &http.Transport{MaxIdleConnsPerHost: 8}},
		freed:   make(chan int, maxQueued+maxPoll),
		renew:   make(chan string, len(cfg.indexes)),
		failed:  make(chan struct{}),
		changed: make(chan struct{}), wake: func() {}, repairs: make(map[string]rungs), restarts: make(chan restarting, 64),
		topics: make(map[string]*topic), assigned: make(map[string]map[int32]bool),
		renewing: make(map[string]bool), renewed: make(map[string]time.Time), told: make(map[string]telling), wipe: make(map[topicID]map[int32]bool),
		generation: -1,
	}
	n.reach = &reach{log: logger, lost: make(map[string]bool)}
	n.polling, n.pause = context.WithCancel(context.Background())
	n.living, n.kill = context.WithCancel(context.Background())
	if n.store, err = openStore(cfg.dir); err != nil {
		return nil, err
	}
	n.book = streamstate.NewBook[*memtable](streamstate.Options{Logger: debug})
	if err := n.connect(ctx); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	for range cfg.workers {
		q := make(chan *parcel, maxQueued+maxPoll)
		n.queues = append(n.queues, q)
		n.workers.Go(func() { n.work(q) })
	}
	n.pollers.Go(n.poll)
	n.pollers.Go(n.renewer)
	n.serving.Go(n.flusher)
	n.serving.Go(n.watch)
	n.http = &http.Server{Handler: n.handler(), ReadHeaderTimeout: askWait, WriteTimeout: sendWait, IdleTimeout: idleWait, ErrorLog: slog.NewLogLogger(debug.Handler(), slog.LevelDebug)}
	n.serving.Go(func() {
		if err := n.http.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			n.fail(err)
		}
	})
	return n, nil
}

// connect makes the clients, and looks at the topics that there are.
func (n *node) connect(ctx context.Context) (err error) {
	n.asks, err = kgo.NewClient(kgo.SeedBrokers(strings.Split(n.cfg.brokers, ",")...), kgo.ClientID("asks"), kgo.MetadataMinAge(250*time.Millisecond),
		kgo.WithLogger(kafkaLog{n.slog}), kgo.WithHooks(n.reach))
	if err != nil {
		return err
	}
	n.adm = kadm.NewClient(n.asks)
	ctx, cancel := context.WithTimeout(ctx, n.cfg.startWithin)
	defer cancel()
	if err := n.resolve(ctx); err != nil {
		return fmt.Errorf("brokers %s: %w", n.cfg.brokers, err)
	}
	for name := range n.cfg.indexes {
		if n.topic(name) == nil {
			n.log.Printf("topic %s does not exist yet; it is waited for", name)
		}
	}
	n.cl, err = kgo.NewClient(n.options()...)
	return err
}

// stop ends the node: what was polled is applied and committed, then it leaves the group. It is to be called once.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	var err error
	if n.http != nil {
		polite, cancel := context.WithTimeout(ctx, httpWait)
		if n.http.Shutdown(polite) != nil { // a connection on which nothing was asked yet would be waited for
			err = n.http.Close()
		}
		cancel()
	}
	n.pause()
	n.pollers.Wait()
	for _, q := range n.queues {
		close(q)
	}
	n.workers.Wait()
	n.kill()
	n.serving.Wait()
	if !n.broken() { // else nothing more is committed
		err = errors.Join(err, n.flushAll(ctx))
	}
	if n.cl != nil {
		n.cl.CloseAllowingRebalance()
	}
	if n.asks != nil {
		n.asks.Close()
	}
	err = errors.Join(err, n.book.Close().Wait(ctx), n.store.close())
	n.drivers.Wait()
	n.peers.CloseIdleConnections()
	if n.broken() {
		err = errors.Join(n.failure, err)
	}
	return err
}

// fail says that the node cannot go on; the first failure counts.
func (n *node) fail(err error) {
	n.failOnce.Do(func() {
		n.failure = err
		close(n.failed)
	})
}

// broken tells whether the node cannot go on.
func (n *node) broken() bool {
	select {
	case <-n.failed:
		return true
	default:
		return false
	}
}

// topic is the present life of a topic, or nil.
func (n *node) topic(name string) *topic {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.topics[name]
}

// sessions are those of all topics.
func (n *node) sessions() map[*topic]*session {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[*topic]*session, len(n.topics))
	for _, t := range n.topics {
		all[t] = t.session
	}
	return all
}

// groupChanged wakes who waits for a change of the group.
//
// +checklocks:n.mu
func (n *node) groupChanged() {
	close(n.changed)
	n.changed = make(chan struct{})
	if n.cfg.onChange != nil {
		n.cfg.onChange()
	}
}
