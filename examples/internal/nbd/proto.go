package nbd

import (
	"encoding/binary"
	"fmt"
)

// Magic numbers of the protocol.
const (
	magicInit       uint64 = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     uint64 = 0x49484156454f5054 // "IHAVEOPT"
	magicOldstyle   uint64 = 0x00420281861253
	magicOptReply   uint64 = 0x3e889045565a9
	magicRequest    uint32 = 0x25609513
	magicSimple     uint32 = 0x67446698
	magicStructured uint32 = 0x668e33ef
)

// Handshake flags of the server, and the client's answers to them.
const (
	flagFixedNewstyle uint16 = 1 << 0
	flagNoZeroes      uint16 = 1 << 1

	clientFixedNewstyle uint32 = 1 << 0
	clientNoZeroes      uint32 = 1 << 1
)

// Sizes on the wire.
const (
	sizeOptionHeader = 16
	sizeOptReply     = 20
	sizeRequest      = 28
	sizeSimpleReply  = 16
	sizeZeroes       = 124 // padding after the answer to OptExportName

	maxString    = 4096          // the protocol's limit for names and messages
	maxOption    = 2 * maxString // longest option that the server takes in
	maxOptSkip   = 1 << 20       // longest option that the server skips; more ends the connection
	maxOptReply  = 64 << 10      // longest option reply that the client takes in
	maxOptCount  = 256           // most replies to one option that the client takes in
	noBlockLimit = 0xffffffff    // MaxBlock of a server without a limit
)

// Option is an option of the handshake.
type Option uint32

// The options that this package knows.
const (
	OptExportName      Option = 1
	OptAbort           Option = 2
	OptList            Option = 3
	OptStartTLS        Option = 5
	OptInfo            Option = 6
	OptGo              Option = 7
	OptStructuredReply Option = 8
)

// String names the option.
func (o Option) String() string {
	switch o {
	case OptExportName:
		return "EXPORT_NAME"
	case OptAbort:
		return "ABORT"
	case OptList:
		return "LIST"
	case OptStartTLS:
		return "STARTTLS"
	case OptInfo:
		return "INFO"
	case OptGo:
		return "GO"
	case OptStructuredReply:
		return "STRUCTURED_REPLY"
	}
	return fmt.Sprintf("option %d", uint32(o))
}

// OptionReply is the type of a server's reply to an option. Errors have the highest bit set.
type OptionReply uint32

// The option replies that this package knows.
const (
	RepAck              OptionReply = 1
	RepServer           OptionReply = 2
	RepInfo             OptionReply = 3
	RepErrUnsup         OptionReply = 1<<31 + 1
	RepErrPolicy        OptionReply = 1<<31 + 2
	RepErrInvalid       OptionReply = 1<<31 + 3
	RepErrPlatform      OptionReply = 1<<31 + 4
	RepErrTLSReqd       OptionReply = 1<<31 + 5
	RepErrUnknown       OptionReply = 1<<31 + 6
	RepErrShutdown      OptionReply = 1<<31 + 7
	RepErrBlockSizeReqd OptionReply = 1<<31 + 8
	RepErrTooBig        OptionReply = 1<<31 + 9
)

// IsError reports whether the reply refuses the option.
func (r OptionReply) IsError() bool { return r&(1<<31) != 0 }

// String names the reply.
func (r OptionReply) String() string {
	switch r {
	case RepAck:
		return "ACK"
	case RepServer:
		return "SERVER"
	case RepInfo:
		return "INFO"
	case RepErrUnsup:
		return "ERR_UNSUP"
	case RepErrPolicy:
		return "ERR_POLICY"
	case RepErrInvalid:
		return "ERR_INVALID"
	case RepErrPlatform:
		return "ERR_PLATFORM"
	case RepErrTLSReqd:
		return "ERR_TLS_REQD"
	case RepErrUnknown:
		return "ERR_UNKNOWN"
	case RepErrShutdown:
		return "ERR_SHUTDOWN"
	case RepErrBlockSizeReqd:
		return "ERR_BLOCK_SIZE_REQD"
	case RepErrTooBig:
		return "ERR_TOO_BIG"
	}
	return fmt.Sprintf("reply %#x", uint32(r))
}

// Information types of OptInfo and OptGo.
const (
	infoExport      uint16 = 0
	infoName        uint16 = 1
	infoDescription uint16 = 2
	infoBlockSize   uint16 = 3
)

// Command is what a request asks for.
type Command uint16

// The commands that this package knows.
const (
	CmdRead        Command = 0
	CmdWrite       Command = 1
	CmdDisc        Command = 2
	CmdFlush       Command = 3
	CmdTrim        Command = 4
	CmdCache       Command = 5
	CmdWriteZeroes Command = 6
)

