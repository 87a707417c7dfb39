package repair

import "context"

// ExtentMeta is what a replica remembers, durably, of one extent. A device that keeps only dirty bits leaves the rest zero.
type ExtentMeta struct {
	Generation uint64 // of the activation that changed it last
	Flush      uint64 // the number of the flush that covers its last change
	Dirty      bool   // it may hold changes that another replica has not
}

// Same tells whether two replicas that remember this of an extent hold the same in it. A dirty one is like no other.
func (m ExtentMeta) Same(o ExtentMeta) bool {
	return !m.Dirty && !o.Dirty && m.Generation == o.Generation && m.Flush == o.Flush
}

// Meta is how a driver asks what replicas remember.
//
// For the answers to be worth something a replica must have set an extent's dirty bit durably before any change of the
// extent, or copy to it, was dispatched to it (R18), and may clear it only when a flush behind that is done on all
// replicas, all of them voters for it, and nothing has changed the extent since (R19).
type Meta interface {
	// Extents is what a replica remembers of each extent of the device, in their order. A blank replica remembers all of
	// them as dirty. It is called on one goroutine, and may be called again.
	Extents(ctx context.Context, replica int) ([]ExtentMeta, error)
}
