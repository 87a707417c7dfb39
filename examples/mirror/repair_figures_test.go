//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// meter is a replica that counts the bytes that are read of the device, and of the metadata behind it.
type meter struct {
	*nbd.File
	size       int64
	data, meta atomic.Int64
}

func (m *meter) Submit(ctx context.Context, r *nbd.Request) {
	if r.Command == nbd.CmdRead {
		of := &m.data
		if int64(r.Offset) >= m.size {
			of = &m.meta
		}
		of.Add(int64(r.Length))
	}
	m.File.Submit(ctx, r)
}

// metered is a device over three meters, with something written to it, all of which is flushed and known to be clean.
type metered struct {
	t      *testing.T
	meters []*meter
	args   []string
	model  []byte
}

const meteredSize = 8 << 20

func newMetered(t *testing.T, args ...string) *metered {
	t.Helper()
	d := &metered{t: t}
	for range 3 {
		m := &meter{File: blankFile(t, meteredSize), size: meteredSize}
		d.meters, d.args = append(d.meters, m), append(d.args, "-replica", served(t, m))
	}
	r := newRig(t, append(append(args, "-create"), d.args...)...)
	c := r.client()
	require.NoError(t, c.run(load(meteredSize), 200))
	require.NoError(t, c.close())
	r.end()
	d.model = c.model
	return d
}

// touch writes to three extents.
func (d *metered) touch(r *rig, wait func(*client) error) {
	d.t.Helper()
	c := r.client()
	copy(c.model, d.model)
	require.NoError(d.t, c.send(step{command: nbd.CmdWrite, off: 5 * minExtent, length: 4096}))
	require.NoError(d.t, c.send(step{command: nbd.CmdWrite, off: 9*minExtent - 4096, length: 8192}))
	require.NoError(d.t, wait(c))
	require.NoError(d.t, c.close())
	d.model = c.model
}

const touched = 3 * minExtent

// read is what is read meanwhile, of all replicas.
func (d *metered) read(do func()) (data, meta int64) {
	for _, m := range d.meters {
		data, meta = data-m.data.Load(), meta-m.meta.Load()
	}
	do()
	for _, m := range d.meters {
		data, meta = data+m.data.Load(), meta+m.meta.Load()
	}
	return data, meta
}

// end checks the contents and stops the device.
func (d *metered) end(r *rig) {
	d.t.Helper()
	c := r.client()
	copy(c.model, d.model)
	require.NoError(d.t, c.check())
	require.NoError(d.t, c.close())
	r.end()
	require.Equal(d.t, int32(3), r.clean.Load())
}

// TestCleanRepairReadsMetadata: the repair of a replica that missed a life of the device in which nothing was written reads
// metadata, and nothing else, of any replica. If something was written, the extents of that are read once.
func TestCleanRepairReadsMetadata(t *testing.T) {
	d := newMetered(t)
	for _, missed := range []int64{0, touched} {
		g := make(gates, 7)
		g[2].Store(true)
		cfg, err := parse(append(d.args, "-wait", "100ms"), io.Discard)
		require.NoError(t, err)
		r, err := rigOf(t, cfg, g.change)
		require.NoError(t, err)
		if missed > 0 {
			d.touch(r, (*client).sync)
		}
		r.end()
		data, meta := d.read(func() {
			r = newRig(t, d.args...)
			r.said.await(t, "it is repaired:")
		})
		t.Logf("the repair of a replica of %d MiB that had missed %d bytes read %d of the device, and %d of metadata on all replicas",
			meteredSize>>20, missed, data, meta)
		require.Equal(t, missed, data)
		require.Equal(t, int64(3*2*maxMeta), meta)
		d.end(r)
	}
}

// TestLostRepairReadsMetadata: nor is anything else read when a replica is faulted that has done and flushed all there was.
// Of what it has not flushed, the extents are read.
func TestLostRepairReadsMetadata(t *testing.T) {
	d := newMetered(t, "-ack", "3") // else it may not have done what is acknowledged
	r := newRig(t, d.args...)
	lost := func() { r.back(2, func() { require.NoError(t, r.tracker.Fault(2, errCut)) }) }
	for _, wait := range []func(*client) error{(*client).sync, (*client).settle} {
		data, meta := d.read(lost)
		require.Zero(t, data)
		require.Equal(t, int64(2*maxMeta), meta)
		d.touch(r, wait)
	}
	data, _ := d.read(lost)
	require.Equal(t, int64(touched), data)
	d.end(r)
}

// clock is a client's connection that remembers the longest time between two answers while it runs.
type clock struct {
	net.Conn
	running atomic.Bool
	last    time.Time
	longest time.Duration
}

func (c *clock) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	now := time.Now()
	if n > 0 && c.running.Load() {
		if !c.last.IsZero() {
			c.longest = max(c.longest, now.Sub(c.last))
		}
		c.last = now
	}
	return n, err
}

// figures are those of one run.
type figures struct {
	requests int
	took     time.Duration
	longest  time.Duration // between two answers
	copied   string        // what the repair says of itself
	rate     float64       // MiB/s of the copy
}

func (f figures) String() string {
	s := fmt.Sprintf("%d requests in %v, %.0f/s, longest gap %v", f.requests, f.took.Round(time.Millisecond),
		float64(f.requests)/f.took.Seconds(), f.longest.Round(10*time.Microsecond))
	if f.copied != "" {
		s += fmt.Sprintf("; %s, %.0f MiB/s", f.copied, f.rate)
	}
	return s
}

