package jobtest

// Trial is one run of a scenario by the explorer.
type Trial struct{ TB }

func (x *Trial) hook(also func()) func()                { return also }
func (x *Trial) adopt(*Cluster)                         {}
func (x *Trial) Call(name string, f func() error) error { return f() }
