package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/staleproof/staleproof/examples/internal/nbd"
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
	if size > 0 {
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
