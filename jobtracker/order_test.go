package jobtracker

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestOrderModelLong plays long random traces to order and to the model.
func TestOrderModelLong(t *testing.T) {
	lines := 100_000
	if *stress {
		lines = 2_000_000
	}
	for name, mix := range map[string]orderMix{
		"few blocks":     {regions: singleBlocks(8), all: 2, read: 50, retire: 50, nothing: 2},
		"many blocks":    {regions: singleBlocks(60), all: 1, read: 50, retire: 50, wide: 10},
		"mostly reads":   {regions: singleBlocks(50), read: 90, retire: 48, wide: 10},
		"mostly writes":  {regions: singleBlocks(50), read: 10, retire: 49, wide: 2},
		"never all":      {regions: singleBlocks(40), read: 60, retire: 52, wide: 5},
		"rarely retired": {regions: singleBlocks(40), all: 3, read: 60, retire: 5, wide: 5},
		"whole space":    {regions: wholeSpace(16), all: 1, read: 50, retire: 50, nothing: 1, wide: 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, uint64(len(name))))
			m, o := newOrderModel(mix.regions), new(order)
			var deps []JobID
			id := JobID(0)
			for i := range lines {
				id += 1 + JobID(r.IntN(8)/7)
				op := mix.next(r, m, id)
				if op.retire {
					m.retire(op.id)
					o.retire(op.id)
				} else {
					deps = o.add(op.id, op.kind, op.start, op.blocks, deps[:0])
					if want := m.add(op.id, op.kind, op.start, op.blocks); !slices.Equal(deps, want) {
						require.Equal(t, want, deps, "line %d: %v", i, op)
					}
				}
				if r.IntN(200) == 0 {
					o.sweep()
				}
				if i%997 == 0 {
					require.NoError(t, o.check(), "line %d: %v", i, op)
				}
			}
			require.NoError(t, o.check())
		})
	}
}

// checkOrder plays a trace that rapid draws to order and to the model.
func checkOrder(t *rapid.T) {
	regions := rapid.SampledFrom([][]orderRegion{singleBlocks(4), singleBlocks(24), wholeSpace(2), wholeSpace(8)}).Draw(t, "regions")
	m, o := newOrderModel(regions), new(order)
	next := JobID(rapid.Uint64Range(0, 2).Draw(t, "first id"))
	add := func(kind orderKind, start, blocks uint64) {
		id := next + JobID(rapid.SampledFrom([]uint64{0, 0, 0, 1, 2, 1 << 40}).Draw(t, "gap"))
		next = id + 1
		got := o.add(id, kind, start, blocks, []JobID{9, 7})
		require.Equal(t, []JobID{9, 7}, got[:2], "what was in deps before")
		want := m.add(id, kind, start, blocks)
		require.True(t, slices.Equal(want, got[2:]), "%v: want %v, got %v", orderOp{id: id, kind: kind, start: start, blocks: blocks}, want, got[2:])
	}
	touch := func(kind orderKind) func(*rapid.T) {
		return func(t *rapid.T) {
			from := rapid.IntRange(0, len(regions)-1).Draw(t, "from")
			to := rapid.IntRange(from, len(regions)-1).Draw(t, "to")
			blocks := regions[to].last - regions[from].first + 1
			if regions[to].last == math.MaxUint64 && rapid.Bool().Draw(t, "beyond the end") {
				blocks = math.MaxUint64 // from block 0 that is one short of all
			}
			if rapid.IntRange(0, 19).Draw(t, "nothing") == 0 {
				blocks = 0
			}
			add(kind, regions[from].first, blocks)
		}
	}
	retire := func(t *rapid.T) {
		id := JobID(rapid.Uint64Range(0, uint64(next)+1).Draw(t, "any id"))
		if len(m.issued) > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
			id = rapid.SampledFrom(m.issued).Draw(t, "id")
		}
		if id >= next {
			o.retire(id) // unknown: must not matter when it is issued
			return
		}
		o.retire(id)
		m.retire(id)
	}
	t.Repeat(map[string]func(*rapid.T){
		"read":    touch(orderRead),
		"read2":   touch(orderRead),
		"write":   touch(orderWrite),
		"all":     func(t *rapid.T) { add(orderAll, rapid.Uint64().Draw(t, "start"), rapid.Uint64().Draw(t, "blocks")) },
		"retire":  retire,
		"retire2": retire,
		"sweep": func(t *rapid.T) {
			if o.ids == nil {
				return // no Skip without a draw: a fuzzer's bytes can ask for a hundred of them in a row, and rapid gives up
			}
			before := o.appendState(nil)
			o.sweep()
			require.Equal(t, before, o.appendState(nil))
		},
		"clone": func(*rapid.T) { // the original is spoilt, the clone must not notice
			c := o.clone()
			require.Equal(t, o.appendState(nil), c.appendState(nil))
			o.add(o.last+1, orderWrite, 0, math.MaxUint64, nil)
			for _, id := range m.issued {
				o.retire(id)
			}
			o.add(o.last+2, orderAll, 0, 0, nil)
			o = &c
		},
		"old id": func(t *rapid.T) {
			if o.ids == nil {
				return
			}
			before := o.appendState(nil)
			require.Empty(t, o.add(o.last, orderAll, 0, 0, nil))
			require.Equal(t, before, o.appendState(nil))
		},
		"": func(t *rapid.T) { require.NoError(t, o.check()) },
	})
}

func TestOrderModel(t *testing.T) { rapid.Check(t, checkOrder) }

func FuzzOrder(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkOrder)) }

