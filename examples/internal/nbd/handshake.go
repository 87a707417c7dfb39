package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// handshake haggles until the client has chosen an export. Any error ends the connection.
func (c *conn) handshake() (*Export, Info, error) {
	if t := c.srv.opts.HandshakeTimeout; t > 0 {
		if err := c.nc.SetDeadline(time.Now().Add(t)); err != nil {
			return nil, Info{}, fmt.Errorf("nbd: handshake: %w", err)
		}
	}
	noZeroes, err := c.greet()
	if err != nil {
		return nil, Info{}, err
	}
	for {
		export, info, err := c.option(noZeroes)
		if err != nil {
			return nil, Info{}, err
		}
		if export != nil {
			return export, info, c.nc.SetDeadline(time.Time{})
		}
	}
}

// greet exchanges the flags.
func (c *conn) greet() (noZeroes bool, err error) {
	var b []byte
	b = binary.BigEndian.AppendUint64(b, magicInit)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if err := c.send(b); err != nil {
		return false, err
	}
	var in [4]byte
	if err := c.receive(in[:]); err != nil {
		return false, err
	}
	flags := binary.BigEndian.Uint32(in[:])
	if flags&^(clientFixedNewstyle|clientNoZeroes) != 0 {
		return false, &ProtocolError{What: "client flags", Got: uint64(flags)}
	}
	return flags&clientNoZeroes != 0, nil
}

// option answers one option. It returns an export when that ended the handshake.
func (c *conn) option(noZeroes bool) (*Export, Info, error) {
	var in [sizeOptionHeader]byte
	if err := c.receive(in[:]); err != nil {
		return nil, Info{}, err
	}
	if m := binary.BigEndian.Uint64(in[:]); m != magicOption {
		return nil, Info{}, &ProtocolError{What: "option magic", Got: m}
	}
	opt := Option(binary.BigEndian.Uint32(in[8:]))
	n := binary.BigEndian.Uint32(in[12:])
	if n > maxOptSkip || opt == OptExportName && n > maxString {
		return nil, Info{}, &ProtocolError{What: fmt.Sprintf("length of %v", opt), Got: uint64(n)}
	}
	data, err := c.optionData(n)
	if err != nil {
		return nil, Info{}, err
	}
	switch opt {
	case OptExportName:
		return c.exportName(string(data), noZeroes)
	case OptAbort:
		// The client may be gone already: that it left is all that matters.
		_ = c.replyOption(opt, RepAck, "")
		return nil, Info{}, ErrAborted
	case OptInfo, OptGo:
		return c.infoOrGo(opt, data, n)
	case OptList:
		return nil, Info{}, c.list(n)
	case OptStartTLS, OptStructuredReply:
		if n != 0 {
			return nil, Info{}, c.replyOption(opt, RepErrInvalid, "no data is allowed")
		}
	}
	return nil, Info{}, c.replyOption(opt, RepErrUnsup, "")
}

// optionData reads n bytes, or skips them and returns nil when they are more than any option needs.
func (c *conn) optionData(n uint32) ([]byte, error) {
	if n > maxOption {
		if _, err := c.br.Discard(int(n)); err != nil {
			return nil, lost("handshake", err)
		}
		return nil, nil
	}
	data := make([]byte, n)
	return data, c.receive(data)
}

// exportName ends the handshake, or the connection: this option has no error reply.
func (c *conn) exportName(name string, noZeroes bool) (*Export, Info, error) {
	export, info, err := c.lookup(name)
	if err != nil {
		return nil, Info{}, err
	}
	out := info.appendExport(nil)
	if !noZeroes {
		out = append(out, make([]byte, sizeZeroes)...)
	}
	return export, info, c.send(out)
}

// lookup returns an export and what is offered of it.
func (c *conn) lookup(name string) (*Export, Info, error) {
	export, ok := c.srv.find(name)
	if !ok {
		return nil, Info{}, fmt.Errorf("%w: %q", ErrUnknownExport, name)
	}
	info, err := export.Backend.Info().effective(c.srv.opts.MaxRequest)
	return export, info, err
}

