package jobtracker

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

var (
	stress = flag.Bool("stress", false, "long forms")
	update = flag.Bool("update", false, "rewrite golden traces")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
