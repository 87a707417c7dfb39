package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

type (
	book  = streamstate.Book[int]
	sess  = streamstate.Session[int]
	claim = streamstate.Claim[int]
)

var orders = streamstate.Key{Stream: "maint", Keyspace: "orders"}

// The deadlines of the tests: all differ, so that a wrong one is seen. They are looked at every second.
var deadlines = streamstate.Options{
	BeginWithin: 10 * time.Second, HandOverWithin: 8 * time.Second, TicketWithin: 40 * time.Second,
	PendingWithin: 100 * time.Second, StableAfter: 20 * time.Second, RetryAfter: 12 * time.Second,
}

const look = time.Second

// call is one call of the source, as the test sees it.
type call struct {
	what    string
	parts   []int
	from    map[int]streamstate.Position
	shut    []Shutdown
	ctx     context.Context //nolint:containedctx // it is what the test looks at
	at      time.Time
	reply   chan error
	tickets map[int]uint64 // by partition, if the test wants to know
}

// source is a source that does what the test says: each call waits for its reply, or for the end of its context.
type source struct {
	calls chan *call
	check func(*call) // at the beginning of each call
	deaf  bool        // it does not heed its context
	over  chan struct{}
}

func newSource() *source { return &source{calls: make(chan *call, 1024), over: make(chan struct{})} }

func (s *source) do(c *call) error {
	c.at, c.reply = time.Now(), make(chan error, 1)
	if s.check != nil {
		s.check(c)
	}
	s.calls <- c
	ended := c.ctx.Done()
	if s.deaf {
		ended = nil
	}
	select {
	case err := <-c.reply:
		return err
	case <-ended:
		return context.Cause(c.ctx)
	case <-s.over:
		return errors.New("the test is over")
	}
}

func asked(ctx context.Context, what string, batch []Restart) *call {
	c := &call{what: what, ctx: ctx, from: map[int]streamstate.Position{}}
	for _, r := range batch {
		c.parts = append(c.parts, r.Partition)
		if r.HasFrom {
			c.from[r.Partition] = r.From
		}
	}
	slices.Sort(c.parts)
	return c
}

func (s *source) Restart(ctx context.Context, batch []Restart) error {
	return s.do(asked(ctx, "restart", batch))
}

func (s *source) Resubscribe(ctx context.Context, all []Restart) error {
	return s.do(asked(ctx, "resubscribe", all))
}

func (s *source) Shutdown(ctx context.Context, batch []Shutdown) error {
	c := asked(ctx, "shut-down", nil)
	c.shut = batch
	for _, d := range batch {
		c.parts = append(c.parts, d.Partition)
	}
	slices.Sort(c.parts)
	return s.do(c)
}

// world is a book with one session, its driver and its source. It lives in a bubble.
type world struct {
	t      *testing.T
	book   *book
	s      *sess
	claims map[int]*claim // the latest of each partition
	src    *source
	o      StreamOptions
	done   chan error
	events chan StreamEvent
	issued chan streamstate.Event
}

func inWorld(t *testing.T, partitions int, fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(t, newWorld(t, partitions)) })
}

// newWorld is a session whose partitions have begun, each by an owner of its own, and have received 10.
func newWorld(t *testing.T, partitions int) *world {
	w := &world{t: t, src: newSource(), done: make(chan error, 1), events: make(chan StreamEvent, 4096)}
	w.issued = make(chan streamstate.Event, 4096)
	o := deadlines
	o.OnEvent = func(e streamstate.Event) {
		if e.Kind == streamstate.TicketIssued {
			w.issued <- e
		}
	}
	w.book = streamstate.NewBook[int](o)
	w.o.OnEvent = func(e StreamEvent) { w.events <- e }
	w.open(partitions)
	t.Cleanup(func() {
		close(w.src.over)
		require.NoError(t, w.book.Close().Wait(context.WithoutCancel(t.Context())))
	})
	return w
}

func (w *world) open(partitions int) {
	w.claims = map[int]*claim{}
	var err error
	w.s, err = w.book.Open(orders, streamstate.OpenOptions[int]{Partitions: partitions})
	require.NoError(w.t, err)
	for p := range partitions {
		w.begin(p, fmt.Sprintf("A%d", p), 10)
	}
}

func next(n uint64) streamstate.Position { return streamstate.Position{Next: n} }

func (w *world) begin(p int, owner string, from uint64) *claim {
	w.t.Helper()
	c, err := w.s.Begin(p, streamstate.Begin{Owner: owner, From: next(from)})
	require.NoError(w.t, err)
	w.claims[p] = c
	return c
}

// drive starts the driver.
func (w *world) drive(ctx context.Context) {
	s, src, o, done := w.s, w.src, w.o, w.done
	go func() { done <- Stream(ctx, s, src, o) }()
	synctest.Wait()
}

// lose has the owners of partitions leave: there will be nobody to be shut down.
func (w *world) lose(parts ...int) {
	w.t.Helper()
	for _, p := range parts {
		claims := w.view(p).Claims
		require.Len(w.t, claims, 1)
		_, err := w.s.OwnerGone(claims[0].Owner)
		require.NoError(w.t, err)
	}
}

// fail has the claims of partitions end as failed: they could still run at the source.
func (w *world) fail(parts ...int) {
	w.t.Helper()
	for _, p := range parts {
		require.NoError(w.t, w.claims[p].End(streamstate.Failed))
	}
}

func (w *world) view(p int) (v streamstate.PartitionView) {
	w.t.Helper()
	require.NoError(w.t, w.s.Check())
	require.NoError(w.t, w.s.Read(func(tx streamstate.ReadTx[int]) (err error) {
		v, err = tx.Partition(p)
		return err
	}))
	return v
}

// asks waits for the next call of the source.
func (w *world) asks(what string, parts ...int) *call {
	w.t.Helper()
	c := <-w.src.calls
	require.Equal(w.t, what, c.what)
	require.Equal(w.t, parts, c.parts)
	require.NoError(w.t, c.ctx.Err(), "asked for with a context that has ended")
	return c
}

// sleep lets time pass.
func (w *world) sleep(d time.Duration) {
	time.Sleep(d) //rules:sleep in a bubble
	synctest.Wait()
}

// quiet demands that the source is not asked for d.
func (w *world) quiet(d time.Duration) {
	w.t.Helper()
	w.sleep(d)
	require.Empty(w.t, w.src.calls)
}

// after demands that d has passed since from, and at most late more.
func (w *world) after(from time.Time, d, late time.Duration) {
	w.t.Helper()
	took := time.Since(from)
	require.GreaterOrEqual(w.t, took, d, "never earlier")
	require.LessOrEqual(w.t, took, d+late, "never stuck")
}

// due waits for the driver's end, and demands that it is for a recovery.
func (w *world) due() *RecoveryDueError {
	w.t.Helper()
	err := <-w.done
	require.ErrorIs(w.t, err, ErrRecoveryDue)
	due, ok := errors.AsType[*RecoveryDueError](err)
	require.True(w.t, ok)
	require.Equal(w.t, w.s.ID(), due.Session)
	require.Equal(w.t, orders, due.Key)
	return due
}

// told are the events of the driver so far.
func (w *world) told() (out []StreamEvent) {
	synctest.Wait()
	for len(w.events) > 0 {
		out = append(out, <-w.events)
	}
	return out
}
