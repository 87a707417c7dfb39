package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The control endpoint: HTTP on the loopback, or on a socket.

// socketHost stands for a socket in a URL.
const socketHost = "mirror"

// control serves it, if there is a listener, until the function that it returns is called.
func (m *mirror) control(ln net.Listener) (end func()) {
	if ln == nil {
		return func() {}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", m.serveStatus)
	mux.HandleFunc("POST /replace", m.serveReplace)
	ctx, cancel := context.WithCancel(context.Background())
	s := &http.Server{
		Handler: onlyLocal(mux), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	m.running.Go(func() {
		if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			m.log.Printf("the control endpoint has ended: %v", err)
		}
	})
	m.log.Printf("controlled at %s", ln.Addr())
	return func() {
		cancel() // what is being answered ends by that
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
		_ = s.Close() // whoever has asked for nothing yet
	}
}

// onlyLocal refuses what a page in somebody's browser asks for, by whatever name it calls this address.
func onlyLocal(h http.Handler) http.Handler {
	h = http.NewCrossOriginProtection().Handler(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, err := netip.ParseAddrPort(r.Host)
		name, _, _ := strings.Cut(r.Host, ":")
		if named := name == "localhost" || name == socketHost; !named && (err != nil || !at.Addr().IsLoopback()) {
			http.Error(w, fmt.Sprintf("host: %q is not the loopback", r.Host), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// query is the query of a request, which has no other fields than these, and each once at most.
func query(r *http.Request, fields ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &fieldError{field: "query", why: err}
	}
	for name, values := range q {
		switch {
		case !slices.Contains(fields, name):
			return nil, &fieldError{field: name, why: errors.New("there is no such field")}
		case len(values) != 1:
			return nil, &fieldError{field: name, why: errors.New("it is given more than once")}
		}
	}
	return q, nil
}

// refuse tells what was wrong with a request.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if f, ok := errors.AsType[*fieldError](err); ok {
		if status = http.StatusBadRequest; f.conflict {
			status = http.StatusConflict
		}
	}
	http.Error(w, err.Error(), status)
}

func (m *mirror) serveReplace(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "replica", "uri")
	n, bad := strconv.Atoi(q.Get("replica"))
	switch {
	case err != nil:
	case bad != nil:
		err = &fieldError{field: "replica", why: fmt.Errorf("%q is not a number", q.Get("replica"))}
	case q.Has("uri") && q.Get("uri") == "":
		err = &fieldError{field: "uri", why: errors.New("it is empty; without it the same place is meant")}
	default:
		err = m.replace(r.Context(), n, q.Get("uri"))
	}
	if err != nil {
		refuse(w, err)
		return
	}
	_, _ = fmt.Fprintf(w, "replica %d is replaced by what is at %s; it counts when it is repaired\n", n, m.drivers[n].name())
}

func (m *mirror) serveStatus(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "format")
	as := q.Get("format")
	if err == nil && q.Has("format") && as != "json" && as != "text" {
		err = &fieldError{field: "format", why: fmt.Errorf("%q is neither text nor json", as)}
	}
	if err != nil {
		refuse(w, err)
		return
	}
	if as != "json" {
		_, _ = io.WriteString(w, m.report().String())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m.report()) // else the client has gone
}
