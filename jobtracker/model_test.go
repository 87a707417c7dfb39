package jobtracker

import (
	"flag"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestModel drives a tracker through its public API with random faults, and compares it after every step with a model
// written from the documents; then the faults stop, and everything has to come to its end.
//
// Each check was seen red, within 3,000 runs and mostly within 100, with:
//   - order: no search through what is terminal, for waiting and for dependencies; a new job that looks at its own
//     dependencies only; what was found clear or dry, what was dispatched, or who waits for whom kept when a connection
//     ends; copies that are not ordered; a copy written before it is read; retirement that passes what is outstanding;
//   - replay: done writes not replayed; all of them, or none, vouched for; a barrier that vouches; resolved reads asked
//     again; reads compared that were asked again; what a barrier retired taken for replayable; a kind of job forgotten;
//   - votes: a quorum of one less; skips that are not bad; a barrier or snapshot by quorum; a vote, a read or a flush number
//     for who is under repair, or a vote before its last flush; a failed write that faults nobody; FUA, or what goes nowhere,
//     acknowledged early; a lost write forgotten at once, or never, or (within 2,145) dooming no flush behind it;
//   - orphans: two reasons the other way round; the kind or the connection not looked at; a batch that goes on after its
//     connection has ended; a former connection not asked to be quiesced;
//   - limits: charges that skips do not return, or that admit nobody; bytes or the offline limits ignored; an applicant
//     overtaken, or not admitted when the one before it withdraws, or left when the activation ends; no automatic sync;
//     the offline deadline armed anew when quiesced; the reply deadline ignored;
//   - hellos: a replica that went back, is blank, is late or is dirty taken for one that is not; one too few, or an older
//     one, to activate; a refused hello that changes the state;
//   - ends: failures or skips that release nobody; a deactivation that waits for who is away; halves of a copy left by an
//     aborted repair; stragglers that never retire; OnRetire lost; OnResolve twice; a fence that nobody did retiring jobs;
//     a read asked of two; a mismatch that is not counted as failed.
func TestModel(t *testing.T) {
	rounds, steps := 3, "100"
	if *stress {
		rounds, steps = 200, "200"
	}
	if f := flag.Lookup("rapid.steps"); f != nil {
		was := f.Value.String()
		require0(t, f.Value.Set(steps))
		t.Cleanup(func() { _ = f.Value.Set(was) })
	}
	for range rounds {
		rapid.Check(t, checkModel)
	}
	t.Logf("%d runs, %d actions, %d dispatches, %d replies", mTotal.runs, mTotal.actions, mTotal.dispatches, mTotal.replies)
}

// FuzzModel is the same model, guided by coverage.
func FuzzModel(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkModel)) }

var mTotal struct{ runs, actions, dispatches, replies int }

func require0(t *testing.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func checkModel(t *rapid.T) {
	rapid.SyncTest(t, func(t *rapid.T) {
		m := newRun(t)
		defer m.stop()
		m.activateAll()
		t.Repeat(map[string]func(*rapid.T){"step": m.step})
		m.calm()
		mTotal.runs++
		mTotal.actions += m.actions
		mTotal.dispatches += m.dispatches
		mTotal.replies += m.replies
	})
}

// mSteps are what can happen, each as often as it takes to keep the device busy.
var mSteps = expand([]mStep{
	{"submit", 16, (*mRun).submit},
	{"submit fence", 2, (*mRun).submitFence},
	{"submit bad", 1, (*mRun).submitBad},
	{"withdraw", 2, (*mRun).withdraw},
	{"take", 10, (*mRun).takeSome},
	{"take all", 2, (*mRun).takeAll},
	{"execute", 4, (*mRun).executeSome},
	{"reply", 14, (*mRun).replySome},
	{"reply batch", 4, (*mRun).replyBatch},
	{"work", 6, (*mRun).work},
	{"fail", 1, (*mRun).failOne},
	{"orphan", 3, (*mRun).orphanReply},
	{"close", 3, (*mRun).closeConn},
	{"quiesce", 6, (*mRun).quiesce},
	{"connect", 8, (*mRun).connect},
	{"connect bad", 1, (*mRun).connectBad},
	{"fault", 1, (*mRun).faultOne},
	{"replace", 1, (*mRun).replaceOne},
	{"repair", 6, (*mRun).repairStart},
	{"copy", 3, (*mRun).copySome},
	{"compare", 3, (*mRun).compareOne},
	{"copy all", 2, (*mRun).copyAll},
	{"nurse", 8, (*mRun).nurse},
	{"finish", 4, (*mRun).repairFinish},
	{"abort", 1, (*mRun).repairAbort},
	{"superseded", 1, (*mRun).superseded},
	{"deactivate", 1, (*mRun).deactivate},
	{"disable", 1, (*mRun).disable},
	{"activate bad", 1, (*mRun).activateBad},
	{"tick", 1, (*mRun).tick},
})

type mStep struct {
	name  string
	often int
	do    func(*mRun, *rapid.T)
}

func expand(steps []mStep) (all []mStep) {
	for _, s := range steps {
		all = append(all, slices.Repeat([]mStep{s}, s.often)...)
	}
	return all
}

// evenly draws a number below n, each as likely: [rapid.IntRange] prefers small ones.
func evenly(n int) *rapid.Generator[int] {
	return rapid.Custom(func(t *rapid.T) int {
		v := 0
		for k := 1; k < 4*n; k *= 2 {
			v *= 2
			if rapid.Bool().Draw(t, "") {
				v++
			}
		}
		return v % n
	})
}

var mChoice = evenly(len(mSteps))

// step does one of the steps that can be done.
func (m *mRun) step(t *rapid.T) {
	s := mSteps[mChoice.Draw(t, "step")]
	if m.phase == Inactive && m.draw("activate", 0, 2) > 0 {
		m.activate(t)
		return
	}
	t.Log(s.name)
	s.do(m, t)
}

// spare skips a fault, most of the time, that would leave nobody who votes.
func (m *mRun) spare(t *rapid.T) {
	active := 0
	for _, rep := range m.reps {
		if rep.state.Phase == Voting {
			active++
		}
	}
	if active <= 1 && m.draw("even so", 0, 9) > 0 {
		t.Skip("it is the last one")
	}
}

// stop ends whatever waits.
func (m *mRun) stop() {
	for _, a := range m.waiting {
		a.cancel()
	}
	for _, a := range m.decidedApps {
		a.cancel()
	}
	m.tr.Close()
}

func (m *mRun) draw(what string, low, high int) int { return rapid.IntRange(low, high).Draw(m.t, what) }
