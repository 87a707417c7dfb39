package jobtracker

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/xbase"
)

// BenchmarkGate is the gate alone: the nil hook, the token, the effects check, and a closure that counts.
func BenchmarkGate(b *testing.B) {
	c := newCluster(b, Config[*int]{})
	var a [64]uint64
	i := 0
	b.ReportAllocs()
	xbase.Measure(b, 4096, func(n int) {
		for range n {
			_ = c.tr.do(c.conns[0], asking{}, func(*core) error {
				a[i&63]++
				return nil
			})
			i++
		}
	})
}

// jobChunk is how many jobs are timed at a time: so few microseconds that on a busy machine most chunks are not preempted.
const jobChunk = 512

// BenchmarkJobLife is the whole life of a job on three replicas, through the public API with OnResolve set: submit,
// three dispatches, three completions, and its share of flush and retirement. Every job of the trace counts as one.
func BenchmarkJobLife(b *testing.B) {
	ops, name := traceOps(b, 100)
	for _, order := range []Order{TrackerOrders, ReplicaOrders} {
		for _, batch := range []int{16, 1} {
			b.Run(fmt.Sprintf("%s/%v-orders/batch%d", name, order, batch), func(b *testing.B) {
				resolved := 0
				c := newCluster(b, Config[*int]{Order: order, Reads: ReadAll, AutoSync: SyncOff, OnResolve: func(Resolved[*int]) { resolved++ }})
				at, submitted := 0, 0
				life := func(n int) {
					for n > 0 {
						k := min(batch, n)
						for range k {
							c.submit(b, ops[at%len(ops)])
							at++
						}
						c.serve(b, k)
						n -= k
						submitted += k
					}
				}
				life(len(ops)) // grow everything to its size
				b.ReportAllocs()
				xbase.Measure(b, jobChunk, life)
				if resolved != submitted {
					b.Fatalf("%d jobs, %d resolved", submitted, resolved)
				}
			})
		}
	}
}

// BenchmarkJobDeep has 256 jobs outstanding on three replicas, completed in random order.
func BenchmarkJobDeep(b *testing.B) {
	ops, _ := traceOps(b, 100)
	for _, order := range []Order{TrackerOrders, ReplicaOrders} {
		b.Run(fmt.Sprintf("256/%v-orders", order), func(b *testing.B) {
			c := newCluster(b, Config[*int]{Order: order, Reads: ReadAll, AutoSync: SyncOff, OnResolve: func(Resolved[*int]) {}})
			rng := rand.New(rand.NewPCG(1, 2))
			buf := make([]Dispatch[*int], 16)
			var sent []deepJob
			at, outstanding := 0, 0
			open := make([]uint8, 1<<20)
			pump := func() {
				for r, conn := range c.conns {
					for full := true; full; {
						got, err := conn.NextBatch(c.poll, buf)
						for i := range got {
							sent = append(sent, deepJob{r, got[i].ID})
						}
						full = err == nil && len(got) == len(buf)
					}
				}
			}
			step := func(n int) {
				for ; n > 0; n-- {
					if outstanding <= 240 || len(sent) == 0 {
						for ; outstanding < 256; outstanding++ {
							c.submit(b, ops[at%len(ops)])
							at++
						}
						pump()
					}
					for done := false; !done; {
						if len(sent) == 0 {
							pump()
						}
						i := rng.IntN(len(sent))
						d := sent[i]
						sent[i] = sent[len(sent)-1]
						sent = sent[:len(sent)-1]
						c.complete(b, c.conns[d.replica], d.id)
						k := &open[int(d.id)&(len(open)-1)]
						if *k++; *k == 3 {
							*k = 0
							outstanding--
							done = true
						}
					}
				}
			}
			step(20000)
			b.ReportAllocs()
			xbase.Measure(b, jobChunk, step)
		})
	}
}

type deepJob struct {
	replica int
	id      JobID
}

// BenchmarkOrphan refuses completions, for each reason, in a young tracker and in one that is ten million jobs older.
func BenchmarkOrphan(b *testing.B) {
	for _, old := range []int{0, 10_000_000} {
		if old > 0 && testing.Short() {
			continue
		}
		c := newCluster(b, Config[*int]{AutoSync: SyncOff})
		c.age(b, old)
		for reason, refuse := range orphanages(b, c) {
			name := fmt.Sprintf("%s/young", OrphanReason(reason))
			if old > 0 {
				name = fmt.Sprintf("%s/old", OrphanReason(reason))
			}
			b.Run(name, func(b *testing.B) {
				b.ReportAllocs()
				xbase.Measure(b, 4096, func(n int) {
					for range n {
						if refuse() == nil {
							b.Fatal("not refused")
						}
					}
				})
			})
		}
	}
}

