package streamstate

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// exploration goes through all states of a scope, the nearest first.
type exploration struct {
	*stage
	seen  map[uint64]int32
	from  []int32 // the state that each was reached from, and by what
	by    []move
	depth []uint16
	queue []*scene // that have not been gone through
	done  int      // how many have
	far   [2]map[uint64]uint8
	most  [2]int // events to rest, with either source
	tried int    // events, those that were refused included
	calls [2][]late
}

func (x *exploration) add(from int32, by move) {
	x.normalise()
	id := x.hash()
	if _, ok := x.seen[id]; ok {
		return
	}
	x.seen[id] = int32(len(x.from))
	depth := uint16(0)
	if from >= 0 {
		depth = x.depth[from] + 1
	}
	x.from, x.by, x.depth = append(x.from, from), append(x.by, by), append(x.depth, depth)
	sc := x.take()
	sc.number = int32(len(x.from) - 1)
	x.queue = append(x.queue, sc)
}

// sample is how many states of each scope the short form goes through.
const sample = 250

// explore goes through the states of a scope: all of them, the nearest first, or a sample, as chance will have it.
func explore(sc scope, all bool) (*exploration, error) {
	st, err := newStage(sc)
	if err != nil {
		return nil, err
	}
	x := &exploration{stage: st, seen: map[uint64]int32{}, far: [2]map[uint64]uint8{{}, {}}}
	for i := range sc.keys {
		x.calls[i] = st.lates(i)
	}
	x.add(-1, move{})
	moves, chance := x.moves(), rand.New(rand.NewPCG(1, 2))
	for len(x.queue) > 0 && (sc.limit == 0 || len(x.from) < sc.limit) && (all || x.done < sample) {
		if !all {
			i := chance.IntN(len(x.queue)) // half of them from what was reached last, which is far away
			if x.done%2 == 0 {
				i = max(i, len(x.queue)-1-chance.IntN(20))
			}
			x.queue[0], x.queue[i] = x.queue[i], x.queue[0]
		}
		at := x.queue[0]
		x.queue[0] = nil
		x.queue = x.queue[1:]
		if err := x.expand(at, moves); err != nil {
			return x, fmt.Errorf("%w\nin %v\nby%s", err, x, x.path(at.number))
		}
		x.done++
	}
	return x, nil
}

// path is how a state was reached.
func (x *exploration) path(i int32) string {
	if i <= 0 {
		return ""
	}
	return x.path(x.from[i]) + " " + x.by[i].String()
}

// expand has everything happen in one state.
func (x *exploration) expand(sc *scene, moves []move) error {
	var was, is [2]glance
	var before, after []byte
	put := func() {
		x.put(sc)
		before = x.print(before[:0])
		for i := range x.keys {
			x.glance(i, &was[i])
		}
	}
	put()
	if err := x.sound(); err != nil {
		return err
	}
	for i := range x.keys {
		if err := x.tooLate(x.calls[i], before); err != nil {
			return err
		}
	}
	for _, m := range moves {
		can, err := x.play(m)
		if !can {
			continue
		}
		x.tried++
		after = x.print(after[:0])
		if err := x.answered(m, &was[m.key], err); err != nil {
			return err
		}
		if bytes.Equal(before, after) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%v is refused and changes something: %w", m, err)
		}
		for i := range x.keys {
			x.glance(i, &is[i])
			if err := x.followed(i, &was[i], &is[i]); err != nil {
				return fmt.Errorf("%v: %w", m, err)
			}
		}
		x.add(sc.number, m)
		put()
	}
	return x.live(sc)
}

// live demands that the state comes to rest, and that it can be dropped.
func (x *exploration) live(sc *scene) error {
	for i, how := range [...]source{works, refuses} {
		n, err := x.settle(how, x.far[i])
		if err != nil {
			return fmt.Errorf("liveness, source works: %v: %w", how, err)
		}
		x.most[i] = max(x.most[i], n)
		x.put(sc)
	}
	if err := x.dropAll(); err != nil {
		return err
	}
	x.put(sc)
	return nil
}

// rare are events that worlds of two keys do without, so that they have an end.
var rare = []uint8{
	mvOpenFailed, mvDrain, mvBeginFailed, mvOwnerGone, mvHandOver, mvFence, mvDeadline, mvTicketDeadline, mvRetryDeadline, mvAccepted, mvPending,
	mvRefused, mvAbandon, mvSessionFailed, mvSessionAbandon, mvFlushFailed,
}

// scopes are small worlds. All but the last are explored to their end in the long form.
var scopes = []scope{
	{
		name: "positions", keys: 1, parts: 1, owners: []string{"A", "B"}, top: 2,
		begins: []Begin{{}, {Term: 1}, {From: Position{Next: 1}}, {MustRollBack: true}}, opens: []OpenOptions[int]{{}},
	},
	{
		name: "repair", keys: 1, parts: 2, owners: []string{"A"}, begins: []Begin{{}}, opens: []OpenOptions[int]{{}},
		without: []uint8{mvHandOver, mvAbandon, mvSessionAbandon},
	},
	{
		name: "pairs", keys: 2, parts: 1, owners: []string{"A"}, begins: []Begin{{}}, opens: []OpenOptions[int]{{}}, holds: 2, most: 2,
		without: append([]uint8{mvOpened, mvStop, mvReopen, mvWant, mvUnwant, mvRelease}, rare...),
	},
	{
		name: "sessions", keys: 2, parts: 1, owners: []string{"A"}, begins: []Begin{{}}, opens: []OpenOptions[int]{{}}, holds: 2, most: 1,
		without: append([]uint8{mvNextDue, mvFail, mvRelease}, rare...),
	},
	{
		name: "everything", keys: 2, parts: 2, owners: []string{"A", "B"}, top: 2, holds: 2, most: 2, limit: 250_000,
		begins: []Begin{{}, {Term: 1}, {Term: 2, From: Position{Next: 1}}, {MustRollBack: true}, {MustRollBack: true, RollBackTo: Position{Next: 1}}},
		opens:  []OpenOptions[int]{{}, {Pending: true, Wanted: None}},
	},
}

// TestExplore goes through all states that small worlds of one and two keys can come into: in each, every event happens,
// and every call with a dead token. What is refused changes nothing; the invariants hold; what a wait is for wakes it;
// and once nothing goes wrong any more, everything comes to rest in health and can be dropped. The short form takes a
// sample of the states.
//
// Seen red with, in the short form: a flush or a hold that ends and wakes nobody; a retry that is not looked at; a restart
// accepted twice; a flush that begins while held; holds that outlive their holder; a merge that one of its keys does not
// look at, or that keeps the gates closed; a refusal that changes something, or leaves the ladder where it is; tickets beside
// one of the session, or after its end; hand-overs without a deadline; handles that a flush's end does not resolve.
func TestExplore(t *testing.T) {
	var mu sync.Mutex
	states := 0
	t.Run("scopes", func(t *testing.T) {
		for _, sc := range scopes {
			t.Run(sc.name, func(t *testing.T) {
				t.Parallel()
				x, err := explore(sc, *stress)
				require.NoError(t, err)
				t.Logf("%d states, %d of them gone through, %d events, depth %d, at rest after at most %d events", len(x.from), x.done, x.tried,
					slices.Max(x.depth), x.most)
				mu.Lock()
				defer mu.Unlock()
				states += len(x.from)
			})
		}
	})
	t.Logf("%d states", states)
	if *stress {
		require.GreaterOrEqual(t, states, 1_000_000)
	}
}
