package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/staleproof/staleproof/examples/internal/nbd"
	"github.com/staleproof/staleproof/jobtracker"
	"github.com/staleproof/staleproof/repair"
)

// config is what the command line says.
type config struct {
	listen       string
	uris         []string
	replicas     int
	size         int64
	dir          string
	create       bool
	ack          int // 0: what the device has, or a majority for a new one
	offlineJobs  int
	offlineBytes int64
	offlineFor   time.Duration
	replyTimeout time.Duration
	wait         time.Duration
	repair       bool
	repairRate   int64 // bytes a second; 0: no limit
	plan         planFlag
	control      string
	demo         bool
	verbose      bool
	given        map[string]bool // flags that were given

	screen    *screen                // nil: none
	onEvent   func(jobtracker.Event) // for tests; called in order, must not block
	onResolve func()
	onRepair  func(repair.LiveProgress)
}

const usage = `mirror is a network block device that is kept on several replicas.

  mirror [-replicas n] [-size n] [-dir d]        replicas in this process, over files
  mirror -replica uri -replica uri ... [-create] replicas on NBD servers, such as nbdkit and qemu-nbd
  mirror status -control address [-json]         what a running mirror is doing
  mirror replace -control address -replica n [-uri uri]
                                                 put another device in the place of one of its replicas
  mirror -demo                                   lose replicas under load, take them back by replay and by repair, lose
                                                 mirror itself; see it proven, in about 20 seconds

Clients connect to the address of -listen, for example: nbdinfo nbd://127.0.0.1:10809. The last MiB of each replica is
mirror's own. A replica that is lost comes back by replay as long as it is within all three -offline limits; past one of
them it is repaired while clients go on, and so is a blank one in the place of another. To keep within the limits, a flush
is inserted after an eighth of -offline-jobs or -offline-bytes.

If mirror is killed, the next one makes the replicas equal before it serves clients (-plan tells beforehand what it would
copy): what was flushed is there, on all. That takes enough of the replicas that one of them has everything that was
flushed: all but one less than -ack.

Never run two mirrors on the same replicas. NBD cannot tell them apart, and neither can mirror: each would undo what the
other has done. Only for files of -dir, on Linux, is the second one refused.

`

const exitStatus = `
Exit status: 0 when it was ended by SIGINT or SIGTERM and everything is durable; 1 when something failed; 2 for a bad
command line; 3 when the replicas that are here do not make up the device: too few that know what they hold, or one of
another device. A second signal ends it at once.
`

// The defaults of flags that limit something.
const (
	defaultListen       = "127.0.0.1:10809"
	defaultReplicas     = 3
	defaultSize         = 256 << 20
	defaultOfflineJobs  = 8192
	defaultOfflineBytes = 128 << 20
	defaultOfflineFor   = 30 * time.Second
	defaultReplyTimeout = 10 * time.Second
	defaultWait         = 15 * time.Second
)

// parse reads the command line. The error is flag.ErrHelp, told already, or says what is wrong.
func parse(args []string, out io.Writer) (config, error) {
	var c config
	f := flag.NewFlagSet("mirror", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		_, _ = io.WriteString(out, usage)
		f.PrintDefaults()
		_, _ = io.WriteString(out, exitStatus)
	}
	f.StringVar(&c.listen, "listen", defaultListen, "`address` to serve clients on: host:port, or unix:path")
	f.Func("replica", "`uri` of a replica, nbd://host:port/export or nbd+unix:///export?socket=path; give it once for each", func(s string) error {
		c.uris = append(c.uris, s)
		return nil
	})
	f.IntVar(&c.replicas, "replicas", defaultReplicas, "`number` of replicas in this process, when their device is made; one in -dir tells its own")
	c.size = defaultSize
	f.Var((*bytesFlag)(&c.size), "size", "`bytes` of a new device in this process, with K, M, G or T")
	f.StringVar(&c.dir, "dir", "", "`directory` for the files of the replicas in this process; created or reopened (default: a temporary one, removed at the end)")
	f.BoolVar(&c.create, "create", false, "make a new device of replicas given with -replica, whose last MiB is blank; what else they hold is zeroed")
	f.IntVar(&c.ack, "ack", 0, "`number` of replicas that must have done a write before it is acknowledged; fixed when the device is made (default: a majority)")
	f.IntVar(&c.offlineJobs, "offline-jobs", defaultOfflineJobs, "`number` of jobs kept for the replay of a replica that is away")
	c.offlineBytes = defaultOfflineBytes
	f.Var((*bytesFlag)(&c.offlineBytes), "offline-bytes", "`bytes` of jobs kept for the replay of a replica that is away")
	f.DurationVar(&c.offlineFor, "offline-for", defaultOfflineFor, "how long a replica may be away")
	f.BoolVar(&c.repair, "repair", true, "repair replicas that cannot replay while clients go on")
	f.Var((*bytesFlag)(&c.repairRate), "repair-rate", "`bytes` a second that are copied at most to a replica under repair (default: no limit)")
	f.DurationVar(&c.replyTimeout, "reply-timeout", defaultReplyTimeout, "how long a replica may owe answers and give none before it counts as away")
	f.DurationVar(&c.wait, "wait", defaultWait, "how long to wait for replicas at the start")
	f.StringVar(&c.control, "control", "", "`address` of the control endpoint for mirror status and mirror replace: host:port of the loopback, or unix:path (default: none)")
	f.Var(&c.plan, "plan", "print what the start would copy to make the replicas equal, as text or, with -plan=json, as JSON, and exit; nothing is touched")
	f.BoolVar(&c.demo, "demo", false, "run the demonstration and exit; it takes no other flag but -v")
	f.BoolVar(&c.verbose, "v", false, "log connections and every change of a replica to the standard error")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.given = make(map[string]bool)
	f.Visit(func(f *flag.Flag) { c.given[f.Name] = true })
	if f.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.check()
}