// orphanages sets up one job for each reason and returns a completion that is refused for it.
func orphanages(b testing.TB, c *cluster) [numReasons]func() error {
	var refuse [numReasons]func() error
	complete := func(conn *Conn[*int], id JobID, res Result) func() error {
		return func() error { return conn.Complete(id, res) }
	}
	c.submit(b, Op{Kind: Write, Blocks: 1})
	c.submit(b, Op{Kind: Flush})
	c.serve(b, 2)
	retired := c.last
	c.conns[2].Close(nil)
	refuse[OrphanStaleConn] = complete(c.conns[2], retired, Result{})
	require.NoError(b, c.tr.Replace(2))
	c.submit(b, Op{Kind: Write, Blocks: 1})
	live := c.conns[0]
	refuse[OrphanNeverIssued] = complete(live, c.last+1000, Result{})
	refuse[OrphanRetired] = complete(live, retired, Result{})
	c.submit(b, Op{Kind: Write, Start: 20, Blocks: 1})
	var d Dispatch[*int]
	for d.ID != c.last {
		require.NoError(b, live.Next(c.poll, &d))
	}
	require.NoError(b, live.Complete(d.ID, Result{}))
	refuse[OrphanDuplicate] = complete(live, d.ID, Result{})
	c.submit(b, Op{Kind: Write, Start: 30, Blocks: 1})
	require.NoError(b, live.Next(c.poll, &d))
	refuse[OrphanKindMismatch] = complete(live, d.ID, Result{Kind: Read})
	// A read that was skipped on one replica because the other answered.
	c.submit(b, Op{Kind: Read, Start: 40, Blocks: 1})
	for r := range 2 {
		if err := c.conns[r].Next(c.poll, &d); err == nil && d.ID == c.last {
			require.NoError(b, c.conns[r].Complete(d.ID, Result{}))
			refuse[OrphanSkipped] = complete(c.conns[1-r], d.ID, Result{})
		}
	}
	c.submit(b, Op{Kind: Write, Start: 50, Blocks: 1})
	refuse[OrphanNotSent] = complete(live, c.last, Result{})
	for reason, f := range refuse {
		require.NotNil(b, f, OrphanReason(reason))
		require.ErrorIs(b, f(), reasonErrors[reason])
	}
	return refuse
}

