package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

// planFlag is how a plan is to be printed: empty for none.
type planFlag string

const (
	planText planFlag = "text"
	planJSON planFlag = "json"
)

// String implements flag.Value.
func (p *planFlag) String() string { return string(*p) }

// IsBoolFlag has -plan mean text.
func (p *planFlag) IsBoolFlag() bool { return true }

// Set implements flag.Value.
func (p *planFlag) Set(s string) error {
	switch s {
	case "true", string(planText):
		*p = planText
	case string(planJSON):
		*p = planJSON
	case "false":
		*p = ""
	default:
		return errors.New("neither text nor json")
	}
	return nil
}

// errPlanned ends a reconciliation before it has done anything.
var errPlanned = errors.New("only the plan is wanted")

// planned is what -plan=json prints.
type planned struct {
	Needed bool         // false: the device begins as it is
	Plan   *repair.Plan `json:",omitempty"`
}

// showPlan prints what a start would do to make the replicas equal, and does nothing. It goes the way of a start up to
// there, so that it is what a start would do; but no sender runs, so that nothing can be written.
func showPlan(ctx context.Context, cfg config, logger *log.Logger, debug *slog.Logger, out io.Writer) error {
	p, err := gather(cfg, logger)
	if err != nil {
		return err
	}
	defer p.close()
	m, links, err := prepare(ctx, cfg, p.sources, false, logger, debug)
	if err != nil {
		return err
	}
	defer closeLinks(links)
	m.ending.Store(true) // what becomes of replicas here is nobody's concern
	plan, err := m.plan(ctx, links)
	err = errors.Join(err, m.tracker.Close().Wait(ctx))
	if err != nil {
		return err
	}
	return printPlan(out, cfg.plan, plan)
}

// plan is the plan of a reconciliation of the replicas that are here, if it takes one.
func (m *mirror) plan(ctx context.Context, links []*link) (plan planned, err error) {
	if _, here := m.admit(links); m.hasBegun() {
		m.log.Printf("%d replicas are here", len(here))
		return planned{}, nil
	}
	look := repair.ReconcileOptions{OnPlan: func(p repair.Plan) error {
		plan = planned{Needed: true, Plan: &p}
		return errPlanned
	}}
	err = repair.Reconcile(ctx, m.tracker, newReconciler(m), look)
	few, ok := errors.AsType[*jobtracker.TooFewError](err)
	if ok && few.Counted >= few.Need && m.blank > 0 {
		for i, l := range links {
			if l != nil && l.meta == nil {
				if _, err := m.drivers[i].admit(l); err != nil {
					m.drivers[i].trouble(err)
				}
			}
		}
		err = repair.Reconcile(ctx, m.tracker, newReconciler(m), look)
	}
	if errors.Is(err, errPlanned) {
		return plan, nil
	}
	return planned{}, m.incomplete(err)
}

// printPlan prints a plan.
func printPlan(out io.Writer, as planFlag, p planned) error {
	if as == planJSON {
		return json.NewEncoder(out).Encode(p)
	}
	text := "nothing is to be made equal: the device can begin as it is\n"
	if p.Needed {
		text = p.Plan.String()
	}
	_, err := fmt.Fprint(out, text)
	return err
}
