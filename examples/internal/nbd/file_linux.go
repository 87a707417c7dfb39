package nbd

import (
	"errors"
	"os"
	"syscall"
)

// Modes of fallocate(2), which package syscall does not name.
const (
	fallocKeepSize  = 0x01
	fallocPunchHole = 0x02
	fallocZeroRange = 0x10
)

// zeroRange zeroes a range without writing it, with a hole in its place or not. It returns
// errors.ErrUnsupported where the file system cannot.
func zeroRange(f *os.File, off, n int64, hole bool) error {
	mode := uint32(fallocZeroRange | fallocKeepSize)
	if hole {
		mode = fallocPunchHole | fallocKeepSize
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Control(func(fd uintptr) {
		for {
			if result = syscall.Fallocate(int(fd), mode, off, n); !errors.Is(result, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	switch {
	case errors.Is(result, syscall.EOPNOTSUPP), errors.Is(result, syscall.ENOSYS), errors.Is(result, syscall.ENODEV):
		return errors.ErrUnsupported
	}
	return result
}
