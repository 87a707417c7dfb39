package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	defaultLimit = 100
	maxLimit     = 10_000
)

// requestError is what is wrong with a request: a status of HTTP, and words.
type requestError struct {
	status int
	words  string
}

func (e *requestError) Error() string { return e.words }

func bad(format string, args ...any) error {
	return &requestError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// query is a lookup.
type query struct {
	topic, field string
	span         span
	local        bool   // asked by another instance: answer for yourself
	id           string // of the topic, as the asker knows it
}

var parameters = []string{"topic", "field", "value", "from", "to", "limit", "after", "local", "id"}

// parseQuery reads a lookup. Every error is a *requestError.
func parseQuery(v url.Values, indexes map[string][]string) (q query, err error) {
	for name, given := range v {
		if !slices.Contains(parameters, name) {
			return q, bad("there is no parameter %q; there are %s", name, strings.Join(parameters[:7], ", "))
		}
		if len(given) > 1 {
			return q, bad("%s is given %d times", name, len(given))
		}
	}
	q.topic, q.field, q.id, q.local = v.Get("topic"), v.Get("field"), v.Get("id"), v.Get("local") == "1"
	if q.topic == "" || q.field == "" {
		return q, bad("give topic and field, such as topic=orders&field=status&value=paid")
	}
	fields, ok := indexes[q.topic]
	if !ok {
		return q, &requestError{http.StatusNotFound, fmt.Sprintf("topic %q is not indexed", q.topic)}
	}
	i := slices.Index(fields, q.field)
	if i < 0 {
		return q, bad("topic %s is not indexed by %q; it is by %s", q.topic, q.field, strings.Join(fields, ", "))
	}
	if q.span, err = parseSpan(v, uint8(i)); err != nil {
		return q, err
	}
	q.span.limit = defaultLimit
	if s := v.Get("limit"); v.Has("limit") {
		if q.span.limit, err = strconv.Atoi(s); err != nil || q.span.limit < 1 || q.span.limit > maxLimit {
			return q, bad("limit is %q, not a number from 1 to %d", s, maxLimit)
		}
	}
	if v.Has("after") {
		at, err := base64.RawURLEncoding.DecodeString(v.Get("after"))
		if err == nil {
			_, _, _, err = splitEntryKey(at)
		}
		if err != nil {
			return q, bad("after is to be the next of an earlier answer")
		}
		q.span.after = string(at)
	}
	return q, nil
}

// parseSpan reads the value, or the range; neither is the whole field.
func parseSpan(v url.Values, field uint8) (span, error) {
	s := span{field: field}
	if v.Has("value") {
		if v.Has("from") || v.Has("to") {
			return s, bad("give a value, or a range by from and to, not both")
		}
		value, err := parseValue(v.Get("value"))
		if err != nil {
			return s, bad("value: %v", err)
		}
		return only(field, value), nil
	}
	var err error
	for _, end := range []struct {
		name string
		to   *string
	}{{"from", &s.from}, {"to", &s.to}} {
		if v.Has(end.name) {
			if *end.to, err = parseValue(v.Get(end.name)); err != nil {
				return s, bad("%s: %v", end.name, err)
			}
		}
	}
	switch { // a range is of one kind of value
	case s.from == "" && s.to == "":
	case s.to == "":
		s.to = string([]byte{s.from[0] + 1})
	case s.from == "":
		s.from = s.to[:1]
	case s.from[0] != s.to[0]:
		return s, bad("from and to are of different kinds: numbers, strings (quote one that looks like a number), true and false, null")
	case s.from > s.to:
		return s, bad("from is above to; from is included, to is not")
	}
	return s, nil
}