// TestTenMillionJobsLeaveTheHeap has the heap where it was after ten million jobs, also with a straggler in the middle.
func TestTenMillionJobsLeaveTheHeap(t *testing.T) {
	jobs := 50_000
	if *stress {
		jobs = 10_000_000
	}
	for _, order := range []Order{TrackerOrders, ReplicaOrders} {
		t.Run(order.String(), func(t *testing.T) {
			c := newCluster(t, Config[*int]{Order: order})
			c.age(t, 20_000)
			before := heap()
			c.age(t, jobs/2)
			if order == ReplicaOrders {
				c.submit(t, Op{Kind: Write, Start: 7, Blocks: 1})
				for r, conn := range c.conns {
					var d Dispatch[*int]
					for d.ID != c.last {
						require.NoError(t, conn.Next(c.poll, &d))
						if r > 0 || d.ID != c.last { // and replica 0 never answers the write
							c.complete(t, conn, d.ID)
						}
					}
				}
			}
			c.age(t, jobs/2)
			after := heap()
			require.Less(t, after, before+64<<10)
			require.NoError(t, c.tr.Check())
			runtime.KeepAlive(c)
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkTwoTrackers runs two trackers on two cores, beside a control of plain computing in the same rounds, and
// reports what two cores bring as a share of what they bring the control.
func BenchmarkTwoTrackers(b *testing.B) {
	if runtime.GOMAXPROCS(0) < 2 {
		b.Skip("needs two cores")
	}
	ops, _ := traceOps(b, 100)
	var works, controls [2]func()
	for i := range works {
		c := newCluster(b, Config[*int]{Reads: ReadAll, AutoSync: SyncOff})
		works[i] = func() {
			for range 256 {
				for range 16 {
					c.submit(b, ops[c.at%len(ops)])
					c.at++
				}
				c.serve(b, 16)
			}
		}
		sum := new(struct {
			_ [64]byte
			n uint64
			_ [64]byte
		})
		controls[i] = func() {
			for k := range uint64(4_000_000) {
				sum.n = sum.n*6364136223846793005 + k
			}
		}
	}
	var shares, gains []float64
	for b.Loop() {
		control := gain(controls)
		shares = append(shares, gain(works)/control)
		gains = append(gains, control)
	}
	if g := xbase.Median(gains); g < 1.6 {
		b.Skipf("two cores bring the control %.2f only", g)
	}
	b.ReportMetric(xbase.Median(shares), "share")
}

// gain is how much faster two things run side by side than one after the other.
func gain(f [2]func()) float64 {
	t0 := time.Now()
	f[0]()
	f[1]()
	t1 := time.Now()
	var wg sync.WaitGroup
	wg.Go(f[0])
	wg.Go(f[1])
	wg.Wait()
	return float64(t1.Sub(t0)) / float64(time.Since(t1))
}

// cluster is a tracker with three connections, served by whoever calls.
type cluster struct {
	_     [64]byte // two of them are to share no cache line
	tr    *Tracker[*int]
	conns [3]*Conn[*int]
	poll  context.Context //nolint:containedctx // it has ended and stays so
	buf   []Dispatch[*int]
	last  JobID
	at    int // in the trace
	_     [64]byte
}

func newCluster(b testing.TB, cfg Config[*int]) *cluster {
	cfg.Replicas, cfg.Blocks, cfg.BlockSize = 3, 1<<27, 512
	cfg.ReplyTimeout, cfg.MaxJobs, cfg.MaxBytes = -1, 4096, 1<<40
	c := &cluster{buf: make([]Dispatch[*int], 16)}
	var end context.CancelFunc
	c.poll, end = context.WithCancel(b.Context())
	end()
	var err error
	c.tr, err = New(cfg)
	require.NoError(b, err)
	_, err = c.tr.Activate(ActivateOptions{Generation: 1, Create: true})
	require.NoError(b, err)
	for r := range c.conns {
		c.conns[r], err = c.tr.Connect(r, Hello{})
		require.NoError(b, err)
	}
	b.Cleanup(func() { require.NoError(b, c.tr.Close().Wait(context.Background())) })
	return c
}

func (c *cluster) submit(b testing.TB, op Op) {
	j, err := c.tr.Submit(c.poll, op, nil)
	if err != nil {
		b.Fatal(err)
	}
	c.last = j.ID()
}

// serve answers the last n jobs, which go to all replicas, up to len(buf) at a time.
func (c *cluster) serve(b testing.TB, n int) {
	for _, conn := range c.conns {
		for left := n; left > 0; {
			if n == 1 {
				if err := conn.Next(c.poll, &c.buf[0]); err != nil {
					b.Fatal(err)
				}
				c.complete(b, conn, c.buf[0].ID)
				left--
				continue
			}
			got, err := conn.NextBatch(c.poll, c.buf[:min(left, len(c.buf))])
			if err != nil {
				b.Fatal(err)
			}
			for i := range got {
				c.complete(b, conn, got[i].ID)
			}
			left -= len(got)
		}
	}
}

func (c *cluster) complete(b testing.TB, conn *Conn[*int], id JobID) {
	if err := conn.Complete(id, Result{}); err != nil {
		b.Fatal(err)
	}
}

// age has a tracker do jobs.
func (c *cluster) age(b testing.TB, jobs int) {
	for i := range jobs / 16 {
		for k := range 16 {
			c.submit(b, Op{Kind: Write, Start: uint64(i*31+k*7) % 1000, Blocks: 8})
		}
		c.serve(b, 16)
		if i%64 == 0 {
			c.drain(b)
		}
	}
}

// drain answers all there is: the tracker's own flushes as well.
func (c *cluster) drain(b testing.TB) {
	for _, conn := range c.conns {
		for got, err := conn.NextBatch(c.poll, c.buf); err == nil; got, err = conn.NextBatch(c.poll, c.buf) {
			for i := range got {
				c.complete(b, conn, got[i].ID)
			}
		}
	}
}

// traceOps is the real trace with a flush each distance jobs, or one made up where the real one is absent.
func traceOps(b testing.TB, distance int) ([]Op, string) {
	f, err := os.Open(filepath.Join("..", "..", "shared", "oracle", "cp100.ops.gz"))
	if err != nil {
		rng := rand.New(rand.NewPCG(1, 2))
		ops := make([]Op, 0, 100_000)
		for i := range cap(ops) {
			op := Op{Kind: Write, Start: uint64(rng.IntN(1 << 26)), Blocks: uint64(1 + rng.IntN(64))}
			if i%100 == 99 {
				op = Op{Kind: Flush}
			} else if rng.IntN(5) < 2 {
				op.Kind = Read
			}
			ops = append(ops, op)
		}
		return ops, fmt.Sprintf("cp%d-generated", distance)
	}
	defer func() { require.NoError(b, f.Close()) }()
	z, err := gzip.NewReader(f)
	require.NoError(b, err)
	var ops []Op
	for s := bufio.NewScanner(z); s.Scan(); {
		var kind string
		var id, start, blocks uint64
		n, _ := fmt.Sscan(s.Text(), &kind, &id, &start, &blocks)
		switch {
		case kind == "F":
			ops = append(ops, Op{Kind: Flush})
		case n == 4 && blocks > 0 && kind == "R":
			ops = append(ops, Op{Kind: Read, Start: start, Blocks: blocks})
		case n == 4 && blocks > 0 && kind == "W":
			ops = append(ops, Op{Kind: Write, Start: start, Blocks: blocks})
		}
	}
	return ops, fmt.Sprintf("cp%d", distance)
}
