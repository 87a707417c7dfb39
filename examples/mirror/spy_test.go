package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// spy is a replica that holds every change it is asked for against what its metadata says at that moment.
type spy struct {
	*nbd.File
	size    int64
	changes atomic.Int64
	slow    atomic.Int64 // how long a copy of the metadata takes, in nanoseconds
	wrong   atomic.Pointer[string]
}

// Info does not offer trim: none is to be sent.
func (s *spy) Info() nbd.Info {
	i := s.File.Info()
	i.Flags &^= nbd.SendTrim
	return i
}

func (s *spy) Submit(ctx context.Context, r *nbd.Request) {
	change := r.Command == nbd.CmdWrite || r.Command == nbd.CmdWriteZeroes
	switch {
	case change && int64(r.Offset) < s.size:
		s.changes.Add(1)
		if why := s.look(r); why != "" {
			s.wrong.CompareAndSwap(nil, &why)
		}
	case change && s.slow.Load() > 0:
		time.AfterFunc(time.Duration(s.slow.Load()), func() { s.File.Submit(ctx, r) })
		return
	}
	s.File.Submit(ctx, r)
}

func (s *spy) look(r *nbd.Request) string {
	copies := make([]byte, 2*maxMeta)
	if err := errors.Join(s.ReadAt(copies[:maxMeta], s.size), s.ReadAt(copies[maxMeta:], s.size+metaStride)); err != nil {
		return err.Error()
	}
	m, _, err := newest(copies[:maxMeta], copies[maxMeta:])
	if errors.Is(err, errBlank) && r.Command == nbd.CmdWriteZeroes {
		return "" // it is being made
	}
	if err != nil {
		return "a change before the metadata: " + err.Error()
	}
	from, to := m.span(r.Offset/blockSize, uint64(r.Length)/blockSize)
	for e := from; e < to; e++ {
		if !m.dirty.has(e) {
			return "a change to an extent whose bit is not durable"
		}
	}
	if m.clean {
		return "a change to a replica that says it is clean"
	}
	return ""
}

// served offers a backend as a real server would.
func served(t *testing.T, b nbd.Backend) (uri string) {
	t.Helper()
	srv, err := nbd.NewServer(nbd.Options{Exports: []nbd.Export{{Name: "disk", Backend: b}}})
	require.NoError(t, err)
	ln := listen(t)
	end := make(chan error, 1)
	go func() { end <- srv.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, srv.Close())
		require.ErrorIs(t, <-end, nbd.ErrServerClosed)
	})
	return clientURI(ln.Addr()) + "/disk"
}

// newSpies are three spies over blank disks, and the flags that name them.
func newSpies(t *testing.T, size int64) (spies []*spy, args []string) {
	t.Helper()
	for range 3 {
		s := &spy{File: blankFile(t, size), size: size}
		spies, args = append(spies, s), append(args, "-replica", served(t, s))
	}
	return spies, args
}

// requireGood: the spies have seen changes, and nothing wrong.
func requireGood(t *testing.T, spies []*spy) {
	t.Helper()
	for i, s := range spies {
		if why := s.wrong.Load(); why != nil {
			require.Fail(t, *why, "replica %d", i)
		}
		require.Positive(t, s.changes.Load())
	}
}

// TestDirtyBitsComeFirst: no change reaches a replica before the dirty bits of its extents and the generation are durable
// there, whatever is cut and cleared in between.
func TestDirtyBitsComeFirst(t *testing.T) {
	const size = 8 << 20
	args := []string{"-create"}
	spies, uris := newSpies(t, size)
	args = append(args, uris...)
	var model []byte
	for round := range 3 {
		r := newRig(t, args...)
		c := r.client()
		copy(c.model, model)
		w := load(size)
		for i := range 3 {
			require.NoError(t, c.run(w, 300))
			r.back(i, func() {
				r.drivers[i].cut(errCut)
				require.NoError(t, c.run(w, 100))
			})
		}
		require.NoError(t, c.check())
		require.NoError(t, c.close())
		r.end()
		model = c.model
		if round == 0 {
			_, err := tryRig(t, args...)
			require.ErrorContains(t, err, "-create overwrites nothing")
			args = args[1:]
		}
	}
	requireGood(t, spies)

	// Bits that are left because a replica is missing allow nothing before the new generation is durable, however long
	// that takes.
	for i := range 2 {
		r := newRig(t, args...)
		c := r.client()
		copy(c.model, model)
		if i == 0 {
			require.NoError(t, r.tracker.Fault(2, errCut))
		}
		require.NoError(t, c.run(load(size), 100))
		require.NoError(t, c.close())
		r.end()
		model = c.model
		spies[0].slow.Store(int64(50 * time.Millisecond))
	}
	requireGood(t, spies)
}
