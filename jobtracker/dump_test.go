package jobtracker

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// golden compares with a file below testdata, or writes it with -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "dump", name)
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	require.Equal(t, string(readFile(t, file)), got, "%s: -update writes it", file)
}

// TestDump has a story told by dumps, as text and as JSON.
func TestDump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := idle(t, Config[int]{MaxJobs: 6, AutoSync: SyncOff})
		show := func(name string) {
			t.Helper()
			d := tr.Dump()
			golden(t, name+".txt", d.String())
			text, err := d.JSON()
			require.NoError(t, err)
			var nice bytes.Buffer
			require.NoError(t, json.Indent(&nice, text, "", "  "))
			golden(t, name+".json.txt", nice.String()+"\n")
			var back Dump
			require.NoError(t, json.Unmarshal(text, &back))
			require.Equal(t, d, back)
		}
		show("inactive")
		conns := connectAll(t, tr)
		show("active")

		submit(t, tr, write(7, 2))
		submit(t, tr, read(7, 1)) // waits for the write
		submit(t, tr, Op{Kind: Trim, Blocks: 64})
		submit(t, tr, Op{Kind: Flush})
		take(t, conns[0])
		take(t, conns[1])
		require.NoError(t, conns[1].Complete(1, Result{}))
		conns[2].Close(errDisk)
		show("away") // the third replica's jobs are held

		submit(t, tr, Op{Kind: Barrier})
		submit(t, tr, Op{Kind: Write, Start: 1, Blocks: 1})
		go func() { _, _ = tr.Submit(t.Context(), write(0, 1), 0) }()
		synctest.Wait()
		show("full")

		require.NoError(t, conns[0].Complete(1, Result{Err: errDisk}))
		show("faulted") // and with it no write can be acknowledged

		require.NoError(t, tr.Disable(nil))
		show("disabled")
	})
}

// TestDumpAuto has the tracker's own jobs, copies and stragglers.
func TestDumpAuto(t *testing.T) {
	tr, conns := running(t, Config[int]{AutoSyncJobs: 2})
	rep := startRepair(t, tr, conns, 2)
	_, err := rep.Copy(1, 0, 8, 0)
	require.NoError(t, err)
	_, err = rep.Copy(0, 8, 8, 0)
	require.NoError(t, err)
	serve(t, conns[1])
	submit(t, tr, read(20, 1))
	submit(t, tr, read(21, 1))
	submit(t, tr, read(22, 1))
	serve(t, conns[1])
	golden(t, "auto.txt", tr.Dump().String())
}

func TestDumpIsBounded(t *testing.T) {
	tr, _ := running(t, Config[int]{})
	for range dumpJobs + 44 {
		submit(t, tr, write(0, 1))
	}
	d := tr.Dump()
	require.Len(t, d.Jobs, dumpJobs)
	require.Equal(t, dumpJobs+44, d.Active)
	require.EqualValues(t, 1, d.Jobs[0].ID, "the oldest")
	require.Regexp(t, `\nand 44 more\n$`, d.String())
}
