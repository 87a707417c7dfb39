package streamstate

import "math/bits"

// slot is where a live claim stands in its partition.
func (k *core) slot(p *partition, c *claimFacts) *claim {
	if p.claim.facts == c {
		return &p.claim
	}
	return k.among(p, c)
}

// weigh decides what becomes of data up to pos from a live claim, and refuses what cannot be taken.
func (k *core) weigh(op Op, c *claimFacts, pos *Position) (verdict, error) {
	p := &k.parts[c.part()]
	l := k.slot(p, c)
	if !pos.valid() {
		return 0, badArgument("position", pos.Next, "Next below 2^64-1, SnapStart <= SnapEnd")
	}
	v := judge(pos.Next, l.next, p.received.Next, c.rollTo != nil)
	switch v {
	case dataBelow:
		return v, k.dataError(op, ReasonPosition, c, pos.Next, l.next)
	case dataRollBack:
		return v, k.dataError(op, ReasonMustRollBack, c, pos.Next, c.rollTo.Next)
	case dataApplied, dataSkipped, dataSame:
	}
	return v, nil
}

// checkPart is one part of a batch, off the good path.
func (k *core) checkPart(op Op, c *claimFacts, pos *Position) error {
	switch {
	case !k.lives(c):
		return k.staleClaim(op, c)
	case k.parts[c.part()].flags&flagBatch != 0:
		return badArgument("batch", "partition "+itoa(int(c.part()))+" twice", "each partition once")
	}
	_, err := k.weigh(op, c, pos)
	return err
}

func (k *core) dataError(op Op, why Reason, c *claimFacts, given, want uint64) error {
	return &PartitionError{
		Key: k.key, Partition: c.part(), Op: op, Reason: why, State: k.parts[c.part()].state, Claim: c.id(), Given: given, Want: want,
	}
}

// advance moves a live claim's next, and what is received if pos is beyond it.
func (k *core) advance(c *claimFacts, pos *Position) error {
	p := &k.parts[c.part()]
	l := &p.claim
	if l.facts != c {
		l = k.among(p, c)
	}
	if pos.Next <= l.next || c.rollTo != nil || !pos.valid() {
		_, err := k.weigh(OpAdvance, c, pos)
		return err // or it is where it was
	}
	k.move(p, l, c, pos)
	return nil
}

// move is what data that was not refused does: the claim has accepted it.
func (k *core) move(p *partition, l *claim, c *claimFacts, pos *Position) {
	l.next = pos.Next
	if pos.Next > p.received.Next {
		p.received = *pos
		i := uint(c.part())
		k.dirty[i>>(chunkShift+6)] |= 1 << (i >> chunkShift & 63)
	}
	if p.rung != RungRestart || p.flags&flagTried != 0 {
		k.steady(p)
	}
	if k.ears&earsMoves != 0 {
		k.due |= dueMoved
	}
}

// steady resets the ladder of a partition whose claim has accepted data.
func (k *core) steady(p *partition) {
	p.rung = RungRestart
	p.flags &^= flagTried
	if k.lim.lengths[alarmStable] < 0 {
		p.tries = 0 // else it must live for a while: data may come and end again and again
	}
	if p.state == Begun && p.tries == 0 {
		p.at = noAlarm
	}
}

// dirtyChunks is how many chunks have changed since the last Timestamp.
func (k *core) dirtyChunks() int {
	n := 0
	for _, w := range k.dirty {
		if w != 0 {
			n += bits.OnesCount64(w)
		}
	}
	return n
}

// spare is memory for a Timestamp that was allocated before the hold: a draft of the last one with some room.
type spare struct {
	from, draft *vector
	room        int
}

func newSpare(from *vector, partitions, room int) spare {
	last := from
	if last == nil {
		last = newVector(partitions)
	}
	return spare{from, last.draft(room), room}
}

// fits tells whether s is still a draft of the last Timestamp, with room for all that has changed.
func (k *core) fits(s spare) bool { return k.received.v == s.from && k.dirtyChunks() <= s.room }

