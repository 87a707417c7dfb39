package jobtracker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// timed runs a scenario in a bubble, whose clock moves when everybody waits.
func timed(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// sleep lets the bubble's clock move, and lets what that set off run to its end.
func sleep(d time.Duration) {
	time.Sleep(d) //rules:sleep in a bubble
	synctest.Wait()
}

// answerAll has some peers take and answer all there is, until nothing moves.
func (x *rig) answerAll(peers ...*peer) {
	x.t.Helper()
	for moved := true; moved; {
		moved = false
		for _, p := range peers {
			moved = len(p.take()) > 0 || moved
			for len(p.box) > 0 {
				p.answer(p.box[0].ID)
				moved = true
			}
		}
	}
}

// fill submits writes until one would have to wait.
func (x *rig) fill() (jobs []*Job[*load]) {
	x.t.Helper()
	for {
		pay := &load{value: len(x.jobs) + 1}
		op := Op{Kind: Write, Start: uint64(len(x.jobs) % rigBlocks), Blocks: 1}
		j, err := x.tr.Submit(ended(), op, pay)
		if err != nil {
			require.ErrorIs(x.t, err, context.Canceled)
			return jobs
		}
		x.keep(j, op, pay)
		jobs = append(jobs, j)
	}
}

// applied is a Submit that waits in a goroutine.
type applied struct {
	job  *Job[*load]
	err  error
	at   time.Time
	done chan struct{}
}

// apply submits a write that has to wait.
func (x *rig) apply(ctx context.Context, block uint64) *applied {
	a := &applied{done: make(chan struct{})}
	op, pay := Op{Kind: Write, Start: block, Blocks: 1}, &load{value: 1000 + int(block)}
	go func() {
		defer close(a.done)
		a.job, a.err = x.tr.Submit(ctx, op, pay)
		a.at = time.Now()
	}()
	synctest.Wait()
	return a
}

func (a *applied) waits() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// Seen red with mutants/J08-reply-deadline.patch.
func TestJ08_SilentReplicaHoldsUpNobodyForLong(t *testing.T) {
	for name, tc := range map[string]struct {
		offlineJobs int
		takes       int           // jobs the replica takes before it stops reading
		bound       time.Duration // the reply deadline and the offline limits
	}{
		"never answers, limit in jobs": {8, 100, 9 * time.Second},
		"never answers, limit in time": {16, 100, 9*time.Second + 30*time.Second},
		"stops reading, limit in jobs": {8, 4, 9 * time.Second},
		"stops reading, limit in time": {16, 4, 9*time.Second + 30*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, cfg Config[*load]) {
				timed(t, func(t *testing.T) {
					cfg.MaxJobs, cfg.OfflineJobs, cfg.AutoSyncJobs = 16, tc.offlineJobs, 16
					cfg.ReplyTimeout, cfg.OfflineFor = 8*time.Second, 30*time.Second
					x := newRig(t, cfg)
					good, silent := x.peers[:2], x.peers[2]
					jobs := x.fill()
					require.Len(t, jobs, 16)
					got, err := silent.conn.NextBatch(ended(), make([]Dispatch[*load], tc.takes))
					require.NoError(t, err)
					require.NotEmpty(t, got)
					x.answerAll(good...)
					for _, j := range jobs {
						require.NoError(t, j.Err())
						require.True(t, j.Resolved(), "the other replicas go on")
					}
					require.Empty(t, x.fill(), "the silent one is full")

					start := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					a := x.apply(ctx, 3)
					require.True(t, a.waits())
					<-a.done
					synctest.Wait()
					require.NoError(t, a.err)
					require.LessOrEqual(t, a.at.Sub(start), tc.bound)
					require.GreaterOrEqual(t, a.at.Sub(start), 8*time.Second, "never earlier")
					x.requireReplica(2, Stopping, HomeFaulted)
					require.ErrorIs(t, context.Cause(silent.conn.Context()), ErrReplyTimeout)
					require.LessOrEqual(t, x.tr.Dump().Active, 2*16+2, "memory is bounded")
					x.keep(a.job, Op{Kind: Write, Start: 3, Blocks: 1}, &load{value: 1003})
					x.finish()
				})
			})
		})
	}
}

// Close, and Deactivate after the reply deadline, end beside a silent replica.
func TestJ08_EndingBesideASilentReplica(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.ReplyTimeout = 8 * time.Second
			x := newRig(t, cfg)
			j := x.write(1, 1)
			for _, p := range x.peers {
				p.take()
			}
			h := x.tr.Deactivate()
			x.answerAll(x.peers[:2]...)
			require.NoError(t, j.Err())
			require.Equal(t, Deactivating, x.tr.Stats().Phase)
			sleep(9 * time.Second)
			require.NoError(t, h.Wait(ended()))
			x.requireEmpty()

			x.activate(ActivateOptions{})
			for _, p := range x.peers {
				p.comeBack()
			}
			x.settle()
			j = x.write(1, 1)
			for _, p := range x.peers {
				p.take()
			}
			start := time.Now()
			require.NoError(t, x.tr.Close().Wait(t.Context()))
			require.Zero(t, time.Since(start))
			require.ErrorIs(t, j.Err(), ErrClosed)
		})
	})
}

