package streamstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The partition relation, written from its specification, not from the code: a row for each event and what is known
// beside it, a cell for each state. A cell is the state after it, "=" for the same, a refusal, or "-" for a pair that
// cannot be.
var partitionRows = `
event                                          | Unwanted      | Idle          | Begun          | Contested      | Due            | Fenced
begin stale                                    | ErrStaleTerm  | ErrStaleTerm  | ErrStaleTerm   | ErrStaleTerm   | ErrStaleTerm   | ErrStaleTerm
begin stale duplicate                          | -             | -             | ErrStaleTerm   | ErrStaleTerm   | -              | -
begin duplicate stay=1                         | -             | -             | ErrDuplicate   | ErrDuplicate   | -              | -
begin                                          | ErrUnwanted   | Begun         | Begun          | Begun          | Begun          | ErrNotShutDown
begin stay=1                                   | -             | -             | Contested      | Contested      | -              | -
begin stay=2                                   | -             | -             | -              | Contested      | -              | -
begin-failed                                   | ErrUnexpected | Due           | ErrUnexpected  | ErrUnexpected  | ErrUnexpected  | ErrUnexpected
end-hand-over live                             | -             | -             | Idle           | Idle           | -              | -
end-hand-over live stay=1                      | -             | -             | -              | Begun          | -              | -
end-hand-over live stay=2                      | -             | -             | -              | Contested      | -              | -
end-hand-over listed                           | ErrStaleClaim | -             | -              | -              | -              | Due
end-hand-over listed left=1                    | ErrStaleClaim | -             | -              | -              | -              | =
end-hand-over                                  | ErrStaleClaim | ErrStaleClaim | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim
end-failed live                                | -             | -             | Due            | Due            | -              | -
end-failed live stay=1                         | -             | -             | -              | Begun          | -              | -
end-failed live stay=2                         | -             | -             | -              | Contested      | -              | -
end-failed listed                              | ErrStaleClaim | -             | -              | -              | -              | Due
end-failed listed left=1                       | ErrStaleClaim | -             | -              | -              | -              | =
end-failed                                     | ErrStaleClaim | ErrStaleClaim | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim
release live                                   | -             | -             | Unwanted       | Unwanted       | -              | -
release live stay=1                            | -             | -             | -              | Begun          | -              | -
release live stay=2                            | -             | -             | -              | Contested      | -              | -
release listed                                 | ErrStaleClaim | -             | -              | -              | -              | ErrStaleClaim
release                                        | ErrStaleClaim | ErrStaleClaim | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim
fence live                                     | -             | -             | Fenced         | Fenced         | -              | -
fence live stay=1                              | -             | -             | -              | Fenced         | -              | -
fence listed                                   | ErrStaleClaim | -             | -              | -              | -              | ErrStaleClaim
fence                                          | ErrStaleClaim | ErrStaleClaim | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim  | ErrStaleClaim
owner-gone live                                | -             | -             | Due            | Due            | -              | -
owner-gone live stay=1                         | -             | -             | -              | Begun          | -              | -
owner-gone live stay=2                         | -             | -             | -              | Contested      | -              | -
owner-gone listed                              | =             | -             | -              | -              | -              | Due
owner-gone listed left=1                       | =             | -             | -              | -              | -              | =
owner-gone                                     | =             | =             | =              | =              | =              | =
want                                           | Idle          | =             | =              | =              | =              | =
want left=1                                    | Fenced        | -             | -              | -              | -              | =
want covered                                   | ErrReleasing  | =             | =              | =              | =              | =
want covered left=1                            | ErrReleasing  | -             | -              | -              | -              | =
unwant                                         | =             | Unwanted      | Unwanted       | Unwanted       | Unwanted       | Unwanted
deadline                                       | -             | Due           | =              | Fenced         | Due            | =
deadline last                                  | -             | Due           | -              | -              | Fenced         | -
deadline last rung=1                           | -             | Due           | -              | -              | Due            | -
deadline rung=2                                | -             | Due           | =              | Fenced         | -              | -
resubscribe-taken                              | =             | =             | Idle           | Idle           | Idle           | Idle
recover-taken                                  | =             | =             | =              | =              | =              | =
restart-accepted                               | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | =              | ErrSuperseded
restart-refused                                | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | =              | ErrSuperseded
restart-refused last                           | ErrSuperseded | ErrSuperseded | -              | -              | Fenced         | -
restart-refused last rung=1                    | ErrSuperseded | ErrSuperseded | -              | -              | =              | -
shut-down listed                               | ErrSuperseded | -             | -              | -              | -              | Due
shut-down listed left=1                        | ErrSuperseded | -             | -              | -              | -              | =
shut-down                                      | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | ErrSuperseded
shut-down-failed                               | ErrSuperseded | ErrSuperseded | ErrSuperseded  | ErrSuperseded  | ErrSuperseded  | =
resubscribed                                   | =             | =             | =              | =              | =              | =
resubscribe-failed                             | =             | Due           | =              | =              | =              | =
recover-failed                                 | =             | =             | =              | =              | =              | =
abandoned                                      | =             | Due           | =              | =              | =              | =
session-end                                    | =             | =             | Idle           | Idle           | Idle           | Idle
`

