package jobtracker

import (
	"log/slog"
	"math"
	"time"
)

// Config is what a tracker is made of. Replicas, Blocks and BlockSize must be given; every other field has a default
// for its zero value. It is copied by [New].
type Config[P any] struct {
	// Replicas is how many replicas there are, 1 to [MaxReplicas], numbered from 0.
	Replicas int
	// Blocks is the device's size in blocks, 1 to 2^62/BlockSize.
	Blocks uint64
	// BlockSize is a block's size in bytes, 1 to 2^30. It is needed for limits in bytes only.
	BlockSize uint32

	// WriteQuorum is how many voters must have done a write before it is acknowledged, 1 to Replicas. Zero: a majority.
	WriteQuorum int
	// Order says who keeps the order of jobs on a replica. Zero: the tracker.
	Order Order
	// Reads says how many voters a read is dispatched to. Zero: one, the next one when it fails.
	Reads Reads
	// WriteBack acknowledges a write, zero or trim without FUA at admission. One that fails later fails the next flush.
	WriteBack bool
	// Mismatch is what happens to a replica whose answer to a read differs. Zero: it is reported.
	Mismatch Mismatch

	// MaxJobs is how many jobs may be outstanding on one replica before Submit waits, 1 to 2^20. Zero: 1,024.
	MaxJobs int
	// MaxBytes is how many bytes of jobs may be outstanding on one replica before Submit waits, and the largest job, at
	// least BlockSize. Zero: 256 MiB.
	MaxBytes int64
	// OfflineJobs is how many jobs, the tracker's own included, are kept for the replay of one replica that is away; with
	// more it is faulted. At most
	// MaxJobs. Zero: MaxJobs/2, at least 1.
	OfflineJobs int
	// OfflineBytes is how many bytes of jobs are kept for the replay of one replica that is away; with more it is
	// faulted. At most MaxBytes. Zero: MaxBytes/2.
	OfflineBytes int64
	// OfflineFor is how long a replica may be away before it is faulted. Zero: 30 s. Negative: for ever. Admission
	// does not wait for it meanwhile.
	OfflineFor time.Duration
	// ReplyTimeout is how long a replica that owes answers may give none before its connection is ended. It is looked at
	// eight times as often, so that the end comes between ReplyTimeout and 9/8 of it. Zero: 10 s. Negative: never.
	ReplyTimeout time.Duration

	// AutoSync is what is inserted when AutoSyncJobs or AutoSyncBytes of work have been resolved since the last flush or
	// barrier, so that jobs can be retired. Zero: a flush.
	AutoSync SyncKind
	// AutoSyncJobs is in jobs. Zero: OfflineJobs/2, at least 1, so that a replica can drop at any time and replay.
	AutoSyncJobs int
	// AutoSyncBytes is in bytes. Zero: OfflineBytes/2, at least 1.
	AutoSyncBytes int64

	// ExtentBlocks is how many blocks an extent has: what a repair copies, compares and proves clean as one. A replica of
	// which not all extents are in one state needs 8 bytes for each. Zero: the smallest power of two that makes at most
	// 65,536 extents, but no more than 16 MiB. At most MaxBytes.
	ExtentBlocks uint64

	// OnResolve, if set, is called once for each job that Submit or Copy returned, after it was resolved.
	OnResolve func(Resolved[P])
	// OnRetire, if set, is called once for each job that Submit or Copy returned when it has been resolved, and no replica
	// will be sent it again. The sender of a connection that has ended may still hold a [Dispatch] of it: a buffer may be
	// used again only when that has let go of it.
	OnRetire func(Retired[P])
	// OnEvent, if set, is called for each change of a replica or of the activation, and each mismatch.
	OnEvent func(Event)
	// Logger gets a line for each event. Nil: silent.
	Logger *slog.Logger
	// Gap, if set, is called before each acquisition of the tracker's lock, with no lock held, on the goroutine that is
	// about to acquire it. It is meant for tests, which let an adversary go first; see package jobtest.
	Gap func()
}

// limits is the configuration as the core sees it: checked, and without the zero values.
type limits struct {
	n             int
	all           uint8 // a bit for each replica
	blocks        uint64
	blockSize     uint64
	payload       [numKinds]int64  // bytes of payload for each block of a job
	maxBlocks     [numKinds]uint64 // of one job; 0 for kinds that have no blocks, or are not the caller's
	quorum        int
	order         Order
	reads         Reads
	writeBack     bool
	mismatch      Mismatch
	maxJobs       uint32
	maxBytes      int64
	offlineJobs   uint32
	offlineBytes  int64
	offlineFor    time.Duration
	replyLook     time.Duration // an eighth of ReplyTimeout; 0: never
	autoSync      SyncKind
	autoSyncJobs  uint64
	autoSyncBytes int64
	extent        uint64 // in blocks
	maxCallbacks  int    // callbacks waiting to be run beyond which admission waits
}

