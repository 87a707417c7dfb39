package nbd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// DefaultFileWorkers is the number of goroutines of a File where FileOptions does not say.
const DefaultFileWorkers = 4

// zeroChunk is how much is written at a time where a range cannot be zeroed otherwise.
const zeroChunk = 1 << 20

// Storage is what a File stores in: an *os.File, or something like it. It must be safe for concurrent use.
type Storage interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns after everything written before is on stable storage.
	Sync() error
}

// FileOptions configure a File.
type FileOptions struct {
	// Size of the device in bytes. Zero: the size of the *os.File; other storage must say. Reads beyond the
	// end of the storage give zeros.
	Size int64
	// ReadOnly refuses all writes.
	ReadOnly bool
	// Workers is the number of goroutines, so of operations at a time. Zero: 4.
	Workers int
}

// File is a Backend over a Storage. Its methods are safe for concurrent use and block for the I/O; Submit
// blocks until a worker is free. On an *os.File trims and zeroes punch holes where the system can; elsewhere a
// trim does nothing and zeros are written.
type File struct {
	storage Storage
	info    Info
	zeros   []byte

	work chan *Request // without a buffer: what is handed over is done
	// quit is closed by Close.
	quit    chan struct{}
	stop    func()
	workers sync.WaitGroup
}

// NewFile starts the workers of a File; Close ends them. The storage stays the caller's to close. The
// error matches ErrOptions, or is that of the file.
func NewFile(storage Storage, opts FileOptions) (*File, error) {
	if opts.Workers == 0 {
		opts.Workers = DefaultFileWorkers
	}
	if opts.Workers < 0 || opts.Size < 0 {
		return nil, fmt.Errorf("%w: Workers is %d and Size %d", ErrOptions, opts.Workers, opts.Size)
	}
	if f, ok := storage.(*os.File); ok && opts.Size == 0 {
		// Not Stat, which knows no size of a block device.
		size, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return nil, fmt.Errorf("nbd: size of the file: %w", err)
		}
		opts.Size = size
	}
	f := &File{storage: storage, info: fileInfo(opts), work: make(chan *Request), quit: make(chan struct{})}
	f.zeros = make([]byte, min(zeroChunk, max(opts.Size, 1)))
	f.stop = sync.OnceFunc(func() { close(f.quit) })
	for range opts.Workers {
		f.workers.Go(f.worker)
	}
	return f, nil
}

func fileInfo(opts FileOptions) Info {
	info := Info{Size: opts.Size, Flags: SendFlush | SendFUA | SendTrim | SendWriteZeroes | CanMultiConn}
	if opts.ReadOnly {
		info.Flags = ReadOnly | CanMultiConn
	}
	return info
}

// Info implements Backend.
func (f *File) Info() Info { return f.info }

// Submit implements Backend.
func (f *File) Submit(ctx context.Context, req *Request) {
	select {
	case f.work <- req:
		return
	case <-f.quit:
	case <-ctx.Done():
	}
	req.Release()
	req.Reply(ESHUTDOWN)
}

// Close answers what is being done, refuses the rest with ESHUTDOWN and waits for the workers. It is idempotent.
func (f *File) Close() error {
	f.stop()
	f.workers.Wait()
	return nil
}

func (f *File) worker() {
	for {
		select {
		case req := <-f.work:
			err := f.do(req)
			req.Release()
			req.Reply(err)
		case <-f.quit:
			return
		}
	}
}

// do carries a request out.
func (f *File) do(req *Request) error {
	off, n := int64(req.Offset), int64(req.Length)
	var err error
	switch req.Command {
	case CmdRead:
		return f.ReadAt(req.Data, off)
	case CmdFlush:
		return f.Flush()
	case CmdWrite:
		err = f.WriteAt(req.Data, off)
	case CmdTrim:
		err = f.Trim(off, n)
	case CmdWriteZeroes:
		err = f.Zero(off, n, req.Flags&FlagNoHole == 0)
	case CmdCache, CmdDisc:
		return EINVAL // neither is offered
	}
	if err == nil && req.Flags&FlagFUA != 0 {
		err = f.Flush()
	}
	return err
}

// ReadAt fills p. Beyond the end of the storage there are zeros.
func (f *File) ReadAt(p []byte, off int64) error {
	n, err := f.storage.ReadAt(p, off)
	if n < len(p) && errors.Is(err, io.EOF) {
		clear(p[n:])
		return nil
	}
	if n == len(p) {
		return nil
	}
	return err
}

// WriteAt writes p.
func (f *File) WriteAt(p []byte, off int64) error {
	_, err := f.storage.WriteAt(p, off)
	return err
}

// Flush returns after everything written before is on stable storage.
func (f *File) Flush() error { return f.storage.Sync() }

// Trim gives a range back where the system can; its content is undefined then.
func (f *File) Trim(off, n int64) error {
	err := f.punch(off, n, true)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil // a trim is a hint
	}
	return err
}

// Zero makes a range read as zeros; hole allows it to give up its place on the disk.
func (f *File) Zero(off, n int64, hole bool) error {
	if err := f.punch(off, n, hole); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	for n > 0 {
		step := min(n, int64(len(f.zeros)))
		if err := f.WriteAt(f.zeros[:step], off); err != nil {
			return err
		}
		off, n = off+step, n-step
	}
	return nil
}

// punch zeroes a range without writing it, or returns errors.ErrUnsupported.
func (f *File) punch(off, n int64, hole bool) error {
	file, ok := f.storage.(*os.File)
	if !ok {
		return errors.ErrUnsupported
	}
	return zeroRange(file, off, n, hole)
}
