package jobtest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/jobtracker/jobtest"
)

// tour is a scenario: every public operation of the tracker, on n replicas. It goes on after whatever it is refused; what it
// does not expect while nobody has interfered is a finding.
type tour struct {
	x *jobtest.Trial
	c *jobtest.Cluster
	n int
}

// polls is a context that has ended.
func polls() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// want notes an error that is not of the kind, unless the adversary has gone.
func (o *tour) want(err, kind error) {
	if !o.x.Disturbed() && !errors.Is(err, kind) {
		o.x.Errorf("got %v, want %v", err, kind)
		o.x.FailNow()
	}
}

func (o *tour) must(err error) { o.want(err, nil) }

func (o *tour) submit(op jobtracker.Op) *jobtest.Job {
	j, err := o.c.TrySubmit(op)
	o.must(err)
	return j
}

// done has everything settle; the jobs must have ended well.
func (o *tour) done(jobs ...*jobtest.Job) {
	o.c.Settle()
	for _, j := range jobs {
		if j == nil {
			continue
		}
		if !j.Resolved() {
			if !o.x.Disturbed() {
				o.x.Errorf("job %d is not resolved", j.ID())
			}
			continue
		}
		o.must(j.Wait(polls()))
	}
}

func (o *tour) activate() {
	h, err := o.c.TryActivate(jobtracker.ActivateOptions{})
	o.must(err)
	for _, r := range o.c.Replicas() {
		_, err := r.TryReconnect()
		o.must(err)
	}
	if h != nil {
		o.must(o.x.Call("begin", func() error { return h.Wait(polls()) }))
	}
}

// revive begins another activation if there is none.
func (o *tour) revive() {
	if o.c.Tracker.Stats().Phase != jobtracker.Inactive {
		return
	}
	for _, r := range o.c.Replicas() {
		r.Cut()
		o.must(r.Quiesce())
	}
	o.c.Reconcile()
	o.activate()
}

// parts are the tour's parts, each on replicas of its own: together, every public operation.
var parts = []struct {
	name string
	play func(o *tour)
}{
	{"kinds", func(o *tour) { o.kinds() }},
	{"admission", func(o *tour) { o.admission() }},
	{"replies", func(o *tour) { o.replies() }},
	{"failures", func(o *tour) { o.failures() }},
	{"connections", func(o *tour) { o.connections() }},
	{"fault", func(o *tour) {
		o.away(func(r *jobtest.Replica) error {
			return o.x.Call("Fault", func() error { return o.c.Tracker.Fault(r.Index(), nil) })
		})
	}},
	{"replace", func(o *tour) { o.away(func(r *jobtest.Replica) error { return r.Replace() }) }},
	{"deactivate", func(o *tour) { o.deactivate() }},
	{"disable", func(o *tour) { o.disable() }},
}

// play is a part of the tour as a scenario.
func play(n int, order jobtracker.Order, part func(o *tour)) func(x *jobtest.Trial) {
	return func(x *jobtest.Trial) {
		o := &tour{x: x, n: n, c: jobtest.NewInactive(x, config{Replicas: n, Order: order, MaxJobs: 6, OfflineJobs: 6, Blocks: 16})}
		o.beginning()
		part(o)
	}
}

// beginning is what comes before the first job.
func (o *tour) beginning() {
	_, err := o.c.TrySubmit(jobtest.Flush())
	o.want(err, jobtracker.ErrPhase)
	h, err := o.c.TryActivate(jobtracker.ActivateOptions{})
	o.must(err)
	_, err = o.c.TryActivate(jobtracker.ActivateOptions{})
	o.want(err, jobtracker.ErrPhase)
	for _, r := range o.c.Replicas() {
		hello := r.Hello()
		hello.Blocks++
		_, err = r.ConnectWith(hello)
		o.want(err, jobtracker.ErrHello)
		_, err = r.Connect()
		o.must(err)
		_, err = r.Connect()
		o.want(err, jobtracker.ErrLifecycle)
	}
	if h != nil {
		o.must(o.x.Call("begin", func() error { return h.Wait(polls()) }))
	}
}

// kinds submits each kind of job.
func (o *tour) kinds() {
	o.done(o.submit(jobtest.Write(0, 2)), o.submit(jobtest.Read(1, 1)), o.submit(jobtest.FUA(1, 2)))
	o.done(o.submit(jobtest.Zero(0, 1)), o.submit(jobtest.Trim(2, 1)), o.submit(jobtest.Barrier()))
	o.done(o.submit(jobtest.Flush()), o.submit(jobtest.Snapshot()))
	_, err := o.c.TrySubmit(jobtracker.Op{Kind: jobtracker.Copy, Blocks: 1})
	o.want(err, jobtracker.ErrOp)
	_, err = o.c.TrySubmit(jobtest.Write(15, 2))
	o.want(err, jobtracker.ErrOp)
	err = o.c.Tracker.Do(polls(), jobtest.Write(15, 1), &jobtest.Payload{Value: 7})
	o.want(err, context.Canceled) // it is submitted, and not waited for
	o.c.Settle()
}

