package main

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"unicode/utf8"
)

// answer is what a lookup gets.
type answer struct {
	Topic string `json:"topic"`
	ID    string `json:"topic_id"`
	Field string `json:"field"`
	Hits  []item `json:"hits"`
	// Next, given as after, gets what follows. Absent: there is nothing more.
	Next string `json:"next,omitempty"`
	// Complete tells that every partition has answered; the others are Missing.
	Complete bool    `json:"complete"`
	Missing  []int32 `json:"missing,omitempty"`
	// Silent are the instances that did not answer, and why, if partitions are missing.
	Silent []string `json:"silent,omitempty"`
	// Behind is how many records of the logs have not been indexed yet, as far as is known.
	Behind uint64 `json:"behind"`
	// Partitions are those that have answered.
	Partitions []partAnswer `json:"partitions"`
}

// item is one record that was found.
type item struct {
	Value     any     `json:"value"`
	Partition int32   `json:"partition"`
	Key       *string `json:"key"` // null: it has none, or see Key64
	Key64     string  `json:"key_base64,omitempty"`
	Offset    int64   `json:"offset"`
	At        string  `json:"at"` // its place, as for after
}

// partAnswer is one partition that has answered.
type partAnswer struct {
	Partition int32  `json:"partition"`
	Term      uint64 `json:"term"` // the group's generation in which it was assigned
	Next      uint64 `json:"next"` // its log is indexed up to there
	End       uint64 `json:"end"`  // and ended there when last heard of
	From      uint64 `json:"from"` // where this claim began
	Topic     string `json:"topic,omitempty"`
	URL       string `json:"url,omitempty"` // who has it
}

func (n *node) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", n.healthz)
	mux.HandleFunc("GET /v1/lookup", n.lookup)
	mux.HandleFunc("GET /v1/status", n.statusPage)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			reply(w, nil, &requestError{http.StatusMethodNotAllowed, "only GET"})
			return
		}
		reply(w, nil, &requestError{http.StatusNotFound, "there are /v1/lookup, /v1/status and /healthz"})
	})
	return mux
}

// reply writes an answer, or what is wrong, as JSON.
func reply(w http.ResponseWriter, v any, err error) {
	status := http.StatusOK
	if err != nil {
		status = http.StatusInternalServerError
		if wrong, ok := errors.AsType[*requestError](err); ok {
			status = wrong.status
		}
		v = map[string]string{"error": err.Error()}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // it is read by people as well, and is no HTML
	_ = e.Encode(v)        // the asker may have gone
}

func (n *node) healthz(w http.ResponseWriter, _ *http.Request) {
	if n.broken() {
		reply(w, nil, &requestError{http.StatusServiceUnavailable, n.failure.Error()})
		return
	}
	if v := n.view(); v.Generation < 0 {
		reply(w, nil, &requestError{http.StatusServiceUnavailable, "has not joined the group yet"})
	} else {
		reply(w, map[string]any{"status": "ok", "partitions": len(v.Partitions), "building": v.Building}, nil)
	}
}

func (n *node) statusPage(w http.ResponseWriter, _ *http.Request) { reply(w, n.view(), nil) }

func (n *node) lookup(w http.ResponseWriter, r *http.Request) {
	v, err := url.ParseQuery(r.URL.RawQuery) // which r.URL.Query would leave out what is malformed of, and answer another question
	if err != nil {
		reply(w, nil, bad("%v", err))
		return
	}
	q, err := parseQuery(v, n.cfg.indexes)
	if err != nil {
		reply(w, nil, err)
		return
	}
	var a answer
	if q.local {
		a, err = n.here(r.Context(), q)
	} else {
		a, err = n.everywhere(r.Context(), q, v)
	}
	reply(w, a, err)
}

// itemOf shows a hit.
func itemOf(h hit) item {
	value, p, key, err := splitEntryKey([]byte(h.at))
	i := item{Value: value, Partition: p, Offset: h.offset, At: encodePlace(h.at)}
	switch {
	case err != nil || key[0] != 'k':
	case utf8.ValidString(key):
		i.Key = new(key[1:])
	default:
		i.Key64 = base64.StdEncoding.EncodeToString([]byte(key[1:]))
	}
	return i
}

func encodePlace(at string) string { return base64.RawURLEncoding.EncodeToString([]byte(at)) }

// place is what items are sorted by.
func (i *item) place() string {
	at, _ := base64.RawURLEncoding.DecodeString(i.At)
	return string(at)
}

// finish makes the answer out of what was found for each partition.
func (a *answer) finish(partitions int) {
	slices.SortFunc(a.Partitions, func(x, y partAnswer) int { return cmp.Compare(x.Partition, y.Partition) })
	if a.Hits == nil {
		a.Hits = []item{}
	}
	a.Missing, a.Behind = nil, 0
	for p := range int32(partitions) {
		i := slices.IndexFunc(a.Partitions, func(x partAnswer) bool { return x.Partition == p })
		if i < 0 {
			a.Missing = append(a.Missing, p)
		} else if x := a.Partitions[i]; x.End > x.Next {
			a.Behind += x.End - x.Next
		}
	}
	a.Complete = len(a.Missing) == 0
}
