package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// compareScalars is the order that an index promises.
func compareScalars(a, b any) int {
	rank := func(v any) int {
		switch v.(type) {
		case nil:
			return 0
		case bool:
			return 1
		case json.Number:
			return 2
		}
		return 3
	}
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	switch a := a.(type) {
	case bool:
		return cmp.Compare(map[bool]int{true: 1}[a], map[bool]int{true: 1}[b.(bool)])
	case json.Number:
		x, _ := a.Float64()
		y, _ := b.(json.Number).Float64()
		return cmp.Compare(x, y)
	case string:
		return strings.Compare(a, b.(string))
	}
	return 0
}

func scalars() *rapid.Generator[any] {
	number := rapid.Map(rapid.Float64(), func(f float64) any {
		if math.IsInf(f, 0) || math.IsNaN(f) {
			f = 0
		}
		return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
	})
	text := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 'b', 0xff}), 0, 6), func(b []byte) any { return string(b) })
	return rapid.OneOf(rapid.Just(any(nil)), rapid.Map(rapid.Bool(), func(b bool) any { return b }), number, text)
}

func TestValuesSortAndEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := scalars().Draw(t, "a"), scalars().Draw(t, "b")
		x, err := encodeValue(a)
		require.NoError(t, err)
		y, err := encodeValue(b)
		require.NoError(t, err)
		require.Equal(t, compareScalars(a, b), strings.Compare(x, y), "%q and %q are not in the order of %#v and %#v", x, y, a, b)
		// Whatever follows a value, it neither changes the order nor the value that is read.
		rest := rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "rest")
		v, left, err := decodeValue(append([]byte(x), rest...))
		require.NoError(t, err)
		require.True(t, bytes.Equal(rest, left), "%x is left of %x and %x", left, x, rest)
		if n, ok := a.(json.Number); ok {
			f, _ := n.Float64()
			require.Equal(t, f, v.(float64)) //nolint:testifylint // it is to be the same, bit for bit
		} else {
			require.Equal(t, a, v)
		}
		if x != y {
			require.False(t, strings.HasPrefix(y, x), "%q is a prefix of %q", x, y)
		}
	})
}

func TestZerosAreOne(t *testing.T) {
	plus, err := parseValue("0")
	require.NoError(t, err)
	minus, err := parseValue("-0")
	require.NoError(t, err)
	require.Equal(t, plus, minus)
}

func TestDecodeValueRefusesDamage(t *testing.T) {
	for _, damaged := range []string{"", "\x00", "\x20", "\x20\x02", "\x30\x00", "\x40ab", "\x40ab\x00"} {
		_, _, err := decodeValue([]byte(damaged))
		require.ErrorIs(t, err, errValue, "%q", damaged)
	}
}

func TestParseValue(t *testing.T) {
	for typed, want := range map[string]any{
		"12": json.Number("12"), "1e3": json.Number("1000"), `"12"`: "12", "paid": "paid", "true": true, "null": nil, "": "",
		"[1]": "[1]", "1 2": "1 2", `"a" b`: `"a" b`,
	} {
		got, err := parseValue(typed)
		require.NoError(t, err, typed)
		value, err := encodeValue(want)
		require.NoError(t, err)
		require.Equal(t, value, got, "%q is not read as %#v", typed, want)
	}
	for _, bad := range []string{"1e999", strings.Repeat("x", maxString+1)} {
		_, err := parseValue(bad)
		require.ErrorIs(t, err, errValue)
	}
}

func TestEntriesOf(t *testing.T) {
	fields := []string{"a", "b.c", "d"}
	entries, left, err := entriesOf([]byte(`{"a":[2,"x",2,{"no":1},[3],1e999],"b":{"c":null},"e":1}`), fields)
	require.NoError(t, err)
	require.Equal(t, 3, left, "an object, an array and a number that is too large are left out")
	var got []string
	for _, e := range entries {
		v, rest, err := decodeValue([]byte(e.value))
		require.NoError(t, err)
		require.Empty(t, rest)
		b, err := json.Marshal(v)
		require.NoError(t, err)
		got = append(got, fields[e.field]+"="+string(b))
	}
	require.Equal(t, []string{"a=2", `a="x"`, "b.c=null"}, got)
	for _, bad := range []string{"", "nonsense", "1", "null", `{"a":1} {"a":2}`, `{"a":`} {
		entries, _, err := entriesOf([]byte(bad), fields)
		require.Error(t, err, "%q", bad)
		require.Empty(t, entries)
	}
	entries, _, err = entriesOf([]byte(`{"b":7,"d":{}}`), fields)
	require.NoError(t, err)
	require.Empty(t, entries, "a path through a number leads nowhere")
}
