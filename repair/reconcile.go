package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/staleproof/staleproof/jobtracker"
)

// Replicas is what [Reconcile] does to replicas. Its methods are called on several goroutines, but for one replica at a
// time only Copy. What they did is believed when they return nil; after an error, or the end of ctx, nothing more is done.
//
// ctx ends in the moment in which the reconciliation does: when a participant's connection ends, or another Reconcile
// begins. What is under way then is the caller's: it must have no effect later than Reconcile returns, nor on another
// connection than the participant's.
type Replicas interface {
	Meta
	// Copy copies an extent from one replica to another. It need not be durable.
	Copy(ctx context.Context, source, target, extent int) error
	// Flush makes durable what was copied to a replica, and what it held before.
	Flush(ctx context.Context, replica int) error
	// Remember has a replica remember something, durably, in one step.
	Remember(ctx context.Context, replica int, m Memory) error
}

// Memory is what a replica is to remember.
type Memory struct {
	Generation uint64
	Flush      uint64
	// Dirty are the extents that are dirty on it; all others are clean.
	Dirty []bool
	// Equal says that it holds what all participants hold, and nothing else: it connects as a clean replica, though extents
	// are dirty for the sake of a replica that was not here.
	Equal bool
}

// Plan is what a reconciliation will do, for people ([Plan.String]) and programs ([Plan.JSON]).
type Plan struct {
	Source       int    // the replica that all are made equal to: the highest (generation, flush)
	Generation   uint64 // of the source
	Flush        uint64
	Absent       int // replicas that do not take part: their repair comes later
	Extents      int // of the device
	Participants []PlanReplica
}

// PlanReplica is one participant of a [Plan].
type PlanReplica struct {
	Replica    int
	Generation uint64
	Flush      uint64
	Blank      bool  `json:",omitempty"` // it gets everything
	Dirty      int   // extents that it remembers as dirty
	Copies     []int `json:",omitempty"` // extents that are copied to it
	dirty      []bool
}

// String is the plan as a few lines.
func (p Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "make %d replicas equal to replica %d (generation %d, flush %d); %d are not here\n",
		len(p.Participants), p.Source, p.Generation, p.Flush, p.Absent)
	for _, r := range p.Participants {
		fmt.Fprintf(&b, "replica %d: ", r.Replica)
		switch {
		case r.Blank:
			fmt.Fprintf(&b, "blank")
		default:
			fmt.Fprintf(&b, "generation %d, flush %d, %d extents dirty", r.Generation, r.Flush, r.Dirty)
		}
		if r.Replica == p.Source {
			fmt.Fprintf(&b, ": the source\n")
			continue
		}
		fmt.Fprintf(&b, ": copy %d of %d extents%s\n", len(r.Copies), p.Extents, ranges(r.Copies))
	}
	return b.String()
}

// ranges names extents, the first few runs of them.
func ranges(extents []int) string {
	const most = 8
	var runs []string
	for i := 0; i < len(extents); {
		j := i
		for j+1 < len(extents) && extents[j+1] == extents[j]+1 {
			j++
		}
		if len(runs) == most {
			runs = append(runs, "…")
			break
		}
		if i == j {
			runs = append(runs, fmt.Sprint(extents[i]))
		} else {
			runs = append(runs, fmt.Sprintf("%d-%d", extents[i], extents[j]))
		}
		i = j + 1
	}
	if len(runs) == 0 {
		return ""
	}
	return " (" + strings.Join(runs, ", ") + ")"
}

// JSON is the plan as JSON.
func (p Plan) JSON() ([]byte, error) { return json.Marshal(p) }

// NewPlan compares what participants remember. The source is the highest (generation, flush) of those that are not blank, the
// first of them; an extent is copied to whoever does not remember the same of it as the source, and everything to
// a blank. replicas is how many the device has. It fails with [ErrMeta] if what is remembered does not fit.
func NewPlan(replicas int, ps []jobtracker.Participant, metas map[int][]ExtentMeta) (Plan, error) {
	p := Plan{Source: -1, Absent: replicas - len(ps)}
	for _, r := range ps {
		higher := r.Generation > p.Generation || r.Generation == p.Generation && r.Flush > p.Flush
		if !r.Blank && (p.Source < 0 || higher) {
			p.Source, p.Generation, p.Flush = r.Replica, r.Generation, r.Flush
		}
	}
	if p.Source < 0 {
		return Plan{}, ErrNoSource
	}
	want := metas[p.Source]
	p.Extents = len(want)
	for _, r := range ps {
		have := metas[r.Replica]
		if len(have) != len(want) {
			return Plan{}, fmt.Errorf("%w: replica %d remembers %d extents, replica %d %d",
				ErrMeta, r.Replica, len(have), p.Source, len(want))
		}
		pr := PlanReplica{Replica: r.Replica, Generation: r.Generation, Flush: r.Flush, Blank: r.Blank, dirty: make([]bool, len(have))}
		for i, m := range have {
			if pr.dirty[i] = m.Dirty || r.Blank; pr.dirty[i] {
				pr.Dirty++
			}
			if r.Replica != p.Source && (r.Blank || !want[i].Same(m)) {
				pr.Copies = append(pr.Copies, i)
			}
		}
		p.Participants = append(p.Participants, pr)
	}
	return p, nil
}

