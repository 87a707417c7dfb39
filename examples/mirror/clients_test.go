//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// These tests drive mirror with real programs, over replicas on real servers. They skip where those are not installed.

var stress = flag.Bool("stress", false, "run the longer form of the tests with fio")

// program skips the test where a program is not installed.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed", name)
	}
	return path
}

// output is what a program printed; it must succeed.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(limited(t), program(t, name), args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// kit is an nbdkit that serves an image, and can be killed, stopped and started again.
type kit struct {
	t     *testing.T
	args  []string
	uri   string
	image string
	cmd   *exec.Cmd
}

// newKits starts nbdkits over blank images, on TCP or unix sockets, and returns the arguments that name them.
func newKits(t *testing.T, tcp bool, size int64) (kits []*kit, args []string) {
	t.Helper()
	path := program(t, "nbdkit")
	dir := t.TempDir()
	for i := range 3 {
		k := &kit{t: t, image: filepath.Join(dir, fmt.Sprintf("%d.img", i))}
		require.NoError(t, os.WriteFile(k.image, nil, 0o600))
		require.NoError(t, os.Truncate(k.image, size+metaSpace))
		k.args = []string{path, "--foreground"}
		if tcp {
			port := freePort(t)
			k.args = append(k.args, "--ipaddr=127.0.0.1", "--port="+port)
			k.uri = "nbd://127.0.0.1:" + port
		} else {
			socket := filepath.Join(dir, fmt.Sprintf("%d.sock", i))
			k.args = append(k.args, "--unix="+socket)
			k.uri = "nbd+unix:///?" + url.Values{"socket": {socket}}.Encode()
		}
		k.args = append(k.args, "file", k.image)
		k.start()
		t.Cleanup(func() {
			if k.cmd.ProcessState == nil {
				k.kill()
			}
		})
		kits, args = append(kits, k), append(args, "-replica", k.uri)
	}
	return kits, args
}

func freePort(t *testing.T) string {
	ln := listen(t)
	defer func() { require.NoError(t, ln.Close()) }()
	return strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
}

func (k *kit) start() {
	k.t.Helper()
	if socket, ok := strings.CutPrefix(k.args[2], "--unix="); ok {
		_ = os.Remove(socket) // a killed server leaves it
	}
	k.cmd = exec.CommandContext(context.WithoutCancel(k.t.Context()), k.args[0], k.args[1:]...)
	k.cmd.Stderr = k.t.Output()
	require.NoError(k.t, k.cmd.Start())
}

func (k *kit) signal(s syscall.Signal) {
	k.t.Helper()
	require.NoError(k.t, k.cmd.Process.Signal(s))
}

// kill is SIGKILL; when it returns the process is gone.
func (k *kit) kill() {
	k.t.Helper()
	k.signal(syscall.SIGKILL)
	_ = k.cmd.Wait() // that it was killed is known
}

// requireAlike holds the images against each other outside of the metadata.
func requireAlike(t *testing.T, kits []*kit) []byte {
	t.Helper()
	var first []byte
	for i, k := range kits {
		b, err := os.ReadFile(k.image)
		require.NoError(t, err)
		b = b[:len(b)-metaSpace]
		if i == 0 {
			first = b
		}
		require.True(t, bytes.Equal(first, b), "images 0 and %d differ", i)
	}
	return first
}

func TestNBDInfo(t *testing.T) {
	program(t, "nbdinfo")
	_, args := newKits(t, false, 8<<20)
	r := newRig(t, append(args, "-create")...)
	out := output(t, "nbdinfo", r.uri)
	for _, want := range []string{
		"newstyle-fixed", "export-size: 8388608", "is_read_only: false", "can_multi_conn: true", "can_flush: true",
		"can_fua: true", "can_trim: true", "can_zero: true", "block_size_minimum: 512",
	} {
		require.Contains(t, out, want)
	}
	r.end()
}

func TestNBDCopy(t *testing.T) {
	program(t, "nbdcopy")
	const size = 48 << 20
	kits, args := newKits(t, true, size)
	r := newRig(t, append(args, "-create")...)
	want := make([]byte, size)
	_, err := rand.Read(want)
	require.NoError(t, err)
	clear(want[5<<20 : 17<<20]) // zeroed or trimmed
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(in, want, 0o600))
	output(t, "nbdcopy", "--flush", in, r.uri)
	output(t, "nbdcopy", r.uri, out)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
	r.end()
	require.True(t, bytes.Equal(want, requireAlike(t, kits)))
}

