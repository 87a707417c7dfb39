package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// local is a replica in this process: a file behind an NBD server. Its connections are real ones, over the loopback.
type local struct {
	path   string
	server *nbd.Server
	file   *nbd.File
	disk   *os.File
	conns  sync.WaitGroup

	mu sync.Mutex
	// holding: answers to jobs are kept back, those about the metadata are not.
	// +checklocks:mu
	holding bool
	// held are the answers kept back.
	// +checklocks:mu
	held []func()
	// caught is closed when there is one.
	// +checklocks:mu
	caught chan struct{}
}

// errInUse: two mirrors over the same replicas would each undo what the other has done.
var errInUse = errors.New("is in use by another mirror")

// localPaths are the files of the replicas in dir; found tells whether any exists.
func localPaths(dir string, n int) (paths []string, found bool, err error) {
	for i := range n {
		p := filepath.Join(dir, fmt.Sprintf("replica-%d.img", i))
		switch _, err := os.Stat(p); {
		case err == nil:
			found = true
		case !errors.Is(err, fs.ErrNotExist):
			return nil, false, err
		}
		paths = append(paths, p)
	}
	return paths, found, nil
}

// replicasIn is how many replicas the device in dir was made with, by the first file that tells; 0 if none does.
func replicasIn(dir string) int {
	for i := range jobtracker.MaxReplicas {
		m, err := fileMeta(filepath.Join(dir, fmt.Sprintf("replica-%d.img", i)))
		if err == nil {
			return m.replicas
		}
	}
	return 0
}

// fileMeta reads the metadata of a file that may be in use.
func fileMeta(path string) (*meta, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	at := (size - metaSpace) / blockSize * blockSize
	copies := make([]byte, 2*maxMeta)
	for i := range int64(2) {
		if _, err := f.ReadAt(copies[i*maxMeta:][:maxMeta], at+i*metaStride); err != nil {
			return nil, err
		}
	}
	m, _, err := newest(copies[:maxMeta], copies[maxMeta:])
	return m, err
}

// asideFile is a file that was renamed.
type asideFile struct{ from, to string }

// setAside renames a file, which is never overwritten nor deleted; without one it does nothing.
func setAside(path string) (asideFile, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return asideFile{}, nil
	}
	for n := 1; ; n++ {
		to := fmt.Sprintf("%s.replaced-%d", path, n)
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return asideFile{path, to}, os.Rename(path, to)
		} else if err != nil {
			return asideFile{}, err
		}
	}
}

// back undoes it.
func (a asideFile) back() error {
	if a.from == "" {
		return nil
	}
	return os.Rename(a.to, a.from)
}

// newLocal opens the file of a replica; with size it is made.
func newLocal(path string, size int64) (*local, error) {
	flags := os.O_RDWR
	if size > 0 {
		flags |= os.O_CREATE | os.O_EXCL
	}
	disk, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	l := &local{path: path, disk: disk}
	if err = lock(disk); err == nil && size > 0 {
		err = disk.Truncate(size)
	}
	if err == nil {
		l.file, err = nbd.NewFile(disk, nbd.FileOptions{})
	}
	if err == nil {
		l.server, err = nbd.NewServer(nbd.Options{Exports: []nbd.Export{{Backend: l}}, MaxRequest: maxRequest})
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// source is where the replica is; without renew.
func (l *local) source() source {
	return source{name: l.path, dial: func(ctx context.Context) (net.Conn, string, error) {
		near, far, err := loopback(ctx)
		if err != nil {
			return nil, "", err
		}
		l.conns.Go(func() { _ = l.server.ServeConn(far) }) // how it ended is the driver's to see
		return near, "", nil
	}}
}

// loopback is a pair of connected sockets, which can be half-closed as a pipe cannot.
func loopback(ctx context.Context) (near, far net.Conn, err error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = ln.Close() }()
	var d net.Dialer
	if near, err = d.DialContext(ctx, "tcp", ln.Addr().String()); err != nil {
		return nil, nil, err
	}
	for {
		if far, err = ln.Accept(); err != nil {
			_ = near.Close()
			return nil, nil, err
		}
		if far.RemoteAddr().String() == near.LocalAddr().String() {
			return near, far, nil
		}
		_ = far.Close() // somebody else's
	}
}

// Info implements nbd.Backend.
func (l *local) Info() nbd.Info { return l.file.Info() }

// Submit implements nbd.Backend.
func (l *local) Submit(ctx context.Context, r *nbd.Request) {
	l.mu.Lock()
	holding := l.holding && int64(r.Offset) < l.file.Info().Size-metaSpace
	l.mu.Unlock()
	if !holding {
		l.file.Submit(ctx, r)
		return
	}
	err := l.execute(r)
	r.Release()
	if !l.keep(func() { r.Reply(err) }) {
		r.Reply(err)
	}
}

// execute does a request.
func (l *local) execute(r *nbd.Request) (err error) {
	switch r.Command {
	case nbd.CmdRead:
		return l.file.ReadAt(r.Data, int64(r.Offset))
	case nbd.CmdWrite:
		err = l.file.WriteAt(r.Data, int64(r.Offset))
	case nbd.CmdWriteZeroes, nbd.CmdTrim:
		err = l.file.Zero(int64(r.Offset), int64(r.Length), r.Flags&nbd.FlagNoHole == 0)
	case nbd.CmdFlush:
		return l.file.Flush()
	case nbd.CmdCache, nbd.CmdDisc:
		return nbd.EINVAL // not offered
	}
	if err == nil && r.Flags&nbd.FlagFUA != 0 {
		err = l.file.Flush()
	}
	return err
}

// hold keeps all answers to jobs from now on until release is called: the replica executes and does not answer. caught is
// closed when the first one is being kept.
func (l *local) hold() (caught <-chan struct{}, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding, l.caught = true, make(chan struct{})
	return l.caught, l.release
}

// keep keeps an answer; false if none are kept any more.
func (l *local) keep(answer func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.holding {
		return false
	}
	if l.held = append(l.held, answer); len(l.held) == 1 {
		close(l.caught)
	}
	return true
}

// release lets all answers go.
func (l *local) release() {
	l.mu.Lock()
	held := l.held
	l.holding, l.held = false, nil
	l.mu.Unlock()
	for _, answer := range held {
		answer()
	}
}

// close ends the replica; what it has not executed is lost.
func (l *local) close() {
	if l.server != nil {
		_ = l.server.Close()
		l.conns.Wait()
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	_ = l.disk.Close()
}