// ReconcileOptions are the options of [Reconcile]. The zero value works.
type ReconcileOptions struct {
	// OnPlan, if set, is called with the plan before anything is done. An error ends the reconciliation.
	OnPlan func(Plan) error
	// Parallel is how many extents are copied at once. Zero: 4.
	Parallel int
}

// Reconcile makes the replicas equal that have connected to an activation which cannot begin because their contents may
// differ, and has it begin with them. It compares what they remember, and then, in this order: has each target remember what
// is about to be copied to it as dirty; copies; has every participant flush; has every participant remember a version that
// no other reconciliation has, each step complete before the next begins. Extents that were dirty on any of them stay dirty
// on all for the sake of a replica that is not here; if all are here, none is dirty any more.
//
// Whatever interrupts it loses nothing: no participant says that it holds what it does not, and one that was
// copied to remembers as dirty what was. So it is simply begun again, with whoever is here then. A participant whose
// connection ends, the end of the activation, or another Reconcile ends it with the ticket's cause, an *[jobtracker.EndedError]
// (R16); the end of ctx with ctx's; errors of [Replicas] and OnPlan, and the refusals of [jobtracker.Tracker.Reconcile], are
// returned as they are, or wrapped.
func Reconcile[P any](ctx context.Context, tr *jobtracker.Tracker[P], replicas Replicas, o ReconcileOptions) (err error) {
	if o.Parallel < 0 {
		return &OptionError{Field: "Parallel", Got: int64(o.Parallel)}
	}
	if o.Parallel == 0 {
		o.Parallel = 4
	}
	if err := notNil("tr", tr != nil, "replicas", replicas != nil); err != nil {
		return err
	}
	ticket, err := tr.Reconcile()
	if err != nil {
		return err
	}
	ctx, cancel := join(ctx, ticket.Context())
	defer cancel()
	var at Memory
	at.Generation, at.Flush = ticket.Version()
	err = errPanicked // stays if replicas or OnPlan do not return
	defer func() { err = end(ctx, err, ticket) }()
	if err = reconcile(ctx, len(tr.Stats().Replicas), ticket.Participants(), at, replicas, o); err != nil {
		return err
	}
	return ticket.Done()
}

func reconcile(ctx context.Context, n int, ps []jobtracker.Participant, at Memory, rs Replicas, o ReconcileOptions) error {
	metas := make(map[int][]ExtentMeta, len(ps))
	for _, p := range ps {
		m, err := rs.Extents(ctx, p.Replica)
		if err == nil {
			err = context.Cause(ctx) // nothing more is asked
		}
		if err != nil {
			return fmt.Errorf("repair: what replica %d remembers: %w", p.Replica, err)
		}
		metas[p.Replica] = m
	}
	plan, err := NewPlan(n, ps, metas)
	if err != nil {
		return err
	}
	if o.OnPlan != nil {
		if err := o.OnPlan(plan); err != nil {
			return err
		}
	}
	return plan.run(ctx, rs, plan.memory(at), o.Parallel)
}

// run does what is planned, one step after the other.
func (p *Plan) run(ctx context.Context, rs Replicas, m Memory, parallel int) error {
	steps := []struct {
		what string
		do   func(ctx context.Context, r *PlanReplica) error
	}{
		{"marking", func(ctx context.Context, r *PlanReplica) error { return p.mark(ctx, rs, r) }},
		{"copying", func(ctx context.Context, r *PlanReplica) error { return p.copy(ctx, rs, r, parallel) }},
		{"flushing", func(ctx context.Context, r *PlanReplica) error { return rs.Flush(ctx, r.Replica) }},
		{"remembering", func(ctx context.Context, r *PlanReplica) error { return rs.Remember(ctx, r.Replica, m) }},
	}
	for _, s := range steps {
		g, ctx := errgroup.WithContext(ctx)
		for i := range p.Participants {
			r := &p.Participants[i]
			g.Go(func() error {
				if err := s.do(ctx, r); err != nil {
					return fmt.Errorf("repair: %s on replica %d: %w", s.what, r.Replica, err)
				}
				return ctx.Err()
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// mark has a target remember as dirty what is about to be copied to it (R18). A blank one remembers nothing before the end.
func (p *Plan) mark(ctx context.Context, rs Replicas, r *PlanReplica) error {
	if r.Blank || len(r.Copies) == 0 {
		return nil
	}
	dirty := append([]bool(nil), r.dirty...)
	for _, i := range r.Copies {
		dirty[i] = true
	}
	return rs.Remember(ctx, r.Replica, Memory{Generation: r.Generation, Flush: r.Flush, Dirty: dirty})
}

func (p *Plan) copy(ctx context.Context, rs Replicas, r *PlanReplica, parallel int) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, i := range r.Copies {
		if within.Err() != nil {
			break
		}
		g.Go(func() error { return rs.Copy(within, p.Source, r.Replica, i) })
	}
	return g.Wait()
}

// memory is what all participants remember at the end, with a version of its own.
func (p *Plan) memory(m Memory) Memory {
	m.Dirty, m.Equal = make([]bool, p.Extents), true
	if p.Absent == 0 {
		return m
	}
	for _, r := range p.Participants {
		for i, d := range r.dirty {
			m.Dirty[i] = m.Dirty[i] || d && !r.Blank
		}
		for _, i := range r.Copies {
			m.Dirty[i] = m.Dirty[i] || !r.Blank
		}
	}
	return m
}
