package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/staleproof/staleproof/streamstate"
)

const (
	statusOnTerminal = time.Second
	statusElsewhere  = 10 * time.Second
	progressEvery    = time.Second
)

// view is an instance at a glance, as /v1/status shows it.
type view struct {
	URL        string            `json:"url"`
	Group      string            `json:"group"`
	Generation int32             `json:"generation"` // -1: it has not joined yet
	Applied    int64             `json:"records_applied"`
	Commits    int64             `json:"commits"`
	Building   bool              `json:"building"`
	Goal       uint64            `json:"build_goal"` // records between where the claims began and where the logs ended then
	Done       uint64            `json:"build_done"` // how many of them are indexed
	Behind     uint64            `json:"behind"`
	Partitions []partAnswer      `json:"partitions"`
	Refused    map[string]uint64 `json:"refused"` // by reason
	Repairs    map[string]rungs  `json:"repairs"` // tickets that were taken up, by topic
	Foreign    int               `json:"foreign_records"`
	Odd        string            `json:"odd_records,omitempty"`
}

func (n *node) view() view {
	v := view{URL: n.url, Group: n.cfg.group, Applied: n.applied.Load(), Commits: n.commits.Load(), Refused: n.refused()}
	received := make(map[*topic]streamstate.Timestamp)
	for t, s := range n.sessions() {
		if at, err := s.Timestamp(); err == nil {
			received[t] = at
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	v.Repairs = make(map[string]rungs, len(n.repairs))
	for name, r := range n.repairs {
		v.Repairs[name] = maps.Clone(r)
	}
	v.Generation, v.Foreign, v.Odd = n.generation, n.foreign, n.odd.String()
	for t, at := range received {
		for p, f := range t.follows {
			pos, _ := at.At(int(p))
			next := max(pos.Next, f.from)
			v.Goal += f.goal - f.from
			v.Done += min(next, f.goal) - f.from
			v.Building = v.Building || next < f.goal
			if f.end > next {
				v.Behind += f.end - next
			}
			v.Partitions = append(v.Partitions, partAnswer{Topic: t.name, Partition: p, Term: f.claim.Term(), Next: next, End: max(f.end, next), From: f.from})
		}
	}
	slices.SortFunc(v.Partitions, func(a, b partAnswer) int {
		if a.Topic != b.Topic {
			return strings.Compare(a.Topic, b.Topic)
		}
		return int(a.Partition) - int(b.Partition)
	})
	return v
}

// refused are the refusals by reason.
func (n *node) refused() map[string]uint64 {
	counts := make(map[string]uint64)
	s := n.book.Stats()
	for i, k := range s.Refused {
		if k > 0 {
			counts[streamstate.Reason(i).String()] = k
		}
	}
	return counts
}

// tally shows counts by reason.
func tally(counts map[string]uint64) string {
	var parts []string
	for reason, k := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", k, reason))
	}
	if len(parts) == 0 {
		return "none"
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// statusLine is what is shown while nothing is being built.
func (n *node) statusLine(v view) string {
	line := fmt.Sprintf("%d partitions, generation %d | %d records, %d behind | commits %d | refused: %s",
		len(v.Partitions), v.Generation, v.Applied, v.Behind, v.Commits, tally(v.Refused))
	if v.Odd != "" {
		line += " | " + v.Odd
	}
	return line
}

// progress tells how far a build is.
type progress struct {
	began time.Time
	done  uint64 // when it began
}

// line is the build at a glance. The rate is that since the build began.
func (p *progress) line(v view, now time.Time) string {
	spent := now.Sub(p.began)
	if v.Done < p.done || spent <= 0 { // partitions have gone
		return fmt.Sprintf("building: %d of %d records", v.Done, v.Goal)
	}
	rate := float64(v.Done-p.done) / spent.Seconds()
	line := fmt.Sprintf("building: %d of %d records (%d %%), %.0f/s", v.Done, v.Goal, v.Done*100/max(v.Goal, 1), rate)
	if rate > 0 {
		left := time.Duration(float64(v.Goal-v.Done) / rate * float64(time.Second))
		line += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	return line
}

// show writes progress and status now and then until ctx ends. On a terminal each line takes the place of the one before.
func (n *node) show(ctx context.Context, out io.Writer, terminal bool) {
	every, format := statusElsewhere, "%s\n"
	if terminal {
		every, format = statusOnTerminal, "\r%s\x1b[K"
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var build *progress
	var shown time.Time
	for {
		select {
		case now := <-tick.C:
			v := n.view()
			switch {
			case v.Building && build == nil:
				build = &progress{now, v.Done}
			case v.Building:
				_, _ = fmt.Fprintf(out, format, build.line(v, now))
			case build != nil:
				_, _ = fmt.Fprintf(out, format, fmt.Sprintf("built in %v: %d records", now.Sub(build.began).Round(time.Second), v.Done))
				build = nil
			case now.Sub(shown) >= every:
				shown = now
				_, _ = fmt.Fprintf(out, format, n.statusLine(v))
			}
		case <-ctx.Done():
			return
		}
	}
}

// summary is what is told at the end.
func (n *node) summary() {
	n.log.Printf("%d records applied in %d commits; refused: %s", n.applied.Load(), n.commits.Load(), tally(n.refused()))
}

// kafkaLog has the client's log go where ours goes.
type kafkaLog struct{ to *slog.Logger }

func (l kafkaLog) Level() kgo.LogLevel {
	if l.to.Enabled(context.Background(), slog.LevelDebug) {
		return kgo.LogLevelInfo
	}
	return kgo.LogLevelNone
}

func (l kafkaLog) Log(_ kgo.LogLevel, msg string, keyvals ...any) {
	l.to.Debug("kafka: "+msg, keyvals...)
}
