package jobtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/jobtracker"
)

// Adversaries are all that this package has; where one acts on a replica, on the first and on the last.
var Adversaries = []Adversary{
	ByDisable(), ByDeactivate(), ByReactivate(), ByClose(),
	ByCloseConn(0), ByCloseConn(last), ByReconnect(0), ByReconnect(last), ByCrash(0), ByCrash(last),
	ByFault(0), ByFault(last), ByReplace(0), ByReplace(last), ByRepair(last), ByFailure(0), ByFailure(last),
	ByDuplicate(0), ByLateReply(0), ByLateReply(last), ByForgery(0), ByProgress(0), ByProgress(last),
	BySettle(), BySubmit(), ByFlush(), ByBarrier(), ByWithdraw(),
}

// last names the last replica.
const last = -1

// errAdversary is the cause of what adversaries end.
var errAdversary = errors.New("jobtest: an adversary")

// onTrackers is an adversary that needs no connection.
func onTrackers(name string, act func(x *Trial, t Tracker)) Adversary {
	return Adversary{Name: name, Act: func(x *Trial) {
		watched, _ := x.has()
		for _, t := range watched {
			act(x, t)
		}
	}}
}

// onReplica is an adversary that acts on a replica of the scenario's last cluster; it does nothing if there is none.
func onReplica(name string, replica int, act func(x *Trial, r *Replica)) Adversary {
	if replica == last {
		name += "(last)"
	} else {
		name += fmt.Sprintf("(%d)", replica)
	}
	return Adversary{Name: name, Act: func(x *Trial) {
		if c := x.Cluster(); c != nil {
			n := len(c.replicas)
			act(x, c.replicas[(replica+n)%n])
		}
	}}
}

// onCluster is an adversary that acts on the scenario's last cluster; it does nothing if there is none.
func onCluster(name string, act func(x *Trial, c *Cluster)) Adversary {
	return Adversary{Name: name, Act: func(x *Trial) {
		if c := x.Cluster(); c != nil {
			act(x, c)
		}
	}}
}

// A refusal is part of the game: it was checked by Call.

// ByDisable disables.
func ByDisable() Adversary {
	return onTrackers("Disable", func(x *Trial, t Tracker) {
		_ = x.Call("Disable", func() error { return t.Disable(errAdversary) })
	})
}

// ByDeactivate deactivates.
func ByDeactivate() Adversary {
	return onTrackers("Deactivate", func(_ *Trial, t Tracker) { t.Deactivate() })
}

// ByClose closes the tracker.
func ByClose() Adversary {
	return onTrackers("Close", func(_ *Trial, t Tracker) { t.Close() })
}

// ByReactivate disables, makes the devices equal as a reconcile does, activates again and connects all replicas.
func ByReactivate() Adversary {
	return onCluster("Reactivate", func(x *Trial, c *Cluster) {
		_ = x.Call("Disable", func() error { return c.Tracker.Disable(errAdversary) })
		for _, r := range c.replicas {
			r.Cut()
			_ = r.Quiesce()
		}
		c.Reconcile()
		if _, err := c.TryActivate(jobtracker.ActivateOptions{}); err == nil {
			for _, r := range c.replicas {
				_, _ = r.TryReconnect()
			}
		}
	})
}

// ByCloseConn ends the connection of a replica. Negative replicas count from the end, here and below.
func ByCloseConn(replica int) Adversary {
	return onReplica("CloseConn", replica, func(_ *Trial, r *Replica) { r.Cut() })
}

// ByReconnect ends the connection of a replica, quiesces it, and connects again.
func ByReconnect(replica int) Adversary {
	return onReplica("Reconnect", replica, func(_ *Trial, r *Replica) { _, _ = r.TryReconnect() })
}

// ByCrash has a replica lose what it has not flushed, and come back.
func ByCrash(replica int) Adversary {
	return onReplica("Crash", replica, func(_ *Trial, r *Replica) {
		r.Crash()
		_, _ = r.Connect()
	})
}

// ByFault faults a replica.
func ByFault(replica int) Adversary {
	return onReplica("Fault", replica, func(x *Trial, r *Replica) {
		_ = x.Call("Fault", func() error { return r.c.Tracker.Fault(r.index, errAdversary) })
	})
}

// ByReplace puts another device in a replica's place, which connects.
func ByReplace(replica int) Adversary {
	return onReplica("Replace", replica, func(_ *Trial, r *Replica) {
		if r.Replace() == nil {
			_, _ = r.Connect()
		}
	})
}

