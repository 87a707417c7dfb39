package main

import (
	"sync/atomic"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
)

// request is a client's request, the payload of one job, or of a few for a long trim; or that of the copy of an extent.
type request struct {
	nbd *nbd.Request // nil: a copy
	// copied is what a copy's source has read: written before that is told to the tracker, read when the target is asked.
	copied []byte
	// parts counts the jobs that have not been resolved.
	parts atomic.Int32
	// refs counts who may still read the payload: jobs that are not retired, and sends under way. A job is retired as
	// soon as nothing will be dispatched any more; a sender that has just been given it is found here.
	refs atomic.Int32
	err  atomic.Pointer[error] // the first part's that failed
}

func newRequest(r *nbd.Request, parts int) *request {
	q := &request{nbd: r}
	q.parts.Store(int32(parts))
	q.refs.Store(int32(parts))
	return q
}

// newCopy is the payload of the copy of an extent.
func newCopy(jobtracker.Extent) *request {
	q := &request{}
	q.refs.Store(1)
	return q
}

func (q *request) isCopy() bool { return q.nbd == nil }
func (q *request) isRead() bool { return !q.isCopy() && q.nbd.Command == nbd.CmdRead }

// resolve takes the outcome of n parts; the last one answers the client. A read that went well is answered by deliver.
func (q *request) resolve(n int, err error) {
	if q.isCopy() {
		return // who repairs waits for the job itself
	}
	if err != nil {
		q.err.CompareAndSwap(nil, &err)
	}
	if q.parts.Add(-int32(n)) > 0 {
		return
	}
	failed := q.err.Load()
	switch {
	case !q.isRead() && failed == nil:
		q.nbd.Reply(nil)
	case failed != nil:
		if q.isRead() {
			q.nbd.Release() // nobody writes to it: only an accepted answer is delivered
		}
		q.nbd.Reply(*failed)
	}
}

// deliver answers a read with the data of the one answer that was accepted.
func (q *request) deliver(data []byte) {
	copy(q.nbd.Data, data)
	q.nbd.Release()
	q.nbd.Reply(nil)
}

// hold keeps the payload as it is until drop. False: no replica needs it any more, and it may be another's by now.
func (q *request) hold() bool {
	for {
		n := q.refs.Load()
		if n == 0 {
			return false
		}
		if q.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// drop ends n holds; the last one lets the server use the buffer again. A read's buffer is not the job's: see deliver.
func (q *request) drop(n int) {
	if q.refs.Add(-int32(n)) == 0 && !q.isRead() && !q.isCopy() {
		q.nbd.Release()
	}
}

// kindOf is the job that does a command.
func kindOf(c nbd.Command) jobtracker.Kind {
	switch c {
	case nbd.CmdRead:
		return jobtracker.Read
	case nbd.CmdWrite:
		return jobtracker.Write
	case nbd.CmdWriteZeroes:
		return jobtracker.Zero
	case nbd.CmdTrim:
		return jobtracker.Trim
	case nbd.CmdFlush:
		return jobtracker.Flush
	case nbd.CmdCache, nbd.CmdDisc:
	}
	return 0 // not offered: the server refuses it
}

// call is a job on its way to a replica; without a kind it is a copy of the metadata, or a question.
type call struct {
	asked  chan error // of a question: where the answer goes; it has room for it
	id     jobtracker.JobID
	kind   jobtracker.Kind
	half   jobtracker.Half // of a copy
	number uint64          // of a flush: to be remembered
	start  uint64          // in blocks
	blocks uint64
	req    *request // nil for a flush of the tracker's own
	data   []byte   // where a read's answer goes: its own, for an answer of a connection that has ended may still come in
}

// changes tells whether the call needs its extents' dirty bits.
func (c *call) changes() bool {
	return c.kind == jobtracker.Write || c.kind == jobtracker.Zero || c.kind == jobtracker.Trim || c.half == jobtracker.HalfWrite
}

// wire is the call as it is sent. A trim is sent as zeros that may be holes: what a trimmed range reads as is up to each
// replica, and they are to be alike.
func (c *call) wire() nbd.Call {
	out := nbd.Call{Header: nbd.Header{
		Cookie: uint64(c.id), Offset: c.start * blockSize, Length: uint32(c.blocks * blockSize),
	}}
	switch c.kind {
	case jobtracker.Copy:
		if out.Command = nbd.CmdRead; c.half == jobtracker.HalfWrite {
			out.Command, out.Payload = nbd.CmdWrite, c.req.copied
		}
	case jobtracker.Read:
		out.Command = nbd.CmdRead
	case jobtracker.Write:
		out.Command, out.Payload = nbd.CmdWrite, c.req.nbd.Data
	case jobtracker.Zero:
		out.Command = nbd.CmdWriteZeroes
		out.Flags |= c.req.nbd.Flags & nbd.FlagNoHole
	case jobtracker.Trim:
		out.Command = nbd.CmdWriteZeroes
	case jobtracker.Flush, jobtracker.Barrier:
		out.Command = nbd.CmdFlush
	}
	return out
}
