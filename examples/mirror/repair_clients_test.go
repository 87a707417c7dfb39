//go:build unix

package main

import (
	"bytes"
	"crypto/rand"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/jobtracker"
)

var rounds = flag.Int("stress.rounds", 50, "with -stress, how often TestR01FioRepair stops a replica in the middle of its repair")

// TestR01FioRepair: one replica after another is stopped with SIGSTOP until it is faulted, continued, stopped again in the
// middle of its repair, and continued, under load: no error reaches fio, and at the end all are active and alike.
func TestR01FioRepair(t *testing.T) {
	harms, cut := 2, 0
	if *stress {
		harms = *rounds
	}
	args := []string{"-reply-timeout", "400ms", "-offline-for", "100ms", "-repair-rate", "4M"}
	r := underFio(t, true, harms, args, nil, func(r *rig, k *kit) {
		await := func(until func(jobtracker.ReplicaState) bool) {
			require.NoError(t, r.watch.await(limited(t), func(s *sight) bool { return until(s.replicas[k.index]) }))
		}
		k.stop()
		await(func(s jobtracker.ReplicaState) bool { return s.Home == jobtracker.HomeFaulted })
		require.NoError(t, r.watch.more(limited(t), 100))
		k.goOn()
		await(func(s jobtracker.ReplicaState) bool { return s.Phase == jobtracker.Repairing })
		k.stop()
		await(func(s jobtracker.ReplicaState) bool { return s.Phase != jobtracker.Repairing })
		if r.tracker.Stats().Replicas[k.index].State.Phase == jobtracker.Stopping {
			cut++
		}
		k.goOn()
	})
	require.Positive(t, cut, "no repair was stopped in the middle")
	require.GreaterOrEqual(t, r.watch.joins(0)+r.watch.joins(1)+r.watch.joins(2), 3+harms)
	t.Logf("%d of %d repairs were stopped in the middle", cut, harms)
}

// inRepair is a device over nbdkits with something on it, one of which has just begun to be repaired, slowly.
func inRepair(t *testing.T, size int64) (r *rig, kits []*kit, want []byte) {
	t.Helper()
	program(t, "nbdcopy")
	kits, args := newKits(t, true, size)
	r = newRig(t, append(args, "-create", "-repair-rate", "16M", "-reply-timeout", "400ms")...)
	want = make([]byte, size)
	_, err := rand.Read(want)
	require.NoError(t, err)
	in := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(in, want, 0o600))
	output(t, "nbdcopy", "--flush", in, r.uri)
	r.lostBlank(kits[2])
	return r, kits, want
}

// lostBlank kills an nbdkit, leaves a blank image in the place of its own, and waits until the repair of that has begun.
func (r *rig) lostBlank(k *kit) {
	r.t.Helper()
	k.kill()
	i, err := os.Stat(k.image)
	require.NoError(r.t, err)
	require.NoError(r.t, os.Truncate(k.image, 0))
	require.NoError(r.t, os.Truncate(k.image, i.Size()))
	k.start()
	r.phase(k.index, jobtracker.Repairing)
}

// TestClientsDuringRepair: nbdcopy, qemu-img and qemu-io use the device while a blank replica is being repaired, change what is
// under copy in every way they know, and find what they wrote; so does the replica.
func TestClientsDuringRepair(t *testing.T) {
	program(t, "qemu-io")
	program(t, "qemu-img")
	r, kits, want := inRepair(t, 40<<20)
	out := filepath.Join(t.TempDir(), "out")
	output(t, "nbdcopy", r.uri, out)
	got, err := os.ReadFile(out)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got), "read during the repair")
	said := output(t, "qemu-io", "-f", "raw", "-t", "writeback",
		"-c", "discard 0 24M", "-c", "write -z 12M 16M", "-c", "write -f -P 0x61 28M 8M",
		"-c", "aio_write -P 0x62 34M 4M", "-c", "aio_flush",
		"-c", "read -P 0 0 28M", "-c", "read -P 0x61 28M 6M", "-c", "read -P 0x62 34M 4M", "-c", "flush", r.uri)
	require.NotContains(t, said, "failed")
	copy(want, make([]byte, 28<<20))
	copy(want[28<<20:], bytes.Repeat([]byte{0x61}, 6<<20))
	copy(want[34<<20:], bytes.Repeat([]byte{0x62}, 4<<20))
	t.Logf("when all this was done, the replica was %v", r.tracker.Stats().Replicas[2].State)
	r.phase(2, jobtracker.Voting)
	require.NoError(t, os.WriteFile(out, want, 0o600))
	output(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", r.uri, out)
	r.end()
	require.True(t, bytes.Equal(want, requireAlike(t, kits)))
}

// TestBlankAgainAndAgain: a replica is replaced by a blank one in the middle of the repair of a blank one, and the device is
// ended in the middle of that, while the replica's server is stopped. It begins without it, and repairs it in the end.
func TestBlankAgainAndAgain(t *testing.T) {
	r, kits, want := inRepair(t, 16<<20)
	r.lostBlank(kits[2])
	kits[2].stop()
	require.NoError(t, r.stop())
	r.parts.close()
	require.Equal(t, int32(2), r.clean.Load())
	kits[2].goOn()
	var args []string
	for _, k := range kits {
		args = append(args, "-replica", k.uri)
	}
	r = newRig(t, args...)
	r.phase(2, jobtracker.Voting)
	r.end()
	require.True(t, bytes.Equal(want, requireAlike(t, kits)))
	require.Equal(t, int32(3), r.clean.Load())
}
