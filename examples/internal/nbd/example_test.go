package nbd_test

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/staleproof/staleproof/examples/internal/nbd"
)

// A server of a file, and a client that writes to it, reads it back and leaves in good order.
func Example() {
	err := func() error {
		disk, err := os.CreateTemp("", "disk")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(disk.Name()) }()
		file, err := nbd.NewFile(disk, nbd.FileOptions{Size: 1 << 20})
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		srv, err := nbd.NewServer(nbd.Options{Exports: []nbd.Export{{Name: "disk", Backend: file}}})
		if err != nil {
			return err
		}
		defer func() { _ = srv.Close() }()

		ctx := context.Background()
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		go func() { _ = srv.Serve(ln) }()
		c, err := nbd.Dial(ctx, "nbd://"+ln.Addr().String()+"/disk")
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		fmt.Println("size", c.Info().Size)
		return talk(c)
	}()
	fmt.Println(err)
	// Output:
	// size 1048576
	// 1 ""
	// 2 "hello"
	// EOF
}

// talk receives on the goroutine that sends, which is enough for two calls: a real driver has one for each.
func talk(c *nbd.Client) error {
	hello := []byte("hello")
	dst := make([]byte, len(hello))
	for _, call := range []nbd.Call{
		{Header: nbd.Header{Command: nbd.CmdWrite, Flags: nbd.FlagFUA, Cookie: 1, Length: 5}, Payload: hello},
		{Header: nbd.Header{Command: nbd.CmdRead, Cookie: 2, Length: 5}},
	} {
		if err := c.Send(call); err != nil {
			return err
		}
		reply, err := c.Receive(func(cookie uint64) (length uint32, into []byte, ok bool) {
			if cookie == 2 {
				return 5, dst, true
			}
			return 0, nil, cookie == 1
		})
		if err != nil {
			return err
		}
		fmt.Printf("%d %q\n", reply.Cookie, reply.Data)
	}
	if err := c.Send(nbd.Call{Header: nbd.Header{Command: nbd.CmdDisc}}); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	_, err := c.Receive(nil) // nothing is on its way, so nothing is looked up
	return err
}