// check names the first flag that cannot work.
func (c *config) check() error {
	if c.demo {
		for name := range c.given {
			if name != "demo" && name != "v" {
				return fmt.Errorf("-%s has no place in the demonstration, which takes -v only", name)
			}
		}
	}
	if err := c.checkURIs(); err != nil {
		return err
	}
	switch {
	case c.plan == "":
	case c.create:
		return errors.New("-plan is for a device that there is, and -create makes a new one")
	case len(c.uris) == 0 && c.dir == "":
		return errors.New("-plan needs a device: -dir or -replica")
	}
	if len(c.uris) > 0 {
		for _, name := range []string{"dir", "size", "replicas"} {
			if c.given[name] {
				return fmt.Errorf("-%s is for replicas in this process, and -replica names others", name)
			}
		}
		c.replicas = len(c.uris)
	} else if c.create {
		return errors.New("-create is for replicas given with -replica; in a directory without a device one is made anyway")
	}
	limits := []struct {
		name           string
		got, low, high int64
	}{
		{"replicas", int64(c.replicas), 1, jobtracker.MaxReplicas},
		{"size", c.size, minSize, maxSize},
		{"offline-jobs", int64(c.offlineJobs), 64, 1 << 18},
		{"offline-bytes", c.offlineBytes, maxRequest, 1 << 40},
		{"offline-for", int64(c.offlineFor), int64(time.Millisecond), math.MaxInt64},
		{"reply-timeout", int64(c.replyTimeout), int64(10 * time.Millisecond), math.MaxInt64},
		{"wait", int64(c.wait), int64(time.Millisecond), math.MaxInt64},
	}
	if c.ack != 0 || c.given["ack"] {
		limits = append(limits, struct {
			name           string
			got, low, high int64
		}{"ack", int64(c.ack), 1, int64(c.replicas)})
	}
	for _, l := range limits {
		if l.got < l.low || l.got > l.high {
			return fmt.Errorf("-%s is %s, not in %s to %s", l.name, c.show(l.name, l.got), c.show(l.name, l.low), c.show(l.name, l.high))
		}
	}
	if c.size%blockSize != 0 {
		return fmt.Errorf("-size is %d, not a multiple of %d", c.size, blockSize)
	}
	if _, _, err := address("listen", c.listen); err != nil {
		return err
	}
	if c.control != "" {
		return checkControl(c.control)
	}
	return nil
}

// checkURIs wants every replica named once. Two URIs of one disk can still differ: see distinct.
func (c *config) checkURIs() error {
	named := make(map[nbd.URI]bool)
	for _, uri := range c.uris {
		u, err := nbd.ParseURI(uri)
		if err != nil {
			return err
		}
		if named[u] {
			return fmt.Errorf("-replica names %s twice", uri)
		}
		named[u] = true
	}
	return nil
}

func (c *config) show(name string, v int64) string {
	switch name {
	case "offline-for", "reply-timeout", "wait":
		return time.Duration(v).String()
	case "size", "offline-bytes":
		return bytesFlag(v).text()
	}
	return strconv.FormatInt(v, 10)
}

// answerTime is how long a server may owe one answer; it may take its time for a flush.
func (c *config) answerTime(command nbd.Command) time.Duration {
	if command == nbd.CmdFlush {
		return 6 * c.replyTimeout
	}
	return c.replyTimeout
}

// address is where to listen, as a flag says.
func address(flag, value string) (network, address string, err error) {
	if path, ok := strings.CutPrefix(value, "unix:"); ok {
		if path == "" {
			return "", "", fmt.Errorf("-%s unix: has no path", flag)
		}
		return "unix", path, nil
	}
	if _, _, err := net.SplitHostPort(value); err != nil {
		return "", "", fmt.Errorf("-%s is %q, neither host:port nor unix:path", flag, value)
	}
	return "tcp", value, nil
}

// checkControl wants an address that nobody else can reach: who reaches it can replace replicas.
func checkControl(value string) error {
	network, at, err := address("control", value)
	if err != nil || network == "unix" {
		return err
	}
	host, _, _ := net.SplitHostPort(at) // address has looked
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return fmt.Errorf("-control is %q, and must be an address of the loopback, such as 127.0.0.1:10810 or [::1]:10810, or unix:path", value)
	}
	return nil
}

// bytesFlag is a number of bytes, with a unit of 1024.
type bytesFlag int64

const units = "KMGT"

func (b *bytesFlag) String() string {
	if b == nil {
		return ""
	}
	return b.text()
}

func (b bytesFlag) text() string {
	unit := -1
	for b != 0 && b%1024 == 0 && unit < len(units)-1 {
		b /= 1024
		unit++
	}
	if unit < 0 {
		return strconv.FormatInt(int64(b), 10)
	}
	return fmt.Sprintf("%d%c", int64(b), units[unit])
}

// Set implements flag.Value.
func (b *bytesFlag) Set(s string) error {
	digits, shift := s, 0
	if s != "" {
		if i := strings.IndexByte(units, s[len(s)-1]&^0x20); i >= 0 {
			digits, shift = s[:len(s)-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return fmt.Errorf("not a number of bytes, such as 4096, 64K, 256M or 1G")
	}
	*b = bytesFlag(n << shift)
	return nil
}
