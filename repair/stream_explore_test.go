package repair

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/explore"
	"github.com/staleproof/staleproof/streamstate"
)

// eRun is one run of a scenario under a driver, with an adversary that goes first before one acquisition of the lock. The
// scenario has a partition climb to shut down, another to resubscribe and a third demand a roll-back; the source does what
// it is asked in the end. Whatever the adversary does, all three are well in the end, in the session there is then.
type eRun struct {
	book *book
	act  func(*eRun)
	at   int

	mu sync.Mutex
	// +checklocks:mu
	eState
}

// eState is what goroutines of a run share.
type eState struct {
	steps    int
	quiet    int // what the adversary acquires is not counted
	s        *sess
	ended    map[*sess]time.Time
	problems []string
	leave    context.CancelFunc // ends the present driver's context
}

// eAdversaries are what may go first. Each is something that a caller of the library may do at any time.
var eAdversaries = []struct {
	name string
	act  func(*eRun)
}{
	{"drop and open again", func(r *eRun) {
		r.end(func(s *sess) { s.Drop() })
		r.open()
	}},
	{"stop and reopen", func(r *eRun) {
		r.end(func(s *sess) { s.Stop(nil) })
		r.reopen(r.now())
	}},
	{"stop", func(r *eRun) { r.end(func(s *sess) { s.Stop(nil) }) }},
	{"give up and take again", func(r *eRun) {
		for p := range 3 {
			_ = r.now().Unwant(p).Err()
			_ = r.now().Want(p)
		}
	}},
	{"owner gone", func(r *eRun) { _, _ = r.now().OwnerGone("A"); _, _ = r.now().OwnerGone("Z") }},
	{"another begins", func(r *eRun) {
		for p := range 3 {
			_, _ = r.now().Begin(p, streamstate.Begin{Owner: "B"})
		}
	}},
	{"roll back to zero", func(r *eRun) {
		_, _ = r.now().Begin(0, streamstate.Begin{Owner: "B", MustRollBack: true})
	}},
	{"another driver takes", func(r *eRun) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, _ = r.now().NextDue(ctx) // and never answers
	}},
	{"the driver's context ends", func(r *eRun) { r.present()() }},
}

func (r *eRun) now() *sess {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s
}

// present ends the present driver's context.
func (r *eRun) present() context.CancelFunc {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leave
}

// hush has acquisitions not counted; it returns how many there were.
func (r *eRun) hush(d int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet += d
	return r.steps
}

func (r *eRun) set(s *sess, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil { // or somebody else was faster
		r.s = s
	}
}

func (r *eRun) open() {
	r.set(r.book.Open(orders, streamstate.OpenOptions[int]{Partitions: 3}))
}

func (r *eRun) reopen(s *sess) {
	r.set(r.book.Reopen(s, streamstate.ReopenOptions[int]{}))
}

