package jobtracker

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strings"
	"text/tabwriter"
)

// Dump is the state of a tracker at one moment, for people ([Dump.String]) and programs ([Dump.JSON]).
type Dump struct {
	Phase      string
	Generation uint64
	Next       JobID  // the next job's id
	Cause      string `json:",omitempty"` // why the last activation ended
	Waiting    int    // applicants for admission
	Callbacks  int    // callbacks that have not been run
	Active     int    // jobs in the table, of which Jobs shows the first
	Replicas   []ReplicaDump
	Jobs       []JobDump
}

// ReplicaDump is one replica in a [Dump].
type ReplicaDump struct {
	State   string
	Conn    ConnID
	Jobs    int   // charges
	Bytes   int64 // and their bytes
	Held    int
	Sent    int
	Ready   int
	Flushed uint64 // the number of the last flush done
	Left    int    // extents that a repair has to copy or compare
	Cause   string `json:",omitempty"`
}

// JobDump is one job in a [Dump].
type JobDump struct {
	ID       JobID
	Kind     string
	Start    uint64
	Blocks   uint32
	Resolved bool     // its outcome is known, good or bad
	Auto     bool     `json:",omitempty"` // the tracker's own
	States   []string // for each replica: new (queued), spare, held, sent, done, ERR (failed) or skip (skipped)
}

// dump copies at most most jobs.
func (c *core) dump(most int) Dump {
	d := Dump{
		Phase: c.phase.String(), Generation: c.generation, Next: c.next, Waiting: c.waiting.Len() - c.left,
		Active: c.active(),
	}
	for r := range c.lim.n {
		rep := &c.reps[r]
		d.Replicas = append(d.Replicas, ReplicaDump{
			State: rep.state.String(), Conn: rep.conn, Jobs: int(rep.jobs), Bytes: rep.bytes, Held: int(rep.held),
			Sent: int(rep.sent), Ready: rep.ready.Len(), Flushed: rep.flushed,
			Left: rep.extents.left(),
		})
	}
	c.each(func(id JobID, s *slot) {
		if len(d.Jobs) == most {
			return
		}
		j := JobDump{ID: id, Kind: kindName(s), Start: s.start, Blocks: s.blocks, Resolved: s.flags&flagResolved != 0, Auto: s.handle == nil}
		for r := range c.lim.n {
			j.States = append(j.States, stateColumn[s.on(1<<r)])
		}
		d.Jobs = append(d.Jobs, j)
	})
	return d
}

func kindName(s *slot) string {
	if s.compares() {
		return "compare"
	}
	return s.kind.String()
}

// causes are the errors that a dump and a fingerprint name. What they say is the caller's code: it is asked after the hold.
type causes struct {
	activation error
	replicas   [MaxReplicas]error
}

func (c *core) causes() (why causes) {
	why.activation = c.cause
	for r := range c.lim.n {
		why.replicas[r] = c.reps[r].cause
	}
	return why
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// String is a table of the jobs, a column for each replica, below a line for each replica.
func (d Dump) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, generation %d, next job %d, %d active, %d waiting, %d callbacks\n", d.Phase, d.Generation, d.Next, d.Active, d.Waiting, d.Callbacks)
	for r, rep := range d.Replicas {
		fmt.Fprintf(&b, "replica %d: %s, connection %d, %d jobs, %d bytes, %d held, %d sent, %d ready, flush %d", r, rep.State, rep.Conn, rep.Jobs, rep.Bytes, rep.Held, rep.Sent, rep.Ready, rep.Flushed)
		if rep.Cause != "" {
			fmt.Fprintf(&b, " (%s)", rep.Cause)
		}
		b.WriteByte('\n')
	}
	if len(d.Jobs) == 0 {
		return b.String()
	}
	var rows strings.Builder
	rows.WriteString("id\tkind\tblocks\tresolved")
	for r := range d.Replicas {
		fmt.Fprintf(&rows, "\t%d", r)
	}
	rows.WriteByte('\n')
	for _, j := range d.Jobs {
		blocks := "all"
		if j.Blocks > 0 {
			blocks = fmt.Sprintf("%d+%d", j.Start, j.Blocks)
		}
		fmt.Fprintf(&rows, "%d\t%s\t%s\t%v", j.ID, j.Kind, blocks, j.Resolved)
		for _, s := range j.States {
			fmt.Fprintf(&rows, "\t%s", s)
		}
		rows.WriteByte('\n')
	}
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	_, _ = w.Write([]byte(rows.String())) // a strings.Builder does not fail
	_ = w.Flush()
	if more := d.Active - len(d.Jobs); more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.String()
}

// JSON is the dump as JSON.
func (d Dump) JSON() ([]byte, error) { return json.Marshal(d) }