// admission is exhausted, and goes on.
func (o *tour) admission() {
	var jobs []*jobtest.Job
	for i := range 6 {
		jobs = append(jobs, o.submit(jobtest.Write(uint64(i%3), 1)))
	}
	_, err := o.c.TrySubmit(jobtest.Write(0, 1))
	o.want(err, context.Canceled)
	if j := jobs[0]; j != nil {
		o.want(j.Wait(polls()), context.Canceled)
	}
	o.done(jobs...)
}

// replies come by themselves and in batches, twice, late, and for what does not exist.
func (o *tour) replies() {
	w, v, u := o.submit(jobtest.Write(3, 1)), o.submit(jobtest.Write(4, 1)), o.submit(jobtest.Write(5, 1))
	for _, r := range o.c.Replicas() {
		l := r.Life()
		if l == nil || w == nil {
			continue
		}
		l.ReceiveOne()
		l.Receive()
		l.Execute()
		o.must(l.Deliver(w.ID()))
		o.want(l.Deliver(w.ID()), jobtracker.ErrOrphan)
		o.want(l.Deliver(1<<40), jobtracker.ErrNeverIssued)
		for _, err := range l.DeliverAll() {
			o.must(err)
		}
	}
	o.done(w, v, u)
}

// failures are those of a read and, where the others go on, of a write.
func (o *tour) failures() {
	r := o.c.Replica(0)
	if o.n > 1 {
		r.FailKind(jobtracker.Read, nil)
		jobs := []*jobtest.Job{o.submit(jobtest.Read(0, 1)), o.submit(jobtest.Read(0, 1)), o.submit(jobtest.Read(0, 1))}
		o.done(jobs...)
		r.Heal()
	}
	r.FailNext(1, nil)
	j := o.submit(jobtest.Write(6, 1))
	o.c.Settle()
	if o.n > 1 {
		o.done(j)
	} else if j != nil && j.Resolved() {
		o.want(j.Err(), jobtracker.ErrQuorum)
	}
	r.Heal()
	o.revive()
	_, _ = r.TryReconnect() // refused if it has come back already
	o.repair(0)
}

// connections end, with replies in hand, and come back.
func (o *tour) connections() {
	r := o.c.Replica(o.n - 1)
	r.HoldReplies()
	w, f := o.submit(jobtest.Write(7, 1)), o.submit(jobtest.Flush())
	v := o.submit(jobtest.Read(7, 1))
	o.c.Settle()
	if l := r.Life(); l != nil {
		o.want(o.x.Call("Quiesced", l.Conn().Quiesced), jobtracker.ErrLifecycle)
	}
	old := r.Cut()
	_, err := r.Connect()
	o.want(err, jobtracker.ErrNotQuiesced)
	if old != nil {
		o.must(old.Quiesce())
		for _, id := range old.InHand() {
			o.want(old.Deliver(id), jobtracker.ErrStaleConn)
		}
		old.DeliverAll()
		old.Conn().Close(nil)
	}
	x := o.submit(jobtest.Write(7, 1))
	r.Heal()
	_, err = r.Connect()
	o.must(err)
	o.done(w, f, v, x)
}

// repair brings a replica back that is faulted, stopping half-way once.
func (o *tour) repair(replica int) {
	if o.n == 1 {
		return
	}
	r, source := o.c.Replica(replica), (replica+1)%o.n
	rep, err := r.StartRepair()
	o.must(err)
	if err == nil {
		_, err = o.c.Copy(rep, source, 0, 4)
		o.must(err)
		_, err = o.c.Copy(rep, replica, 0, 4)
		o.want(err, jobtracker.ErrLifecycle)
		o.submit(jobtest.Write(1, 1))
		o.must(o.x.Call("Abort", func() error { return rep.Abort(nil) }))
		_, err = o.c.Copy(rep, source, 0, 4)
		o.want(err, jobtracker.ErrSuperseded)
		o.want(o.x.Call("Finish", rep.Finish), jobtracker.ErrSuperseded)
	}
	o.c.Settle()
	if rep, err = r.StartRepair(); err != nil {
		o.must(err)
		return
	}
	a, _ := o.c.Copy(rep, source, 0, 8)
	o.submit(jobtest.Write(4, 8))
	b, _ := o.c.Copy(rep, source, 8, 8)
	o.done(a, b)
	for _, j := range []*jobtest.Job{a, b} {
		if j == nil || !j.Resolved() || j.Err() != nil { // only when disturbed
			_ = o.x.Call("Abort", func() error { return rep.Abort(nil) })
			return
		}
	}
	o.must(o.x.Call("Finish", rep.Finish))
	o.c.Settle()
	o.must(rep.Ended().Wait(polls()))
}

