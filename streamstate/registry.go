package streamstate

import "sync"

// registry is which records a book has. Its lock is the innermost: while it is held nothing is called and no other lock
// acquired, so a record enters and leaves it under its own lock.
type registry struct {
	mu sync.Mutex
	// +checklocks:mu
	records map[Key]*record
	// unrested counts records of which something may still run.
	// +checklocks:mu
	unrested int
	// closed resolves when the book is closed and nothing of it runs any more.
	// +checklocks:mu
	closed *Handle
}

// add lists a record that nobody has seen yet.
func (g *registry) add(key Key, r *record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed != nil {
		return &plainError{ReasonClosed}
	}
	if g.records[key] != nil {
		return &ExistsError{Key: key}
	}
	if g.records == nil {
		g.records = make(map[Key]*record)
	}
	g.records[key] = r
	g.unrested++
	return nil
}

func (g *registry) find(key Key) *record {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.records[key]
}

// forget takes a record out: from here on its key can be opened again.
func (g *registry) forget(key *Key, r *record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.records[*key] == r {
		delete(g.records, *key)
	}
}

// rested notes that nothing of a record runs any more.
func (g *registry) rested() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unrested--
	if g.unrested == 0 {
		resolve(g.closed, nil)
	}
}

// all is every record of a stream, or of all streams.
func (g *registry) all(of func(Key) bool) []*record {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*record
	for key, r := range g.records {
		if of(key) {
			out = append(out, r)
		}
	}
	return out
}

// close refuses further records. The handle resolves when nothing of the book runs any more.
func (g *registry) close() *Handle {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = newHandle()
		if g.unrested == 0 {
			resolve(g.closed, nil)
		}
	}
	return g.closed
}
