package main

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

func TestMain(m *testing.M) {
	if os.Getenv(asMirror) != "" {
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// asMirror in the environment makes the test's own binary the program.
const asMirror = "MIRROR_TEST_AS_PROGRAM"

// diary is a log that can be waited for.
type diary struct {
	out     io.Writer
	mu      sync.Mutex
	changed sync.Cond
	text    strings.Builder
}

func newDiary(out io.Writer) *diary {
	d := &diary{out: out}
	d.changed.L = &d.mu
	return d
}

func (d *diary) Write(p []byte) (int, error) {
	d.mu.Lock()
	d.text.Write(p)
	d.mu.Unlock()
	d.changed.Broadcast()
	return d.out.Write(p)
}

func (d *diary) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.text.String()
}

// await waits for some words.
func (d *diary) await(t *testing.T, words string) {
	t.Helper()
	ctx := limited(t)
	defer context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.changed.Broadcast()
	})()
	d.mu.Lock()
	defer d.mu.Unlock()
	for !strings.Contains(d.text.String(), words) {
		require.NoError(t, ctx.Err(), "%q was never said", words)
		d.changed.Wait()
	}
}

// limited is a context that ends before the test run does.
func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// rig is a device under test, with its replicas in this process unless the arguments name others.
type rig struct {
	*mirror
	t     *testing.T
	parts *parts
	watch *watcher
	said  *diary
	uri   string
}

// tryRig starts a device as the command line would.
func tryRig(t *testing.T, args ...string) (*rig, error) {
	t.Helper()
	cfg, err := parse(args, io.Discard)
	require.NoError(t, err)
	return rigOf(t, cfg, nil)
}

// rigOf starts a device; change may replace its sources.
func rigOf(t *testing.T, cfg config, change func([]source)) (*rig, error) {
	t.Helper()
	return rigWithin(t.Context(), t, cfg, change)
}

// rigWithin is rigOf with a context that bounds the start.
func rigWithin(ctx context.Context, t *testing.T, cfg config, change func([]source)) (*rig, error) {
	t.Helper()
	r := &rig{t: t, watch: newWatcher(jobtracker.MaxReplicas), said: newDiary(t.Output())}
	r.watch.attach(&cfg)
	logger, debug := log.New(r.said, "", 0), slog.New(slog.DiscardHandler)
	if cfg.verbose {
		debug = slog.New(slog.NewTextHandler(r.said, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	if r.parts, err = gather(cfg, logger); err != nil {
		return nil, err
	}
	if change != nil {
		change(r.parts.sources)
	}
	r.mirror, err = start(ctx, cfg, r.parts.sources, r.parts.create, logger, debug)
	if err != nil {
		r.parts.close()
		return r, err
	}
	ln := listen(t)
	require.NoError(t, r.serve(ln))
	r.uri = clientURI(ln.Addr())
	return r, nil
}

// listen opens a port of the loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return ln
}

// newRig is a device that must start.
func newRig(t *testing.T, args ...string) *rig {
	t.Helper()
	r, err := tryRig(t, args...)
	require.NoError(t, err)
	return r
}

// end stops the device; everything must be durable then.
func (r *rig) end() {
	r.t.Helper()
	require.NoError(r.t, r.stop())
	r.parts.close()
}

// client connects to the device.
func (r *rig) client() *client {
	r.t.Helper()
	c, err := nbd.Dial(limited(r.t), r.uri)
	require.NoError(r.t, err)
	return newClient(c, 32)
}

// phase waits until a replica is in a phase.
func (r *rig) phase(replica int, p jobtracker.ReplicaPhase) {
	r.t.Helper()
	require.NoError(r.t, r.watch.await(limited(r.t), func(s *sight) bool { return s.replicas[replica].Phase == p }))
}

// back waits until a replica has become active again by what do does.
func (r *rig) back(replica int, do func()) {
	r.t.Helper()
	before := r.watch.joins(replica)
	do()
	err := r.watch.await(limited(r.t), func(s *sight) bool { return s.joined[replica] > before })
	require.NoError(r.t, err, "replica %d did not come back", replica)
}

// requireModel holds the files of replicas against a client's model.
func requireModel(t *testing.T, dir string, model []byte, replicas ...int) {
	t.Helper()
	paths, _, err := localPaths(dir, 7)
	require.NoError(t, err)
	for _, i := range replicas {
		got, err := os.ReadFile(paths[i])
		require.NoError(t, err)
		require.True(t, bytes.Equal(model, got[:len(model)]), "replica %d differs", i)
	}
}

// metaOf reads the metadata of a replica's file.
func metaOf(t *testing.T, dir string, replica int) *meta {
	t.Helper()
	paths, _, err := localPaths(dir, replica+1)
	require.NoError(t, err)
	b, err := os.ReadFile(paths[replica])
	require.NoError(t, err)
	b = b[len(b)-metaSpace:]
	m, _, err := newest(b[:metaStride], b[metaStride:])
	require.NoError(t, err)
	return m
}

// copyDir copies the files of a device.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := t.TempDir()
	files, err := filepath.Glob(filepath.Join(from, "*.img"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, filepath.Base(f)), b, 0o600))
	}
	return to
}
