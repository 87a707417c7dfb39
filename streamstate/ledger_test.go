package streamstate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The partition table as calls see it: a row for each event, a cell for each state that partition 0 is in before, with
// what it is in after, or the refusal. In Begun A has a claim, in Contested A and B have, in Due A's has failed, in
// Fenced A's is listed, in "Listed" it is, and the partition was given up. "-" is a pair that cannot be.
var callRows = `
call                   | Unwanted      | Listed        | Idle          | Begun          | Contested      | Due            | Fenced
begin C old term       | ErrStaleTerm  | ErrStaleTerm  | ErrStaleTerm  | ErrStaleTerm   | ErrStaleTerm   | ErrStaleTerm   | ErrStaleTerm
begin A again          | ErrUnwanted   | ErrUnwanted   | Begun         | ErrDuplicate   | ErrDuplicate   | Begun          | ErrNotShutDown
begin A same term      | ErrUnwanted   | ErrUnwanted   | Begun         | ErrDuplicate   | ErrDuplicate   | Begun          | ErrNotShutDown
begin A higher         | ErrUnwanted   | ErrUnwanted   | Begun         | Begun          | Begun          | Begun          | ErrNotShutDown
begin C higher         | ErrUnwanted   | ErrUnwanted   | Begun         | Begun          | Begun          | Begun          | ErrNotShutDown
begin C same term      | ErrUnwanted   | ErrUnwanted   | Begun         | Contested      | Contested      | Begun          | ErrNotShutDown
begin C no term        | ErrUnwanted   | ErrUnwanted   | Begun         | Contested      | Contested      | Begun          | ErrNotShutDown
begin C roll back      | ErrUnwanted   | ErrUnwanted   | Begun         | Contested      | Contested      | Begun          | ErrNotShutDown
begin-failed C         | ErrUnexpected | ErrUnexpected | Due           | ErrUnexpected  | ErrUnexpected  | ErrUnexpected  | ErrUnexpected
A ends, hand-over      | -             | ErrStaleClaim | -             | Idle           | Begun          | ErrStaleClaim  | Due
A ends, failed         | -             | ErrStaleClaim | -             | Due            | Begun          | ErrStaleClaim  | Due
A releases             | -             | ErrStaleClaim | -             | Unwanted       | Begun          | ErrStaleClaim  | ErrStaleClaim
A is fenced            | -             | ErrStaleClaim | -             | Fenced         | Fenced         | ErrStaleClaim  | ErrStaleClaim
A is gone              | Unwanted      | Unwanted      | Idle          | Due            | Begun          | Due            | Due
C is gone              | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
want                   | Idle          | Fenced        | Idle          | Begun          | Contested      | Due            | Fenced
unwant                 | Unwanted      | Unwanted      | Unwanted      | Unwanted       | Unwanted       | Unwanted       | Unwanted
A advances             | -             | ErrStaleClaim | -             | Begun          | Contested      | ErrStaleClaim  | ErrStaleClaim
A applies              | -             | ErrStaleClaim | -             | Begun          | Contested      | ErrStaleClaim  | ErrStaleClaim
`

// The rows that have tickets or deadlines, for an Active session.
var repairRows = `
call                   | Unwanted      | Listed        | Idle          | Begun          | Contested      | Due            | Fenced
deadline               | Unwanted      | Unwanted      | Due           | Begun          | Fenced         | Fenced         | Fenced
next due               | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
restart accepted       | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | Due            | ErrSuperseded
restart pending        | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | Due            | ErrSuperseded
restart refused        | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | Fenced         | ErrSuperseded
A shut down            | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | Due
C shut down            | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | ErrSuperseded
shut down failed       | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | Fenced
resubscribe taken      | Unwanted      | Unwanted      | Idle          | Idle           | Idle           | Idle           | Idle
resubscribed           | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
resubscribe failed     | Unwanted      | Unwanted      | Due           | Begun          | Contested      | Due            | Fenced
recover taken          | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
recover failed         | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
restart abandoned      | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | Due            | ErrSuperseded
shut down abandoned    | ErrSuperseded | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | Fenced
resubscribe abandoned  | Unwanted      | Unwanted      | Due           | Begun          | Contested      | Due            | Fenced
recover abandoned      | Unwanted      | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
stop                   | Unwanted      | Unwanted      | Idle          | Idle           | Idle           | Idle           | Idle
`

