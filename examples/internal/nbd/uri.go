package nbd

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// DefaultPort is the port of a URI that names none.
const DefaultPort = 10809

// URI says where an export is. See [ParseURI].
type URI struct {
	Network string // "tcp" or "unix"
	Address string // host:port, or the path of the socket
	Export  string // may be empty: the default export
}

// ParseURI understands nbd://host[:port][/export] and nbd+unix:///[export]?socket=path, as
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md describes them. Everything else, TLS
// included, is a *URIError.
func ParseURI(s string) (URI, error) {
	u, err := url.Parse(s)
	if err != nil {
		return URI{}, &URIError{URI: s, Reason: parseReason(err)}
	}
	out, reason := fromURL(u)
	if reason != "" {
		return URI{}, &URIError{URI: s, Reason: reason}
	}
	return out, nil
}

// parseReason leaves the URI out of url.Parse's words: URIError has it.
func parseReason(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// fromURL returns what is wrong with u, "" for nothing.
func fromURL(u *url.URL) (URI, string) {
	query, err := url.ParseQuery(u.RawQuery)
	export := strings.TrimPrefix(u.Path, "/")
	switch {
	case u.Scheme == "nbds" || u.Scheme == "nbds+unix":
		return URI{}, "TLS is not supported"
	case u.Scheme != "nbd" && u.Scheme != "nbd+unix":
		return URI{}, "scheme is neither nbd nor nbd+unix"
	case err != nil:
		return URI{}, "bad query: " + err.Error()
	case u.Opaque != "" || u.Fragment != "":
		return URI{}, "neither an opaque part nor a fragment is allowed"
	case u.User != nil:
		return URI{}, "a user needs TLS, which is not supported"
	case len(export) > maxString || strings.ContainsRune(export, 0):
		return URI{}, "export name has a NUL or more than 4096 bytes"
	}
	socket, reason := onlySocket(query)
	if reason != "" {
		return URI{}, reason
	}
	if u.Scheme == "nbd+unix" {
		return unixURI(u, socket, export)
	}
	return tcpURI(u, socket, export)
}

// onlySocket returns the one parameter that is understood.
func onlySocket(query url.Values) (socket, reason string) {
	for key, values := range query {
		if key != "socket" {
			return "", "unknown parameter " + strconv.Quote(key)
		}
		if len(values) != 1 || values[0] == "" {
			return "", "socket needs one value"
		}
		socket = values[0]
	}
	return socket, ""
}

func unixURI(u *url.URL, socket, export string) (URI, string) {
	switch {
	case u.Host != "":
		return URI{}, "nbd+unix has no host"
	case socket == "":
		return URI{}, "nbd+unix needs the parameter socket"
	case strings.ContainsRune(socket, 0):
		return URI{}, "socket has a NUL"
	}
	return URI{Network: "unix", Address: socket, Export: export}, ""
}

func tcpURI(u *url.URL, socket, export string) (URI, string) {
	switch {
	case socket != "":
		return URI{}, "socket is for nbd+unix"
	case u.Hostname() == "":
		return URI{}, "nbd needs a host"
	case !isHost(u.Host, u.Hostname()):
		return URI{}, "host is neither a name nor an address"
	}
	port := DefaultPort
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return URI{}, "port is not in 1 to 65535"
		}
		port = int(n)
	}
	return URI{Network: "tcp", Address: net.JoinHostPort(u.Hostname(), strconv.Itoa(port)), Export: export}, ""
}

// isHost refuses what would read differently once it is joined with a port.
func isHost(raw, host string) bool {
	if strings.HasPrefix(raw, "[") {
		addr, err := netip.ParseAddr(host)
		return err == nil && addr.Is6() && strings.Trim(addr.Zone(), zoneBytes) == ""
	}
	return !strings.ContainsAny(host, ":%[]")
}

// zoneBytes may stand in a zone unescaped (RFC 6874, ZoneID). Package url writes any other escaped and does not
// read it again.
const zoneBytes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"

// String is the inverse of ParseURI.
func (u URI) String() string {
	out := url.URL{Scheme: "nbd", Host: u.Address, Path: "/" + u.Export}
	if u.Network == "unix" {
		// URL.String leaves out an empty authority, which makes a host of an export that begins with a slash.
		return "nbd+unix://" + out.EscapedPath() + "?" + url.Values{"socket": {u.Address}}.Encode()
	}
	return out.String()
}
