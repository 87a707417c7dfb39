package nbd

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Dial connects to the export that a URI names (see [ParseURI]) and shakes hands. ctx bounds both, and nothing
// after. Errors: *URIError; *RefusedError, with ErrUnknownExport where it is that; ErrProtocol; those of net.
func Dial(ctx context.Context, uri string) (*Client, error) {
	u, err := ParseURI(uri)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, u.Network, u.Address)
	if err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	return NewClient(ctx, nc, u.Export)
}

// NewClient shakes hands over nc, which it owns from then on: it closes it on error. ctx bounds the
// handshake.
func NewClient(ctx context.Context, nc net.Conn, export string) (*Client, error) {
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = nc.SetDeadline(time.Unix(1, 0))
	})
	h := &haggler{nc: nc, br: bufio.NewReaderSize(nc, readBuffer), export: export}
	info, err := h.run()
	if !stop() {
		<-interrupted // else its deadline could come after ours
		err = errors.Join(context.Cause(ctx), err)
	}
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("nbd: handshake: %w", err)
	}
	return newClient(nc, h.br, info), nil
}

// haggler is a client in the handshake.
type haggler struct {
	nc       net.Conn
	br       *bufio.Reader
	export   string
	noZeroes bool
}

// run returns what the server offers of the export, with the connection in the transmission phase.
func (h *haggler) run() (Info, error) {
	if len(h.export) > maxString {
		return Info{}, fmt.Errorf("%w: its name has more than %d bytes", ErrUnknownExport, maxString)
	}
	fixed, err := h.greet()
	if err != nil {
		return Info{}, err
	}
	info := Info{MinBlock: DefaultMinBlock, PreferredBlock: DefaultPreferredBlock, MaxBlock: noBlockLimit}
	if fixed {
		done, err := h.goOption(&info)
		if done || err != nil {
			return info, err
		}
	}
	return info, h.exportName(&info)
}

// greet exchanges the flags. fixed means that the server understands more than OptExportName.
func (h *haggler) greet() (fixed bool, err error) {
	var in [18]byte
	if err := h.receive(in[:]); err != nil {
		return false, err
	}
	if m := binary.BigEndian.Uint64(in[:]); m != magicInit {
		return false, &ProtocolError{What: "magic", Got: m}
	}
	switch m := binary.BigEndian.Uint64(in[8:]); m {
	case magicOption:
	case magicOldstyle:
		return false, &ProtocolError{What: "oldstyle handshake, which is not supported", Got: m}
	default:
		return false, &ProtocolError{What: "handshake magic", Got: m}
	}
	flags := binary.BigEndian.Uint16(in[16:])
	var answer uint32
	if flags&flagFixedNewstyle != 0 {
		answer |= clientFixedNewstyle
	}
	if flags&flagNoZeroes != 0 {
		answer |= clientNoZeroes
		h.noZeroes = true
	}
	return answer&clientFixedNewstyle != 0, h.send(binary.BigEndian.AppendUint32(nil, answer))
}

// goOption asks for the export with OptGo. Not done, without an error: the server does not know that option.
func (h *haggler) goOption(info *Info) (done bool, err error) {
	n := len(h.export)
	b := appendOption(nil, OptGo, 4+n+4)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = append(b, h.export...)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint16(b, infoBlockSize)
	if err := h.send(b); err != nil {
		return false, err
	}
	seen := false
	for range maxOptCount {
		r, data, err := h.optReply(OptGo)
		switch {
		case err != nil:
			return false, err
		case r == RepErrUnsup:
			return false, nil
		case r.IsError():
			return false, h.leave(&RefusedError{Option: OptGo, Reply: r, Message: string(data[:min(len(data), maxString)])})
		case r == RepAck && !seen:
			return false, &ProtocolError{What: "GO acknowledged without a size", Got: uint64(r)}
		case r == RepAck:
			return true, checkOffer(*info)
		case r != RepInfo:
			return false, &ProtocolError{What: "reply to GO", Got: uint64(r)}
		}
		isExport, err := info.decodeInfo(data)
		if err != nil {
			return false, err
		}
		seen = seen || isExport
	}
	return false, &ProtocolError{What: "number of replies to GO", Got: maxOptCount}
}

// decodeInfo takes in the data of a RepInfo, and reports whether it was the size and the flags.
func (i *Info) decodeInfo(data []byte) (isExport bool, err error) {
	if len(data) < 2 {
		return false, &ProtocolError{What: "length of an information", Got: uint64(len(data))}
	}
	kind, data := binary.BigEndian.Uint16(data), data[2:]
	switch {
	case kind == infoExport && len(data) == 10:
		return true, i.decodeExport(data)
	case kind == infoBlockSize && len(data) == 12:
		i.decodeBlockSizes(data)
	case kind == infoExport || kind == infoBlockSize:
		return false, &ProtocolError{What: "length of an information", Got: uint64(len(data))}
	}
	return false, nil // what is not known is to be ignored
}

// checkOffer refuses block sizes that no client could work with.
func checkOffer(i Info) error {
	if err := i.check(); err != nil {
		return &ProtocolError{What: "offer", Err: err}
	}
	return nil
}

// optReply reads one reply to an option.
func (h *haggler) optReply(opt Option) (OptionReply, []byte, error) {
	var in [sizeOptReply]byte
	if err := h.receive(in[:]); err != nil {
		return 0, nil, err
	}
	if m := binary.BigEndian.Uint64(in[:]); m != magicOptReply {
		return 0, nil, &ProtocolError{What: "option reply magic", Got: m}
	}
	if o := Option(binary.BigEndian.Uint32(in[8:])); o != opt {
		return 0, nil, &ProtocolError{What: "reply to another option", Got: uint64(o)}
	}
	n := binary.BigEndian.Uint32(in[16:])
	if n > maxOptReply {
		return 0, nil, &ProtocolError{What: "length of an option reply", Got: uint64(n)}
	}
	data := make([]byte, n)
	return OptionReply(binary.BigEndian.Uint32(in[12:])), data, h.receive(data)
}

// exportName asks for the export the old way, which has no error reply: the server hangs up instead.
func (h *haggler) exportName(info *Info) error {
	if err := h.send(append(appendOption(nil, OptExportName, len(h.export)), h.export...)); err != nil {
		return err
	}
	var in [10 + sizeZeroes]byte
	n := len(in)
	if h.noZeroes {
		n = 10
	}
	if err := h.receive(in[:n]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w, or not for us: %w", ErrUnknownExport, err)
		}
		return err
	}
	return info.decodeExport(in[:])
}

// leave tells the server that the client goes away, as the protocol asks, and returns why.
func (h *haggler) leave(why error) error {
	_ = h.send(appendOption(nil, OptAbort, 0))
	return why
}

func (h *haggler) send(b []byte) error {
	_, err := h.nc.Write(b)
	return err
}

func (h *haggler) receive(b []byte) error {
	if _, err := io.ReadFull(h.br, b); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return nil
}
