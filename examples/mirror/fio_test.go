//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

var stress = flag.Bool("stress", false, "run the longer form of the tests with fio")

// fioSize is how much fio reads and writes in a run, which takes about twelve seconds, and half as long without -stress.
func fioSize() int64 {
	if *stress {
		return 24 << 20
	}
	return 12 << 20
}

// load is fio under which harm is done: random reads and writes, 32 at a time, each of them verified.
type fioLoad struct {
	end    chan error // how it ended
	enough chan struct{}
	runs   int    // the rest is to be read after the end
	issued [4]int // reads, writes, trims, syncs
}

// fio runs over and over until it is enough, and the last run comes to its end too: on a signal fio ends with a status of its
// own, and does not verify what it has written since it last did.
func fio(t *testing.T, uri string, more ...string) *fioLoad {
	t.Helper()
	path, l := program(t, "fio"), &fioLoad{end: make(chan error, 1), enough: make(chan struct{})}
	args := append([]string{
		"--name=mirror", "--ioengine=nbd", "--uri=" + uri, "--rw=randrw", "--bs=4k", "--iodepth=32",
		"--verify=crc32c", "--verify_fatal=1", "--verify_backlog=128", fmt.Sprintf("--size=%d", fioSize()), "--rate_iops=500",
	}, more...)
	dir := t.TempDir() // it leaves its state there
	go func() {
		for {
			cmd := exec.CommandContext(t.Context(), path, args...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err == nil {
				err = l.count(out)
			}
			if err != nil {
				l.end <- fmt.Errorf("fio: %w: %s", err, out)
				return
			}
			select {
			case <-l.enough:
				l.end <- nil
				return
			default:
			}
		}
	}()
	return l
}

var fioSaid = regexp.MustCompile(`(?s)err= 0:.*issued rwts: total=(\d+),(\d+),(\d+),(\d+) short=0,0,0,0 dropped=0,0,0,0`)

// count takes note of a run that went well.
func (l *fioLoad) count(out []byte) error {
	said := fioSaid.FindSubmatch(out)
	if said == nil {
		return errors.New("it does not say that all went well")
	}
	l.runs++
	for i := range l.issued {
		n, err := strconv.Atoi(string(said[i+1]))
		if err != nil {
			return err
		}
		l.issued[i] += n
	}
	return nil
}

// underFio runs fio against a device with nbdkits behind it, does harm to one of them a number of times, and demands that
// nothing of it is seen: not by fio, and not in the images.
func underFio(t *testing.T, tcp bool, harms int, args, fioArgs []string, harm func(*rig, *kit)) *rig {
	t.Helper()
	program(t, "fio")
	kits, named := newKits(t, tcp, 2*fioSize())
	r := newRig(t, append(append(named, "-create"), args...)...)
	load := fio(t, r.uri, fioArgs...)
	began := time.Now()
	for i := range harms {
		k := kits[i%len(kits)]
		r.progress(250, load.end)
		r.back(k.index, func() { harm(r, k) })
	}
	took := time.Since(began)
	close(load.enough)
	require.NoError(t, <-load.end)
	require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { // one may have been slow of its own since the last harm
		return !slices.ContainsFunc(s.replicas[:len(kits)], func(rep jobtracker.ReplicaState) bool {
			return rep.Phase != jobtracker.Voting
		})
	}), "not all became active")
	c := r.client()
	require.NoError(t, c.sync())
	require.NoError(t, c.close())
	stats := r.tracker.Stats()
	t.Log(r.statusLine())
	if r.cfg.repairRate == 0 { // the copies that end with a repair count as failed; what fio asked for, it checks itself
		require.Zero(t, stats.Failed)
	}
	r.end()
	requireAlike(t, kits)
	require.Equal(t, int32(3), r.clean.Load())
	t.Logf("harmed %d times in %v under %d runs of fio (%d reads, %d writes, %d syncs, no error)",
		harms, took.Round(time.Millisecond), load.runs, load.issued[0], load.issued[1], load.issued[3])
	t.Logf("%d nbdkits ended by themselves and were started again; orphans: %s", selfEnded(kits), orphans(&stats))
	return r
}

// progress waits until n more requests were answered; fio must not have ended.
func (r *rig) progress(n int, end <-chan error) {
	r.t.Helper()
	ctx, cancel := context.WithCancelCause(limited(r.t))
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- r.watch.more(ctx, n) }()
	select {
	case err := <-done:
		require.NoError(r.t, err)
	case err := <-end:
		cancel(err)
		require.Error(r.t, <-done)
		require.Fail(r.t, "fio has failed", "%v", err)
	}
}

// longer is how often harm is done: with -stress five times as often.
func longer(harms int) int {
	if *stress {
		return 5 * harms
	}
	return harms
}

func fsyncs() map[string][]string {
	return map[string][]string{"no fsync": nil, "fsync": {"--fsync=32"}}
}

// TestFioKill: one replica after another is killed with SIGKILL and started again, under load.
func TestFioKill(t *testing.T) {
	for name, fioArgs := range fsyncs() {
		t.Run(name, func(t *testing.T) {
			underFio(t, false, longer(12), nil, fioArgs, func(r *rig, k *kit) {
				k.kill()
				require.NoError(t, r.watch.more(limited(t), 50))
				k.start()
			})
		})
	}
}

// TestJ30FioStop: one replica after another is stopped with SIGSTOP, with requests in its socket, until its connection has
// been given up and more was written; then it goes on. It must have executed what it was sent before it is sent more.
func TestJ30FioStop(t *testing.T) {
	for name, fioArgs := range fsyncs() {
		t.Run(name, func(t *testing.T) {
			r := underFio(t, true, longer(5), []string{"-reply-timeout", "400ms"}, fioArgs, func(r *rig, k *kit) {
				k.stop()
				r.phase(k.index, jobtracker.Stopping)
				require.NoError(t, r.watch.more(limited(t), 50))
				_, err := r.tracker.Connect(k.index, jobtracker.Hello{})
				require.ErrorIs(t, err, jobtracker.ErrNotQuiesced)
				k.goOn()
			})
			require.Positive(t, new(r.tracker.Stats()).Orphans[jobtracker.OrphanStaleConn], "no late answer came")
		})
	}
}