// infoOrGo answers both, which differ only in what follows. n is the length as sent.
func (c *conn) infoOrGo(opt Option, data []byte, n uint32) (*Export, Info, error) {
	if n > maxOption {
		return nil, Info{}, c.replyOption(opt, RepErrTooBig, "option is too long")
	}
	name, wanted, ok := parseGo(data)
	if !ok {
		return nil, Info{}, c.replyOption(opt, RepErrInvalid, "malformed option")
	}
	export, info, err := c.lookup(name)
	switch {
	case errors.Is(err, ErrUnknownExport):
		return nil, Info{}, c.replyOption(opt, RepErrUnknown, "no such export")
	case err != nil:
		c.srv.opts.Log.Error("nbd: export cannot be offered", "export", name, "err", err)
		return nil, Info{}, c.replyOption(opt, RepErrPlatform, "export cannot be offered")
	}
	if err := c.send(appendInfos(opt, export, info, wanted)); err != nil || opt == OptInfo {
		return nil, Info{}, err
	}
	return export, info, nil
}

// parseGo takes the data of OptInfo and OptGo apart: a name, and a list of what the client asks for.
func parseGo(data []byte) (name string, wanted []byte, ok bool) {
	if len(data) < 6 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(data)
	data = data[4:]
	if n > maxString || int(n) > len(data)-2 {
		return "", nil, false
	}
	name, data = string(data[:n]), data[n:]
	count := binary.BigEndian.Uint16(data)
	return name, data[2:], int(count)*2 == len(data)-2
}

// appendInfos is the whole answer to OptInfo and OptGo. The block sizes are always in it.
func appendInfos(opt Option, export *Export, info Info, wanted []byte) []byte {
	kind := func(k uint16) []byte { return binary.BigEndian.AppendUint16(nil, k) }
	b := appendOptReply(nil, opt, RepInfo, info.appendExport(kind(infoExport)))
	b = appendOptReply(b, opt, RepInfo, info.appendBlockSizes(kind(infoBlockSize)))
	var name, description bool // once each, however often they are asked for
	for ; len(wanted) >= 2; wanted = wanted[2:] {
		k := binary.BigEndian.Uint16(wanted)
		name = name || k == infoName
		description = description || k == infoDescription && export.Description != ""
	}
	if name {
		b = appendOptReply(b, opt, RepInfo, append(kind(infoName), export.Name...))
	}
	if description {
		b = appendOptReply(b, opt, RepInfo, append(kind(infoDescription), export.Description...))
	}
	return appendOptReply(b, opt, RepAck, nil)
}

// list names all exports.
func (c *conn) list(n uint32) error {
	if n != 0 {
		return c.replyOption(OptList, RepErrInvalid, "no data is allowed")
	}
	var out []byte
	for _, e := range c.srv.opts.Exports {
		entry := binary.BigEndian.AppendUint32(nil, uint32(len(e.Name)))
		entry = append(append(entry, e.Name...), e.Description...)
		out = appendOptReply(out, OptList, RepServer, entry)
	}
	return c.send(appendOptReply(out, OptList, RepAck, nil))
}

func (c *conn) replyOption(opt Option, r OptionReply, message string) error {
	return c.send(appendOptReply(nil, opt, r, []byte(message)))
}

func (c *conn) send(b []byte) error {
	if _, err := c.nc.Write(b); err != nil {
		return lost("handshake", err)
	}
	return nil
}

func (c *conn) receive(b []byte) error {
	if _, err := io.ReadFull(c.br, b); err != nil {
		return lost("handshake", err)
	}
	return nil
}

// lost wraps an error of the connection. An end where more had to come is io.ErrUnexpectedEOF.
func lost(during string, err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("nbd: connection lost during %s: %w", during, err)
}