// The rungs after the same events, where they move: "=" for the same.
var rungRows = `
event                       | Unwanted | Idle        | Begun     | Contested | Due         | Fenced
begin-failed                | =        | =           | =         | =         | =           | =
begin-failed rung=2         | =        | recover     | =         | =         | =           | =
end-failed live             | =        | =           | =         | =         | =           | =
end-failed live tried       | =        | =           | shut-down | -         | =           | =
owner-gone live tried       | =        | =           | shut-down | -         | =           | =
end-failed live tried stay=1| =        | =           | =         | =         | =           | =
end-hand-over live tried    | =        | =           | =         | =         | =           | =
release live rung=2         | =        | =           | restart   | restart   | =           | =
fence live                  | =        | =           | shut-down | shut-down | =           | =
fence live rung=2           | =        | =           | =         | =         | =           | =
want left=1                 | shut-down| =           | =         | =         | =           | =
unwant rung=2               | restart  | restart     | restart   | restart   | restart     | restart
deadline                    | =        | =           | =         | shut-down | resubscribe | resubscribe
deadline last               | =        | =           | =         | shut-down | shut-down   | resubscribe
deadline last rung=1        | =        | =           | restart   | =         | resubscribe | resubscribe
deadline rung=2             | =        | recover     | restart   | =         | =           | =
resubscribe-taken           | =        | resubscribe | resubscribe | resubscribe | resubscribe | resubscribe
recover-taken rung=3        | =        | =           | =         | =         | =           | =
restart-accepted            | =        | =           | =         | =         | =           | =
restart-refused             | =        | =           | =         | =         | resubscribe | =
restart-refused last        | =        | =           | =         | =         | shut-down   | =
restart-refused last rung=1 | =        | =           | =         | =         | resubscribe | =
shut-down listed rung=1     | =        | =           | =         | =         | =           | =
shut-down-failed rung=1     | =        | =           | =         | =         | =           | resubscribe
resubscribed rung=2         | =        | =           | =         | =         | =           | =
resubscribe-failed rung=2   | =        | recover     | =         | =         | recover     | recover
abandoned rung=2            | =        | =           | =         | =         | =           | =
session-end rung=2          | restart  | restart     | restart   | restart   | restart     | restart
`

// row is one line of a table: its label and its cells.
type row struct {
	label string
	cells []string
}

func parseTable(t *testing.T, text string) (head row, rows []row) {
	t.Helper()
	for line := range strings.Lines(strings.TrimSpace(text)) {
		var fields []string
		for f := range strings.SplitSeq(line, "|") {
			fields = append(fields, strings.TrimSpace(f))
		}
		rows = append(rows, row{fields[0], fields[1:]})
	}
	for _, r := range rows {
		require.Len(t, r.cells, len(rows[0].cells), r.label)
	}
	return rows[0], rows[1:]
}

var knownNames = map[string]known{
	"stale": isStale, "duplicate": isDuplicate, "live": isLive, "listed": isListed, "covered": isCovered, "last": hasLast,
	"tried": wasTried,
}

