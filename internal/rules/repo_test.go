package rules_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/staleproof/staleproof/internal/rules"
)

const root = "../.."

// maxLines is the soft cap on a Go file. A file in longFiles may be longer, up to the number there: the reason stands
// beside it, and an entry that is no longer needed fails.
const maxLines = 500

var longFiles = map[string]int{}

// machinePath matches an absolute path that exists on somebody's machine only.
var machinePath = regexp.MustCompile("(?m)(^|[\\s\"'`=(:])/(work|home|root|Users)/")

func TestNoTestSleeps(t *testing.T) { rules.Sleeps(t, root) }

func TestFiles(t *testing.T) {
	long := 0
	rules.Files(t, root, func(path string) {
		text, err := os.ReadFile(filepath.Join(root, path))
		require.NoError(t, err)
		if bytes.IndexByte(text, 0) >= 0 {
			return // not text
		}
		if at := machinePath.FindIndex(text); at != nil {
			t.Errorf("%s:%d: a path of one machine", path, 1+bytes.Count(text[:at[1]], []byte("\n")))
		}
		if bytes.Contains(text, []byte("\r\n")) {
			t.Errorf("%s: CRLF line ends", path)
		}
		lines := bytes.Count(text, []byte("\n"))
		if limit, ok := longFiles[filepath.ToSlash(path)]; ok {
			long++
			if lines <= maxLines || lines > limit {
				t.Errorf("%s: %d lines, listed as long with a limit of %d", path, lines, limit)
			}
		} else if strings.HasSuffix(path, ".go") && lines > maxLines {
			t.Errorf("%s: %d lines, over %d: split it, or list it with a reason", path, lines, maxLines)
		}
	})
	require.Len(t, longFiles, long, "a file listed as long is gone")
}

func TestMachinePathCanMatch(t *testing.T) {
	for _, s := range []string{"see /wo" + "rk/x", "\"/ho" + "me/me\"", "a=/ro" + "ot/x", "x\n/Us" + "ers/me"} {
		require.Regexp(t, machinePath, s)
	}
	for _, s := range []string{"https://example.org/home/", "a work/home balance"} {
		require.NotRegexp(t, machinePath, s)
	}
}
