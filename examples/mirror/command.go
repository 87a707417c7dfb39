package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// The commands that talk to a running mirror.

const commandUsage = `mirror status -control address [-json]
    tells what a running mirror is doing: jobs, orphans by reason, each replica, how repairs go, and the tracker's dump.

mirror replace -control address -replica n [-uri uri]
    puts another device in the place of replica n: the one at the URI, which must be large enough, and its last MiB blank; name
    it so in -replica from the next start on. Without -uri it is at the same place: a file of -dir is set aside and a blank
    one put in its place; what else it is must have been put there, and its server, if it was stopped, must have been
    restarted. The device goes on, and the new replica is overwritten as a whole.

Exit status: 0 when it was done; 1 when it was refused, or mirror cannot be reached; 2 for a bad command line.

`

// commands are the flags of each command, but -control, and what it asks for.
var commands = map[string]func(*flag.FlagSet) func() (method, path string, err error){
	"status":  statusCommand,
	"replace": replaceCommand,
}

func statusCommand(f *flag.FlagSet) func() (method, path string, err error) {
	asJSON := f.Bool("json", false, "print JSON")
	return func() (string, string, error) {
		if *asJSON {
			return http.MethodGet, "/status?format=json", nil
		}
		return http.MethodGet, "/status", nil
	}
}

func replaceCommand(f *flag.FlagSet) func() (method, path string, err error) {
	replica := f.Int("replica", -1, "`number` of the replica, from 0")
	uri := f.String("uri", "", "`uri` of the device that takes its place (default: the same place)")
	return func() (string, string, error) {
		if *replica < 0 {
			return "", "", errors.New("-replica is missing")
		}
		q := url.Values{"replica": {strconv.Itoa(*replica)}}
		if *uri != "" {
			q.Set("uri", *uri)
		}
		return http.MethodPost, "/replace?" + q.Encode(), nil
	}
}

// command runs one of the commands and answers its exit status.
func command(name string, args []string, out, errOut io.Writer) int {
	f := flag.NewFlagSet("mirror "+name, flag.ContinueOnError)
	f.SetOutput(errOut)
	f.Usage = func() {
		_, _ = io.WriteString(errOut, commandUsage)
		f.PrintDefaults()
	}
	at := f.String("control", "", "`address` that the running mirror was given with -control")
	what := commands[name](f)
	method, path, err := "", "", f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitGood
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	case err == nil && *at == "":
		err = errors.New("-control is missing")
	case err == nil:
		err = checkControl(*at)
	}
	if err == nil {
		method, path, err = what()
	}
	if err != nil {
		_, _ = fmt.Fprintf(errOut, "mirror %s: %v\nmirror %s -h says more\n", name, err, name)
		return exitUsage
	}
	if err := ask(context.Background(), *at, method, path, out); err != nil {
		_, _ = fmt.Fprintf(errOut, "mirror %s: %v\n", name, err)
		return exitFailed
	}
	return exitGood
}

// ask asks a running mirror for something and prints what it says.
func ask(ctx context.Context, at, method, path string, out io.Writer) error {
	network, address, err := address("control", at)
	if err != nil {
		return err
	}
	host := address
	if network == "unix" {
		host = socketHost
	}
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}}
	defer t.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+host+path, nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: t}).Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		why, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
		return errors.Join(errors.New(strings.TrimSpace(string(why))), err)
	}
	_, err = io.Copy(out, answer.Body)
	return err
}