// end ends the present session.
func (r *eRun) end(how func(*sess)) {
	s := r.now()
	how(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[s] = time.Now()
}

func (r *eRun) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

// gap is the hook.
func (r *eRun) gap() {
	act, at, turn := r.act, r.at, false
	r.mu.Lock()
	if r.quiet == 0 {
		turn = r.steps == at && act != nil
		r.steps++
	}
	if turn {
		r.quiet++
	}
	r.mu.Unlock()
	if turn {
		act(r)
		r.hush(-1)
	}
}

// eSource is the source of one session: it fails each thing once or twice before it does it.
type eSource struct {
	r     *eRun
	s     *sess
	owner string

	mu sync.Mutex
	// +checklocks:mu
	asked map[string]int
}

// turn counts, and demands that nothing is asked for after the session's end: in the moment of the end it may be.
func (e *eSource) turn(what string) int {
	e.r.mu.Lock()
	at, over := e.r.ended[e.s]
	e.r.mu.Unlock()
	if over && time.Now().After(at) {
		e.r.fault("%s for a session that has ended", what)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[what]++
	return e.asked[what]
}

func (e *eSource) begin(p int) *claim {
	c, _ := e.s.Begin(p, streamstate.Begin{Owner: e.owner}) // what is refused is not ours
	return c
}

func (e *eSource) Restart(_ context.Context, batch []Restart) error {
	failed := PartitionErrors{}
	for _, b := range batch {
		switch n := e.turn(fmt.Sprintf("restart %d", b.Partition)); {
		case n == 1:
			failed[b.Partition] = errSource
		case n == 2 && b.Partition == 0: // accepted, and nothing follows
		case n == 2 && b.Partition == 1:
			failed[b.Partition] = ErrRefused
		case n == 2:
			e.begin(2)
			failed[2] = ErrPending // it is late
		default:
			e.begin(b.Partition)
		}
	}
	return failed
}

func (e *eSource) Shutdown(_ context.Context, batch []Shutdown) error {
	failed := PartitionErrors{}
	for _, b := range batch {
		switch n := e.turn(fmt.Sprintf("shut down %d", b.Partition)); {
		case n == 1:
			failed[b.Partition] = errSource
		case b.Partition == 1 && n == 2:
			failed[b.Partition] = ErrRefused
		}
	}
	return failed
}

func (e *eSource) Resubscribe(_ context.Context, all []Restart) error {
	if e.turn("resubscribe") == 1 {
		return errSource
	}
	for _, b := range all {
		e.begin(b.Partition)
	}
	return nil
}

// keep runs one driver after the other, each with the session there is, until the book is closed.
func (r *eRun) keep(t *testing.T) {
	for life := 0; ; life++ {
		s := r.now()
		ctx, cancel := context.WithCancel(t.Context())
		r.mu.Lock()
		r.leave = cancel
		r.mu.Unlock()
		err := Stream(ctx, s, &eSource{r: r, s: s, owner: "Z", asked: map[string]int{}}, StreamOptions{})
		cancel()
		switch {
		case errors.Is(err, ErrRecoveryDue):
			r.end(func(s *sess) { s.Stop(err) })
			r.reopen(s)
		case errors.Is(err, streamstate.ErrClosed):
			return
		case errors.Is(err, streamstate.ErrPhase):
			r.reopen(s)
		case errors.Is(err, streamstate.ErrStaleSession):
			time.Sleep(time.Second) //rules:sleep in a bubble: whoever ended it has opened the next one by then
		case errors.Is(err, context.Canceled):
		default:
			r.fault("a driver ended with %v", err)
		}
		if life > 20 {
			r.fault("it never ends")
			return
		}
	}
}

// run runs the scenario once.
func eExplore(t *testing.T, adversary, at int) (out explore.Outcome) {
	r := &eRun{at: at, eState: eState{ended: map[*sess]time.Time{}, leave: func() {}}}
	if adversary >= 0 {
		r.act = eAdversaries[adversary].act
	}
	synctest.Test(t, func(t *testing.T) {
		o := deadlines
		o.Gap = r.gap
		r.book = streamstate.NewBook[int](o)
		r.hush(1)
		r.open()
		r.hush(-1)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.keep(t)
		}()
		r.scenario()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		out.Acquisitions = r.hush(1)
		if d := r.now().Dump(); !d.Healthy || len(d.Tickets) > 0 {
			r.fault("not well: %v", d)
		}
		if err := r.now().Check(); err != nil {
			r.fault("%v", err)
		}
		require.NoError(t, r.book.Close().Wait(t.Context()))
		<-done
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Problems = r.problems
	return out
}

// scenario is what the owners do. It looks at nothing: the adversary may have been first.
func (r *eRun) scenario() {
	for p := range 3 {
		c, err := r.now().Begin(p, streamstate.Begin{Owner: "A", From: next(10)})
		if err == nil {
			_ = c.Advance(next(11))
			_ = c.End(streamstate.Failed)
		}
		time.Sleep(3 * time.Minute) //rules:sleep in a bubble
	}
	_, _ = r.now().OwnerGone("Z")
	_, _ = r.now().Begin(0, streamstate.Begin{Owner: "A", MustRollBack: true, RollBackTo: next(5)})
	time.Sleep(3 * time.Minute) //rules:sleep in a bubble
}

// TestExploreStream lets each adversary go first before each acquisition of the lock in the scenario.
func TestExploreStream(t *testing.T) {
	var names []string
	for _, a := range eAdversaries {
		names = append(names, a.name)
	}
	report := explore.Test(t, names, func(adversary, at int) explore.Outcome { return eExplore(t, adversary, at) })
	t.Logf("%d acquisitions, %d pairs", report.Acquisitions, report.Pairs)
}