// ByRepair faults a replica, has it come back, and starts its repair with a first copy, which it leaves as it is.
func ByRepair(replica int) Adversary {
	return onReplica("Repair", replica, func(x *Trial, r *Replica) {
		_ = x.Call("Fault", func() error { return r.c.Tracker.Fault(r.index, errAdversary) })
		_, _ = r.TryReconnect()
		if rep, err := r.StartRepair(); err == nil {
			_, _ = r.c.Copy(rep, (r.index+1)%len(r.c.replicas), 0, 1)
		}
	})
}

// ByFailure has a replica fail its next job.
func ByFailure(replica int) Adversary {
	return onReplica("Failure", replica, func(_ *Trial, r *Replica) { r.FailNext(1, errAdversary) })
}

// ByDuplicate hands in once more the reply that a replica gave last.
func ByDuplicate(replica int) Adversary {
	return onReplica("Duplicate", replica, func(x *Trial, r *Replica) {
		l := r.Life()
		if l == nil {
			return
		}
		r.mu.Lock()
		again := l.last
		r.mu.Unlock()
		if again == nil {
			return
		}
		err := x.Call("Complete", func() error { return l.conn.Complete(again.id, again.res) })
		if !errors.Is(err, jobtracker.ErrOrphan) {
			x.Errorf("job %d was completed again with %v", again.id, err)
		}
	})
}

// ByLateReply ends the connection of a replica, with replies in hand if there are any, has the replica connect again, and
// hands the replies in on the connection they belong to.
func ByLateReply(replica int) Adversary {
	return onReplica("LateReply", replica, func(x *Trial, r *Replica) {
		old := r.Cut()
		if old == nil {
			return
		}
		late := append(old.InSocket(), old.InHand()...)
		_, _ = r.TryReconnect()
		for _, id := range append(late, 1) {
			if err := old.Deliver(id); !errors.Is(err, jobtracker.ErrStaleConn) {
				x.Errorf("a late reply to job %d was answered with %v", id, err)
			}
		}
	})
}

// ByForgery hands in replies to jobs that a replica was never sent, or that do not exist.
func ByForgery(replica int) Adversary {
	return onReplica("Forgery", replica, func(x *Trial, r *Replica) {
		l := r.Life()
		if l == nil {
			return
		}
		for _, id := range []jobtracker.JobID{0, 1 << 40, ^jobtracker.JobID(0)} {
			if err := l.Deliver(id); !errors.Is(err, jobtracker.ErrOrphan) {
				x.Errorf("a reply to job %d, which does not exist, was answered with %v", id, err)
			}
		}
	})
}

// ByProgress has one replica take, execute and answer all that there is for it.
func ByProgress(replica int) Adversary {
	return onReplica("Progress", replica, func(_ *Trial, r *Replica) {
		for r.receive(batchSize) || r.execute(nil) || r.deliver(nil) {
			continue
		}
	})
}

// BySettle has all replicas do so.
func BySettle() Adversary {
	return onCluster("Settle", func(_ *Trial, c *Cluster) { c.Settle() })
}

// BySubmit submits a write and a read of the first block.
func BySubmit() Adversary {
	return onCluster("Submit", func(_ *Trial, c *Cluster) {
		_, _ = c.TrySubmit(Write(0, 1))
		_, _ = c.TrySubmit(Read(0, 1))
	})
}

// ByFlush submits a flush.
func ByFlush() Adversary {
	return onCluster("Flush", func(_ *Trial, c *Cluster) { _, _ = c.TrySubmit(Flush()) })
}

// ByBarrier submits a barrier.
func ByBarrier() Adversary {
	return onCluster("Barrier", func(_ *Trial, c *Cluster) { _, _ = c.TrySubmit(Barrier()) })
}

// ByWithdraw ends the context of the trial, and submits with one that has ended, so that the job is admitted at once or
// withdrawn.
func ByWithdraw() Adversary {
	return Adversary{Name: "Withdraw", Act: func(x *Trial) {
		x.engine.Withdraw()
		if c := x.Cluster(); c != nil {
			_, err := c.SubmitContext(ended, Write(1, 1), &Payload{})
			if err != nil && !Typed(err) && !errors.Is(err, context.Canceled) {
				x.Errorf("a withdrawn submit was refused with %v", err)
			}
		}
	}}
}