var repaired = regexp.MustCompile(`it is repaired: (\d+) extents copied, (\d+) bytes in (\S+)`)

// fill reads what the repair says at its end.
func (f *figures) fill(t *testing.T, said *diary) {
	t.Helper()
	said.await(t, "it is repaired:")
	last := repaired.FindStringSubmatch(said.String())
	bytes, err := strconv.ParseFloat(last[2], 64)
	require.NoError(t, err)
	took, err := time.ParseDuration(last[3])
	require.NoError(t, err)
	f.copied, f.rate = last[0], bytes/took.Seconds()/(1<<20)
}

// stand is a device, over replicas in this process or on nbdkit, one of which can be lost and come back blank.
type stand struct {
	*rig
	shut  atomic.Bool
	paths []string
}

const benchSize = 256 << 20

func newStand(t *testing.T, kits bool, args ...string) *stand {
	t.Helper()
	b := &stand{}
	if kits {
		ks, named := newKits(t, true, benchSize)
		for _, k := range ks {
			b.paths = append(b.paths, k.image)
		}
		args = append(append(args, "-create"), named...)
	} else {
		dir := t.TempDir()
		b.paths, _, _ = localPaths(dir, 3)
		args = append(args, "-dir", dir, "-size", strconv.Itoa(benchSize))
	}
	cfg, err := parse(append(args, "-offline-for", "100ms"), io.Discard)
	require.NoError(t, err)
	b.rig, err = rigOf(t, cfg, func(s []source) {
		dial := s[2].dial
		s[2].dial = func(ctx context.Context) (net.Conn, string, error) {
			if b.shut.Load() {
				return nil, "", errCut
			}
			return dial(ctx)
		}
	})
	require.NoError(t, err)
	return b
}

// lose has replica 2 away until it cannot be replayed, and leaves a blank file in its place.
func (b *stand) lose() {
	b.shut.Store(true)
	b.drivers[2].cut(errCut)
	require.NoError(b.t, b.watch.await(limited(b.t), func(s *sight) bool {
		return s.replicas[2].Home == jobtracker.HomeFaulted && !s.replicas[2].Connected()
	}))
	require.NoError(b.t, os.Truncate(b.paths[2], 0))
	require.NoError(b.t, os.Truncate(b.paths[2], benchSize+metaSpace))
}

// measured is a run of the seeded load, depth requests at a time. With harm a replica is lost after a quarter of the requests;
// the run lasts until it has been repaired, and no less than n requests.
func (b *stand) measured(depth, n int, harm bool) (f figures) {
	t := b.t
	t.Helper()
	tick := &clock{}
	var d net.Dialer
	u, err := nbd.ParseURI(b.uri)
	require.NoError(t, err)
	tick.Conn, err = d.DialContext(limited(t), u.Network, u.Address)
	require.NoError(t, err)
	conn, err := nbd.NewClient(limited(t), tick, "")
	require.NoError(t, err)
	c := newClient(conn, depth)
	w := mixed(invented(benchSize, rand.New(rand.NewPCG(7, 11))))
	began, done := time.Now(), make(chan struct{})
	tick.running.Store(true)
	require.NoError(t, c.run(w, n/4))
	if harm {
		go func() {
			defer close(done)
			b.back(2, func() { b.lose(); b.shut.Store(false) })
		}()
		f.requests, err = c.runUntil(w, math.MaxInt, done)
		require.NoError(t, err)
	}
	require.NoError(t, c.run(w, max(0, n-n/4-f.requests)))
	require.NoError(t, c.settle())
	tick.running.Store(false)
	f.requests, f.took = int(c.sent), time.Since(began)
	require.NoError(t, c.check())
	require.NoError(t, c.close())
	f.longest = tick.longest
	if harm {
		f.fill(t, b.said)
	}
	return f
}

// TestRepairFigures measures what clients feel of a repair, and how fast it is with and without them: the same seeded load,
// over and over, with a replica lost and come back blank, and without. It takes a while, and only with -stress.
func TestRepairFigures(t *testing.T) {
	forStress(t)
	const bound, rounds = 250 * time.Millisecond, 5
	for name, tc := range map[string]struct {
		kits        bool
		depth, most int
	}{"in this process": {false, 32, 20000}, "nbdkit": {true, 32, 20000}, "nbdkit, one at a time": {true, 1, 3000}} {
		t.Run(name, func(t *testing.T) {
			if tc.kits {
				program(t, "nbdkit")
			}
			var more []time.Duration
			for range rounds {
				b := newStand(t, tc.kits)
				with := b.measured(tc.depth, tc.most, true)
				b.end()
				b = newStand(t, tc.kits)
				without := b.measured(tc.depth, with.requests, false)
				var alone figures
				b.back(2, func() { b.lose(); b.shut.Store(false) })
				alone.fill(t, b.said)
				b.end()
				t.Logf("with a repair:    %v", with)
				t.Logf("without:          %v", without)
				t.Logf("repair, no load:  %s, %.0f MiB/s", alone.copied, alone.rate)
				more = append(more, with.longest-without.longest)
			}
			slices.Sort(more)
			t.Logf("the longest gap with a repair exceeds that without by %v at the median, %v at most", more[rounds/2], more[rounds-1])
			require.LessOrEqual(t, more[rounds-1], bound)
		})
	}
}
