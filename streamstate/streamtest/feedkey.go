package streamtest

import "github.com/staleproof/staleproof/streamstate"

// feedKey is a key of a feed as adversaries see it.
type feedKey struct{ k *Keyspace }

func (f *Feed) subjects() []subject {
	var out []subject
	for _, k := range f.Keyspaces() {
		out = append(out, feedKey{k})
	}
	return out
}

// aside is a key beside those of the scenario, opened when an adversary first needs it.
func (f *Feed) aside() subject {
	for _, k := range f.Keyspaces() {
		if k.Key.Keyspace == asideName {
			return feedKey{k}
		}
	}
	k := f.Add(asideName, OpenOptions{Wanted: streamstate.None})
	_, _ = k.TryOpen() // refused if the book is closed
	return feedKey{k}
}

const asideName = "aside"

func (s feedKey) dump() (streamstate.Dump, bool) {
	if t := s.k.Session(); t != nil {
		return t.Dump(), true
	}
	return streamstate.Dump{}, false
}

func (s feedKey) open()   { _, _ = s.k.TryOpen() }
func (s feedKey) reopen() { _, _ = s.k.TryReopen(streamstate.Timestamp{}, false) }
func (s feedKey) stop()   { s.k.Stop(errAdversary) }
func (s feedKey) drain()  { s.k.Drain() }
func (s feedKey) drop()   { s.k.Drop() }

func (s feedKey) ownerGone(owner string) {
	if t := s.k.Session(); t != nil {
		_ = s.k.Source.LoseOwner(t.ID(), owner)
	}
}

func (s feedKey) release(partition int, owner string) {
	for _, st := range s.k.Source.Streams() {
		if st.Partition() == partition && st.Owner() == owner {
			s.k.Release(st)
		}
	}
}

func (s feedKey) unwant(partition int) { s.k.Unwant(partition) }
func (s feedKey) want(partition int)   { _ = s.k.Want(partition) }
func (s feedKey) begin(partition int, owner string, term uint64) {
	_, _ = s.k.TryStart(partition, owner, term)
}
func (s feedKey) flush() { _, _ = s.k.StartFlush() }
func (s feedKey) due()   { s.k.Poll() }

func (s feedKey) hold(target subject) {
	if t, ok := target.(feedKey); ok {
		_, _ = s.k.f.Hold(s.k, t.k)
	}
}

func (s feedKey) merge(into subject) {
	if t, ok := into.(feedKey); ok {
		s.k.f.Merge(s.k, t.k, nil)
	}
}
