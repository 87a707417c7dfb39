package streamstate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorder keeps events.
type recorder struct {
	mu sync.Mutex
	// +checklocks:mu
	got []Event
}

func (r *recorder) seqs() (out []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.got {
		out = append(out, e.Seq)
	}
	return out
}

func (r *recorder) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, e)
}

func (r *recorder) lines() (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.got {
		s := fmt.Sprintf("%d %v", e.Seq, e.Kind)
		switch e.Kind {
		case PhaseChanged:
			s += fmt.Sprintf(" %v to %v", e.From, e.To)
		case PartitionChanged:
			s += fmt.Sprintf(" %d %v to %v", e.Partition, e.Was, e.Is)
		case TicketIssued, TicketEnded, FlushStarted, FlushEnded:
			s += fmt.Sprintf(" %d %s", e.Ticket, e.Work)
		}
		lines = append(lines, s)
	}
	return lines
}

func TestEvents(t *testing.T) {
	var rec recorder
	var log bytes.Buffer
	book := NewBook[int](Options{OnEvent: rec.add, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	c, err := s.Begin(0, Begin{Owner: "A"})
	require.NoError(t, err)
	require.NoError(t, s.Flush(t.Context(), func(context.Context, Timestamp) error { return nil }))
	require.NoError(t, c.End(Failed))
	work, err := s.NextDue(ends())
	require.NoError(t, err)
	require.NoError(t, work[0].(*RestartTicket).Refused())
	require.NoError(t, s.Stop(nil).Err())
	require.NoError(t, book.Close().Wait(t.Context()))
	require.Equal(t, []string{
		"1 phase gone to active", "2 partition 0 idle to begun", "3 flush-started 1 ", "4 flush-ended 1 ",
		"5 partition 0 begun to due", "6 ticket-issued 2 restart", "7 ticket-ended 2 restart", "8 partition 0 due to fenced",
		"9 partition 0 fenced to idle", "10 phase active to stopped", "11 phase stopped to gone",
	}, rec.lines())
	require.Contains(t, log.String(), "level=INFO msg=phase seq=11 key=maint/a")
}

// TestEventsAreBounded has a callback that blocks; others go on, and what is too much is lost and seen as a gap.
func TestEventsAreBounded(t *testing.T) {
	var rec recorder
	release, blocked := make(chan struct{}), make(chan struct{})
	book := NewBook[int](Options{MaxEvents: 4, OnEvent: func(e Event) {
		if e.Seq == 2 {
			close(blocked)
			<-release
		}
		rec.add(e)
	}})
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	go func() { _, _ = s.Begin(0, Begin{Owner: "A"}) }()
	<-blocked
	for i := range 10 {
		_, err := s.Begin(0, Begin{Owner: fmt.Sprint(i)})
		require.NoError(t, err)
		_, err = s.OwnerGone(fmt.Sprint(i))
		require.NoError(t, err)
	}
	h := book.Close()
	require.ErrorIs(t, h.Wait(ends()), context.Canceled, "a callback runs")
	close(release)
	require.NoError(t, h.Wait(t.Context()))
	require.Equal(t, []uint64{1, 2, 3, 4, 5}, rec.seqs())
}

// TestOneCallKeepsFewEvents has a call that changes more partitions than events may wait: no more of them are kept until its
// end, the first ones are told, and the others are seen as a gap. It is red if the core collects all.
func TestOneCallKeepsFewEvents(t *testing.T) {
	var rec recorder
	book := NewBook[int](Options{MaxEvents: 4, OnEvent: rec.add})
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 100})
	require.NoError(t, err)
	for p := range 100 {
		_, err := s.Begin(p, Begin{Owner: "A"})
		require.NoError(t, err)
	}
	require.NoError(t, s.e.do(token{op: opLook}, func(k *held) error {
		ended, err := k.ownerGone("A", causeOwnerGone)
		require.Equal(t, 100, ended)
		require.Len(t, k.fx.rare.events, 4)
		return err
	}))
	require.NoError(t, book.Close().Wait(t.Context()))
	seqs := rec.seqs()
	require.Equal(t, []uint64{101, 102, 103, 104, 105}, seqs[100:105], "the last begin, and of what the call has told")
	require.Greater(t, seqs[105], uint64(201))
}

