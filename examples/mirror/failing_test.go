package main

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// failing is a replica that answers what it is told to fail with an error, unexecuted, and may look like another disk.
type failing struct {
	*nbd.File
	fail  atomic.Pointer[func(*nbd.Request) error]
	looks atomic.Pointer[nbd.Info]
}

func (f *failing) Info() nbd.Info {
	if i := f.looks.Load(); i != nil {
		return *i
	}
	return f.File.Info()
}

func (f *failing) Submit(ctx context.Context, r *nbd.Request) {
	if fail := f.fail.Load(); fail != nil {
		if err := (*fail)(r); err != nil {
			r.Release()
			r.Reply(err)
			return
		}
	}
	f.File.Submit(ctx, r)
}

// withFailing is a device whose replica 1 can be told to fail.
func withFailing(t *testing.T, size int64) (*rig, *failing) {
	t.Helper()
	all, args := failingDisks(t, 3, size)
	return newRig(t, append(args, "-create", "-repair=false")...), all[1]
}

// blankFile is a disk with room for a device and its metadata.
func blankFile(t *testing.T, size int64) *nbd.File {
	t.Helper()
	disk, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	require.NoError(t, disk.Truncate(size+metaSpace))
	f, err := nbd.NewFile(disk, nbd.FileOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, disk.Close())
	})
	return f
}

// failingDisks are blank disks behind servers, and the flags that name them.
func failingDisks(t *testing.T, n int, size int64) (all []*failing, args []string) {
	t.Helper()
	for range n {
		all = append(all, &failing{File: blankFile(t, size)})
		args = append(args, "-replica", served(t, all[len(all)-1]))
	}
	return all, args
}

// TestFailingReplica: what one replica fails reaches no client. A failed change or metadata needs a repair; a failed read
// is asked of another; a server that is shutting down has failed nothing, and comes back by replay.
func TestFailingReplica(t *testing.T) {
	const size = 4 << 20
	metadata := func(r *nbd.Request) bool { return r.Command == nbd.CmdWrite && r.Offset >= size }
	for name, tc := range map[string]struct {
		fails  func(*nbd.Request) bool
		err    error
		repair bool
		joins  int
	}{
		"write":             {func(r *nbd.Request) bool { return r.Command == nbd.CmdWrite && r.Offset < size }, nbd.EIO, true, 1},
		"zeroes":            {func(r *nbd.Request) bool { return r.Command == nbd.CmdWriteZeroes }, nbd.EINVAL, true, 1},
		"flush":             {func(r *nbd.Request) bool { return r.Command == nbd.CmdFlush }, nbd.EIO, true, 1},
		"metadata":          {metadata, nbd.ENOSPC, true, 1},
		"read":              {func(r *nbd.Request) bool { return r.Command == nbd.CmdRead && r.Offset < size }, nbd.EIO, false, 1},
		"shutdown":          {func(r *nbd.Request) bool { return r.Offset < size }, nbd.ESHUTDOWN, false, 2},
		"shutdown metadata": {metadata, nbd.ESHUTDOWN, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r, bad := withFailing(t, size)
			c := r.client()
			w := load(size)
			require.NoError(t, c.run(w, 20))
			failed := make(chan struct{}, 1)
			fail := func(req *nbd.Request) error {
				if !tc.fails(req) {
					return nil
				}
				select {
				case failed <- struct{}{}:
				default:
				}
				return tc.err
			}
			bad.fail.Store(&fail)
			require.NoError(t, c.run(w, 600))
			<-failed
			if tc.repair {
				r.said.await(t, "NEEDS A REPAIR")
				r.phase(1, jobtracker.RepairReady)
			}
			bad.fail.Store(nil)
			require.NoError(t, c.run(w, 100))
			require.NoError(t, c.check())
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool {
				return s.joined[1] >= tc.joins && (tc.repair || s.replicas[1].Phase == jobtracker.Voting)
			}))
			require.NoError(t, c.close())
			r.end()
			want := int32(3)
			if tc.repair {
				want = 2
			}
			require.Equal(t, want, r.clean.Load())
		})
	}
}

// TestShutdownFailsNoMetadata: an answer that the server is shutting down reaches the sender beside the end of the
// connection, and either may be looked at first. It faults nobody; an answer that the metadata has failed does.
func TestShutdownFailsNoMetadata(t *testing.T) {
	r, _ := withFailing(t, 4<<20)
	r.phase(1, jobtracker.Voting)
	w := &sender{session: r.drivers[1].current()}
	w.note(note{err: nbd.ESHUTDOWN})
	require.Equal(t, jobtracker.Voting, r.tracker.Stats().Replicas[1].State.Phase)
	w.note(note{err: nbd.ENOSPC})
	require.Equal(t, jobtracker.HomeFaulted, r.tracker.Stats().Replicas[1].State.Home)
	r.end()
}

// bare is a backend that offers little.
type bare struct{ info nbd.Info }

func (b *bare) Info() nbd.Info                           { return b.info }
func (b *bare) Submit(_ context.Context, r *nbd.Request) { r.Release(); r.Reply(nil) }
func (b *bare) with(f nbd.TransmissionFlags) nbd.Backend { b.info.Flags = f; return b }
func small(size int64) *bare                             { return &bare{nbd.Info{Size: size}} }

const enough = nbd.SendFlush | nbd.SendFUA | nbd.SendWriteZeroes

func TestUnfitReplicas(t *testing.T) {
	unfit := small(4 << 20)
	unfit.info.Flags = enough
	for want, b := range map[string]nbd.Backend{
		"does not offer flush":        small(4 << 20).with(nbd.SendFUA | nbd.SendWriteZeroes),
		"does not offer FUA":          small(4 << 20).with(nbd.SendFlush | nbd.SendWriteZeroes),
		"does not offer write zeroes": small(4 << 20).with(nbd.SendFlush | nbd.SendFUA),
		"read-only":                   small(4 << 20).with(nbd.SendFlush | nbd.ReadOnly),
		"keeps the last 1048576":      small(1 << 20).with(enough),
		"blocks have 4096 bytes":      &bare{nbd.Info{Size: 4 << 20, Flags: enough, MinBlock: 4096}},
		"less than 33554432":          &bare{nbd.Info{Size: 4 << 20, Flags: enough, MaxBlock: 1 << 20}},
	} {
		uri := served(t, b)
		_, err := tryRig(t, "-create", "-replica", uri)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "replica 0 ("+uri+")")
	}
	blank := served(t, small(4<<20).with(enough))
	_, err := tryRig(t, "-replica", blank)
	require.Error(t, err)
	_, err = tryRig(t, "-wait", "50ms", "-replica", "nbd+unix:///?socket="+filepath.Join(t.TempDir(), "none"))
	require.ErrorContains(t, err, "no replica can be reached")
}
