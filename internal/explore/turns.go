package explore

import (
	"bytes"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"testing/synctest"
)

// turns is how a scenario with goroutines runs one at a time: whoever comes to an acquisition of a lock goes on only if it
// has the turn, which it has until it waits for something. It is guarded by the trial's mutex.
type turns struct {
	on    bool
	owner uint64 // the goroutine that has the turn; 0: nobody
	queue []waiting
}

// waiting is a goroutine that waits for its turn.
type waiting struct {
	where []uintptr // it is in
	turn  chan struct{}
}

// NewInTurns is [New] for a scenario whose code under test has goroutines of its own. The run is to be in a bubble of
// testing/synctest. These goroutines go on in [Trial.Yield], one at a time from one acquisition to the next, so that
// nobody comes between an adversary's, or the scenario's, calls: what a refusal may have changed can be seen.
func NewInTurns(typed func(error) bool, act func(), at int) *Trial {
	x := New(typed, act, at)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.on = true
	return x
}

// Yield lets the other goroutines go on until each of them waits for something. Of several that could, which is first
// depends on where in the code they are, not on who came first: so a run is always the same, unless two of them are in
// the same place.
func (x *Trial) Yield() {
	x.giveTurn(0)
	for {
		synctest.Wait() // whoever has the turn waits for something else by then, or has ended
		if !x.handOver() {
			break
		}
	}
	x.takeTurn()
}

// handOver gives the turn to one who waits for it; false: nobody does.
func (x *Trial) handOver() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.queue) == 0 {
		return false
	}
	next := 0
	for i, w := range x.queue {
		if slices.Compare(w.where, x.queue[next].where) < 0 {
			next = i
		}
	}
	close(x.queue[next].turn)
	x.queue = slices.Delete(x.queue, next, next+1)
	return true
}

// takeTurn gives the turn to the calling goroutine.
func (x *Trial) takeTurn() { x.giveTurn(goroutine()) }

func (x *Trial) giveTurn(to uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.owner = to
}

// awaitTurn waits until the calling goroutine has the turn.
func (x *Trial) awaitTurn() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.on {
		return
	}
	me := goroutine()
	if x.owner == me {
		return
	}
	w := waiting{where: make([]uintptr, 32), turn: make(chan struct{})}
	w.where = w.where[:runtime.Callers(2, w.where)]
	x.queue = append(x.queue, w)
	x.mu.Unlock()
	<-w.turn
	x.mu.Lock()
	x.owner = me
}

// root is where the goroutine of a scenario begins.
//
//go:noinline
func root(f func()) { f() }

var rootName = runtime.FuncForPC(reflect.ValueOf(root).Pointer()).Name()

// scenarios is the number of the goroutine that the scenario runs on.
const scenarios = 1

// goroutine is a number of the calling goroutine. That of the scenario, which calls most, is known by where it began: to ask
// the runtime for a number takes a hundred times as long.
func goroutine() uint64 {
	var pcs [64]uintptr
	n := runtime.Callers(1, pcs[:])
	if n > 1 && n < len(pcs) && runtime.FuncForPC(pcs[n-2]).Name() == rootName {
		return scenarios
	}
	var buf [64]byte
	fields := bytes.Fields(buf[:runtime.Stack(buf[:], false)])
	id, err := strconv.ParseUint(string(fields[1]), 10, 64) // "goroutine 18 [running]:"
	if err != nil {
		panic("explore: bug: no goroutine in a stack: " + err.Error())
	}
	return id
}