// The reply deadline is armed by a job that was sent, and again by each answer: an idle replica and a slow one live.
func TestJ08_DeadlineIsArmedBySentAndByAnswers(t *testing.T) {
	eachOrder(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.ReplyTimeout = 8 * time.Second
			x := newRig(t, cfg)
			sleep(time.Hour)
			j := x.write(1, 1)
			sleep(time.Hour) // queued is not sent
			x.answerAll(x.peers[:2]...)
			slow := x.peers[2]
			slow.take()
			sleep(8*time.Second - time.Millisecond)
			x.requireReplica(2, Voting, HomeOffline)
			slow.answer(j.ID())
			sleep(time.Hour) // it owes nothing
			var jobs []*Job[*load]
			for i := range uint64(12) {
				jobs = append(jobs, x.write(10+i, 1))
			}
			x.answerAll(x.peers[:2]...)
			slow.take()
			for _, j := range jobs {
				sleep(7 * time.Second)
				slow.answer(j.ID())
			}
			x.requireReplica(2, Voting, HomeOffline)
			last := x.write(30, 1)
			x.answerAll(x.peers[:2]...)
			slow.take()
			sleep(9 * time.Second)
			x.requireReplica(2, Stopping, HomeOffline)
			x.orphan(slow.conn, last.ID(), Result{}, OrphanStaleConn)
			x.finish()
		})
	})
}

// Seen red with mutants/J13-offline-limit.patch.
func TestJ13_OfflineBeyondItsLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg    Config[*load]
		exceed func(x *rig)
	}{
		"jobs": {Config[*load]{OfflineJobs: 4}, func(x *rig) {
			x.requireReplica(2, Down, HomeOffline)
			x.write(9, 1)
			x.requireReplica(2, Down, HomeOffline) // at the limit, not beyond it
			x.write(9, 1)
		}},
		"bytes": {Config[*load]{OfflineBytes: 20 * 512}, func(x *rig) {
			x.write(20, 18)
			x.requireReplica(2, Down, HomeOffline)
			x.write(9, 1)
		}},
		"time": {Config[*load]{OfflineFor: 30 * time.Second}, func(x *rig) {
			sleep(30*time.Second - time.Millisecond)
			x.requireReplica(2, Down, HomeOffline)
			sleep(time.Millisecond)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachOrder(t, func(t *testing.T, cfg Config[*load]) {
				timed(t, func(t *testing.T) {
					tc.cfg.Order = cfg.Order
					x := newRig(t, tc.cfg)
					p := x.peers[2]
					w := x.write(5, 2)
					for _, o := range x.peers {
						o.take()
					}
					p.cut()
					f := x.flush()
					b := x.submit(Op{Kind: Barrier}, 0)
					x.answerAll(x.peers[:2]...)
					require.False(t, b.Resolved(), "a barrier waits for all voters")
					x.requireState(w, StateDone, StateDone, StateHeld)
					tc.exceed(x)
					x.requireReplica(2, Down, HomeFaulted)
					require.ErrorContains(t, errors.New(x.tr.Dump().Replicas[2].Cause), ErrOfflineLimit.Error())
					x.answerAll(x.peers[:2]...)
					require.NoError(t, b.Err())
					require.True(t, b.Resolved(), "it moves on")
					x.requireGone(w)
					x.requireGone(f)
					jobs, bytes := x.charges(2)
					require.Zero(t, jobs)
					require.Zero(t, bytes)
					p.connect()
					require.Equal(t, PlanRepair, p.conn.Plan())
					x.finish()
				})
			})
		})
	}
}

// OfflineFor counts from the end of the connection. That the driver says Quiesced meanwhile arms nothing anew; coming
// back in time disarms it.
func TestJ13_OfflineForCountsFromTheEnd(t *testing.T) {
	timed(t, func(t *testing.T) {
		x := newRig(t, Config[*load]{OfflineFor: 30 * time.Second})
		p := x.peers[1]
		for range 3 {
			p.close()
			sleep(20 * time.Second)
			p.quiesce()
			sleep(10*time.Second - time.Millisecond)
			x.requireReplica(1, Down, HomeOffline)
			p.connect()
			sleep(time.Hour)
			x.requireReplica(1, Voting, HomeOffline)
		}
		p.close()
		sleep(20 * time.Second)
		p.quiesce()
		sleep(10 * time.Second)
		x.requireReplica(1, Down, HomeFaulted)
		x.finish()
	})
}

