package jobtest

import (
	"fmt"

	"github.com/staleproof/staleproof/jobtracker"
)

// cell is a block and who wrote it last.
type cell struct {
	value  uint64
	writer jobtracker.JobID
}

// disk is a device in memory and what it remembers. It is guarded by the mutex of the replica that it stands in; one that
// was replaced goes on for the connections it had.
type disk struct {
	id         jobtracker.ID
	generation uint64
	flush      uint64
	dirty      bool // written since the last flush that it remembers
	cells      map[uint64]cell
	undo       map[uint64]cell // blocks written since the last flush, as they were then
	top        map[uint64]jobtracker.JobID
}

func newDisk(id jobtracker.ID) *disk {
	return &disk{id: id, cells: map[uint64]cell{}, undo: map[uint64]cell{}, top: map[uint64]jobtracker.JobID{}}
}

func (d *disk) write(block uint64, value uint64, writer jobtracker.JobID, durable bool) {
	if _, ok := d.undo[block]; !ok {
		d.undo[block] = d.cells[block]
	}
	d.cells[block] = cell{value, writer}
	d.top[block] = max(d.top[block], writer)
	d.dirty = true
	if durable {
		delete(d.undo, block)
	}
}

func (d *disk) read(start, blocks uint64) []uint64 {
	data := make([]uint64, blocks)
	for i := range data {
		data[i] = d.cells[start+uint64(i)].value
	}
	return data
}

// sync makes everything durable, and remembers the number if there is one.
func (d *disk) sync(generation, number uint64) {
	clear(d.undo)
	if number != 0 {
		d.generation, d.flush, d.dirty = generation, number, false
	}
}

// crash loses what was not flushed.
func (d *disk) crash() {
	for block, c := range d.undo {
		d.cells[block] = c
		d.top[block] = c.writer
	}
	clear(d.undo)
}

// copyOf makes d equal to another device, and clean.
func (d *disk) copyOf(o *disk) {
	d.generation, d.flush, d.dirty = o.generation, o.flush, false
	clear(d.cells)
	clear(d.undo)
	clear(d.top)
	for block, c := range o.cells {
		d.cells[block] = c
		d.top[block] = c.writer
	}
}

// check finds a block whose last writer is not the highest one.
func (d *disk) check() error {
	for block, top := range d.top {
		if c := d.cells[block]; c.writer != top {
			return fmt.Errorf("block %d was written last by job %d, but job %d wrote it before", block, c.writer, top)
		}
	}
	return nil
}

// differs finds a block in which two devices differ.
func (d *disk) differs(o *disk) (block uint64, differs bool) {
	for b, c := range d.cells {
		if o.cells[b].value != c.value {
			return b, true
		}
	}
	for b, c := range o.cells {
		if d.cells[b].value != c.value {
			return b, true
		}
	}
	return 0, false
}
