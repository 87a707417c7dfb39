package repair

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// TestLiveRace has drivers of all replicas, guests, and somebody who breaks things run at once, on the goroutines there
// are. Repairs end with errors of a kind; when faults stop, all is well.
func TestLiveRace(t *testing.T) {
	rounds := uint64(12)
	if *stress {
		rounds = 1000
	}
	ended := map[string]int{}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { raceOnce(t, seed, ended) })
	}
	t.Logf("%d rounds, how repairs have ended: %v", rounds, ended)
}

func raceOnce(t *testing.T, seed uint64, ended map[string]int) {
	t.Helper()
	c := jobtest.New(t, config{Blocks: 64, ExtentBlocks: 4, Order: jobtracker.Order(seed % 2)})
	stop := c.Run()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	for g := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, g))
		wg.Go(func() { guest(ctx, c, rng) })
	}
	changed := make(chan struct{}, 1) // a replica may need a repair
	var bad error
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for r := range c.Replicas() {
				if c.Replica(r).State().Phase != jobtracker.RepairReady {
					continue
				}
				err := Live(ctx, c.Tracker, r, payload, LiveOptions{Parallel: 1 + n%4, Checksum: n%3 == 0})
				mu.Lock()
				ended[kindOf(err)]++
				if err != nil && !jobtest.Typed(err) && !errors.Is(err, ErrCopy) && !errors.Is(err, context.Canceled) {
					bad = err
				}
				mu.Unlock()
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	})
	rng := rand.New(rand.NewPCG(seed, 9))
	for range 40 {
		breakSomething(c, rng)
		select {
		case changed <- struct{}{}:
		default:
		}
		if j, err := c.TrySubmit(jobtest.Flush()); err == nil && c.Replica(0).Connected() {
			_ = j.Wait(t.Context()) // time goes by
		}
	}
	cancel()
	for _, r := range c.Replicas() {
		r.Heal()
	}
	wg.Wait()
	require.NoError(t, bad)
	if c.Tracker.Stats().Phase == jobtracker.Active {
		bringBack(t, c)
		ended["well in the end"]++
	} // else replica 0 was away for longer than a busy machine may leave it
	stop()
	c.RequireRecovery()
}

// bringBack has drivers bring back all replicas, when nobody breaks anything any more. What was broken before may end a
// first attempt, and no third one.
func bringBack(t *testing.T, c *jobtest.Cluster) {
	t.Helper()
	for range 3 {
		for r, rep := range c.Replicas() {
			if !rep.State().Connected() {
				rep.Reconnect()
			}
			if rep.State().Phase == jobtracker.RepairReady {
				_ = Live(t.Context(), c.Tracker, r, payload, LiveOptions{Checksum: r == 1})
			}
		}
	}
	for r, rep := range c.Replicas() {
		require.Equal(t, jobtracker.Voting, rep.State().Phase, "replica %d", r)
	}
}

func kindOf(err error) string {
	for kind, name := range map[error]string{ErrCopy: "copy", context.Canceled: "canceled", jobtracker.ErrEnded: "ended", jobtracker.ErrLifecycle: "refused"} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if err == nil {
		return "well"
	}
	return "other"
}

// guest writes and flushes, a few at a time.
func guest(ctx context.Context, c *jobtest.Cluster, rng *rand.Rand) {
	for ctx.Err() == nil {
		op := jobtest.Write(uint64(rng.IntN(56)), 1+uint64(rng.IntN(8)))
		if rng.IntN(8) == 0 {
			op = jobtest.Flush()
		}
		j, err := c.SubmitContext(ctx, op, &jobtest.Payload{})
		if err != nil {
			return
		}
		_ = j.Wait(ctx) // it may fail
	}
}

// breakSomething leaves replica 0 in its place, so that there is always one that has everything.
func breakSomething(c *jobtest.Cluster, rng *rand.Rand) {
	r := c.Replica(1 + rng.IntN(2))
	switch rng.IntN(8) {
	case 0:
		_ = c.Tracker.Fault(r.Index(), errTest) // it may be away
	case 1:
		r.Crash()
	case 2:
		r.Cut()
	case 3:
		_ = r.Replace() // it may be replaced
	case 4:
		r.FailNext(1, errTest)
	case 5:
		c.Replica(0).Cut()
	}
	for _, r := range c.Replicas() {
		if !r.State().Connected() {
			_, _ = r.TryReconnect() // somebody else may be faster
		}
	}
}
