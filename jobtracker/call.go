package jobtracker

import "log/slog"

// Resolved is a job whose outcome is known.
type Resolved[P any] struct {
	Seq     uint64 // strictly increasing over all callbacks of a tracker
	Job     *Job[P]
	Payload P
	Err     error // nil, or a *JobError
}

// Retired is a job whose payload nothing needs any more.
type Retired[P any] struct {
	Seq     uint64 // strictly increasing over all callbacks of a tracker
	Job     *Job[P]
	Payload P
}

// call is a callback that waits to be run.
type call[P any] struct {
	what    callKind
	job     *Job[P]
	payload P
	event   *Event
}

type callKind uint8

const (
	callResolve callKind = iota
	callRetire
	callEvent
)

// run runs one callback, with no lock held.
func (t *Tracker[P]) run(c call[P]) {
	t.seq++
	switch c.what {
	case callResolve:
		t.cfg.OnResolve(Resolved[P]{Seq: t.seq, Job: c.job, Payload: c.payload, Err: c.job.Err()})
	case callRetire:
		t.cfg.OnRetire(Retired[P]{Seq: t.seq, Job: c.job, Payload: c.payload})
	case callEvent:
		c.event.Seq = t.seq
		if t.cfg.Logger != nil {
			c.event.log(t.cfg.Logger)
		}
		if t.cfg.OnEvent != nil {
			t.cfg.OnEvent(*c.event)
		}
	}
}

// log writes the event as one line.
func (e *Event) log(l *slog.Logger) {
	switch e.Kind {
	case ReplicaChanged:
		l.Info("replica", "seq", e.Seq, "replica", e.Replica, "from", e.From, "to", e.To, "conn", e.Conn, "cause", e.Cause)
	case ActivationChanged:
		l.Info("activation", "seq", e.Seq, "phase", e.Phase, "cause", e.Cause)
	case ReadMismatch:
		l.Warn("read mismatch", "seq", e.Seq, "job", e.Job, "replica", e.Replica, "other", e.Other)
	case ReconcileNeeded:
		l.Warn("reconcile needed", "seq", e.Seq)
	case WriteLost:
		l.Error("write lost", "seq", e.Seq, "job", e.Job, "cause", e.Cause)
	}
}
