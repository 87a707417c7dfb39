package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// step is one request of a workload.
type step struct {
	command nbd.Command
	fua     bool
	learn   bool // of a read: what comes is right, whatever it is
	off     int64
	length  int
}

// workload is an endless sequence of requests.
type workload func() step

// tracePath is a recorded trace beside the repository, where there is one.
const tracePath = "../shared/data/cloudphysics.csv.gz"

const longestTraced = 128 << 10 // no request of a trace is longer

// newWorkload is the recorded trace, scaled into a device of that size, or, without a trace, one of its own making.
func newWorkload(size int64) (w workload, name string, err error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, "", err
	}
	for !exists(filepath.Join(root, "go.work")) {
		if root == filepath.Dir(root) {
			return mixed(invented(size, rand.New(rand.NewPCG(1, 2)))), "a workload of its own", nil
		}
		root = filepath.Dir(root)
	}
	path := filepath.Join(root, tracePath)
	if !exists(path) {
		return mixed(invented(size, rand.New(rand.NewPCG(1, 2)))), "a workload of its own", nil
	}
	trace, err := readTrace(path, size)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	next := -1
	return mixed(func() step {
		next = (next + 1) % len(trace)
		return trace[next]
	}), fmt.Sprintf("the trace %s, of %d requests", filepath.Base(path), len(trace)), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readTrace reads reads and writes and folds them into size bytes.
func readTrace(path string, size int64) ([]step, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	var out []step
	lines := bufio.NewScanner(plain)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		s, err := parseTraced(lines.Text(), size)
		if err != nil {
			return nil, fmt.Errorf("%w: %q", err, lines.Text())
		}
		out = append(out, s)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return out, nil
}

var errTrace = errors.New("not a line of a trace")

// parseTraced reads a line: version, time, SCSI operation, bytes, first sector.
func parseTraced(line string, size int64) (step, error) {
	f := strings.Split(line, ",")
	if len(f) != 5 {
		return step{}, errTrace
	}
	n, err1 := strconv.Atoi(f[3])
	sector, err2 := strconv.ParseInt(f[4], 10, 64)
	if err1 != nil || err2 != nil || n < blockSize || n > longestTraced || sector < 0 {
		return step{}, errTrace
	}
	s := step{length: n / blockSize * blockSize, off: sector % ((size - longestTraced) / blockSize) * blockSize}
	switch f[2] {
	case "2a":
		s.command = nbd.CmdWrite
	case "28":
		s.command = nbd.CmdRead
	default:
		return step{}, errTrace
	}
	return s, nil
}

// invented is a workload with a hot tenth, of requests of 512 bytes to 64 KiB.
func invented(size int64, r *rand.Rand) workload {
	return func() step {
		s := step{command: nbd.CmdRead, length: (1 + r.IntN(8)) * blockSize}
		if r.IntN(5) < 3 {
			s.command = nbd.CmdWrite
		}
		if r.IntN(3) == 0 {
			s.length *= 16
		}
		space := size - longestTraced
		if r.IntN(2) == 0 {
			space /= 10
		}
		s.off = r.Int64N(space/blockSize) * blockSize
		return s
	}
}

// mixed adds what a trace of reads and writes lacks.
func mixed(w workload) workload {
	i := 0
	return func() step {
		i++
		switch {
		case i%500 == 0:
			return step{command: nbd.CmdFlush}
		case i%211 == 0:
			s := w()
			return step{command: nbd.CmdTrim, off: s.off, length: s.length}
		case i%173 == 0:
			s := w()
			return step{command: nbd.CmdWriteZeroes, off: s.off, length: s.length}
		}
		s := w()
		s.fua = s.command == nbd.CmdWrite && i%97 == 0
		return s
	}
}