// snapshot is the vector of what is received, drawn up in what fits.
func (k *core) snapshot(s spare) Timestamp {
	for w, word := range k.dirty {
		for ; word != 0; word &= word - 1 {
			at := w<<6 + bits.TrailingZeros64(word)
			k.copyChunk(at, s.draft.put(at, &noChunk))
		}
		k.dirty[w] = 0
	}
	k.received = Timestamp{s.draft}
	return k.received
}

// copyChunk copies the received positions of a chunk. The ledger has room for whole chunks.
func (k *core) copyChunk(at int, c *chunk) {
	base := at << chunkShift
	parts := k.parts[base:min(base+chunkLen, cap(k.parts)):cap(k.parts)]
	for i := range parts {
		c[i] = parts[i].received
	}
	for i := len(k.parts) - base; i < chunkLen; i++ {
		c[i] = absent
	}
}

// timestamp is the vector of what is received, allocated in the hold.
func (k *core) timestamp() Timestamp {
	n := k.dirtyChunks()
	if n == 0 && k.received.v != nil {
		return k.received
	}
	return k.snapshot(newSpare(k.received.v, len(k.parts), n))
}

// giveUp forgets the positions of a partition. A flush that covers it will not vouch for it, and a recovery is not to
// begin from where it was.
func (k *core) giveUp(i int, p *partition) {
	if t := k.ticket; t != nil && t.kind == workRecover {
		if at := t.restart.at(i); at.present() {
			k.endTicket(t, causeUnwanted)
		}
	}
	if p.flags&flagCovered != 0 {
		p.flags |= flagBroken
	}
	if p.received.present() {
		k.receive(i, p, absent)
	}
	p.tries = 0
	p.flags &^= flagTried
	k.flushed = k.flushed.without(i)
	k.restart = k.restart.without(i)
}

func (t Timestamp) without(p int) Timestamp {
	if t.v == nil || !t.v.at(p).present() {
		return t
	}
	e := t.edit(t.v.n)
	e.set(p, absent)
	return e.done()
}

// seed gives a partition that becomes wanted the position that the session was opened with.
func (k *core) seed(i int, p *partition) {
	pos := k.restart.at(i)
	if !pos.present() {
		return
	}
	k.receive(i, p, pos)
	e := k.flushed.edit(len(k.parts))
	e.set(i, pos)
	k.flushed = e.done()
	k.restart = k.restart.without(i)
}

// want makes a partition ours to follow.
func (k *core) want(i int) error {
	if err := k.inRange(i); err != nil {
		return err
	}
	p := &k.parts[i]
	if p.state != Unwanted {
		return nil
	}
	if k.phase > Active { // the intent only: the next session begins with it
		p.state = Idle
		k.changed()
		return nil
	}
	f := facts{rung: p.rung, left: int32(len(p.listed())), is: given(p.flags&flagCovered != 0, isCovered)}
	to, why := nextPartition(p.state, evWant, f)
	if why != 0 {
		return &PartitionError{Key: k.key, Partition: int32(i), Op: OpWant, Reason: why, State: p.state}
	}
	k.seed(i, p)
	k.step(i, evWant, f, to)
	return nil
}

// unwant gives a partition up; h resolves when no running flush covers it.
func (k *core) unwant(i int, h *Handle) error {
	if err := k.inRange(i); err != nil {
		return err
	}
	p := &k.parts[i]
	switch {
	case p.state == Unwanted:
	case k.phase > Active:
		p.state = Unwanted
		p.flags |= flagForget
		if p.flags&flagCovered != 0 {
			p.flags |= flagBroken
		}
		k.changed()
	default:
		k.removeAll(p, causeGivenUp)
		k.giveUp(i, p)
		k.step(i, evUnwant, facts{rung: p.rung}, Unwanted)
	}
	k.awaitRelease(i, h)
	return nil
}

// awaitRelease resolves a handle when no running flush covers the partition.
func (k *core) awaitRelease(i int, h *Handle) {
	if p := &k.parts[i]; p.state == Unwanted && p.flags&flagCovered != 0 {
		k.releases = append(k.releases, release{int32(i), h})
		return
	}
	k.resolve(h, nil)
}
