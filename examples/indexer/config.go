package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// config is what the command line says.
type config struct {
	brokers        string
	group          string
	indexes        map[string][]string // the fields of each topic
	dir            string
	listen         string
	advertise      string
	workers        int
	flushEvery     time.Duration
	flushRows      int
	sessionTimeout time.Duration
	decodeDelay    time.Duration
	startWithin    time.Duration
	records        int
	demo           bool
	verbose        bool
	given          map[string]bool

	settle     time.Duration // how long a lookup waits for partitions that nobody has at the moment
	watchEvery time.Duration // how often the brokers are asked where the logs begin and end
	peerWait   time.Duration // and for one answer of another instance, or of the brokers

	// These are for tests.
	beforeApply func(*parcel)        // before a worker hands in what it has decoded
	onApply     func(*parcel, error) // after that, with the refusal if there was one
	onChange    func()               // after a callback of the group; must not block
}

const usage = `indexer is a secondary-index service over Kafka topics: it follows JSON records, indexes them by the fields you choose, and
answers lookups over HTTP.

  indexer                                                     a broker in this process, with generated data
  indexer -brokers host:port,... -index topic=field,field ... -dir d    a real cluster
  indexer -demo                                               several instances, killed and moved about; see it proven

Instances of one -group share the partitions of the topics. Each has a -dir of its own, and goes on where that left off.
Ask any of them:

  curl 'http://127.0.0.1:8080/v1/lookup?topic=orders&field=status&value=paid&limit=5'
  curl 'http://127.0.0.1:8080/v1/lookup?topic=orders&field=total&from=10&to=20'
  curl 'http://127.0.0.1:8080/v1/status'      and /healthz

topic and field are a must; value, or from (inclusive) and to (exclusive), choose; limit is 100 and at most 10000. A value
is JSON, or else a string as it stands: 10 is a number and "10" a string. An answer has the hits in the order of their
values, and says what it is worth:

  next      there are more hits: ask the same again with after=NEXT, until there is no next
  complete  every partition of the topic has answered. If not, missing are those that have not, and silent are the instances
            that were asked in vain, and why: ask again with the same after, for next goes past what is missing
  behind    how many records of the logs are not indexed yet, as far as is known

A field is a name, or names with dots between them for objects in objects; each scalar of an array counts. A record
replaces the one before it that has its key, and one without a value (a tombstone) deletes. Kafka 3.1 or newer is needed, which
fetches by a topic's id. There is no authentication: listen on the loopback, or on a network that you trust.

`

const exitStatus = `
Exit status: 0 when it was ended by SIGINT or SIGTERM and all that was read is committed; 1 when something failed; 2 for a
bad command line. A second signal ends it at once.
`

const (
	defaultListen  = "127.0.0.1:8080"
	defaultRecords = 200_000
	maxFields      = 64
)