// parseEvent reads an event's name and what is known beside it.
func parseEvent(t *testing.T, label string) (event, facts) {
	t.Helper()
	words := strings.Fields(label)
	at := slices.Index(eventNames[:], words[0])
	require.GreaterOrEqual(t, at, 0, label)
	var f facts
	for _, w := range words[1:] {
		name, n := w, 1
		if i := strings.IndexByte(w, '='); i > 0 {
			name, n = w[:i], int(w[i+1]-'0')
		}
		switch name {
		case "stay":
			f.stay = int32(n)
		case "left":
			f.left = int32(n)
		case "rung":
			f.rung = Rung(n)
		default:
			k, ok := knownNames[name]
			require.True(t, ok, w)
			f.is |= k
		}
	}
	return event(at), f
}

func TestPartitionTable(t *testing.T) {
	head, rows := parseTable(t, partitionRows)
	var seen [numEvents]bool
	for _, r := range rows {
		e, f := parseEvent(t, r.label)
		seen[e] = true
		for i, want := range r.cells {
			s := PartitionState(slices.Index(stateNames[:], strings.ToLower(head.cells[i])))
			to, why := nextPartition(s, e, f)
			got := strings.ToUpper(to.String()[:1]) + to.String()[1:]
			switch {
			case want == "-":
				continue // but total: it did not panic
			case why != 0:
				require.Equal(t, s, to, "a refused event changes nothing")
				got = errName(why)
			case to == s && want == "=":
				got = "="
			}
			require.Equal(t, want, got, "%s while %v", r.label, s)
		}
	}
	require.NotContains(t, seen, false, "every event has a row")
}

