package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/staleproof/staleproof/jobtracker"
)

// report is the state of a device, for people and for programs.
type report struct {
	Device    string
	Size      int64 // bytes
	Quorum    int   // replicas that have done a write when it is acknowledged
	Submitted uint64
	Acked     uint64
	Failed    uint64 // of what clients asked for
	Active    uint64 // jobs in the table
	Orphans   map[string]uint64
	Replicas  []replicaReport
	Dump      jobtracker.Dump // of the tracker
}

// replicaReport is one replica in a [report].
type replicaReport struct {
	Place   string
	State   string
	Trouble string        `json:",omitempty"` // why it is not connected
	Repair  *repairReport `json:",omitempty"`
}

// repairReport is how the repair of a replica goes.
type repairReport struct {
	Done, Total int // extents
	Copied      int
	Bytes       int64   // copied
	Rate        float64 // bytes a second
	Left        float64 // seconds; 0: not known
}

func (m *mirror) report() report {
	s := m.tracker.Stats()
	r := report{
		Device: fmt.Sprintf("%x", m.geometry.device), Size: m.geometry.size, Quorum: m.geometry.quorum,
		Submitted: s.Submitted, Acked: s.Acked, Failed: m.badJobs.Load(), Active: s.Active,
		Orphans: make(map[string]uint64), Dump: m.tracker.Dump(),
	}
	for i, n := range s.Orphans {
		r.Orphans[jobtracker.OrphanReason(i).String()] = n
	}
	for i, d := range m.drivers {
		one := replicaReport{Place: d.name(), State: s.Replicas[i].State.String()}
		if one.Repair = d.repairReport(); !s.Replicas[i].State.Connected() {
			one.Trouble = d.lastTrouble()
		}
		r.Replicas = append(r.Replicas, one)
	}
	return r
}

// String is the report as some lines, and the tracker's dump.
func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "device %s, %s, %d of %d replicas acknowledge a write\n",
		r.Device, bytesFlag(r.Size).text(), r.Quorum, len(r.Replicas))
	fmt.Fprintf(&b, "jobs: %d submitted, %d acked, %d failed, %d in the table\norphans:", r.Submitted, r.Acked, r.Failed, r.Active)
	for i := range len(r.Orphans) {
		why := jobtracker.OrphanReason(i).String()
		fmt.Fprintf(&b, " %d %s", r.Orphans[why], why)
		if i < len(r.Orphans)-1 {
			b.WriteByte(',')
		}
	}
	b.WriteString("\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for i, one := range r.Replicas {
		_, _ = fmt.Fprintf(w, "replica %d\t%s\t%s\t%s\n", i, one.State, one.Place, one.how())
	}
	_ = w.Flush() // a strings.Builder does not fail
	fmt.Fprintf(&b, "\n%v", r.Dump)
	return b.String()
}

// how is what there is to say of a replica beside its state.
func (r *replicaReport) how() string {
	if r.Repair == nil {
		return r.Trouble
	}
	p := r.Repair
	left := time.Duration(p.Left * float64(time.Second))
	return fmt.Sprintf("%d of %d extents are clean, %d bytes copied%s", p.Done, p.Total, p.Bytes, pace(p.Rate, left))
}

// repairReport is how the replica's repair goes; nil for none.
func (d *driver) repairReport() *repairReport {
	s := d.current()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	p := s.repairing
	s.mu.Unlock()
	if p == nil {
		return nil
	}
	return &repairReport{Done: p.Done, Total: p.Total, Copied: p.Copied, Bytes: p.Bytes, Rate: p.Rate, Left: p.Left.Seconds()}
}

// lastTrouble is the last trouble with the replica's place, if it is not over.
func (d *driver) lastTrouble() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.complain
}
