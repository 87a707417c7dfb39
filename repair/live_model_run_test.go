package repair

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/staleproof/staleproof/jobtracker"
)

var stress = flag.Bool("stress", false, "long forms")

// crashing are the replicas of a reconciliation whose front end crashes: in that step each call may or may not have had its
// effect, and what comes later has none. Which, is drawn before, so that it does not depend on who is first.
type crashing struct {
	w    *mWorld
	step int // 0: marking, 1: copying, 2: flushing, 3: remembering, 4: none
	luck uint64
}

// lucky tells whether a call of a step has its effect; err: the front end is gone.
func (c *crashing) lucky(step, replica, extent int) (effect bool, err error) {
	switch {
	case step < c.step:
		return true, nil
	case step > c.step:
		return false, errTest
	}
	return c.luck>>((replica*mExtents+extent)%64)&1 != 0, nil
}

func (c *crashing) Extents(_ context.Context, replica int) ([]ExtentMeta, error) {
	m := make([]ExtentMeta, mExtents)
	n := c.w.nodes[replica]
	for e := range m {
		m[e].Dirty = n.dirty[e] || n.blank()
	}
	return m, nil
}

func (c *crashing) Copy(_ context.Context, source, target, extent int) error {
	ok, err := c.lucky(1, target, extent)
	if ok {
		at := extent * mExtent
		copy(c.w.nodes[target].data[at:at+mExtent], c.w.nodes[source].data[at:at+mExtent])
	}
	return err
}

func (c *crashing) Flush(_ context.Context, replica int) error {
	ok, err := c.lucky(2, replica, 0)
	if n := c.w.nodes[replica]; ok {
		n.disk = n.data
	}
	return err
}

func (c *crashing) Remember(_ context.Context, replica int, m Memory) error {
	step := 0
	if m.Equal {
		step = 3
	}
	ok, err := c.lucky(step, replica, 0)
	if n := c.w.nodes[replica]; ok {
		n.generation, n.flush, n.equal, n.dirty = m.Generation, m.Flush, m.Equal, append([]bool(nil), m.Dirty...)
	}
	return err
}

// crash is the end of the front end, with all that it knew. What lies in the sockets is executed or not; some replicas lose
// their power as well, and some, if all others have everything, are lost for good.
func (w *mWorld) crash() {
	w.note()
	for _, n := range w.nodes {
		w.drain(n, w.draw(3) == 0)
		n.conn = nil
	}
	if w.draw(3) == 0 {
		lost := 0
		for _, n := range w.nodes {
			if n.blank() {
				lost++
			}
		}
		for ; lost < w.n-w.w; lost++ {
			*w.nodes[w.draw(w.n)] = mNode{dirty: make([]bool, mExtents)}
		}
	}
	w.tr.Close()
	w.flushes = nil
	w.start(jobtracker.ActivateOptions{})
}

// come has replicas connect until the activation has begun; a reconciliation may be cut short by another crash, the
// first few times, if it is calm even that not.
func (w *mWorld) come(calm bool) error {
	for tries := 0; ; tries++ {
		if tries > 20 {
			return fmt.Errorf("no activation\n%v", w.tr.Dump())
		}
		first := w.draw(w.n)
		for i := range w.n {
			if r := (first + i) % w.n; w.tr.Stats().Phase == jobtracker.Activating && (tries > 2 || w.draw(3) > 0) {
				w.connect(r)
			}
		}
		if w.tr.Stats().Phase == jobtracker.Active {
			return w.begins()
		}
		if !w.reconcile {
			continue
		}
		c := &crashing{w: w, step: 4, luck: uint64(w.draw(1<<30))<<32 | uint64(w.draw(1<<30))}
		if !calm && tries < 5 && w.draw(2) == 0 {
			c.step = w.draw(4)
		}
		err := Reconcile(context.Background(), w.tr, c, ReconcileOptions{})
		switch {
		case c.step < 4: // whatever it was told, the front end is gone
		case err != nil:
			return err
		default:
			return w.begins()
		}
		w.crash()
	}
}

// begins has those that begin remember the generation, before any job is sent.
func (w *mWorld) begins() error {
	for r := range w.nodes {
		w.remember(r)
	}
	return w.check(true)
}

// move is one move of a replica.
func (w *mWorld) move(r int) bool {
	w.events++
	switch w.draw(3) {
	case 0:
		return w.take(r)
	case 1:
		return w.execute(w.nodes[r])
	default:
		return w.deliver(r)
	}
}

// settle moves until nothing is left.
func (w *mWorld) settle() {
	for moved := true; moved; {
		moved = false
		for r := range w.n {
			for w.take(r) || w.execute(w.nodes[r]) || w.deliver(r) {
				w.events++
				moved = true
			}
		}
	}
}

// calm stops all faults: within a stated number of events every replica is active, and then all is as it should be.
func (w *mWorld) calm() error {
	w.events = 0
	for _, n := range w.nodes {
		n.fails = false
	}
	for round := 0; ; round++ {
		if w.tr.Stats().Phase != jobtracker.Active { // what failed before has ended it
			w.crash()
			if err := w.come(true); err != nil {
				return err
			}
		}
		if round > mStill || w.events > mStill*w.n {
			return fmt.Errorf("not all are active after %d events\n%v", w.events, w.tr.Dump())
		}
		w.settle()
		all := true
		for r := range w.n {
			if n := w.nodes[r]; n.conn == nil || n.conn.Context().Err() != nil {
				w.cut(r, false)
				w.connect(r)
			}
			all = all && w.phase(r) == jobtracker.Voting
			w.repair(r)
		}
		if all {
			break
		}
	}
	w.settle()
	return w.check(false)
}

// step is anything.
func (w *mWorld) step() error {
	r := w.draw(w.n)
	switch d := w.draw(100); {
	case d < 60:
		w.move(r)
	case d < 74:
		w.submit()
	case d < 86:
		w.repair(r)
	case d < 88:
		w.cut(r, false)
	case d < 89:
		w.cut(r, true)
	case d < 94:
		w.connect(r)
	case d < 95:
		w.nodes[r].fails = true
	case d < 97:
		w.tidy(r)
	case d < 98:
		w.settle()
		return w.check(false)
	case d < 99:
		w.crash()
		return w.come(false)
	default:
		if w.draw(3) == 0 {
			return w.calm()
		}
	}
	if w.tr.Stats().Phase != jobtracker.Active { // all were faulted
		w.crash()
		return w.come(false)
	}
	return nil
}

func (w *mWorld) run(steps int) error {
	for range steps {
		if err := w.step(); err != nil {
			return err
		}
	}
	if err := w.calm(); err != nil {
		return err
	}
	w.tr.Close()
	return nil
}

func TestRepairModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newFront(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "d") })
		if err := w.run(rapid.IntRange(1, 400).Draw(t, "steps")); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRepairModelSeeds is the same with many more steps: 80,000 of seeds that are always the same, and with -stress five
// million of others. A seed that fails is printed, and fails again.
func TestRepairModelSeeds(t *testing.T) {
	const length = 4000
	steps := 0
	one := func(seed uint64) {
		rng := rand.New(rand.NewPCG(seed, seed))
		if err := newFront(rng.IntN).run(length); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		steps += length
	}
	for seed := range uint64(20) {
		one(seed)
	}
	if *stress {
		from := uint64(time.Now().UnixNano())
		for seed := from; steps < 5_000_000; seed++ {
			one(seed)
		}
		t.Logf("seeds from %d", from)
	}
	t.Logf("%d steps", steps)
}
