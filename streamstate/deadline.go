package streamstate

// instant is a moment: nanoseconds since the book was made, plus one. Zero is none.
type instant int64

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

// alarm is a deadline in one word: when it is due, and what for. Zero is none.
type alarm int64

const (
	alarmBits = 3 // of the kind
	noAlarm   = alarm(0)
)

// soon is an alarm that was armed while the record's timer ran: it gets its time at the timer's next look.
func soon(what alarmKind) alarm { return -1<<alarmBits | alarm(what) }

func (a alarm) what() alarmKind { return alarmKind(a & (1<<alarmBits - 1)) }

// at is when it is due; negative if it has not got its time yet.
func (a alarm) at() instant { return instant(a >> alarmBits) }

func (a alarm) passed(now instant) bool { return a > 0 && a.at() <= now }

// arm starts a deadline; only an Active session has any. Its time is given when the gate next looks at the clock, since
// reading it would double the price of a hand-over: at once if the record's timer is not running, else at the timer's
// next look, which comes within an eighth of the shortest deadline. So a deadline is never early, and at most that late.
func (k *core) arm(a *alarm, what alarmKind) {
	*a = noAlarm
	if k.phase == Active && k.lim.lengths[what] >= 0 {
		*a = soon(what)
		if !k.ticks {
			k.due |= dueTime
		}
	}
}

// alarms ranges over the deadlines that are armed.
func (k *core) alarms(yield func(*alarm) bool) {
	for _, a := range [...]*alarm{&k.ticketAt, &k.retryAt} {
		if *a != noAlarm && !yield(a) {
			return
		}
	}
	for i := range k.parts {
		if a := &k.parts[i].at; *a != noAlarm && !yield(a) {
			return
		}
	}
}

// stamp gives the deadlines that wait for it their time, and returns the earliest of all; zero if there is none.
func (k *core) stamp(now instant) (earliest instant) {
	for a := range k.alarms {
		if *a < 0 {
			*a = alarm(now+k.lim.lengths[a.what()])<<alarmBits | alarm(a.what())
		}
		if at := a.at(); earliest == 0 || at < earliest {
			earliest = at
		}
	}
	return earliest
}

// tick looks at the deadlines that have passed. It may be called at any time.
func (k *core) tick(now instant) {
	if k.retryAt.passed(now) {
		k.retryAt = noAlarm
		k.changed()
	}
	if k.ticketAt.passed(now) {
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
	if p.state == Begun { // it has lived long enough
		p.flags, p.tries = p.flags&^flagTried, 0
	}
	k.step(i, evDeadline, f, to)
}
