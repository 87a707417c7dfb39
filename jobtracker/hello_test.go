package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHelloNamesTheBadField(t *testing.T) {
	a, b := ID{0xaa}, ID{0xbb}
	hex := func(prefix string) string { return prefix + "000000000000000000000000000000" }
	connected := func(t *testing.T, h Hello) (*Tracker[int], []*Conn[int]) {
		tr := idle(t, Config[int]{Blocks: 64, BlockSize: 512})
		_, err := tr.Activate(ActivateOptions{Generation: 5, Create: true})
		require.NoError(t, err)
		c, err := tr.Connect(0, h)
		require.NoError(t, err)
		return tr, []*Conn[int]{c, nil, nil}
	}
	again := func(t *testing.T, tr *Tracker[int], conns []*Conn[int], r int) { // replica r has left
		conns[r].Close(nil)
		require.NoError(t, conns[r].Quiesced())
	}
	active := func(t *testing.T) (*Tracker[int], []*Conn[int]) { // with one flush done
		tr, conns := connected(t, Hello{Device: a, Replica: a})
		for r := 1; r < 3; r++ {
			c, err := tr.Connect(r, Hello{})
			require.NoError(t, err)
			conns[r] = c
		}
		submit(t, tr, Op{Kind: Flush})
		serve(t, conns...)
		return tr, conns
	}
	for name, tc := range map[string]struct {
		set  func(t *testing.T) *Tracker[int]
		bad  Hello
		want HelloError
	}{
		"another device": {
			func(t *testing.T) *Tracker[int] { tr, _ := connected(t, Hello{Device: a}); return tr },
			Hello{Device: b},
			HelloError{1, "Device", hex("bb"), hex("aa")},
		},
		"another replica": {
			func(t *testing.T) *Tracker[int] { tr, conns := active(t); again(t, tr, conns, 0); return tr },
			Hello{Replica: b, Generation: 5, Flush: 1},
			HelloError{0, "Replica", hex("bb"), hex("aa")},
		},
		"connected elsewhere": {
			func(t *testing.T) *Tracker[int] { tr, _ := connected(t, Hello{Replica: a}); return tr },
			Hello{Replica: a},
			HelloError{1, "Replica", hex("aa") + ", which is replica 0", "another"},
		},
		"blocks": {
			func(t *testing.T) *Tracker[int] { tr, _ := connected(t, Hello{Blocks: 64}); return tr },
			Hello{Blocks: 63},
			HelloError{1, "Blocks", "63", "64"},
		},
		"block size": {
			func(t *testing.T) *Tracker[int] { tr, _ := connected(t, Hello{BlockSize: 512}); return tr },
			Hello{BlockSize: 4096},
			HelloError{1, "BlockSize", "4096", "512"},
		},
		"from the future": {
			func(t *testing.T) *Tracker[int] { tr, conns := active(t); again(t, tr, conns, 1); return tr },
			Hello{Generation: 6},
			HelloError{1, "Generation", "6", "at most 5"},
		},
		"from another front end": { // nobody has had the generation that is only being activated
			func(t *testing.T) *Tracker[int] { tr, _ := connected(t, Hello{}); return tr },
			Hello{Generation: 5},
			HelloError{1, "Generation", "5", "less than 5"},
		},
		"a flush that never was": {
			func(t *testing.T) *Tracker[int] { tr, conns := active(t); again(t, tr, conns, 1); return tr },
			Hello{Generation: 5, Flush: 2},
			HelloError{1, "Flush", "2", "at most 1"},
		},
		"a flush that it was never sent": {
			func(t *testing.T) *Tracker[int] {
				tr, conns := active(t)
				submit(t, tr, write(0, 1))
				submit(t, tr, Op{Kind: Flush})
				serve(t, conns[0], conns[2])
				again(t, tr, conns, 1)
				return tr
			},
			Hello{Generation: 5, Flush: 2},
			HelloError{1, "Flush", "2", "at most 1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr := tc.set(t)
			err := unchanged(t, tr, func() error { _, err := tr.Connect(tc.want.Replica, tc.bad); return err })
			require.ErrorIs(t, err, ErrHello)
			require.Equal(t, &tc.want, err)
			require.Equal(t, "jobtracker: bad hello: replica "+string(rune('0'+tc.want.Replica))+": "+tc.want.Field+" is "+tc.want.Got+", want "+tc.want.Want, err.Error())

			_, err = tr.Connect(tc.want.Replica, Hello{}) // one that says nothing may come
			require.NoError(t, err)
		})
	}
}

// TestHelloWithoutIDs has identities that are not given compared with nothing.
func TestHelloWithoutIDs(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	for r, c := range conns {
		require.Equal(t, r, c.Replica())
		require.Equal(t, PlanFresh, c.Plan())
	}
	conns[1].Close(nil)
	require.NoError(t, conns[1].Quiesced())
	c, err := tr.Connect(1, Hello{Device: ID{1}, Replica: ID{2}}) // the first to name them
	require.NoError(t, err)
	c.Close(nil)
	require.NoError(t, c.Quiesced())
	for _, h := range []Hello{{Device: ID{2}}, {Replica: ID{3}}} {
		require.ErrorIs(t, unchanged(t, tr, func() error { _, err := tr.Connect(1, h); return err }), ErrHello)
	}
	c, err = tr.Connect(1, Hello{}) // saying nothing takes nothing back
	require.NoError(t, err)
	c.Close(nil)
	require.NoError(t, c.Quiesced())
	require.ErrorIs(t, unchanged(t, tr, func() error { _, err := tr.Connect(1, Hello{Replica: ID{3}}); return err }), ErrHello)
}

// TestReplacedReplicaMayBeAnyone has the devices in a replica's place change until one is active; then it is that one.
func TestReplacedReplicaMayBeAnyone(t *testing.T) {
	tr, conns := running(t, Config[int]{})
	require.NoError(t, tr.Replace(2))
	leave := func(c *Conn[int]) {
		c.Close(nil)
		require.NoError(t, c.Quiesced())
	}
	for _, id := range []ID{{1}, {2}, {}, {3}} {
		c, err := tr.Connect(2, Hello{Replica: id})
		require.NoError(t, err)
		require.Equal(t, PlanRepair, c.Plan())
		leave(c)
	}
	c, err := tr.Connect(2, Hello{Replica: ID{4}})
	require.NoError(t, err)
	conns[2] = c
	rep, err := tr.Repair(2)
	require.NoError(t, err)
	copyAll(t, rep, conns...)
	require.NoError(t, rep.Finish())
	serve(t, conns...)
	require.NoError(t, rep.Ended().Wait(ended()))
	require.Equal(t, Voting, tr.Stats().Replicas[2].State.Phase)

	leave(c)
	require.ErrorIs(t, unchanged(t, tr, func() error { _, err := tr.Connect(2, Hello{Replica: ID{3}}); return err }), ErrHello)
	c, err = tr.Connect(2, Hello{Replica: ID{4}, Generation: 1, Flush: 1})
	require.NoError(t, err)
	require.NotEqual(t, PlanRepair, c.Plan())
}