func TestQemuIO(t *testing.T) {
	program(t, "qemu-io")
	kits, args := newKits(t, false, 8<<20)
	r := newRig(t, append(args, "-create")...)
	out := output(t, "qemu-io", "-f", "raw", "-t", "writeback",
		"-c", "write -P 0x61 4096 8192", "-c", "write -f -P 0x62 512 512", "-c", "write -z 65536 65536",
		"-c", "write -P 0x65 1M 128k", "-c", "discard 1M 64k", "-c", "flush", "-c", "read -P 0x61 4096 8192",
		"-c", "read -P 0 65536 65536", "-c", "read -P 0 1M 64k", "-c", "read -P 0x65 1088k 64k",
		"-c", "aio_write -P 0x63 131072 4096", "-c", "aio_write -P 0x64 200704 4096", "-c", "aio_flush",
		"-c", "read -P 0x64 200704 4096", r.uri)
	require.NotContains(t, out, "failed", out)
	r.end()
	got := requireAlike(t, kits)
	for _, tc := range []struct {
		off, n int
		b      byte
	}{{4096, 8192, 'a'}, {512, 512, 'b'}, {65536, 65536, 0}, {131072, 4096, 'c'}, {200704, 4096, 'd'}, {1 << 20, 64 << 10, 0}, {1088 << 10, 64 << 10, 'e'}} {
		require.True(t, bytes.Equal(bytes.Repeat([]byte{tc.b}, tc.n), got[tc.off:tc.off+tc.n]), "at %d", tc.off)
	}
}

const fioSize = 24 << 20

// fio runs random reads and writes with verification in the background; the channel has how it ended.
func fio(t *testing.T, uri string, rate, loops int, more ...string) <-chan error {
	t.Helper()
	args := append([]string{
		"--name=mirror", "--ioengine=nbd", "--uri=" + uri, "--rw=randrw", "--bs=4k", "--iodepth=32",
		"--verify=crc32c", "--verify_fatal=1", "--verify_backlog=128", fmt.Sprintf("--size=%d", fioSize),
		fmt.Sprintf("--rate_iops=%d", rate), fmt.Sprintf("--loops=%d", loops),
	}, more...)
	cmd := exec.CommandContext(t.Context(), program(t, "fio"), args...)
	cmd.Dir = t.TempDir() // it leaves its state there
	end := make(chan error, 1)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	go func() {
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("fio: %w: %s", err, out.String())
		}
		end <- err
	}()
	t.Cleanup(func() {
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, "IOPS=") || strings.Contains(line, "issued rwts") || strings.Contains(line, "err=") {
				t.Log(strings.TrimSpace(line))
			}
		}
	})
	return end
}

// underFio runs fio against a device with nbdkits behind it, does harm to one of them a number of times, and demands that
// nothing of it is seen: not by fio, and not in the images.
func underFio(t *testing.T, tcp bool, harms int, args, fioArgs []string, harm func(*rig, *kit)) *rig {
	t.Helper()
	program(t, "fio")
	kits, named := newKits(t, tcp, 2*fioSize)
	r := newRig(t, append(append(named, "-create"), args...)...)
	loops := 1
	if *stress {
		harms, loops = 5*harms, 5
	}
	end := fio(t, r.uri, 500, loops, fioArgs...)
	began := time.Now()
	for i := range harms {
		victim := i % len(kits)
		r.progress(250, end)
		r.back(victim, func() { harm(r, kits[victim]) })
	}
	t.Logf("harmed %d times in %v", harms, time.Since(began).Round(time.Millisecond))
	require.NoError(t, <-end)
	require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { // one may have been slow of its own since the last harm
		return !slices.ContainsFunc(s.replicas[:len(kits)], func(rep jobtracker.ReplicaState) bool { return rep.Phase != jobtracker.Voting })
	}), "not all became active")
	c, err := nbd.Dial(limited(t), r.uri)
	require.NoError(t, err)
	require.NoError(t, c.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdFlush}}))
	reply, err := c.Receive(func(uint64) (uint32, []byte, bool) { return 0, nil, true })
	require.NoError(t, err)
	require.NoError(t, reply.Err())
	require.NoError(t, c.Close())
	stats := r.tracker.Stats()
	t.Log(r.statusLine())
	if r.cfg.repairRate == 0 { // the copies that end with a repair count as failed; what fio asked for, it checks itself
		require.Zero(t, stats.Failed)
	}
	r.end()
	requireAlike(t, kits)
	require.Equal(t, int32(3), r.clean.Load())
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
		require.Fail(r.t, "fio ended too soon", "%v", err)
	}
}