// String names the command.
func (c Command) String() string {
	switch c {
	case CmdRead:
		return "READ"
	case CmdWrite:
		return "WRITE"
	case CmdDisc:
		return "DISC"
	case CmdFlush:
		return "FLUSH"
	case CmdTrim:
		return "TRIM"
	case CmdCache:
		return "CACHE"
	case CmdWriteZeroes:
		return "WRITE_ZEROES"
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// CommandFlags modify a command.
type CommandFlags uint16

// The command flags.
const (
	// FlagFUA: the reply comes only after what the command wrote is on stable storage.
	FlagFUA CommandFlags = 1 << 0
	// FlagNoHole, with CmdWriteZeroes: the range stays allocated.
	FlagNoHole CommandFlags = 1 << 1
	// FlagDF, with CmdRead: for structured replies, which this package does not speak.
	FlagDF CommandFlags = 1 << 2
	// FlagReqOne, with a block status query, which this package does not speak.
	FlagReqOne CommandFlags = 1 << 3
	// FlagFastZero, with CmdWriteZeroes: fail with ENOTSUP rather than be as slow as a write.
	FlagFastZero CommandFlags = 1 << 4
)

// TransmissionFlags say what an export can do.
type TransmissionFlags uint16

// The transmission flags.
const (
	HasFlags        TransmissionFlags = 1 << 0 // always set on the wire
	ReadOnly        TransmissionFlags = 1 << 1
	SendFlush       TransmissionFlags = 1 << 2
	SendFUA         TransmissionFlags = 1 << 3
	Rotational      TransmissionFlags = 1 << 4
	SendTrim        TransmissionFlags = 1 << 5
	SendWriteZeroes TransmissionFlags = 1 << 6
	SendDF          TransmissionFlags = 1 << 7 // never offered by Server
	CanMultiConn    TransmissionFlags = 1 << 8
	SendResize      TransmissionFlags = 1 << 9 // never offered by Server
	SendCache       TransmissionFlags = 1 << 10
	SendFastZero    TransmissionFlags = 1 << 11
)

// offered are the flags that Server passes on from a backend.
const offered = ReadOnly | SendFlush | SendFUA | Rotational | SendTrim | SendWriteZeroes | CanMultiConn | SendCache | SendFastZero

// Header is a request without its payload, as it is on the wire.
type Header struct {
	Command Command
	Flags   CommandFlags
	Cookie  uint64 // chosen by the client, returned by the server
	Offset  uint64 // bytes
	Length  uint32 // bytes
}

// appendHeader appends the wire form of h to b.
func appendHeader(b []byte, h *Header) []byte {
	b = binary.BigEndian.AppendUint32(b, magicRequest)
	b = binary.BigEndian.AppendUint16(b, uint16(h.Flags))
	b = binary.BigEndian.AppendUint16(b, uint16(h.Command))
	b = binary.BigEndian.AppendUint64(b, h.Cookie)
	b = binary.BigEndian.AppendUint64(b, h.Offset)
	return binary.BigEndian.AppendUint32(b, h.Length)
}

// decodeHeader is the inverse of appendHeader.
func decodeHeader(b *[sizeRequest]byte) (Header, error) {
	if m := binary.BigEndian.Uint32(b[0:]); m != magicRequest {
		return Header{}, &ProtocolError{What: "request magic", Got: uint64(m)}
	}
	return Header{
		Flags:   CommandFlags(binary.BigEndian.Uint16(b[4:])),
		Command: Command(binary.BigEndian.Uint16(b[6:])),
		Cookie:  binary.BigEndian.Uint64(b[8:]),
		Offset:  binary.BigEndian.Uint64(b[16:]),
		Length:  binary.BigEndian.Uint32(b[24:]),
	}, nil
}

// appendSimpleReply appends a simple reply, without data, to b.
func appendSimpleReply(b []byte, e Errno, cookie uint64) []byte {
	b = binary.BigEndian.AppendUint32(b, magicSimple)
	b = binary.BigEndian.AppendUint32(b, uint32(e))
	return binary.BigEndian.AppendUint64(b, cookie)
}

// decodeSimpleReply is the inverse of appendSimpleReply.
func decodeSimpleReply(b *[sizeSimpleReply]byte) (Errno, uint64, error) {
	switch m := binary.BigEndian.Uint32(b[0:]); m {
	case magicSimple:
	case magicStructured:
		return 0, 0, &ProtocolError{What: "structured reply, never negotiated", Got: uint64(m)}
	default:
		return 0, 0, &ProtocolError{What: "reply magic", Got: uint64(m)}
	}
	return Errno(binary.BigEndian.Uint32(b[4:])), binary.BigEndian.Uint64(b[8:]), nil
}

// appendOption appends the header of an option with n bytes of data.
func appendOption(b []byte, o Option, n int) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint32(b, uint32(o))
	return binary.BigEndian.AppendUint32(b, uint32(n))
}

// appendOptReply appends a reply to an option.
func appendOptReply(b []byte, o Option, r OptionReply, data []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, magicOptReply)
	b = binary.BigEndian.AppendUint32(b, uint32(o))
	b = binary.BigEndian.AppendUint32(b, uint32(r))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}