// TestOrderStateIsCanonical plays many short histories, so that states recur by different ways, and
// checks that order describes two of them alike if and only if the model does.
func TestOrderStateIsCanonical(t *testing.T) {
	rounds := 20_000
	if *stress {
		rounds = 200_000
	}
	r := rand.New(rand.NewPCG(3, 3))
	mix := orderMix{regions: wholeSpace(1), all: 8, read: 60, retire: 55, nothing: 5, wide: 50}
	toOrder, toModel := map[string]string{}, map[string]string{}
	recurred := 0
	for range rounds {
		m, o := newOrderModel(mix.regions), new(order)
		for id := JobID(1); id < 7; id++ {
			op := mix.next(r, m, id)
			if op.retire {
				m.retire(op.id)
				o.retire(op.id)
			} else {
				o.add(op.id, op.kind, op.start, op.blocks, nil)
				m.add(op.id, op.kind, op.start, op.blocks)
			}
			if r.IntN(4) == 0 && o.ids != nil {
				o.sweep()
			}
			is, want := string(o.appendState(nil)), m.state()
			if was, ok := toOrder[want]; ok {
				recurred++
				require.Equal(t, is, was, "both of %s", want)
			}
			if was, ok := toModel[is]; ok {
				require.Equal(t, want, was, "both %q", is)
			}
			toOrder[want], toModel[is] = is, want
		}
	}
	require.Greater(t, recurred, rounds, "too few states recurred for this test to mean anything")
}

// TestOrderOracle compares with what another system's tracker answered.
func TestOrderOracle(t *testing.T) {
	for _, name := range []string{"cp100", "rnd1", "rnd2"} {
		t.Run(name, func(t *testing.T) {
			ops := sharedTrace(t, name+".ops.gz")
			want := sharedFile(t, name+".deps.gz")
			var o order
			var deps []JobID
			lines := 0
			scan := bufio.NewScanner(bytes.NewReader(want))
			for i, op := range ops {
				if op.retire {
					o.retire(op.id)
					continue
				}
				deps = o.add(op.id, op.kind, op.start, op.blocks, deps[:0])
				require.True(t, scan.Scan(), "the answers end before line %d, %v", i+1, op)
				if got := joinIDs(append([]JobID{op.id}, deps...)); got != scan.Text() {
					require.Equal(t, scan.Text(), got, "line %d, %v", i+1, op)
				}
				lines++
			}
			require.False(t, scan.Scan(), "answers are left over")
			require.Greater(t, lines, 10_000)
			require.NoError(t, o.check())
		})
	}
}

// TestOrderGolden replays the traces in testdata/order: a line of the trace, then, after "->", the answer.
// stories.txt is written by hand; -update writes random.txt from the model.
func TestOrderGolden(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("testdata/order/random.txt", randomGolden(), 0o644))
	}
	require.Equal(t, string(randomGolden()), string(readFile(t, "testdata/order/random.txt")),
		"random.txt is not what the model answers; see -update")
	files, err := filepath.Glob("testdata/order/*.txt")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			var o order
			for i, line := range strings.Split(string(readFile(t, file)), "\n") {
				switch line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) {
				case "":
					continue
				case "restart":
					o = order{}
					continue
				case "sweep":
					o.sweep()
					continue
				}
				command, want, _ := strings.Cut(line, "->")
				op, err := parseOrderOp(command)
				require.NoError(t, err, "%s:%d", file, i+1)
				if op.retire {
					o.retire(op.id)
				} else {
					require.Equal(t, strings.TrimSpace(want), joinIDs(o.add(op.id, op.kind, op.start, op.blocks, nil)),
						"%s:%d: %s", file, i+1, command)
				}
				require.NoError(t, o.check(), "%s:%d", file, i+1)
			}
		})
	}
}

func randomGolden() []byte {
	var b bytes.Buffer
	fmt.Fprintln(&b, "# Random operations and what the model in order_model_test.go answers. Written by -update.")
	r := rand.New(rand.NewPCG(7, 7))
	mix := orderMix{regions: singleBlocks(40), all: 4, read: 50, retire: 35, nothing: 3, wide: 25}
	m := newOrderModel(mix.regions)
	for id := JobID(1000); id < 1500; id++ {
		op := mix.next(r, m, id)
		if op.retire {
			m.retire(op.id)
			fmt.Fprintln(&b, op)
			continue
		}
		fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%v -> %s", op, joinIDs(m.add(op.id, op.kind, op.start, op.blocks)))))
	}
	return b.Bytes()
}

// TestOrderRetireOutOfOrder retires writes before those they overwrote: nothing comes back.
func TestOrderRetireOutOfOrder(t *testing.T) {
	var o order
	o.add(1, orderAll, 0, 0, nil)
	o.add(2, orderWrite, 0, 100, nil)
	for id := JobID(3); id < 3+100; id += 2 {
		o.add(id, orderWrite, uint64(id)-3, 1, nil)
		o.retire(id)
	}
	o.sweep()
	require.NoError(t, o.check())
	require.Empty(t, o.add(200, orderRead, 0, 1, nil))
	require.Equal(t, []JobID{2}, o.add(201, orderRead, 1, 1, nil))
	require.Equal(t, []JobID{1, 2}, o.add(202, orderRead, 98, 3, nil))
}

func TestOrderTakesAnyKind(t *testing.T) {
	var o order
	o.retire(0)
	o.retire(math.MaxUint64)
	require.Empty(t, o.add(0, orderKind(200), 5, 5, nil), "counts as orderAll")
	require.Equal(t, []JobID{0}, o.add(math.MaxUint64, orderRead, math.MaxUint64, math.MaxUint64, nil))
	require.Empty(t, o.add(math.MaxUint64, orderWrite, 0, math.MaxUint64, nil))
	require.NoError(t, o.check())
}