// It may be faulted before it is quiesced; it still must be.
func TestJ13_FaultedWhileStopping(t *testing.T) {
	timed(t, func(t *testing.T) {
		x := newRig(t, Config[*load]{OfflineFor: 30 * time.Second})
		x.peers[1].close()
		sleep(31 * time.Second)
		x.requireReplica(1, Stopping, HomeFaulted)
		err := x.refused(func() error { _, err := x.tr.Connect(1, x.peers[1].hello()); return err })
		require.ErrorIs(t, err, ErrNotQuiesced)
		x.finish()
	})
}

// Seen red with mutants/J21-withdraw.patch.
func TestJ21_ContextEndsWhileWaitingForAdmission(t *testing.T) {
	eachMode(t, func(t *testing.T, cfg Config[*load]) {
		timed(t, func(t *testing.T) {
			cfg.MaxJobs = 4
			x := newRig(t, cfg)
			require.Len(t, x.fill(), 4)
			was := x.tr.Fingerprint()
			errTired := errors.New("tired")
			ctx, cancel := context.WithCancelCause(t.Context())
			first, second, third := x.apply(t.Context(), 10), x.apply(ctx, 11), x.apply(t.Context(), 12)
			require.Equal(t, 3, x.tr.Dump().Waiting)
			cancel(errTired)
			synctest.Wait()
			require.False(t, second.waits())
			require.Nil(t, second.job)
			require.Equal(t, errTired, second.err, "the context's cause")
			require.True(t, first.waits())
			require.True(t, third.waits())
			require.Equal(t, uint64(4), x.tr.Stats().Submitted, "nothing was admitted")

			short, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			late := x.apply(short, 13)
			<-late.done
			require.ErrorIs(t, late.err, context.DeadlineExceeded)

			x.settle()
			<-first.done
			<-third.done
			require.NoError(t, first.err)
			require.NoError(t, third.err)
			require.Less(t, first.job.ID(), third.job.ID(), "first come, first served")
			x.keep(first.job, Op{Kind: Write, Start: 10, Blocks: 1}, &load{value: 1010})
			x.keep(third.job, Op{Kind: Write, Start: 12, Blocks: 1}, &load{value: 1012})
			x.settle()
			require.Len(t, x.fill(), 4, "no permit is lost")
			require.NotEqual(t, was, x.tr.Fingerprint())
			x.finish()
		})
	})
}

// Whoever withdraws from the head of the line lets the next one in, if that one fits.
func TestJ21_WithdrawalUnblocksTheNext(t *testing.T) {
	timed(t, func(t *testing.T) {
		x := newRig(t, Config[*load]{MaxBytes: 8 * 512})
		w := x.write(0, 6)
		ctx, cancel := context.WithCancel(t.Context())
		big := make(chan error, 1)
		go func() {
			_, err := x.tr.Submit(ctx, Op{Kind: Write, Start: 10, Blocks: 7}, &load{})
			big <- err
		}()
		synctest.Wait()
		small := x.apply(t.Context(), 20)
		require.True(t, small.waits(), "nobody overtakes")
		cancel()
		require.ErrorIs(t, <-big, context.Canceled)
		synctest.Wait()
		require.False(t, small.waits())
		require.NoError(t, small.err)
		x.keep(small.job, Op{Kind: Write, Start: 20, Blocks: 1}, &load{value: 1020})
		require.False(t, w.Resolved())
		x.finish()
	})
}

// A refused Submit, and one whose context had ended before, changes nothing.
func TestJ21_NothingChangesOnRefusal(t *testing.T) {
	x := newRig(t, Config[*load]{MaxJobs: 4})
	require.Len(t, x.fill(), 4)
	for range 10 {
		err := x.refused(func() error { _, err := x.tr.Submit(ended(), opOf(Read), &load{}); return err })
		require.ErrorIs(t, err, context.Canceled)
	}
	for _, op := range []Op{
		{},
		{Kind: Copy, Blocks: 1},
		{Kind: numKinds},
		{Kind: Write},
		{Kind: Read, Start: rigBlocks, Blocks: 1},
		{Kind: Trim, Start: 1, Blocks: rigBlocks},
		{Kind: Flush, Start: 1},
		{Kind: Barrier, Blocks: 1},
		{Kind: Read, Blocks: 1, FUA: true},
		{Kind: Barrier, Snapshot: true},
		{Kind: Write, Start: 1 << 63, Blocks: 1 << 63},
	} {
		err := x.refused(func() error { _, err := x.tr.Submit(t.Context(), op, &load{}); return err })
		require.ErrorIs(t, err, ErrOp, fmt.Sprint(op))
	}
	x.settle()
	x.finish()
}