// away has the last replica go, so that it needs a repair, and repairs it.
func (o *tour) away(goes func(r *jobtest.Replica) error) {
	o.submitted(jobtest.Write(3, 2))
	r := o.c.Replica(o.n - 1)
	o.must(goes(r))
	o.submitted(jobtest.Write(2, 1))
	_, _ = r.TryReconnect() // with one replica the activation has ended
	o.revive()
	o.repair(r.Index())
	o.want(o.x.Call("Fault", func() error { return o.c.Tracker.Fault(o.n, nil) }), jobtracker.ErrReplica)
	o.want(o.x.Call("Replace", func() error { return o.c.Tracker.Replace(-1) }), jobtracker.ErrReplica)
}

// submitted submits a job that may be refused.
func (o *tour) submitted(op jobtracker.Op) { _, _ = o.c.TrySubmit(op) }

// deactivate ends an activation well, and begins another.
func (o *tour) deactivate() {
	o.submitted(jobtest.Write(9, 1))
	_ = o.c.Tracker.Dump().String()
	_, err := o.c.Tracker.Dump().JSON()
	o.must(err)
	_ = o.c.Tracker.Stats()
	h := o.c.Tracker.Deactivate()
	_, err = o.c.TrySubmit(jobtest.Flush())
	o.want(err, jobtracker.ErrPhase)
	o.c.Settle()
	o.must(o.x.Call("Deactivate", func() error { return h.Wait(polls()) }))
	o.revive()
	o.submitted(jobtest.Write(9, 1))
	o.c.Settle()
}

// disable ends an activation at once, and the next one by Close.
func (o *tour) disable() {
	o.submitted(jobtest.Write(9, 1))
	o.must(o.x.Call("Disable", func() error { return o.c.Tracker.Disable(nil) }))
	o.want(o.x.Call("Disable", func() error { return o.c.Tracker.Disable(nil) }), jobtracker.ErrPhase)
	o.revive()
	o.submitted(jobtest.Write(9, 1))
	o.c.Tracker.Close()
	o.c.Tracker.Close()
	_, err := o.c.TrySubmit(jobtest.Flush())
	o.want(err, jobtracker.ErrPhase)
	_, err = o.c.TryActivate(jobtracker.ActivateOptions{})
	o.want(err, jobtracker.ErrPhase)
}

// TestExploreEverything goes through all public operations, with each adversary before each acquisition. With the race
// detector, which has nothing to detect on one goroutine and takes eight times as long, each part meets a twelfth of them.
func TestExploreEverything(t *testing.T) {
	var mu sync.Mutex
	var sum jobtest.Report
	t.Run("parts", func(t *testing.T) {
		turn := 0
		for _, order := range []jobtracker.Order{jobtracker.TrackerOrders, jobtracker.ReplicaOrders} {
			for _, n := range []int{1, 3} {
				for _, part := range parts {
					turn++
					who := chosen(turn)
					t.Run(fmt.Sprintf("%v-orders-%d/%s", order, n, part.name), func(t *testing.T) {
						t.Parallel()
						rep := jobtest.Explore(t, play(n, order, part.play), who...)
						require.Positive(t, rep.Pairs)
						mu.Lock()
						defer mu.Unlock()
						sum.Acquisitions += rep.Acquisitions
						sum.Pairs += rep.Pairs
						sum.Refusals += rep.Refusals
						sum.Findings = append(sum.Findings, rep.Findings...)
					})
				}
			}
		}
	})
	t.Logf("%d scenarios with %d acquisitions, %d adversaries: %d pairs, %d refusals compared, %d findings", 4*len(parts),
		sum.Acquisitions, len(jobtest.Adversaries), sum.Pairs, sum.Refusals, len(sum.Findings))
}

// chosen are the adversaries that a part meets.
func chosen(turn int) []jobtest.Adversary {
	if !raceDetector {
		return jobtest.Adversaries
	}
	var who []jobtest.Adversary
	for i, a := range jobtest.Adversaries {
		if (i+turn)%12 == 0 {
			who = append(who, a)
		}
	}
	return who
}
