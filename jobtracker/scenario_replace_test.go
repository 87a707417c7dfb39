package jobtracker

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Seen red with mutants/J16-stays-replaced.patch.
func TestJ16_FirstConnectionToTheNewOneFails(t *testing.T) {
	for _, during := range []string{"connected", "repairing", "finishing"} {
		t.Run(during, func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				x := named(t, cfg)
				x.write(1, 4)
				x.settle()
				p := x.peers[1]
				old := p.conn
				require.NoError(t, x.tr.Replace(1))
				x.requireReplica(1, Down, HomeReplaced)
				require.ErrorIs(t, x.refused(func() error { return old.Complete(1, Result{}) }), ErrReplaced)

				for i := range 3 { // three devices are tried
					*p = peer{rig: x, r: 1, id: ID{byte(100 + i)}, disk: map[uint64]int{}, sent: map[JobID]int{}, bad: map[JobID]error{}}
					p.connect()
					require.Equal(t, PlanRepair, p.conn.Plan())
					x.requireReplica(1, RepairReady, HomeReplaced)
					if during != "connected" {
						rep, err := x.tr.Repair(1)
						require.NoError(t, err)
						x.requireReplica(1, Repairing, HomeReplaced)
						if during == "finishing" {
							_, err = rep.Copy(0, 0, rigBlocks, &load{})
							require.NoError(t, err)
							x.settle()
							require.NoError(t, rep.Finish())
						}
					}
					p.close()
					x.requireReplica(1, Stopping, HomeReplaced)
					p.quiesce()
					x.requireReplica(1, Down, HomeReplaced) // it stays so
				}
				p.connect()
				x.settle()
				p.repair()
				for range 2 { // no identity error later
					p.cut()
					x.write(2, 1)
					p.connect()
					x.settle()
				}
				p.cut()
				p.id = ID{100}
				err := x.refused(func() error { _, err := x.tr.Connect(1, p.hello()); return err })
				require.ErrorIs(t, err, ErrHello, "the one that was repaired is pinned")
				p.id = ID{102}
				x.finish()
			})
		})
	}
}

// named is a rig whose replicas have identities.
func named(t *testing.T, cfg Config[*load]) *rig {
	t.Helper()
	x := idleRig(t, cfg)
	x.activate(ActivateOptions{Create: true})
	for _, p := range x.peers {
		p.id = ID{byte(p.r + 1)}
		p.connect()
	}
	return x
}

// A replica can be replaced in each state, and again.
func TestJ16_ReplacedInEachState(t *testing.T) {
	for name, into := range map[string]func(x *rig, p *peer){
		"active":       func(*rig, *peer) {},
		"stopping":     func(_ *rig, p *peer) { p.close() },
		"offline":      func(_ *rig, p *peer) { p.cut() },
		"faulted":      func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.quiesce() },
		"repair-ready": func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.comeBack() },
		"repairing":    func(x *rig, p *peer) { _ = x.tr.Fault(1, errDisk); p.comeBack(); _, _ = x.tr.Repair(1) },
		"replaced":     func(x *rig, _ *peer) { _ = x.tr.Replace(1) },
		"new one here": func(x *rig, p *peer) { _ = x.tr.Replace(1); p.id = ID{50}; p.connect() },
		"new one lost": func(x *rig, p *peer) { _ = x.tr.Replace(1); p.id = ID{50}; p.connect(); p.close() },
	} {
		t.Run(name, func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				x := named(t, cfg)
				p := x.peers[1]
				w := x.write(3, 2)
				into(x, p)
				v := x.write(4, 2)
				old := p.conn
				for range 2 { // twice
					require.NoError(t, x.tr.Replace(1))
					x.requireReplica(1, Down, HomeReplaced)
					for _, j := range []*Job[*load]{w, v} {
						s, _ := x.state(j, 1)
						require.Equal(t, StateSkipped, s)
					}
					jobs, bytes := x.charges(1)
					require.Zero(t, jobs)
					require.Zero(t, bytes)
				}
				require.NoError(t, old.Quiesced(), "it may still be said")
				x.orphan(old, w.ID(), Result{}, OrphanStaleConn)
				p.id, p.gen, p.num, p.disk = ID{60}, 0, 0, map[uint64]int{}
				x.finish()
				p.cut()
				p.connect()
				x.finish()
			})
		})
	}
}

// Replaced before activation: it does not count, whatever it says of itself, and is repaired.
func TestJ16_ReplacedBeforeActivation(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := named(t, cfg)
		x.write(1, 4)
		h := x.tr.Deactivate()
		x.settle()
		require.NoError(t, h.Err())
		for _, p := range x.peers {
			p.quiesce()
		}
		require.NoError(t, x.tr.Replace(1))
		require.NoError(t, x.tr.Replace(1))
		x.requireReplica(1, Down, HomeReplaced)
		begun := x.activate(ActivateOptions{})
		p := x.peers[1]
		p.id, p.disk = ID{70}, map[uint64]int{} // a stranger that remembers the right numbers
		p.connect()
		x.requireReplica(1, Fresh, HomeReplaced)
		p.close()
		x.requireReplica(1, Stopping, HomeReplaced)
		p.quiesce()
		p.id = ID{71}
		p.connect()
		x.peers[0].connect()
		require.Equal(t, Activating, x.tr.Stats().Phase, "one full replica is not enough")
		x.peers[2].connect()
		require.Equal(t, Active, x.tr.Stats().Phase)
		require.NoError(t, begun.Err())
		x.requireReplica(1, RepairReady, HomeReplaced)
		x.finish()
		p.cut()
		p.connect()
		x.finish()
	})
}

