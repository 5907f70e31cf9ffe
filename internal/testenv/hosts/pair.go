package hosts

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"cucriu/internal/testenv"
)

// Options say how the hosts differ from what [New] makes otherwise.
type Options struct {
	A, B HostOptions

	// SharedDir gives each [Job] a directory that both hosts see, as of a file server.
	SharedDir bool
	// WithoutSSH starts no sshd. [Host.RSH] works all the same.
	WithoutSSH bool
	// SSHD are lines of sshd's configuration, which come before the usual ones.
	SSHD []string
	// OneBootID leaves both hosts the boot id of the machine. A place of cucriu run mounts
	// a /proc of its own, which has that one, so jobs in such places need this.
	OneBootID bool
}

// HostOptions are those of one host.
type HostOptions struct {
	GPUs      int      // simulated ones, 1 if 0
	Simulator []string // further options of cudasim-run, such as "--driver", "570"
	Real      []int    // the machine's GPUs that the host has, by their minors; nil for all
	Hide      []string // paths that are not on this host
	// Clock is how far the monotonic clocks are ahead of the machine's, as if the host had
	// been up for longer.
	Clock time.Duration
}

// Pair is two hosts with a link between them.
type Pair struct {
	root    *testing.T // the test that made the hosts
	t       *testing.T // the one that uses them
	A, B    *Host
	options Options
	forward *forwarder // of a shaped link
}

// New makes two hosts. They end with the test. The test must be one of
// [testenv.Isolated], and its package must have [Main] as its TestMain.
func New(t *testing.T, options Options) *Pair {
	t.Helper()
	p := &Pair{root: t, t: t, options: options}
	t.TempDir() // removed after the hosts have ended, since it is asked for first
	t.Cleanup(p.end)
	p.A = p.newHost("a", options.A, 1)
	p.B = p.newHost("b", options.B, 2)
	p.A.other, p.B.other = p.B, p.A
	for _, h := range p.Hosts() {
		h.prepareLogin()
	}
	if !options.WithoutSSH {
		p.A.trust()
		p.B.trust()
	}
	if err := p.connect(); err != nil {
		t.Fatalf("the network between the hosts: %v", err)
	}
	for _, h := range p.Hosts() {
		h.boot()
		h.startServers()
	}
	return p
}

// In lets a subtest use the hosts: until it ends, what fails is the subtest.
func (p *Pair) In(t *testing.T) {
	before := p.t
	p.t = t
	t.Cleanup(func() { p.t = before })
}

// Hosts returns both hosts.
func (p *Pair) Hosts() []*Host { return []*Host{p.A, p.B} }

func (p *Pair) end() {
	if p.forward != nil {
		p.forward.stop()
	}
	for _, h := range []*Host{p.A, p.B} {
		if h != nil && h.network != nil {
			h.end()
			h.network.close()
		}
	}
}

// kept lists what stays visible on the hosts, wherever it lies.
func (p *Pair) kept() []string {
	p.t.Helper()
	self, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	ofTest := filepath.Dir(p.root.TempDir())                                           // has all directories of the test
	kept := []string{ofTest, testenv.Root(p.t), self, filepath.Dir(testenv.Criu(p.t))} // criu has its libraries beside it
	if testenv.RealDriver() && testenv.Exists("/run/nvidia-persistenced") {
		kept = append(kept, "/run/nvidia-persistenced")
	}
	if dir := os.Getenv(sshVariable); dir != "" {
		kept = append(kept, dir)
	}
	return kept
}
