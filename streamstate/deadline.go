package streamstate

// instant is a moment: nanoseconds since the book was made, plus one. Zero is none.
type instant int64

// soon is the instant of an alarm that was armed while the record's timer ran: it gets its time at the timer's next look.
const soon instant = -1

// alarmKind says what a deadline is for, and so how long it is.
type alarmKind uint8

const (
	alarmNone     alarmKind = iota
	alarmBegin              // a begin is expected
	alarmHandOver           // a successor, or the end of a predecessor
	alarmTicket             // a ticket's answer
	alarmPending            // the begin of a restart that the source reports pending
	alarmStable             // the claim has lived long enough
	alarmRetry              // the next recovery after one that failed

	numAlarms = iota
)

var alarmNames = [numAlarms]string{"none", "begin", "hand-over", "ticket", "pending", "stable", "retry"}

func (a alarmKind) String() string { return nameOf(alarmNames[:], int(a), "alarm") }

// length is how long an alarm of this kind is.
func (l *limits) length(a alarmKind) instant {
	switch a {
	case alarmBegin:
		return instant(l.begin)
	case alarmHandOver:
		return instant(l.handOver)
	case alarmTicket:
		return instant(l.ticket)
	case alarmPending:
		return instant(l.pending)
	case alarmStable:
		return instant(l.stable)
	case alarmRetry:
		return instant(l.retry)
	case alarmNone:
	}
	return 0
}

// arm starts a deadline. Its time is given when the gate next looks at the clock, since reading it would double the
// price of a hand-over: at once if the record's timer is not running, else at the timer's next look, which comes within
// an eighth of the shortest deadline. So a deadline is never early, and at most that late.
func (k *core) arm(a *alarm, what alarmKind) {
	if k.lim.length(what) < 0 {
		*a = alarm{}
		return
	}
	*a = alarm{at: soon, what: what}
	if !k.ticks {
		k.fx.due |= dueTime
	}
}

// alarms ranges over the deadlines that are armed.
func (k *core) alarms(yield func(*alarm) bool) {
	for _, a := range [...]*alarm{&k.ticketAt, &k.retryAt} {
		if a.what != alarmNone && !yield(a) {
			return
		}
	}
	for i := range k.parts {
		if a := &k.parts[i].at; a.what != alarmNone && !yield(a) {
			return
		}
	}
}

// stamp gives the deadlines that wait for it their time, and returns the earliest of all; zero if there is none.
func (k *core) stamp(now instant) (earliest instant) {
	for a := range k.alarms {
		if a.at == soon {
			a.at = now + k.lim.length(a.what)
		}
		if earliest == 0 || a.at < earliest {
			earliest = a.at
		}
	}
	return earliest
}

func (a *alarm) passed(now instant) bool { return a.what != alarmNone && a.at > 0 && a.at <= now }

// tick looks at the deadlines that have passed. It may be called at any time.
func (k *core) tick(now instant) {
	if k.retryAt.passed(now) {
		k.retryAt = alarm{}
		k.changed()
	}
	if k.ticketAt.passed(now) && k.ticket != nil {
		k.failTicket(k.ticket, causeTimeout)
	}
	for i := range k.parts {
		if p := &k.parts[i]; p.at.passed(now) {
			k.expire(i, p)
		}
	}
}

// expire has a partition's deadline do what it was armed for.
func (k *core) expire(i int, p *partition) {
	f := facts{rung: p.rung, is: given(p.hasLast(), hasLast) | given(p.flags&flagTried != 0, wasTried)}
	to, _ := nextPartition(p.state, evDeadline, f) // a deadline is not refused
	if to == Fenced && p.state != Fenced {
		k.list(p)
	}
	k.step(i, evDeadline, f, to)
}
