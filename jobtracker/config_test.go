package jobtracker

import (
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConfigNamesTheBadField(t *testing.T) {
	const size = 512
	cases := map[string][]struct {
		set            func(c *Config[int])
		got, low, high int64
	}{
		"Replicas": {
			{func(c *Config[int]) { c.Replicas = 0 }, 0, 1, 7},
			{func(c *Config[int]) { c.Replicas = -1 }, -1, 1, 7},
			{func(c *Config[int]) { c.Replicas = 8 }, 8, 1, 7},
			{func(c *Config[int]) { *c = Config[int]{} }, 0, 1, 7}, // the first of several
		},
		"Blocks": {
			{func(c *Config[int]) { c.Blocks = 0 }, 0, 1, 1 << 62 / size},
			{func(c *Config[int]) { c.Blocks = 1<<62/size + 1 }, 1<<62/size + 1, 1, 1 << 62 / size},
			{func(c *Config[int]) { c.Blocks = math.MaxUint64 }, math.MaxInt64, 1, 1 << 62 / size},
		},
		"BlockSize": {
			{func(c *Config[int]) { c.BlockSize = 0 }, 0, 1, 1 << 30},
			{func(c *Config[int]) { c.BlockSize = 1<<30 + 1 }, 1<<30 + 1, 1, 1 << 30},
		},
		"WriteQuorum": {
			{func(c *Config[int]) { c.WriteQuorum = -1 }, -1, 1, 3},
			{func(c *Config[int]) { c.WriteQuorum = 4 }, 4, 1, 3},
		},
		"Order":    {{func(c *Config[int]) { c.Order = 2 }, 2, 0, 1}},
		"Reads":    {{func(c *Config[int]) { c.Reads = 2 }, 2, 0, 1}},
		"Mismatch": {{func(c *Config[int]) { c.Mismatch = 2 }, 2, 0, 1}},
		"MaxJobs": {
			{func(c *Config[int]) { c.MaxJobs = -1 }, -1, 1, 1 << 20},
			{func(c *Config[int]) { c.MaxJobs = 1<<20 + 1 }, 1<<20 + 1, 1, 1 << 20},
		},
		"MaxBytes": {
			{func(c *Config[int]) { c.MaxBytes = -1 }, -1, size, 1 << 62},
			{func(c *Config[int]) { c.MaxBytes = size - 1 }, size - 1, size, 1 << 62},
			{func(c *Config[int]) { c.MaxBytes = 1<<62 + 1 }, 1<<62 + 1, size, 1 << 62},
		},
		"OfflineJobs": {
			{func(c *Config[int]) { c.OfflineJobs = -1 }, -1, 1, 1024},
			{func(c *Config[int]) { c.MaxJobs, c.OfflineJobs = 10, 11 }, 11, 1, 10},
		},
		"OfflineBytes": {
			{func(c *Config[int]) { c.OfflineBytes = -1 }, -1, 1, 256 << 20},
			{func(c *Config[int]) { c.MaxBytes, c.OfflineBytes = 1000, 1001 }, 1001, 1, 1000},
		},
		"ExtentBlocks": {
			{func(c *Config[int]) { c.ExtentBlocks = 1 << 63 }, 1<<63 - 1, 1, (256 << 20) / size},
			{func(c *Config[int]) { c.MaxBytes, c.ExtentBlocks = 3*size, 4 }, 4, 1, 3},
		},
		"AutoSync": {{func(c *Config[int]) { c.AutoSync = 3 }, 3, 0, 2}},
		"AutoSyncJobs": {
			{func(c *Config[int]) { c.AutoSyncJobs = -1 }, -1, 1, 1 << 24},
			{func(c *Config[int]) { c.AutoSyncJobs = 1<<24 + 1 }, 1<<24 + 1, 1, 1 << 24},
		},
		"AutoSyncBytes": {
			{func(c *Config[int]) { c.AutoSyncBytes = -1 }, -1, 1, 1 << 62},
			{func(c *Config[int]) { c.AutoSyncBytes = 1<<62 + 1 }, 1<<62 + 1, 1, 1 << 62},
		},
		// Every value means something.
		"WriteBack": nil, "OfflineFor": nil, "ReplyTimeout": nil,
		"OnResolve": nil, "OnRetire": nil, "OnEvent": nil, "Logger": nil, "Gap": nil,
	}
	for f := range reflect.TypeFor[Config[int]]().Fields() {
		require.Contains(t, cases, f.Name, "a field without a case")
	}
	for field, list := range cases {
		for _, tc := range list {
			t.Run(fmt.Sprintf("%s=%d", field, tc.got), func(t *testing.T) {
				cfg := Config[int]{Replicas: 3, Blocks: 100, BlockSize: size}
				_, err := New(cfg)
				require.NoError(t, err)
				tc.set(&cfg)
				tr, err := New(cfg)
				require.Nil(t, tr)
				require.ErrorIs(t, err, ErrConfig)
				require.Equal(t, &ConfigError{Field: field, Got: tc.got, Min: tc.low, Max: tc.high}, err)
				require.EqualError(t, err, fmt.Sprintf("jobtracker: bad configuration: %s is %d, want %d to %d", field, tc.got, tc.low, tc.high))
			})
		}
	}
}

func TestConfigDefaults(t *testing.T) {
	cfg := Config[int]{Replicas: 5, Blocks: 1 << 20, BlockSize: 4096}
	lim, err := cfg.limits()
	require.NoError(t, err)
	require.Equal(t, limits{
		n: 5, all: 0b11111, blocks: 1 << 20, blockSize: 4096, quorum: 3,
		payload:   [numKinds]int64{Read: 4096, Write: 4096, Copy: 4096},
		maxBlocks: [numKinds]uint64{Read: 65536, Write: 65536, Zero: math.MaxUint32, Trim: math.MaxUint32},
		maxJobs:   1024, maxBytes: 256 << 20, offlineJobs: 512, offlineBytes: 128 << 20,
		offlineFor: 30 * time.Second, replyLook: 10 * time.Second / 8,
		autoSync: SyncFlush, autoSyncJobs: 256, autoSyncBytes: 64 << 20, extent: 16, maxCallbacks: 4096,
	}, lim)
	require.Equal(t, Config[int]{Replicas: 5, Blocks: 1 << 20, BlockSize: 4096}, cfg, "the caller's is left as it is")
}

// TestConfigDefaultsFollow has defaults that depend on other fields.
func TestConfigDefaultsFollow(t *testing.T) {
	limitsOf := func(set func(c *Config[int])) limits {
		cfg := Config[int]{Replicas: 3, Blocks: 1 << 20, BlockSize: 4096}
		set(&cfg)
		lim, err := cfg.limits()
		require.NoError(t, err)
		return lim
	}
	for n, quorum := range []int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4} {
		if n > 0 {
			require.Equal(t, quorum, limitsOf(func(c *Config[int]) { c.Replicas = n }).quorum, "of %d", n)
		}
	}
	lim := limitsOf(func(c *Config[int]) { c.MaxJobs, c.MaxBytes = 1, 5000 })
	require.EqualValues(t, 1, lim.offlineJobs)
	require.EqualValues(t, 2500, lim.offlineBytes)
	require.EqualValues(t, 1, lim.autoSyncJobs)
	require.EqualValues(t, 1250, lim.autoSyncBytes)
	require.Equal(t, 4, lim.maxCallbacks)

	lim = limitsOf(func(c *Config[int]) { c.BlockSize, c.Blocks = 1<<30, 1<<32 })
	require.EqualValues(t, 1<<30, lim.maxBytes, "a block fits")
	lim = limitsOf(func(c *Config[int]) { c.BlockSize, c.Blocks, c.MaxBytes = 1, 1<<62, 1 })
	require.EqualValues(t, 1, lim.offlineBytes)

	lim = limitsOf(func(c *Config[int]) { c.OfflineFor, c.ReplyTimeout = -1, -1 })
	require.Zero(t, lim.offlineFor)
	require.Zero(t, lim.replyLook)
	lim = limitsOf(func(c *Config[int]) { c.OfflineFor, c.ReplyTimeout = math.MaxInt64, math.MaxInt64 })
	require.EqualValues(t, math.MaxInt64, lim.offlineFor)
	require.EqualValues(t, math.MaxInt64/8, lim.replyLook)
	lim = limitsOf(func(c *Config[int]) { c.ReplyTimeout = 7 })
	require.EqualValues(t, 1, lim.replyLook, "short is not never")
}