func fsyncs() map[string][]string {
	return map[string][]string{"no fsync": nil, "fsync": {"--fsync=32"}}
}

// TestFioKill: one replica after another is killed with SIGKILL and started again, under load.
func TestFioKill(t *testing.T) {
	for name, fioArgs := range fsyncs() {
		t.Run(name, func(t *testing.T) {
			underFio(t, false, 12, nil, fioArgs, func(r *rig, k *kit) {
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
			harms := 5
			r := underFio(t, true, harms, []string{"-reply-timeout", "400ms"}, fioArgs, func(r *rig, k *kit) {
				k.signal(syscall.SIGSTOP)
				victim := -1
				require.NoError(t, r.watch.await(limited(t), func(s *sight) bool {
					for i, rep := range s.replicas {
						if rep.Phase == jobtracker.Stopping {
							victim = i
						}
					}
					return victim >= 0
				}))
				require.NoError(t, r.watch.more(limited(t), 50))
				_, err := r.tracker.Connect(victim, jobtracker.Hello{})
				require.ErrorIs(t, err, jobtracker.ErrNotQuiesced)
				k.signal(syscall.SIGCONT)
			})
			require.Positive(t, new(r.tracker.Stats()).Orphans[jobtracker.OrphanStaleConn], "no late answer came")
		})
	}
}

// child is mirror as a process of its own: the test's own binary.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	said *diary
	end  chan error
}

func newChild(t *testing.T, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{t: t, said: newDiary(t.Output()), end: make(chan error, 1)}
	c.cmd = exec.CommandContext(t.Context(), self, args...)
	c.cmd.Env = append(os.Environ(), asMirror+"=1")
	c.cmd.Stdout, c.cmd.Stderr = c.said, c.said
	require.NoError(t, c.cmd.Start())
	go func() { c.end <- c.cmd.Wait() }()
	return c
}

// serving waits until clients can connect.
func (c *child) serving() *nbd.Client {
	c.t.Helper()
	c.said.await(c.t, "serving nbd+unix")
	_, uri, _ := strings.Cut(c.said.String(), "serving ")
	uri, _, _ = strings.Cut(uri, ",")
	n, err := nbd.Dial(limited(c.t), uri)
	require.NoError(c.t, err)
	return n
}

// ended is the exit status.
func (c *child) ended() int {
	c.t.Helper()
	select {
	case err := <-c.end:
		c.t.Log("mirror ended:", err)
	case <-limited(c.t).Done():
		require.Fail(c.t, "it does not end")
	}
	return c.cmd.ProcessState.ExitCode()
}

// TestProgram: the program serves on a unix socket, ends well by SIGTERM, and starts again; killed with dirty extents, it
// says that a reconcile is needed, and its exit status tells.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	args := []string{"-dir", filepath.Join(dir, "disks"), "-size", "4M", "-listen", "unix:" + filepath.Join(dir, "s")}
	var model []byte
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGKILL} {
		m := newChild(t, args...)
		c := newClient(m.serving(), 8)
		copy(c.model, model)
		model = c.model
		require.NoError(t, c.run(load(4<<20), 100))
		require.NoError(t, c.send(step{command: nbd.CmdWrite, off: 0, length: 4096}))
		require.NoError(t, c.settle())
		require.NoError(t, m.cmd.Process.Signal(sig))
		status := m.ended()
		_ = c.nbd.Close()
		<-c.done
		if sig == syscall.SIGKILL {
			break
		}
		require.Equal(t, exitGood, status)
		require.Contains(t, m.said.String(), "3 of 3 replicas were left with everything")
	}
	m := newChild(t, args...)
	require.Equal(t, exitReconcile, m.ended())
	require.Contains(t, m.said.String(), "the replicas need a reconcile")
	require.Contains(t, m.said.String(), "DIRTY")
	require.Contains(t, m.said.String(), "nothing that was flushed is lost")
}