// Where nothing is said nothing is pinned, and what was said stays pinned.
func TestJ16_WhatIsPinned(t *testing.T) {
	x := idleRig(t, Config[*load]{})
	x.activate(ActivateOptions{Create: true})
	p := x.peers[0]
	p.id = ID{1}
	p.connect()
	p.cut()
	p.id = ID{2} // another one was connected by mistake, and nothing relied on it
	p.connect()
	x.peers[1].id = ID{2}
	err := x.refused(func() error { _, err := x.tr.Connect(1, x.peers[1].hello()); return err })
	require.ErrorIs(t, err, ErrHello, "the same device twice")
	x.peers[1].id = ID{3}
	x.peers[1].connect()
	x.peers[2].connect() // says nothing
	require.Equal(t, Active, x.tr.Stats().Phase)
	x.flush()
	x.settle()

	for r, ids := range map[int][2]ID{0: {{2}, {9}}, 1: {{3}, {2}}} {
		p := x.peers[r]
		p.cut()
		p.id = ID{} // says nothing this time
		p.connect()
		p.cut()
		p.id = ids[1]
		err := x.refused(func() error { _, err := x.tr.Connect(r, p.hello()); return err })
		require.ErrorIs(t, err, ErrHello, "it is still known")
		p.id = ids[0]
		p.connect()
	}
	x.finish()
}

// Seen red with mutants/J24-behind.patch.
func TestJ24_FaultedRepairedAndLostAgain(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[2]
		for range 3 {
			w, f := x.write(5, 2), x.flush()
			x.answerAll(x.peers[:2]...)
			require.NoError(t, f.Err())
			require.NoError(t, x.tr.Fault(2, errDisk))
			x.requireGone(w)
			p.quiesce()
			p.connect()
			require.Equal(t, PlanRepair, p.conn.Plan())
			p.cut() // and drops before it is repaired
			x.requireReplica(2, Down, HomeFaulted)
			p.connect()
			require.Equal(t, PlanRepair, p.conn.Plan())
			p.repair()
			p.cut() // and after it
			x.requireReplica(2, Down, HomeOffline)
			v := x.write(6, 1)
			p.connect()
			require.Equal(t, PlanReplay, p.conn.Plan())
			require.Equal(t, []JobID{v.ID()}, p.take(), "the repair's flush vouches for what was before")
			x.settle()
			x.flush()
			x.settle()
			p.cut()
			p.connect()
			require.Equal(t, PlanFresh, p.conn.Plan())
		}
		x.finish()
	})
}

// A flush behind the repair's last one is remembered like it: the replica does not come back behind.
func TestJ24_FlushBehindTheLastOneOfARepair(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[2]
		require.NoError(t, x.tr.Fault(2, errDisk))
		p.comeBack()
		rep, err := x.tr.Repair(2)
		require.NoError(t, err)
		early := x.flush()
		x.settle()
		require.NoError(t, early.Err())
		require.Zero(t, p.num, "under repair it remembers no flush")
		_, err = rep.Copy(0, 0, rigBlocks, &load{})
		require.NoError(t, err)
		x.settle()
		require.NoError(t, rep.Finish())
		w, f := x.write(1, 1), x.flush()
		x.settle()
		require.NoError(t, rep.Ended().Err())
		require.NoError(t, w.Err())
		require.NoError(t, f.Err())
		require.Equal(t, x.peers[0].num, p.num)
		p.cut()
		p.connect()
		require.NotEqual(t, PlanRepair, p.conn.Plan())
		x.finish()
	})
}

// A replica that comes back without what it vouched for is repaired, never trusted.
func TestJ24_ComesBackBehind(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		x := newRig(t, cfg)
		p := x.peers[2]
		x.write(5, 2)
		x.flush()
		x.settle()
		x.write(6, 1)
		f := x.flush()
		x.settle()
		require.NoError(t, f.Err())
		for _, forget := range []func(){func() { p.num-- }, func() { p.gen, p.num = 0, 0 }} {
			p.cut()
			forget()
			p.connect()
			require.Equal(t, PlanRepair, p.conn.Plan())
			x.requireReplica(2, RepairReady, HomeFaulted)
			p.repair()
		}
		p.cut()
		p.num += 1000
		err := x.refused(func() error { _, err := x.tr.Connect(2, p.hello()); return err })
		require.ErrorIs(t, err, ErrHello, "nor can it know what was not yet")
		p.num -= 1000
		x.finish()
	})
}