// errName is the name of a reason's sentinel.
func errName(r Reason) string {
	var b strings.Builder
	b.WriteString("Err")
	for w := range strings.SplitSeq(r.String(), "-") {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return b.String()
}

func TestRungTable(t *testing.T) {
	head, rows := parseTable(t, rungRows)
	for _, r := range rows {
		e, f := parseEvent(t, r.label)
		for i, want := range r.cells {
			s := PartitionState(slices.Index(stateNames[:], strings.ToLower(head.cells[i])))
			if _, why := nextPartition(s, e, f); why != 0 || want == "-" || f.has(isLive) && !s.live() {
				continue // never asked
			}
			got := nextRung(s, e, f)
			if want == "=" {
				require.Equal(t, f.rung, got, "%s while %v", r.label, s)
			} else {
				require.Equal(t, want, got.String(), "%s while %v", r.label, s)
			}
		}
	}
}

// TestRelationIsTotal asks every combination: an answer, never a panic, never a stray state, and no rung goes down but
// where the ladder is left.
func TestRelationIsTotal(t *testing.T) {
	for s := range PartitionState(numStates) {
		for e := range event(numEvents) {
			for bits := range 1 << 7 {
				for n := range int32(3) {
					for rung := range Rung(numRungs) {
						f := facts{is: known(bits), stay: n, left: n, rung: rung}
						to, why := nextPartition(s, e, f)
						require.Less(t, int(to), int(numStates))
						require.Less(t, int(why), int(numReasons))
						if why != 0 {
							require.Equal(t, s, to)
							continue
						}
						r := nextRung(s, e, f)
						require.Less(t, int(r), int(numRungs))
						if e == evBegin || e == evEndHandOver {
							require.Equal(t, rung, r, "core.step does not ask for these")
						}
						leaves := e == evUnwant || e == evRelease || e == evSessionEnd || e == evDeadline && s == Begun
						leaves = leaves || e == evWant && f.left > 0
						if !leaves {
							require.GreaterOrEqual(t, r, rung, "%v while %v", e, s)
						}
					}
				}
			}
		}
	}
}

// The phase relation, written from its specification. "ok" goes on to the partition table or to the operation's own
// rules; "waits" waits until another phase lets it on; "same" is the same handle again, "resolved" one that has ended.
var phaseRows = `
operation    | Opening       | Active        | Stopping     | Stopped       | Closing         | Gone
open         | ErrExists     | ErrExists     | ErrExists    | ErrExists     | ErrExists       | ok
opened       | ok            | ErrSuperseded | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
open-failed  | ok            | ErrSuperseded | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
begin        | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
begin-failed | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
owner-gone   | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
end          | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
release      | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
fence        | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
apply        | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
advance      | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
want         | ok            | ok            | ok           | ok            | ErrStaleSession | ErrStaleSession
unwant       | ok            | ok            | ok           | ok            | ErrStaleSession | ErrStaleSession
next-due     | waits         | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
reply        | ErrSuperseded | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
start-flush  | ErrPhase      | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
flush        | waits         | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
flush-reply  | ErrSuperseded | ok            | ok           | ErrSuperseded | ok              | ErrSuperseded
hold         | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
release-hold | ok            | ok            | ErrStaleHold | ErrStaleHold  | ErrStaleHold    | ErrStaleHold
merge        | waits         | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
read         | ok            | ok            | ok           | ok            | ErrStaleSession | ErrStaleSession
update       | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
exchange     | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
pair         | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
when         | ok            | ok            | ErrPhase     | ErrPhase      | ErrStaleSession | ErrStaleSession
stop         | ok            | ok            | same         | same          | ErrStaleSession | ErrStaleSession
drain        | ok            | ok            | same         | same          | ErrStaleSession | ErrStaleSession
reopen       | ErrPhase      | ErrPhase      | ErrPhase     | ok            | ErrStaleSession | ErrStaleSession
drop         | ok            | ok            | ok           | ok            | same            | resolved
session      | ok            | ok            | ok           | ok            | ErrStaleSession | ErrStaleSession
look         | ok            | ok            | ok           | ok            | ok              | ok
`

var ruleNames = map[rule]string{
	allow: "ok", wait: "waits", idempot: "same", resolved: "resolved", exists: "ErrExists", badPhase: "ErrPhase",
	stale: "ErrStaleSession", superseded: "ErrSuperseded", deadHold: "ErrStaleHold",
}

func TestPhaseTable(t *testing.T) {
	head, rows := parseTable(t, phaseRows)
	require.Len(t, rows, numOps)
	for op, r := range rows {
		require.Equal(t, Op(op).String(), r.label)
		for i, want := range r.cells {
			ph := Phase(slices.Index(phaseNames[:], strings.ToLower(head.cells[i])))
			require.Equal(t, want, ruleNames[phaseTable[op][ph]], "%s while %v", r.label, ph)
		}
	}
}

// TestDataTable is the table's rows for data: below the claim's next, at it, up to what is received, beyond.
func TestDataTable(t *testing.T) {
	for _, c := range []struct {
		pos, next, received uint64
		back                bool
		want                verdict
	}{
		{4, 5, 7, false, dataBelow},
		{5, 5, 7, false, dataSame},
		{6, 5, 7, false, dataSkipped},
		{7, 5, 7, false, dataSkipped},
		{8, 5, 7, false, dataApplied},
		{4, 5, 7, true, dataRollBack},
		{5, 5, 7, true, dataRollBack},
		{8, 5, 7, true, dataRollBack},
		{8, 7, 7, false, dataApplied},
		{0, 0, 0, false, dataSame},
	} {
		require.Equal(t, c.want, judge(c.pos, c.next, c.received, c.back), fmt.Sprint(c))
	}
}

func TestNames(t *testing.T) {
	for what, names := range map[string][]string{
		"phase": phaseNames[:], "state": stateNames[:], "rung": rungNames[:], "event": eventNames[:], "op": opNames[:],
		"reason": reasonNames[:], "end": endNames[:], "work": workNames[:], "alarm": alarmNames[:], "kind": eventKindNames[:],
	} {
		for i, n := range names {
			require.NotEmpty(t, n, "%s %d", what, i)
			require.Equal(t, i, slices.Index(names, n), "%s: two are %q", what, n)
		}
	}
	require.Equal(t, "phase(99)", Phase(99).String())
	for r := Reason(1); r < numReasons; r++ {
		require.Error(t, reasonErrors[r], r)
	}
}
