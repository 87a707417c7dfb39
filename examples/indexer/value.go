package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A value is a JSON scalar as bytes whose order is that of the index: null, false, true, numbers, strings. It tells where
// it ends, so that something may follow it in a key.
const (
	kindNull   = 0x10
	kindBool   = 0x20
	kindNumber = 0x30
	kindString = 0x40
)

// maxString is the longest string that is indexed; a key of the store has to hold it with each zero byte doubled.
const maxString = 4096

var errValue = errors.New("not a value of an index")

// encodeValue makes the value of a JSON scalar as encoding/json decodes it with UseNumber.
func encodeValue(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return string([]byte{kindNull}), nil
	case bool:
		if v {
			return string([]byte{kindBool, 1}), nil
		}
		return string([]byte{kindBool, 0}), nil
	case json.Number:
		f, err := strconv.ParseFloat(v.String(), 64)
		if err != nil {
			return "", fmt.Errorf("number %s: %w", v, errValue)
		}
		return encodeNumber(f), nil
	case string:
		if len(v) > maxString {
			return "", fmt.Errorf("string of %d bytes, over %d: %w", len(v), maxString, errValue)
		}
		b := make([]byte, 0, len(v)+3)
		b = append(b, kindString)
		b = append(b, strings.ReplaceAll(v, "\x00", "\x00\xff")...)
		return string(append(b, 0, 1)), nil
	}
	return "", fmt.Errorf("%T: %w", v, errValue)
}

func encodeNumber(f float64) string {
	bits := math.Float64bits(f + 0) // -0 becomes 0
	if bits>>63 == 0 {
		bits |= 1 << 63
	} else {
		bits = ^bits
	}
	return string(binary.BigEndian.AppendUint64([]byte{kindNumber}, bits))
}

// decodeValue takes a value off the front of b.
func decodeValue(b []byte) (v any, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errValue
	}
	switch kind, b := b[0], b[1:]; kind {
	case kindNull:
		return nil, b, nil
	case kindBool:
		if len(b) > 0 && b[0] <= 1 {
			return b[0] == 1, b[1:], nil
		}
	case kindNumber:
		if len(b) >= 8 {
			bits := binary.BigEndian.Uint64(b)
			if bits>>63 == 1 {
				bits &^= 1 << 63
			} else {
				bits = ^bits
			}
			return math.Float64frombits(bits), b[8:], nil
		}
	case kindString:
		if i := bytes.Index(b, []byte{0, 1}); i >= 0 { // a zero byte within is followed by 0xff
			return string(bytes.ReplaceAll(b[:i], []byte{0, 0xff}, []byte{0})), b[i+2:], nil
		}
	}
	return nil, nil, errValue
}

// parseValue reads what somebody typed: a JSON scalar, or else a bare string.
func parseValue(s string) (string, error) {
	v, err := scalar(s)
	if err != nil {
		v = s
	}
	return encodeValue(v)
}

// scalar reads a JSON scalar and nothing after it.
func scalar(s string) (any, error) {
	d := json.NewDecoder(strings.NewReader(s))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errValue
	}
	switch v.(type) {
	case map[string]any, []any:
		return nil, errValue
	}
	return v, nil
}

// entry is one entry of a record: a field, by its place in the topic's list, and a value.
type entry struct {
	field uint8
	value string
}

// entriesOf finds the values of the fields in a JSON object. Each scalar of an array counts. What cannot be indexed is left
// out and counted.
func entriesOf(doc []byte, fields []string) (entries []entry, left int, err error) {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var object map[string]any
	if err := d.Decode(&object); err != nil {
		return nil, 0, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) || object == nil {
		return nil, 0, errors.New("not one JSON object")
	}
	for i, path := range fields {
		v, ok := walk(object, path)
		if !ok {
			continue
		}
		all, isArray := v.([]any)
		if !isArray {
			all = []any{v}
		}
		for _, v := range all {
			value, err := encodeValue(v)
			if err != nil {
				left++
				continue
			}
			entries = append(entries, entry{uint8(i), value})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.field, b.field), strings.Compare(a.value, b.value))
	})
	return slices.Compact(entries), left, nil
}

// walk follows a path of names with dots between them.
func walk(object map[string]any, path string) (any, bool) {
	for {
		name, rest, more := strings.Cut(path, ".")
		v, ok := object[name]
		if !more || !ok {
			return v, ok
		}
		if object, ok = v.(map[string]any); !ok {
			return nil, false
		}
		path = rest
	}
}
