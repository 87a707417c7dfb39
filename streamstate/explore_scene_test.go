package streamstate

import (
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
)

// scope is how small a world is that is explored to its end.
type scope struct {
	name        string
	keys, parts int
	owners      []string
	begins      []Begin // what an owner may say; Owner is filled in
	opens       []OpenOptions[int]
	top         uint64  // the highest position that is handed in; 0: no data
	holds       int     // that are out at most
	most        int     // merges that wait at most
	limit       int     // states; 0: all
	without     []uint8 // events that do not happen
}

// scene is a state: the cores and the merges that wait. It shares nothing that changes with any other.
type scene struct {
	cores  [2]core
	merges []*merge
	looks  [2][]*merge // the merges that are looked at after a change of each key
	number int32       // in which order it was reached
}

// The present session of a key has a number of its own, whatever came before; so has one that was superseded.
const (
	presentSession = 10
	staleSession   = 5
)

// stage is where events happen: two records whose cores are put there and taken away. Their gates, holds and merges are
// the package's own.
type stage struct {
	scope
	book   *Book[int]
	e      [2]*entry[int]
	h      [2]*held
	s      [2]*Session[int]
	stale  [2]*Session[int]
	merges []*merge
	copies copier
}

func newStage(sc scope) (*stage, error) {
	x := &stage{scope: sc, book: NewBook[int](Options{})}
	for i := range sc.keys {
		s, err := x.book.Open(walkKeys[i], OpenOptions[int]{Partitions: sc.parts, Wanted: None})
		if err != nil {
			return nil, err
		}
		e := s.e
		x.e[i] = e
		_ = e.do(token{op: opLook}, func(k *held) error { // allowed in every phase
			x.h[i] = k
			return nil
		})
		x.s[i], x.stale[i] = &Session[int]{e: e, n: presentSession + uint64(i)}, &Session[int]{e: e, n: staleSession + uint64(i)}
		x.h[i].core = core{phase: Gone, lim: x.h[i].lim, cold: &cold{key: x.h[i].key, cause: causeMerged}}
	}
	x.book.c.sessions.Store(1000)
	x.book.c.others.Store(1000)
	x.normalise()
	return x, nil
}

// copier copies what cores point at and may change.
type copier struct {
	facts  []*claimFacts
	claims []*Claim[int] // the copies
	whos   [][2]*claimant
	holds  [][2]*hold
}

// claimant is a copy that belongs to the session on the stage.
func (c *copier) claimant(s *Session[int], w *claimant) *claimant {
	if w == nil {
		return nil
	}
	for _, known := range c.whos {
		if known[0] == w {
			return known[1]
		}
	}
	n := *w
	n.home.session, n.home.handle = s.n, s
	c.whos = append(c.whos, [2]*claimant{w, &n})
	return &n
}

func (c *copier) claim(s *Session[int], f *claimFacts) *claimFacts {
	if f == nil {
		return nil
	}
	if i := slices.Index(c.facts, f); i >= 0 {
		return &c.claims[i].facts
	}
	n := &Claim[int]{facts: *f}
	n.facts.claimant = c.claimant(s, f.claimant)
	c.facts, c.claims = append(c.facts, f), append(c.claims, n)
	return &n.facts
}

func (c *copier) list(s *Session[int], fs []*claimFacts) {
	for i, f := range fs {
		fs[i] = c.claim(s, f)
	}
}

func (c *copier) ticket(s *Session[int], t *ticket) *ticket {
	if t == nil {
		return nil
	}
	n := *t
	n.claims = slices.Clone(t.claims)
	c.list(s, n.claims)
	return &n
}

func (c *copier) hold(h *hold) *hold {
	for _, known := range c.holds {
		if known[0] == h {
			return known[1]
		}
	}
	n := &hold{id: h.id, holder: h.holder, target: h.target, cause: h.cause}
	c.holds = append(c.holds, [2]*hold{h, n})
	return n
}

// fresh is a handle that has ended only if h has.
func fresh(h *Handle) *Handle {
	if h == nil || !open(h) {
		return h
	}
	return newHandle()
}

// put puts a copy of a scene on the stage.
func (x *stage) put(from *scene) {
	c := &x.copies
	c.facts, c.claims, c.whos, c.holds = c.facts[:0], c.claims[:0], c.whos[:0], c.holds[:0]
	for i := range x.keys {
		k, s := x.h[i], x.s[i]
		k.core = from.cores[i].clone()
		for p := range k.parts {
			x.copyPart(s, &k.parts[p])
		}
		for j, w := range k.claimants {
			k.claimants[j] = c.claimant(s, w)
		}
		k.ticket = c.ticket(s, k.ticket)
		if f := k.flush; f != nil {
			k.flush = &flush{id: f.id, target: f.target, life: f.life}
		}
		for _, hs := range [...][]*hold{k.holds, k.taken} {
			for j, h := range hs {
				hs[j] = c.hold(h)
			}
		}
		for j := range k.releases {
			k.releases[j].handle = newHandle()
		}
		k.stopped, k.dropped = fresh(k.stopped), fresh(k.dropped)
		s.life = k.cause
		x.e[i].begin(k, s)
		k.merges = k.merges[:0]
		x.listen(i)
	}
	x.merges = x.merges[:0]
	for _, m := range from.merges {
		n := &merge{id: m.id, from: m.from, into: m.into, tf: m.tf, ti: m.ti, ready: m.ready, run: m.run, handle: newHandle()}
		x.merges = append(x.merges, n)
		for i := range x.keys {
			if slices.Contains(from.looks[i], m) {
				x.h[i].join(n)
			}
		}
	}
}

