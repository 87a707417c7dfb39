package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// child is an instance in a process of its own, of this very binary.
type child struct {
	name string
	dir  string
	cmd  *exec.Cmd
	url  string        // once served
	done chan struct{} // closed when the process has ended and all that it said was read
	err  error         // how it ended; set before done is closed

	mu      sync.Mutex
	refused map[string]uint64
	last    string // the last that it said
}

var (
	servingLine = regexp.MustCompile(`serving (http://\S+)`)
	summaryLine = regexp.MustCompile(`refused: (.*)$`)
	refusedItem = regexp.MustCompile(`(\d+) ([a-z -]+)`)
)

// startChild starts an instance, and returns when it serves.
func startChild(ctx context.Context, name, dir string, echo io.Writer, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{name: name, dir: dir, done: make(chan struct{}), refused: make(map[string]uint64)}
	c.cmd = exec.Command(self, append(args, "-dir", dir, "-listen", "127.0.0.1:0")...) //nolint:noctx // it is killed by its owner, whatever becomes of ctx
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stderr = c.cmd.Stdout
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	serving := make(chan string, 1)
	go func() {
		c.listen(out, echo, serving)
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	select {
	case c.url = <-serving:
		return c, nil
	case <-c.done:
		return nil, fmt.Errorf("instance %s has ended before it served: %w: %s", name, c.err, c.last)
	case <-ctx.Done():
		c.kill()
		return nil, fmt.Errorf("instance %s: %w", name, context.Cause(ctx))
	}
}

// listen reads what the child says.
func (c *child) listen(out io.Reader, echo io.Writer, serving chan<- string) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		if echo != nil {
			_, _ = fmt.Fprintf(echo, "    %s| %s\n", c.name, line)
		}
		if m := servingLine.FindStringSubmatch(line); m != nil && c.cmd.Process != nil {
			select {
			case serving <- m[1]:
			default:
			}
		}
		c.mu.Lock()
		c.last = line
		if m := summaryLine.FindStringSubmatch(line); m != nil {
			c.refused = untally(m[1])
		}
		c.mu.Unlock()
	}
}

// untally reads what tally wrote.
func untally(s string) map[string]uint64 {
	counts := make(map[string]uint64)
	for _, m := range refusedItem.FindAllStringSubmatch(s, -1) {
		k, _ := strconv.ParseUint(m[1], 10, 64)
		counts[strings.TrimSpace(m[2])] += k
	}
	return counts
}

// status asks the child.
func (c *child) status(ctx context.Context) (v view, err error) {
	return v, getJSON(ctx, c.url+"/v1/status", &v)
}

// kill kills the child as the machine's failure would, and waits for its end.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// leave asks the child to end, and wants it to do so in good order.
func (c *child) leave(ctx context.Context) error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("instance %s: %w", c.name, err)
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		c.kill()
		return fmt.Errorf("instance %s does not end: %w", c.name, context.Cause(ctx))
	}
	if c.err != nil {
		return fmt.Errorf("instance %s did not end in good order: %w: %s", c.name, c.err, c.last)
	}
	return nil
}

// refusals are what the child has told at its end.
func (c *child) refusals() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

func getJSON(ctx context.Context, url string, v any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		words, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(words)))
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// storeIn opens the store of a child that has ended.
func storeIn(dir string) (*store, error) {
	if _, err := os.Stat(filepath.Join(dir, "index.db")); err != nil {
		return nil, errors.New("no index was made")
	}
	return openStore(dir)
}
