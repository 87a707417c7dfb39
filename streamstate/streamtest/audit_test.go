package streamtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/streamstate"
)

// TestEventAuditCanFail shows events that no book tells.
func TestEventAuditCanFail(t *testing.T) {
	key, id := streamstate.Key{Stream: "test", Keyspace: "a"}, streamstate.SessionID{1}
	opened := streamstate.Event{Seq: 1, Key: key, Session: id, Kind: streamstate.PhaseChanged, From: streamstate.Gone, To: streamstate.Active}
	begun := streamstate.Event{Seq: 2, Key: key, Session: id, Kind: streamstate.PartitionChanged, Was: streamstate.Idle, Is: streamstate.Begun}
	with := func(e streamstate.Event, change func(*streamstate.Event)) streamstate.Event {
		change(&e)
		return e
	}
	for want, events := range map[string][]streamstate.Event{
		"":                                  {opened, begun},
		"event 3 came after event 1":        {opened, with(begun, func(e *streamstate.Event) { e.Seq = 3 })},
		"event 2 came after event 2":        {opened, begun, begun},
		"event 2 (partition) goes on after": {begun},
		"goes from stopped to active, but":  {opened, with(opened, func(e *streamstate.Event) { e.Seq, e.From = 2, streamstate.Stopped })},
		"but it was begun":                  {opened, begun, with(begun, func(e *streamstate.Event) { e.Seq = 3 })},
	} {
		f := &Feed{t: t, audit: audit{records: map[streamstate.Key][]*chain{}}}
		for _, e := range events {
			f.callback(e)()
		}
		if want == "" {
			require.Empty(t, f.audit.bad)
			continue
		}
		require.NotEmpty(t, f.audit.bad, want)
		require.Contains(t, f.audit.bad[0], want)
	}
	f := &Feed{t: t, audit: audit{records: map[streamstate.Key][]*chain{}}}
	f.callback(opened) // and does not end
	f.callback(begun)()
	require.Contains(t, f.audit.bad[0], "began before another has ended")
}