func (x *stage) copyPart(s *Session[int], p *partition) {
	p.claim.facts = x.copies.claim(s, p.claim.facts)
	if p.x == nil {
		return
	}
	for i := range p.x.more {
		p.x.more[i].facts = x.copies.claim(s, p.x.more[i].facts)
	}
	x.copies.list(s, p.x.listed)
	x.copies.list(s, p.x.last)
	p.x.ticket = x.copies.ticket(s, p.x.ticket)
}

// listen has somebody wait for a change of a key.
func (x *stage) listen(i int) {
	k := x.h[i]
	if k.slow.n == 0 {
		k.slow = listeners{n: 1, ch: make(chan struct{})}
	}
	k.tally()
}

// take takes the state off the stage, which must be put anew.
func (x *stage) take() *scene {
	sc := &scene{merges: slices.Clone(x.merges)}
	for i := range x.keys {
		sc.cores[i], sc.looks[i] = x.h[i].core, slices.Clone(x.h[i].merges)
	}
	return sc
}

// normalise gives everything that has a number the least one, and forgets what nothing depends on: states that differ in
// nothing else are the same state.
func (x *stage) normalise() {
	id := uint64(0)
	for i := range x.keys {
		for _, h := range x.h[i].taken {
			id++
			h.id = id
		}
	}
	x.merges = slices.DeleteFunc(x.merges, func(m *merge) bool { return !open(m.handle) })
	for _, m := range x.merges {
		id++
		old := m.id
		m.id = id
		for i := range x.keys {
			if k := x.h[i]; k.merging == old {
				k.merging = m.id
			}
		}
	}
	for i := range x.keys {
		x.normaliseCore(i)
	}
}

func (x *stage) normaliseCore(i int) {
	k := &x.h[i].core
	k.session = presentSession + uint64(i)
	k.id = x.book.c.id(k.session)
	k.ticks = true // the stage has no clock: a deadline passes when an event says so
	if k.phase == Gone {
		apart := &cold{key: k.key, id: k.id, cause: causeMerged, dropped: resolvedHandle(nil)}
		*k = core{phase: Gone, lim: k.lim, session: k.session, ticks: true, cold: apart}
		return
	}
	k.claims, k.tickets = 0, 0
	number := func(t *ticket) {
		if t != nil {
			k.tickets++
			t.id, t.tries = k.tickets, min(t.tries, 1)
		}
	}
	number(k.ticket)
	if k.flush != nil {
		k.tickets++
		k.flush.id = k.tickets
	}
	for _, f := range x.known(i) {
		k.claims++
		f.name = nameClaim(k.claims, int(f.part()))
	}
	for p := range k.parts {
		number(k.parts[p].ticket())
		k.parts[p].tries = min(k.parts[p].tries, 1) // that there are more is only told
	}
}

// known are the claims that a core knows, dead or alive, in an order that only its state decides.
func (x *stage) known(i int) (out []*claimFacts) {
	add := func(f *claimFacts) {
		if f != nil && !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	for j := range x.h[i].parts {
		p := &x.h[i].parts[j]
		add(p.claim.facts)
		if p.x == nil {
			continue
		}
		for _, l := range p.x.more {
			add(l.facts)
		}
		for _, fs := range [...][]*claimFacts{p.x.listed, p.x.last} {
			for _, f := range fs {
				add(f)
			}
		}
		if t := p.x.ticket; t != nil {
			for _, f := range t.claims {
				add(f) // those struck off as well
			}
		}
	}
	return out
}

// claim is the n-th of the known claims, nil if there are less.
func (x *stage) claim(i, n int) *Claim[int] {
	known := x.known(i)
	if n >= len(known) {
		return nil
	}
	for _, c := range x.copies.claims {
		if &c.facts == known[n] {
			return c
		}
	}
	return nil
}

// print appends all that further answers depend on: the cores by the package's own fingerprint.
func (x *stage) print(b []byte) []byte {
	for i := range x.keys {
		b = x.h[i].appendState(b)
	}
	for _, m := range x.merges {
		if open(m.handle) {
			b = binary.AppendUvarint(append(b, byte(x.of(m.from)), byte(x.of(m.into))), m.id)
		}
	}
	return b
}

// of is which key a record is.
func (x *stage) of(r *record) int {
	if r == x.h[0].r {
		return 0
	}
	return 1
}

var printSeed = maphash.MakeSeed()

func (x *stage) hash() uint64 { return maphash.Bytes(printSeed, x.print(nil)) }

// String shows the stage to a person who looks for a fault.
func (x *stage) String() string {
	s := ""
	for i := range x.keys {
		k := x.h[i]
		s += fmt.Sprintf("%v: %v flush %v merging %d holds %d taken %d ticket %v retry %v;", k.key, k.phase, k.flush != nil, k.merging,
			len(k.holds), len(k.taken), k.ticket != nil, k.retryAt != noAlarm)
		for j := range k.parts {
			p := &k.parts[j]
			s += fmt.Sprintf(" %d %v %v received %v alarm %v flags %b ticket %v,", j, p.state, p.rung, p.received, p.at.what(), p.flags, p.ticket() != nil)
		}
		s += "\n"
	}
	return s + fmt.Sprintf("%d merges", len(x.merges))
}