// parse reads the command line. The error is flag.ErrHelp, told already, or says what is wrong.
func parse(args []string, out io.Writer) (config, error) {
	c := config{indexes: make(map[string][]string), settle: settleWait, peerWait: peerWait, watchEvery: watchEvery}
	f := flag.NewFlagSet("indexer", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		_, _ = io.WriteString(out, usage)
		f.PrintDefaults()
		_, _ = io.WriteString(out, exitStatus)
	}
	f.StringVar(&c.brokers, "brokers", "", "`addresses` of brokers of a real cluster, with commas (default: a broker in this process)")
	f.StringVar(&c.group, "group", "indexer", "`name` of the consumer group whose members share the work")
	f.Func("index", "`topic=field,field`: a topic to follow and what to index it by; give it once for each topic", c.addIndex)
	f.StringVar(&c.dir, "dir", "", "`directory` for the index; no other instance may use it (default without -brokers: a temporary one, removed at the end)")
	f.StringVar(&c.listen, "listen", defaultListen, "`address` to answer HTTP on")
	f.StringVar(&c.advertise, "advertise", "", "`address` at which the other instances reach this one (default: that of -listen)")
	f.IntVar(&c.workers, "workers", 4, "`number` of workers that decode")
	f.DurationVar(&c.flushEvery, "flush-every", time.Second, "how often to commit")
	f.IntVar(&c.flushRows, "flush-rows", 8192, "`number` of rows of a topic in memory after which to commit at once")
	f.DurationVar(&c.sessionTimeout, "session-timeout", 10*time.Second, "how long the group waits for an instance that is silent before others get its partitions")
	f.DurationVar(&c.startWithin, "start-within", 15*time.Second, "how long to wait for the brokers at the start")
	f.DurationVar(&c.decodeDelay, "decode-delay", 0, "extra time for each batch of records, as heavier decoding would take")
	f.IntVar(&c.records, "records", defaultRecords, "`number` of records to generate for the broker in this process; 100 a second follow")
	f.BoolVar(&c.demo, "demo", false, "run the demonstration and exit; takes -records and -v only")
	f.BoolVar(&c.verbose, "v", false, "log every change to the standard error")
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

// addIndex is one -index.
func (c *config) addIndex(s string) error {
	name, list, ok := strings.Cut(s, "=")
	fields := strings.Split(list, ",")
	switch {
	case !ok || name == "":
		return errors.New("not topic=field,field")
	case c.indexes[name] != nil:
		return fmt.Errorf("topic %s is given twice", name)
	case len(fields) > maxFields:
		return fmt.Errorf("%d fields, over %d", len(fields), maxFields)
	}
	for i, field := range fields {
		if field == "" || slices.Contains(strings.Split(field, "."), "") {
			return fmt.Errorf("%q is not a field, such as status or customer.city", field)
		}
		if slices.Contains(fields[:i], field) {
			return fmt.Errorf("field %s is given twice", field)
		}
	}
	c.indexes[name] = fields
	return nil
}

// check names the first flag that cannot work.
func (c *config) check() error {
	if c.demo {
		for name := range c.given {
			if name != "demo" && name != "v" && name != "records" {
				return fmt.Errorf("-%s has no place in the demonstration, which takes -records and -v only", name)
			}
		}
	}
	if c.brokers == "" {
		for _, name := range []string{"index", "dir", "group"} {
			if c.given[name] {
				return fmt.Errorf("-%s is for a real cluster: give -brokers too", name)
			}
		}
	} else {
		switch {
		case c.given["records"]:
			return errors.New("-records are generated for the broker in this process, and -brokers names others")
		case len(c.indexes) == 0:
			return errors.New("nothing to index: give -index topic=field,field")
		case c.dir == "":
			return errors.New("give -dir: an index that is built from a cluster is worth keeping")
		}
		for a := range strings.SplitSeq(c.brokers, ",") {
			if _, _, err := net.SplitHostPort(a); err != nil {
				return fmt.Errorf("-brokers has %q, which is not host:port", a)
			}
		}
	}
	if c.group == "" {
		return errors.New("-group is empty")
	}
	if err := c.checkAddresses(); err != nil {
		return err
	}
	return c.checkLimits()
}

func (c *config) checkAddresses() error {
	host, _, err := net.SplitHostPort(c.listen)
	if err != nil {
		return fmt.Errorf("-listen is %q, not host:port", c.listen)
	}
	if c.advertise != "" {
		if host, port, err := net.SplitHostPort(c.advertise); err != nil || host == "" || port == "" {
			return fmt.Errorf("-advertise is %q, not host:port", c.advertise)
		}
	} else if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("-listen %s is every address of this machine: say with -advertise at which one the others reach it", c.listen)
	}
	return nil
}

func (c *config) checkLimits() error {
	for _, l := range []struct {
		name      string
		got       int
		low, high int
	}{
		{"workers", c.workers, 1, 256},
		{"flush-rows", c.flushRows, 1, 1 << 20},
		{"records", c.records, 300, 10_000_000},
	} {
		if l.got < l.low || l.got > l.high {
			return fmt.Errorf("-%s is %d, not in %d to %d", l.name, l.got, l.low, l.high)
		}
	}
	for _, l := range []struct {
		name      string
		got       time.Duration
		low, high time.Duration
	}{
		{"flush-every", c.flushEvery, time.Millisecond, time.Hour},
		{"session-timeout", c.sessionTimeout, 500 * time.Millisecond, time.Hour},
		{"start-within", c.startWithin, time.Millisecond, time.Hour},
		{"decode-delay", c.decodeDelay, 0, time.Minute},
	} {
		if l.got < l.low || l.got > l.high {
			return fmt.Errorf("-%s is %v, not in %v to %v", l.name, l.got, l.low, l.high)
		}
	}
	return nil
}

// reachable is the address that others are told.
func (c *config) reachable(a net.Addr) string {
	if c.advertise == "" {
		return a.String()
	}
	host, port, err := net.SplitHostPort(c.advertise)
	if tcp, ok := a.(*net.TCPAddr); err == nil && ok && port == "0" {
		return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	}
	return c.advertise
}
