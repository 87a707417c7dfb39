package streamtest

import (
	"errors"
	"fmt"

	"github.com/staleproof/staleproof/streamstate"
)

// Adversaries are all that this package has; where one acts on a key, on the first and on the last one of the scenario.
var Adversaries = []Adversary{
	ByDrop(0), ByDrop(last), ByDropAndOpen(0), ByDropAndOpen(last), ByDropStream(), ByClose(),
	ByStop(0), ByStop(last), ByDrain(0), ByReopen(0), ByReopen(last),
	ByOwnerGone(0), ByOwnerGone(last), ByRelease(0), ByRelease(last), ByUnwant(0), ByContest(0), ByHigherTerm(0), ByFence(0),
	ByMerge(0), ByMerge(last), ByMergeInto(0), ByHold(0), ByHold(last), ByFlush(0), ByDue(0), ByDue(last),
	ByRepeat(), ByLose(), BySettle(), ByWithdraw(),
}

// last names the last key.
const last = -1

// errAdversary is the cause of what adversaries end.
var errAdversary = errors.New("streamtest: an adversary")

// onKey is an adversary that acts on a key of the scenario's feed, or of each watched book; it does nothing where there is
// none. Negative keys count from the end.
func onKey(name string, key int, act func(x *Trial, s subject)) Adversary {
	if key == last {
		name += "(last)"
	} else {
		name += fmt.Sprintf("(%d)", key)
	}
	return Adversary{Name: name, Act: func(x *Trial) {
		for _, keys := range x.keys() {
			if n := len(keys); n > key && n+key >= 0 {
				act(x, keys[(key+n)%n])
			}
		}
	}}
}

// keys are the keys of each book.
func (x *Trial) keys() (all [][]subject) {
	feeds, books := x.has()
	for _, f := range feeds {
		all = append(all, f.subjects())
	}
	for _, b := range books {
		all = append(all, b.subjects())
	}
	return all
}

// beside is another key of the book that s is of: of a feed one that no scenario has; nil if there is none.
func (x *Trial) beside(s subject) subject {
	if k, ok := s.(feedKey); ok {
		return k.k.f.aside()
	}
	d, _ := s.dump()
	for _, keys := range x.keys() {
		for i, o := range keys {
			if other, _ := o.dump(); other.Key == d.Key && len(keys) > 1 {
				return keys[(i+1)%len(keys)]
			}
		}
	}
	return nil
}

// ByDrop drops a key. Negative keys count from the end, here and below.
func ByDrop(key int) Adversary {
	return onKey("Drop", key, func(_ *Trial, s subject) { s.drop() })
}

// ByDropAndOpen drops a key and opens it again, which is refused while a flush runs.
func ByDropAndOpen(key int) Adversary {
	return onKey("DropAndOpen", key, func(_ *Trial, s subject) {
		s.drop()
		s.open()
	})
}

// ByDropStream drops each key of the scenario's books.
func ByDropStream() Adversary {
	return Adversary{Name: "DropStream", Act: func(x *Trial) {
		feeds, books := x.has()
		for _, f := range feeds {
			f.handle("DropStream", func() *streamstate.Handle { return f.Book.DropStream("test") })
		}
		for _, b := range books {
			for _, s := range b.subjects() {
				s.drop()
			}
		}
	}}
}

// ByClose closes the books.
func ByClose() Adversary {
	return Adversary{Name: "Close", Act: func(x *Trial) {
		feeds, books := x.has()
		for _, f := range feeds {
			f.Book.Close()
		}
		for _, b := range books {
			b.closeBook()
		}
	}}
}

// ByStop stops a session, as who asks for a recovery does.
func ByStop(key int) Adversary {
	return onKey("Stop", key, func(_ *Trial, s subject) { s.stop() })
}

// ByDrain drains a session.
func ByDrain(key int) Adversary {
	return onKey("Drain", key, func(_ *Trial, s subject) { s.drain() })
}

// ByReopen stops a session and begins the next one, in which another owner begins the first partition. While a flush runs the
// next one is refused, and the session stays stopped.
func ByReopen(key int) Adversary {
	return onKey("Reopen", key, func(_ *Trial, s subject) {
		s.stop()
		s.reopen()
		s.begin(0, "adversary", 0)
	})
}

