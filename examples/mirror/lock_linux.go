package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lock takes the file of a replica for this mirror alone, for as long as it is open.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("%s %w", f.Name(), errInUse)
	}
	return err
}