// ledger is a session of three partitions: 0 is what is looked at, 1 has seen term 5, 2 is left alone.
type ledger struct {
	*world
	a, b *Claim[int]
	rest *RestartTicket
	shut *ShutDownTicket
}

func newLedger(t *testing.T, pending bool, state string) *ledger {
	l := &ledger{world: &world{t: t, book: NewBook[int](Options{})}}
	t.Cleanup(func() { require.NoError(t, l.book.Close().Wait(t.Context())) })
	wanted := All
	if state == "Unwanted" {
		wanted = Some(1, 2)
	}
	var err error
	l.s, err = l.book.Open(key("a"), OpenOptions[int]{Partitions: 3, Wanted: wanted, Pending: pending})
	require.NoError(t, err)
	l.begin(1, Begin{Owner: "X", Term: 5})
	l.begin(2, Begin{Owner: "X"})
	if state != "Unwanted" && state != "Idle" {
		l.a = l.begin(0, Begin{Owner: "A", Term: 5, From: Position{Next: 10}})
	}
	switch state {
	case "Contested":
		l.b = l.begin(0, Begin{Owner: "B", Term: 5, From: Position{Next: 10}})
	case "Due":
		require.NoError(t, l.a.End(Failed))
	case "Fenced", "Listed":
		require.NoError(t, l.a.Fence(nil))
	}
	if !pending && (state == "Due" || state == "Fenced") {
		work, err := l.s.NextDue(ends())
		require.NoError(t, err)
		require.Len(t, work, 1)
		l.rest, _ = work[0].(*RestartTicket)
		l.shut, _ = work[0].(*ShutDownTicket)
	}
	if state == "Listed" {
		require.NoError(t, l.s.Unwant(0).Err())
		state = "Unwanted"
	}
	require.Equal(t, state, l.state(0))
	return l
}

func (l *ledger) begin(p int, b Begin) *Claim[int] {
	l.t.Helper()
	c, err := l.s.Begin(p, b)
	require.NoError(l.t, err)
	return c
}

func (l *ledger) at(p int) (v PartitionView) {
	l.t.Helper()
	require.NoError(l.t, l.s.Check())
	require.NoError(l.t, l.s.Read(func(tx ReadTx[int]) (err error) {
		v, err = tx.Partition(p)
		return err
	}))
	return v
}

func (l *ledger) state(p int) string {
	l.t.Helper()
	name := l.at(p).State.String()
	return strings.ToUpper(name[:1]) + name[1:]
}

func (l *ledger) tryBegin(b Begin) error {
	_, err := l.s.Begin(0, b)
	return err
}

