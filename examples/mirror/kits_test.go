//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// kit is an nbdkit that serves an image, and can be killed, stopped and started again. One that ends by itself is started
// again, and that is counted: nbdkit 1.32 has been seen to abort when it went on after a stop and its connection was gone.
type kit struct {
	t     *testing.T
	index int // of its replica
	args  []string
	uri   string
	image string

	mu sync.Mutex
	// cmd is the present or last process, and gone is closed when it has ended.
	// +checklocks:mu
	cmd *exec.Cmd
	// +checklocks:mu
	gone chan struct{}
	// wanted is false after kill.
	// +checklocks:mu
	wanted bool
	// held is from SIGSTOP to SIGCONT, which starts what has ended meanwhile.
	// +checklocks:mu
	held bool
	// ended is how often it ended by itself.
	// +checklocks:mu
	ended int
}

// newKits starts nbdkits over blank images, on TCP or unix sockets, and returns the arguments that name them.
func newKits(t *testing.T, tcp bool, size int64) (kits []*kit, args []string) {
	t.Helper()
	path := program(t, "nbdkit")
	dir := t.TempDir()
	for i := range 3 {
		k := &kit{t: t, index: i, image: filepath.Join(dir, fmt.Sprintf("%d.img", i))}
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
		t.Cleanup(k.kill)
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
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = true
	require.NoError(k.t, k.launchLocked())
}

func (k *kit) command() *exec.Cmd {
	if socket, ok := strings.CutPrefix(k.args[2], "--unix="); ok {
		_ = os.Remove(socket) // a killed server leaves it
	}
	cmd := exec.CommandContext(context.WithoutCancel(k.t.Context()), k.args[0], k.args[1:]...)
	cmd.Stderr = k.t.Output()
	return cmd
}

// +checklocks:k.mu
func (k *kit) launchLocked() error {
	cmd, gone := k.command(), make(chan struct{})
	if err := cmd.Start(); err != nil {
		return err
	}
	k.cmd, k.gone = cmd, gone
	go func() {
		defer close(gone)
		k.over(cmd.Wait())
	}()
	return nil
}

// over takes the end of the process.
func (k *kit) over(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.wanted {
		return
	}
	k.ended++
	k.t.Logf("nbdkit %d has ended by itself: %v", k.index, err)
	if k.cmd = nil; !k.held {
		if err := k.launchLocked(); err != nil {
			k.t.Errorf("nbdkit %d cannot be started again: %v", k.index, err)
		}
	}
}

// stop is SIGSTOP, and goOn is SIGCONT.
func (k *kit) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = true
	if k.cmd != nil {
		_ = k.cmd.Process.Signal(syscall.SIGSTOP) // one that is about to end has ended for its clients as well
	}
}

func (k *kit) goOn() {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held = false; k.cmd == nil {
		require.NoError(k.t, k.launchLocked())
	}
	_ = k.cmd.Process.Signal(syscall.SIGCONT)
}

// kill is SIGKILL; when it returns the process is gone.
func (k *kit) kill() {
	k.mu.Lock()
	gone := k.gone
	if k.wanted = false; k.cmd != nil {
		_ = k.cmd.Process.Kill()
	}
	k.mu.Unlock()
	<-gone
}

// selfEnded is how often nbdkits have ended by themselves.
func selfEnded(kits []*kit) (n int) {
	for _, k := range kits {
		k.mu.Lock()
		n += k.ended
		k.mu.Unlock()
	}
	return n
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

// TestKitStartsAgain: what the harness promises: an nbdkit that ends by itself is there again, and was counted.
func TestKitStartsAgain(t *testing.T) {
	kits, args := newKits(t, false, 4<<20)
	r := newRig(t, append(args, "-create")...)
	for i, k := range kits {
		r.back(i, func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			require.NoError(t, k.cmd.Process.Kill())
		})
	}
	require.Equal(t, 3, selfEnded(kits))
	r.end()
	requireAlike(t, kits)
}