const (
	maxJobsLimit  = 1 << 20
	maxDevice     = 1 << 62 // bytes
	maxBlockSize  = 1 << 30
	replyLooks    = 8
	defaultJobs   = 1024
	defaultBytes  = 256 << 20
	defaultAway   = 30 * time.Second
	defaultReply  = 10 * time.Second
	maxSyncJobs   = 1 << 24
	callbackSlack = 4 // in MaxJobs
	maxExtent     = 16 << 20
	fewExtents    = 1 << 16
)

// limits checks the configuration and fills in the defaults.
func (c *Config[P]) limits() (limits, error) {
	var bad *ConfigError
	number := func(field string, got, def, low, high int64) int64 {
		if got == 0 {
			got = def
		}
		if (got < low || got > high) && bad == nil {
			bad = &ConfigError{Field: field, Got: got, Min: low, Max: high}
		}
		return got
	}
	n := number("Replicas", int64(c.Replicas), 0, 1, MaxReplicas)
	size := number("BlockSize", int64(c.BlockSize), 0, 1, maxBlockSize)
	blocks := number("Blocks", int64(min(c.Blocks, math.MaxInt64)), 0, 1, maxDevice/max(size, 1)) // what does not fit is too large
	quorum := number("WriteQuorum", int64(c.WriteQuorum), n/2+1, 1, n)
	number("Order", int64(c.Order), 0, 0, numOrders-1)
	number("Reads", int64(c.Reads), 0, 0, numReads-1)
	number("Mismatch", int64(c.Mismatch), 0, 0, numMismatches-1)
	number("AutoSync", int64(c.AutoSync), 0, 0, numSyncs-1)
	jobs := number("MaxJobs", int64(c.MaxJobs), defaultJobs, 1, maxJobsLimit)
	bytes := number("MaxBytes", c.MaxBytes, max(defaultBytes, size), size, maxDevice)
	offJobs := number("OfflineJobs", int64(c.OfflineJobs), max(jobs/2, 1), 1, jobs)
	offBytes := number("OfflineBytes", c.OfflineBytes, max(bytes/2, 1), 1, bytes)
	syncJobs := number("AutoSyncJobs", int64(c.AutoSyncJobs), max(offJobs/2, 1), 1, maxSyncJobs)
	syncBytes := number("AutoSyncBytes", c.AutoSyncBytes, max(offBytes/2, 1), 1, maxDevice)
	extent := number("ExtentBlocks", int64(min(c.ExtentBlocks, math.MaxInt64)), extentFor(blocks, min(bytes, maxExtent)/max(size, 1)), 1, bytes/max(size, 1))
	if bad != nil {
		return limits{}, bad
	}
	most := min(math.MaxUint32, uint64(bytes/size))
	return limits{
		n: int(n), all: uint8(1<<n - 1), blocks: uint64(blocks), blockSize: uint64(size), quorum: int(quorum),
		payload:   [numKinds]int64{Read: size, Write: size, Copy: size},
		maxBlocks: [numKinds]uint64{Read: most, Write: most, Zero: math.MaxUint32, Trim: math.MaxUint32},
		order:     c.Order, reads: c.Reads, writeBack: c.WriteBack, mismatch: c.Mismatch,
		maxJobs: uint32(jobs), maxBytes: bytes, offlineJobs: uint32(offJobs), offlineBytes: offBytes,
		offlineFor: duration(c.OfflineFor, defaultAway), replyLook: look(duration(c.ReplyTimeout, defaultReply)),
		autoSync: c.AutoSync, autoSyncJobs: uint64(syncJobs), autoSyncBytes: syncBytes,
		extent:       uint64(extent),
		maxCallbacks: int(jobs) * callbackSlack,
	}, nil
}

// extentFor is the smallest power of two that makes few extents, but at most most blocks, and at least one.
func extentFor(blocks, most int64) int64 {
	e := int64(1)
	for 2*e <= most && (blocks-1)/e >= fewExtents {
		e *= 2
	}
	return e
}

// look is how often a reply deadline is looked at; 0 for one that never passes.
func look(d time.Duration) time.Duration { return max(d/replyLooks, min(d, 1)) }

// duration is d, its default for zero, or 0 for one that never passes.
func duration(d, def time.Duration) time.Duration {
	switch {
	case d == 0:
		return def
	case d < 0:
		return 0
	}
	return d
}
