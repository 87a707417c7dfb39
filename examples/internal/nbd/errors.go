package nbd

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Sentinels: which kind of thing went wrong. The structs below say which one.
var (
	// ErrURI matches every *URIError.
	ErrURI = errors.New("nbd: bad URI")
	// ErrProtocol matches every error by which a peer left the protocol. The connection is of no more use.
	ErrProtocol = errors.New("nbd: protocol violation")
	// ErrUnknownCookie matches every *UnknownCookieError.
	ErrUnknownCookie = errors.New("nbd: reply with an unknown cookie")
	// ErrRefused matches every *RefusedError.
	ErrRefused = errors.New("nbd: server refused the option")
	// ErrUnknownExport is the refusal of an export that the server does not have.
	ErrUnknownExport = errors.New("nbd: no such export")
	// ErrCall matches every *CallError.
	ErrCall = errors.New("nbd: call cannot be sent")
	// ErrWriteClosed is Send's answer after CmdDisc or CloseWrite.
	ErrWriteClosed = errors.New("nbd: sending half is closed")
	// ErrNoHalfClose is CloseWrite's answer on a connection that has no such thing.
	ErrNoHalfClose = errors.New("nbd: connection cannot be half-closed")
	// ErrServerClosed is the end of Serve and ServeConn after Shutdown or Close.
	ErrServerClosed = errors.New("nbd: server closed")
	// ErrTooManyConns is ServeConn's answer over Options.MaxConns.
	ErrTooManyConns = errors.New("nbd: too many connections")
	// ErrAborted is the end of a connection whose client left during the handshake.
	ErrAborted = errors.New("nbd: client left the handshake")
	// ErrInfo is an Info that the protocol does not allow.
	ErrInfo = errors.New("nbd: bad export information")
	// ErrOptions is a field of Options or FileOptions that cannot be used.
	ErrOptions = errors.New("nbd: bad option")
)

// URIError says what is wrong with a URI.
type URIError struct {
	URI    string
	Reason string
}

func (e *URIError) Error() string { return fmt.Sprintf("nbd: bad URI %q: %s", e.URI, e.Reason) }
func (e *URIError) Unwrap() error { return ErrURI }

// ProtocolError is what a peer sent that the protocol does not allow there.
type ProtocolError struct {
	What string
	Got  uint64
	Err  error // cause, nil for none
}

func (e *ProtocolError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("nbd: protocol violation: %s: %v", e.What, e.Err)
	}
	return fmt.Sprintf("nbd: protocol violation: %s (%#x)", e.What, e.Got)
}

// Unwrap makes the error match ErrProtocol and its cause.
func (e *ProtocolError) Unwrap() []error {
	if e.Err != nil {
		return []error{ErrProtocol, e.Err}
	}
	return []error{ErrProtocol}
}

// UnknownCookieError is a reply that answers nothing the caller knows of. The length of its data is
// not known either, so nothing after it can be read.
type UnknownCookieError struct {
	Cookie uint64
	Errno  Errno
}

func (e *UnknownCookieError) Error() string {
	return fmt.Sprintf("nbd: reply with an unknown cookie %#x (errno %d)", e.Cookie, uint32(e.Errno))
}

// Unwrap makes the error match ErrUnknownCookie and ErrProtocol.
func (e *UnknownCookieError) Unwrap() []error { return []error{ErrUnknownCookie, ErrProtocol} }

// RefusedError is a server's error reply to an option of the handshake.
type RefusedError struct {
	Option  Option
	Reply   OptionReply
	Message string // the server's words, at most 4096 bytes
}

func (e *RefusedError) Error() string {
	if e.Message != "" {
		return fmt.Sprintf("nbd: server refused %v: %v: %q", e.Option, e.Reply, e.Message)
	}
	return fmt.Sprintf("nbd: server refused %v: %v", e.Option, e.Reply)
}

