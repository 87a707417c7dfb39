//go:build unix

package main

import (
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// killed is a device of real parts that is killed over and over: mirror is a process, its replicas are on nbdkits, and fio
// writes to it beside a client that keeps a record of what was flushed.
type killed struct {
	t    *testing.T
	kits []*kit
	args []string
	*history
}

const (
	recorded = 2 << 20  // the client with the record writes here
	filled   = 1 << 20  // fio fills as much in each round, behind that
	scratch  = 40 << 20 // from here on fio writes while mirror is killed
)

// fio writes in order, each block its own offset, and verifies.
func (k *killed) fio(uri string, at int, more ...string) *exec.Cmd {
	args := []string{
		"--name=killed", "--ioengine=nbd", "--uri=" + uri, "--rw=write", "--bs=4k", "--iodepth=32", "--verify=pattern",
		"--verify_pattern=%o", "--verify_fatal=1", fmt.Sprintf("--offset=%d", at), fmt.Sprintf("--size=%d", filled),
	}
	cmd := exec.CommandContext(limited(k.t), program(k.t, "fio"), append(args, more...)...)
	cmd.Dir = k.t.TempDir()
	return cmd
}

// ends is a life of mirror that begins with what the last one left, is seen to be whole, and ends as it should.
func (k *killed) ends(rounds int) {
	k.t.Helper()
	m := newChild(k.t, k.args...)
	uri := m.address()
	require.Contains(k.t, m.said.String(), "reconciled:")
	require.NoError(k.t, k.look(image(k.t, uri)[:recorded]))
	for i := range rounds {
		out, err := k.fio(uri, recorded+i*filled, "--verify_only").CombinedOutput()
		require.NoError(k.t, err, "what fio flushed in round %d: %s", i, out)
	}
	require.NoError(k.t, m.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(k.t, exitGood, m.ended())
	require.Contains(k.t, m.said.String(), "3 of 3 replicas were left with everything")
	requireAlike(k.t, k.kits)
}

// dies is a life in which fio fills a part and flushes it, and mirror is killed in the middle of what comes after.
func (k *killed) dies(round int, args ...string) (answers int) {
	k.t.Helper()
	m := newChild(k.t, append(k.args, args...)...)
	uri := m.address()
	out, err := k.fio(uri, recorded+round*filled, "--end_fsync=1").CombinedOutput()
	require.NoError(k.t, err, "%s", out)
	busy := k.fio(uri, scratch, "--rw=randrw", "--fsync=8", "--loops=1000")
	said := newDiary(io.Discard)
	busy.Stdout, busy.Stderr = said, said
	require.NoError(k.t, busy.Start())
	said.await(k.t, "connected to NBD server")
	k.heard = func(answers int) {
		if answers == 400+37*round {
			_ = m.cmd.Process.Kill()
		}
	}
	answers = k.suffer(k.t, uri, uint64(round))
	require.Equal(k.t, -1, m.ended())
	require.Error(k.t, busy.Wait())
	require.NotContains(k.t, said.String(), "verify: ")
	return answers
}

// TestR18KilledUnderFio: mirror is killed with SIGKILL while fio and another client write and flush. The next one reconciles;
// every block that was flushed is there, and the images are equal. With -stress twelve times.
func TestR18KilledUnderFio(t *testing.T) {
	program(t, "fio")
	rounds := 1
	if *stress {
		rounds = 12
	}
	kits, args := newKits(t, true, 48<<20)
	k := &killed{t: t, kits: kits, history: newHistory(recorded)}
	k.args = append(args, "-listen", "unix:"+filepath.Join(t.TempDir(), "s"))
	answers := 0
	for i := range rounds {
		create := []string{"-create"}[min(i, 1):]
		answers += k.dies(i, create...)
		k.ends(i + 1)
	}
	flushed := 0
	for _, n := range k.must {
		if n > 0 {
			flushed++
		}
	}
	t.Logf("killed %d times, with %d requests answered beside fio's: %d MiB that fio had flushed and %d of %d blocks of the record "+
		"are right, and the images alike", rounds, answers, rounds*filled>>20, flushed, len(k.must))
}
