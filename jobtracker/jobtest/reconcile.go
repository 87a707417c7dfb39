package jobtest

import "context"

// What a reconciliation does to devices, before an activation begins. Each is of one connection, as a driver's requests
// are: once that has ended the device is not touched, and the connection's cause is returned.

// CopyFrom has the device hold in some blocks what another's device does. It is not durable before Sync.
func (l *Life) CopyFrom(source *Life, start, blocks uint64) error {
	cells := source.cells(start, blocks)
	return l.during(func(d *disk) {
		for i, c := range cells {
			b := start + uint64(i)
			d.write(b, c.value, c.writer, false)
			d.top[b] = c.writer // what was there is of no account
		}
	})
}

func (l *Life) cells(start, blocks uint64) []cell {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	cells := make([]cell, blocks)
	for i := range cells {
		cells[i] = l.disk.cells[start+uint64(i)]
	}
	return cells
}

// Sync makes durable what the device holds.
func (l *Life) Sync() error { return l.during(func(d *disk) { d.sync(0, 0) }) }

// Remember has the device remember a generation and a flush number, and whether it is dirty.
func (l *Life) Remember(generation, flush uint64, dirty bool) error {
	return l.during(func(d *disk) { d.generation, d.flush, d.dirty = generation, flush, dirty })
}

// during changes the device while the connection lives.
func (l *Life) during(change func(d *disk)) error {
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	if err := context.Cause(l.conn.Context()); err != nil {
		return err
	}
	change(l.disk)
	return nil
}
