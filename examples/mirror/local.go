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
	// held is closed when replies are let go again; nil while none are held.
	// +checklocks:mu
	held chan struct{}
	// caught is closed when a reply is being held.
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
		l.server, err = nbd.NewServer(nbd.Options{Exports: []nbd.Export{{Backend: l.file}}, MaxRequest: maxRequest})
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
		l.conns.Go(func() { _ = l.server.ServeConn(&heldConn{Conn: far, l: l}) }) // how it ended is the driver's to see
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

// hold keeps all replies from now on until the function it returns is called: the replica executes and does not answer.
// caught is closed when the first one is being kept.
func (l *local) hold() (caught <-chan struct{}, release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := make(chan struct{})
	l.held, l.caught = held, make(chan struct{})
	return l.caught, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.held = nil
		close(held)
	})
}

// heldConn is the server's end of a connection to a local replica.
type heldConn struct {
	net.Conn
	l *local
}

// Write implements net.Conn.
func (c *heldConn) Write(p []byte) (int, error) {
	c.l.mu.Lock()
	held := c.l.held
	if held != nil && c.l.caught != nil {
		close(c.l.caught)
		c.l.caught = nil
	}
	c.l.mu.Unlock()
	if held != nil {
		<-held
	}
	return c.Conn.Write(p)
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