// Unwrap makes the error match ErrRefused, and ErrUnknownExport where it is that.
func (e *RefusedError) Unwrap() []error {
	if e.Reply == RepErrUnknown {
		return []error{ErrRefused, ErrUnknownExport}
	}
	return []error{ErrRefused}
}

// CallError is a call that Send did not send: nothing was written, the connection is as it was.
type CallError struct {
	Call   Header
	Reason string
}

func (e *CallError) Error() string {
	return fmt.Sprintf("nbd: %v cannot be sent: %s", e.Call.Command, e.Reason)
}
func (e *CallError) Unwrap() error { return ErrCall }

// Errno is the protocol's error value of a reply. It is comparable; errors.Is also finds the
// syscall.Errno of the same meaning.
type Errno uint32

// The protocol's error values. Another one received counts as EINVAL, as the protocol asks.
const (
	EPERM     Errno = 1
	EIO       Errno = 5
	ENOMEM    Errno = 12
	EINVAL    Errno = 22
	ENOSPC    Errno = 28
	EOVERFLOW Errno = 75
	ENOTSUP   Errno = 95
	ESHUTDOWN Errno = 108
)

// errnos pairs the protocol's values with the system's, and with the system's near relations, which map the
// same way. The first line of each value is its equivalent in the other direction.
var errnos = [...]struct {
	wire Errno
	sys  syscall.Errno
	text string
}{
	{EPERM, syscall.EPERM, "operation not permitted"},
	{EIO, syscall.EIO, "input/output error"},
	{ENOMEM, syscall.ENOMEM, "cannot allocate memory"},
	{EINVAL, syscall.EINVAL, "invalid argument"},
	{ENOSPC, syscall.ENOSPC, "no space left on device"},
	{EOVERFLOW, syscall.EOVERFLOW, "value too large"},
	{ENOTSUP, syscall.ENOTSUP, "operation not supported"},
	{ESHUTDOWN, syscall.ESHUTDOWN, "server is shutting down"},
	{EPERM, syscall.EACCES, ""},
	{EPERM, syscall.EROFS, ""},
	{ENOSPC, syscall.EDQUOT, ""},
	{ENOSPC, syscall.EFBIG, ""},
	{ENOTSUP, syscall.EOPNOTSUPP, ""},
}

// Error names the value.
func (e Errno) Error() string {
	for _, n := range errnos {
		if n.wire == e {
			return "nbd: " + n.text
		}
	}
	return fmt.Sprintf("nbd: error %d", uint32(e))
}

// Is matches the system's value of the same meaning, and EINVAL for a value that the protocol does not know.
func (e Errno) Is(target error) bool {
	sys, isSys := target.(syscall.Errno)
	for _, n := range errnos {
		if n.wire == e {
			return isSys && sys == n.sys
		}
	}
	return e != 0 && (target == error(EINVAL) || isSys && sys == syscall.EINVAL)
}

// ErrnoOf maps an error to what a reply says of it: nil to 0, an Errno to itself, the system's errors to
// their equivalents, a closed file to ESHUTDOWN, anything else to EIO.
func ErrnoOf(err error) Errno {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[Errno](err); ok && e != 0 {
		return e
	}
	if sys, ok := errors.AsType[syscall.Errno](err); ok {
		for _, n := range errnos {
			if n.sys == sys {
				return n.wire
			}
		}
		return EIO
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return EPERM
	case errors.Is(err, fs.ErrClosed):
		return ESHUTDOWN
	case errors.Is(err, errors.ErrUnsupported):
		return ENOTSUP
	}
	return EIO
}

// wireErrno is ErrnoOf for the reply to h: two values are reserved for what this command cannot mean.
func wireErrno(err error, h *Header) Errno {
	e := ErrnoOf(err)
	if e == EOVERFLOW || e == ENOTSUP && (h.Command != CmdWriteZeroes || h.Flags&FlagFastZero == 0) {
		return EINVAL
	}
	return e
}