// appendState appends all that the core's further answers depend on, and nothing else: not the counts of refusals, not
// how memory is laid out.
func (c *core) appendState(b []byte) []byte {
	u := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.AppendUvarint(b, v)
		}
	}
	u(uint64(c.phase), c.generation, oneIf(c.mode.Create), oneIf(c.mode.ReadOnly), c.top.generation, c.top.flush, oneIf(c.wrote), c.flushes)
	b = append(b, c.device[:]...)
	u(uint64(c.conns), c.ticket, uint64(c.base), uint64(c.next), uint64(c.lostFrom), uint64(c.retireTo), uint64(c.retiredWrite),
		c.workJobs, uint64(c.workBytes), c.agree.ticket, uint64(c.agree.members))
	for r := range c.lim.n {
		rep := &c.reps[r]
		u(uint64(packState(rep.state)), uint64(rep.conn), uint64(rep.repair), rep.ticket, uint64(rep.final), rep.noted, rep.hello.generation,
			rep.hello.flush, oneIf(rep.blank), oneIf(rep.dirty), uint64(rep.jobs), uint64(rep.bytes), uint64(rep.held),
			uint64(rep.heldBytes), uint64(rep.sent), uint64(rep.vouched), rep.flushed, rep.told, oneIf(rep.answered), uint64(rep.looks),
			uint64(rep.replyAt.UnixNano()), uint64(rep.offlineAt.UnixNano()))
		b = append(append(b, rep.said[:]...), rep.named[:]...)
		u(uint64(rep.extents.uniform))
		for _, cell := range rep.extents.cells {
			u(uint64(cell))
		}
		for i := range rep.ready.Len() {
			id := *rep.ready.At(i)
			if s := c.find(id); s != nil && s.queued>>r&1 != 0 { // what was written off since answers nothing
				u(uint64(id))
			}
		}
	}
	for i := range c.waiting.Len() {
		a := c.waiting.At(i)
		if a.gone {
			continue
		}
		u(a.seq, uint64(a.op.Kind), a.op.Start, a.op.Blocks, oneIf(a.op.FUA), oneIf(a.op.Snapshot))
	}
	c.each(func(id JobID, s *slot) {
		u(uint64(id), uint64(s.kind), s.start, uint64(s.blocks), s.aux, uint64(s.flags), oneIf(s.handle != nil))
		b = append(b, s.queued, s.spare, s.held, s.sent, s.done, s.failed, s.skipped, s.voters, s.charged, s.here)
	})
	return c.ord.appendState(b)
}

func oneIf(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}

// check verifies the invariants that tie the core's parts together.
func (c *core) check() error {
	if c.base < 1 || c.base > c.next || uint64(c.next-c.base) > uint64(len(c.ring)) {
		return fmt.Errorf("bug: table %d to %d in a ring of %d", c.base, c.next, len(c.ring))
	}
	var err error
	var want [MaxReplicas]replica
	last := JobID(0)
	c.each(func(id JobID, s *slot) {
		if e := c.checkSlot(id, s); e != nil && err == nil {
			err = fmt.Errorf("bug: job %d: %w", id, e)
		}
		if id <= last && err == nil {
			err = fmt.Errorf("bug: job %d after %d", id, last)
		}
		last = id
		for r := range c.lim.n {
			w, bit := &want[r], uint8(1)<<r
			if s.charged&bit != 0 {
				w.jobs++
				w.bytes += c.bytes(s)
			}
			if s.held&bit != 0 {
				w.held++
				w.heldBytes += c.bytes(s)
			}
			if s.sent&bit != 0 {
				w.sent++
			}
		}
	})
	if err != nil {
		return err
	}
	for r := range c.lim.n {
		rep, w := &c.reps[r], &want[r]
		if rep.jobs != w.jobs || rep.bytes != w.bytes || rep.held != w.held || rep.heldBytes != w.heldBytes || rep.sent != w.sent {
			return fmt.Errorf("bug: replica %d counts %d jobs %d bytes %d held %d held bytes %d sent, the table says %d %d %d %d %d", r,
				rep.jobs, rep.bytes, rep.held, rep.heldBytes, rep.sent, w.jobs, w.bytes, w.held, w.heldBytes, w.sent)
		}
		if !rep.state.Connected() && (rep.sent > 0 || rep.ready.Len() > 0) {
			return fmt.Errorf("bug: replica %d has no connection but %d sent, %d ready", r, rep.sent, rep.ready.Len())
		}
		if (rep.repair != repairNone) != (rep.state.Phase == Repairing) {
			return fmt.Errorf("bug: replica %d is %v with repair %s", r, rep.state, repairNames[rep.repair])
		}
	}
	for r := range c.lim.n {
		if err := c.reps[r].extents.check(); err != nil {
			return fmt.Errorf("bug: replica %d %w", r, err)
		}
	}
	if !c.checkAgreement() {
		return fmt.Errorf("bug: reconciliation %d of %b, and not all are here", c.agree.ticket, c.agree.members)
	}
	if err := c.ord.check(); err != nil {
		return fmt.Errorf("bug: %w", err)
	}
	return nil
}

// checkSlot verifies one job.
func (c *core) checkSlot(id JobID, s *slot) error {
	masks := [numStates]uint8{s.queued, s.spare, s.held, s.sent, s.done, s.failed, s.skipped}
	var all uint8
	n := 0
	for _, m := range masks {
		all |= m
		n += bits.OnesCount8(m)
	}
	switch {
	case all != c.lim.all || n != c.lim.n:
		return fmt.Errorf("its masks %v are no partition of %d replicas", masks, c.lim.n)
	case s.charged&^s.open() != 0:
		return fmt.Errorf("charged on %b, open on %b", s.charged, s.open())
	case s.sent&^s.here != 0:
		return fmt.Errorf("sent on %b, dispatched on %b", s.sent, s.here)
	case s.open() == 0 && s.flags&flagDecided == 0:
		return fmt.Errorf("terminal but not decided")
	case (s.queued|s.sent)&^c.live != 0:
		return fmt.Errorf("queued on %b, sent on %b, live are %b", s.queued, s.sent, c.live)
	case s.held&c.live != 0:
		return fmt.Errorf("held on %b, live are %b", s.held, c.live)
	case id >= c.next:
		return fmt.Errorf("not issued yet")
	}
	return nil
}