// TestCallbacksMayCallBack calls into the book, and closes it, from a callback (S31).
func TestCallbacksMayCallBack(t *testing.T) {
	var book *Book[int]
	var closed *Handle
	book = NewBook[int](Options{OnEvent: func(e Event) {
		if e.Kind == PhaseChanged && e.To == Active {
			book.Drop(e.Key)
			closed = book.Close()
		}
	}})
	s, err := book.Open(key("a"), OpenOptions[int]{Partitions: 1})
	require.NoError(t, err)
	require.NoError(t, closed.Wait(t.Context()))
	require.Equal(t, "gone", s.Dump().Phase)
	require.Same(t, closed, book.Close())
	_, err = book.Open(key("b"), OpenOptions[int]{Partitions: 1})
	require.ErrorIs(t, err, ErrClosed)
}

// TestCallbacksMayWait has a callback wait for what the change that it tells of has brought about: a merge, and the
// flush of another session, whose hold has ended (S31).
func TestCallbacksMayWait(t *testing.T) {
	var merge, freed *Handle
	book := NewBook[int](Options{OnEvent: func(e Event) {
		switch {
		case e.Kind == FlushEnded && merge != nil:
			require.NoError(t, merge.Wait(t.Context()))
		case e.Kind == PhaseChanged && e.To == Gone && freed != nil:
			require.NoError(t, freed.Wait(t.Context()))
		}
	}})
	var s [3]*Session[int]
	for i := range s {
		var err error
		s[i], err = book.Open(key(fmt.Sprint(i)), OpenOptions[int]{Partitions: 1, Wanted: None})
		require.NoError(t, err)
	}
	f, err := s[0].StartFlush()
	require.NoError(t, err)
	merge = book.Merge(s[0], s[1], nil, func(_, _ Tx[int]) error { return nil })
	require.NoError(t, f.Abort())
	merge = nil

	_, err = s[1].Hold(s[2])
	require.NoError(t, err)
	freed = newHandle()
	go func() {
		resolve(freed, s[2].Flush(t.Context(), func(context.Context, Timestamp) error { return nil }))
	}()
	require.NoError(t, s[1].Drop().Err())
	require.NoError(t, book.Close().Wait(t.Context()))
}

func TestDropStream(t *testing.T) {
	book := NewBook[int](Options{})
	var flushes []*FlushTicket
	for i := range 4 {
		s, err := book.Open(Key{fmt.Sprint("stream", i/3), fmt.Sprint(i)}, OpenOptions[int]{Partitions: 1})
		require.NoError(t, err)
		f, err := s.StartFlush()
		require.NoError(t, err)
		flushes = append(flushes, f)
	}
	h, again := book.DropStream("stream0"), book.DropStream("stream0")
	for _, f := range flushes[:3] {
		require.True(t, open(h))
		require.NoError(t, f.Abort())
	}
	require.NoError(t, h.Wait(t.Context()))
	require.NoError(t, again.Wait(t.Context()))
	require.NoError(t, book.DropStream("stream0").Wait(t.Context()), "nothing is there")
	dumps := book.Dump()
	require.Len(t, dumps, 1)
	require.Equal(t, "stream1/3", dumps[0].Key)
	require.NoError(t, flushes[3].Abort())
	require.NoError(t, book.Close().Wait(t.Context()))
	require.Equal(t, uint64(4), book.Stats().Dropped)
}

func TestDump(t *testing.T) {
	l := newLedger(t, false, "Fenced")
	_, err := l.s.StartFlush()
	require.NoError(t, err)
	d := l.s.Dump()
	require.Equal(t, []string{"flush", "shut-down"}, []string{d.Tickets[0].Work, d.Tickets[1].Work})
	text := d.String()
	for _, want := range []string{"maint/a: active", "shut-down, partition 0", "fenced", "A (claim 3)", "healthy false"} {
		require.Contains(t, text, want)
	}
	js, err := d.JSON()
	require.NoError(t, err)
	var back Dump
	require.NoError(t, json.Unmarshal(js, &back))
	require.Equal(t, l.s.ID(), back.Session)
	abort(l.s)
}
