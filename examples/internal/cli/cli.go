// Package cli has what the commands of the examples share.
package cli

import (
	"io"
	"os"
)

// IsTerminal tells whether people look at what is written to w as it comes: then a line may take the place of the one before.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0
}