// owners calls act for each claim that a key has.
func owners(s subject, act func(partition int, owner string, term uint64)) {
	d, _ := s.dump()
	for _, p := range d.Parts {
		for _, c := range p.Claims {
			act(p.Partition, c.Owner, c.Term)
		}
	}
}

// ByOwnerGone ends the lives of all owners.
func ByOwnerGone(key int) Adversary {
	return onKey("OwnerGone", key, func(_ *Trial, s subject) {
		owners(s, func(_ int, owner string, _ uint64) { s.ownerGone(owner) })
	})
}

// ByRelease releases all claims of a key and begins them again, by the same owners.
func ByRelease(key int) Adversary {
	return onKey("Release", key, func(_ *Trial, s subject) {
		owners(s, func(partition int, owner string, term uint64) {
			s.release(partition, owner)
			s.want(partition)
			s.begin(partition, owner, term)
		})
	})
}

// ByUnwant gives the first partition of a key up.
func ByUnwant(key int) Adversary {
	return onKey("Unwant", key, func(_ *Trial, s subject) { s.unwant(0) })
}

// ByContest has another owner begin the first partition.
func ByContest(key int) Adversary {
	return onKey("Contest", key, func(_ *Trial, s subject) { s.begin(0, "adversary", 0) })
}

// ByHigherTerm has another owner begin the first partition with a term that ends all lower ones.
func ByHigherTerm(key int) Adversary {
	return onKey("HigherTerm", key, func(_ *Trial, s subject) { s.begin(0, "adversary", 1<<32) })
}

// ByFence fences all claims of a key of a feed.
func ByFence(key int) Adversary {
	return onKey("Fence", key, func(_ *Trial, s subject) {
		if k, ok := s.(feedKey); ok {
			for _, st := range k.k.Source.Streams() {
				_ = k.k.Fence(st) // refused where it has ended
			}
		}
	})
}

// ByMerge merges a key into another; with a feed, into one that no scenario has.
func ByMerge(key int) Adversary {
	return onKey("Merge", key, func(x *Trial, s subject) {
		if o := x.beside(s); o != nil {
			s.merge(o)
		}
	})
}

// ByMergeInto merges another key into one; with a feed, one that no scenario has.
func ByMergeInto(key int) Adversary {
	return onKey("MergeInto", key, func(x *Trial, s subject) {
		if o := x.beside(s); o != nil {
			o.merge(s)
		}
	})
}

// ByHold has another key keep the flush of one closed, until faults stop.
func ByHold(key int) Adversary {
	return onKey("Hold", key, func(x *Trial, s subject) {
		if o := x.beside(s); o != nil {
			o.hold(s)
		}
	})
}

// ByFlush begins a flush, which runs until faults stop.
func ByFlush(key int) Adversary {
	return onKey("Flush", key, func(_ *Trial, s subject) { s.flush() })
}

// ByDue takes the tickets of repair that are due, which are not answered until faults stop.
func ByDue(key int) Adversary {
	return onKey("Due", key, func(_ *Trial, s subject) { s.due() })
}

// onFeed is an adversary that acts on the scenario's last feed; it does nothing if there is none.
func onFeed(name string, act func(x *Trial, f *Feed)) Adversary {
	return Adversary{Name: name, Act: func(x *Trial) {
		if f := x.Feed(); f != nil {
			act(x, f)
		}
	}}
}

// ByRepeat hands in once more the last message of each stream there ever was, and early what streams that were cut have in
// hand.
func ByRepeat() Adversary {
	return onFeed("Repeat", func(_ *Trial, f *Feed) {
		for _, k := range f.Keyspaces() {
			for _, st := range k.Source.all() {
				_ = st.Repeat() // refused, or the position where it is
				if st.isCut() {
					_ = st.DeliverAll() // refused
				}
			}
		}
	})
}

// ByLose has each source lose the last item of its first partition, and go on with another history.
func ByLose() Adversary {
	return onFeed("Lose", func(_ *Trial, f *Feed) {
		for _, k := range f.Keyspaces() {
			if n := len(k.Source.Items(0)); n > 0 {
				k.Source.Lose(0, uint64(n-1))
			}
		}
	})
}

// BySettle has everything settle.
func BySettle() Adversary {
	return onFeed("Settle", func(_ *Trial, f *Feed) { f.Settle() })
}

// ByWithdraw ends the context of the trial.
func ByWithdraw() Adversary {
	return Adversary{Name: "Withdraw", Act: func(x *Trial) { x.engine.Withdraw() }}
}
