package main

import (
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBadQueries(t *testing.T) {
	indexes := map[string][]string{"orders": {"status", "total"}}
	for q, want := range map[string]string{
		"":                                     "give topic and field",
		"topic=orders":                         "give topic and field",
		"field=status":                         "give topic and field",
		"topic=orders&field=nope":              `not indexed by "nope"; it is by status, total`,
		"topic=orders&field=status&valeu=paid": `no parameter "valeu"`,
		"topic=orders&field=status&value=a&value=b": "value is given 2 times",
		"topic=orders&field=status&value=a&from=b":  "not both",
		"topic=orders&field=status&value=a&to=b":    "not both",
		"topic=orders&field=total&from=1&to=x":      "different kinds",
		"topic=orders&field=total&from=2&to=1":      "from is above to",
		"topic=orders&field=total&from=1e999":       "from: number 1e999",
		"topic=orders&field=status&limit=0":         "limit is",
		"topic=orders&field=status&limit=10001":     "limit is",
		"topic=orders&field=status&limit=":          "limit is",
		"topic=orders&field=status&limit=ten":       "limit is",
		"topic=orders&field=status&after=!":         "after is to be the next of an earlier answer",
		"topic=orders&field=status&after=AAAA":      "after is to be the next of an earlier answer",
		"topic=orders&field=status&after=":          "after is to be the next of an earlier answer",
	} {
		v, err := url.ParseQuery(q)
		require.NoError(t, err)
		_, err = parseQuery(v, indexes)
		wrong, ok := errors.AsType[*requestError](err)
		require.True(t, ok, "%q: %v", q, err)
		require.Equal(t, http.StatusBadRequest, wrong.status, q)
		require.ErrorContains(t, err, want, q)
	}
	v, err := url.ParseQuery("topic=nope&field=status")
	require.NoError(t, err)
	_, err = parseQuery(v, indexes)
	wrong, ok := errors.AsType[*requestError](err)
	require.True(t, ok)
	require.Equal(t, http.StatusNotFound, wrong.status)
}

func TestSpans(t *testing.T) {
	value := func(v any) string {
		s, err := encodeValue(v)
		require.NoError(t, err)
		return s
	}
	inside := map[string][]any{
		"value=paid":      {"paid"},
		"value=true":      {true},
		"value=null":      {nil},
		"from=b":          {"b", "paid"},
		"to=b":            {"", "a"},
		"from=a&to=b":     {"a"},
		"from=a&to=a":     nil,
		"from=false":      {false, true},
		"":                {nil, false, true, "", "a", "b", "paid"},
		`from="a"&to="z"`: {"a", "b", "paid"},
	}
	for q, want := range inside {
		v, err := url.ParseQuery(q)
		require.NoError(t, err)
		s, err := parseSpan(v, 1)
		require.NoError(t, err, q)
		var got []any
		for _, x := range []any{nil, false, true, "", "a", "b", "paid"} {
			at := string(entryKey(entry{1, value(x)}, 1<<30, "k")[1:])
			if at >= s.from && (s.to == "" || at < s.to) {
				got = append(got, x)
			}
		}
		require.Equal(t, want, got, "%q", q)
	}
}

func TestMergeTrustsTheLaterGenerationAndNoCutAnswer(t *testing.T) {
	at := func(value string, p int32) item {
		v, err := encodeValue(value)
		require.NoError(t, err)
		return itemOf(hit{string(entryKey(entry{0, v}, p, "kx")[1:]), int64(p)})
	}
	old := answer{Hits: []item{at("a", 0), at("b", 1)}, Partitions: []partAnswer{{Partition: 0, Term: 4}, {Partition: 1, Term: 4}}}
	cut := answer{Hits: []item{at("c", 0)}, Next: at("c", 0).At, Partitions: []partAnswer{{Partition: 0, Term: 5}}}
	other := answer{Hits: []item{at("b", 2), at("d", 2)}, Partitions: []partAnswer{{Partition: 2, Term: 3}}}
	var values []any
	m := merge([]answer{old, cut, {}, other}, 10)
	for _, h := range m.Hits {
		values = append(values, h.Value)
	}
	require.Equal(t, []any{"b", "b", "c"}, values, "a is what the former owner of 0 has, d is behind where an answer was cut")
	require.Equal(t, at("c", 0).At, m.Next)
	m.finish(4)
	require.Equal(t, []int32{3}, m.Missing)
	require.False(t, m.Complete)

	m = merge([]answer{old, other}, 2)
	require.Len(t, m.Hits, 2)
	require.Equal(t, m.Hits[1].At, m.Next)
	m = merge([]answer{old, other}, 4)
	require.Len(t, m.Hits, 4)
	require.Empty(t, m.Next)
}