var ledgerCalls = map[string]func(*ledger) error{
	"begin C old term":  func(l *ledger) error { return l.tryBegin(Begin{Owner: "C", Term: 4}) },
	"begin A again":     func(l *ledger) error { return l.tryBegin(Begin{Owner: "A"}) },
	"begin A same term": func(l *ledger) error { return l.tryBegin(Begin{Owner: "A", Term: 5}) },
	"begin A higher":    func(l *ledger) error { return l.tryBegin(Begin{Owner: "A", Term: 6}) },
	"begin C higher":    func(l *ledger) error { return l.tryBegin(Begin{Owner: "C", Term: 6}) },
	"begin C same term": func(l *ledger) error { return l.tryBegin(Begin{Owner: "C", Term: 5}) },
	"begin C no term":   func(l *ledger) error { return l.tryBegin(Begin{Owner: "C"}) },
	"begin C roll back": func(l *ledger) error { return l.tryBegin(Begin{Owner: "C", MustRollBack: true}) },
	"begin-failed C":    func(l *ledger) error { return l.s.BeginFailed(0, "C") },
	"A ends, hand-over": func(l *ledger) error { return l.a.End(HandOver) },
	"A ends, failed":    func(l *ledger) error { return l.a.End(Failed) },
	"A releases":        func(l *ledger) error { return l.a.Release().Err() },
	"A is fenced":       func(l *ledger) error { return l.a.Fence(nil) },
	"A is gone":         func(l *ledger) error { _, err := l.s.OwnerGone("A"); return err },
	"C is gone":         func(l *ledger) error { _, err := l.s.OwnerGone("C"); return err },
	"want":              func(l *ledger) error { return l.s.Want(0) },
	"unwant":            func(l *ledger) error { return l.s.Unwant(0).Err() },
	"A advances":        func(l *ledger) error { return l.a.Advance(Position{Next: 11}) },
	"A applies": func(l *ledger) error {
		return l.a.Apply(Position{Next: 11}, func(Tx[int]) error { return nil })
	},
	"deadline": func(l *ledger) error {
		return l.core(func(k *core) error {
			k.stamp(1)
			k.tick(1 + instant(time.Hour))
			return nil
		})
	},
	"next due": func(l *ledger) error {
		_, err := l.s.NextDue(ends())
		require.ErrorIs(l.t, err, ends().Err())
		return nil
	},
	"restart accepted": func(l *ledger) error { return l.restart().Accepted() },
	"restart pending":  func(l *ledger) error { return l.restart().Pending() },
	"restart refused":  func(l *ledger) error { return l.restart().Refused() },
	"A shut down":      func(l *ledger) error { return l.shutDown().Done(l.id()) },
	"C shut down":      func(l *ledger) error { return l.shutDown().Done(99) },
	"shut down failed": func(l *ledger) error { return l.shutDown().Failed() },
	"resubscribe taken": func(l *ledger) error {
		return l.core(func(k *core) error { k.takeResubscribe(); return nil })
	},
	"resubscribed":          func(l *ledger) error { return l.session(workResubscribe, (*core).resubscribed) },
	"resubscribe failed":    func(l *ledger) error { return l.session(workResubscribe, (*core).failed) },
	"recover taken":         func(l *ledger) error { return l.core(func(k *core) error { k.takeRecover(); return nil }) },
	"recover failed":        func(l *ledger) error { return l.session(workRecover, (*core).failed) },
	"restart abandoned":     func(l *ledger) error { return l.restart().Abandon() },
	"shut down abandoned":   func(l *ledger) error { return l.shutDown().Abandon() },
	"resubscribe abandoned": func(l *ledger) error { return l.session(workResubscribe, (*core).abandon) },
	"recover abandoned":     func(l *ledger) error { return l.session(workRecover, (*core).abandon) },
	"stop":                  func(l *ledger) error { return l.s.Stop(nil).Err() },
}

// core is an event that comes from within.
func (l *ledger) core(fn func(*core) error) error {
	return l.s.e.do(token{op: opLook}, func(k *held) error { return fn(&k.core) })
}

// session answers a ticket of the session, handed out before the partition came into its state.
func (l *ledger) session(kind workKind, reply func(*core, *ticket) error) error {
	return l.core(func(k *core) error {
		for i, p := range k.wantedParts {
			if t := p.ticket(); t != nil {
				k.endTicket(t, causeRecovering)
				k.parts[i].at = noAlarm
			}
		}
		return reply(k, k.takeSession(&ticket{kind: kind, part: -1}))
	})
}

func (l *ledger) dead() workTicket {
	return workTicket{&l.s.e.record, l.s.n, &ticket{id: 99, life: causeMoved}}
}

func (l *ledger) restart() *RestartTicket {
	if l.rest == nil {
		return &RestartTicket{l.dead()}
	}
	return l.rest
}

func (l *ledger) shutDown() *ShutDownTicket {
	if l.shut == nil {
		return &ShutDownTicket{l.dead()}
	}
	return l.shut
}

func (l *ledger) id() ClaimID {
	if l.a == nil {
		return 1
	}
	return l.a.ID()
}

func TestPartitionTableIsTheAPI(t *testing.T) {
	for _, pending := range []bool{true, false} {
		t.Run(map[bool]string{true: "opening", false: "active"}[pending], func(t *testing.T) { eachCell(t, pending, callRows) })
	}
	t.Run("repair", func(t *testing.T) { eachCell(t, false, repairRows) })
}

func eachCell(t *testing.T, pending bool, table string) {
	head, rows := parseTable(t, table)
	for _, r := range rows {
		for i, want := range r.cells {
			if want == "-" {
				continue
			}
			t.Run(r.label+"/"+head.cells[i], func(t *testing.T) {
				l := newLedger(t, pending, head.cells[i])
				call := func() error { return ledgerCalls[r.label](l) }
				if !strings.HasPrefix(want, "Err") {
					require.NoError(t, call())
					require.Equal(t, want, l.state(0))
					return
				}
				l.deny(sentinel(want), call)
			})
		}
	}
}

func sentinel(name string) error {
	return reasonErrors[slices.IndexFunc(reasonErrors[:], func(e error) bool {
		return e != nil && errName(Reason(slices.Index(reasonErrors[:], e))) == name
	})]
}
