package proc

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPoliciesAreReadAsTheKernelShowsThem(t *testing.T) {
	for line, want := range map[string]struct {
		policy string
		mode   uint64
		nodes  []byte
	}{
		"7f00 bind:0 file=/bin/x":             {"bind:0", unix.MPOL_BIND, []byte{1}},
		"7f00 interleave=static:0-2,9 anon=1": {"interleave=static:0-2,9", unix.MPOL_INTERLEAVE | unix.MPOL_F_STATIC_NODES, []byte{7, 2}},
		"7f00 prefer (many):1 anon=1":         {"prefer (many):1", unix.MPOL_PREFERRED_MANY, []byte{2}},
		"7f00 weighted interleave:0-1 stack":  {"weighted interleave:0-1", unix.MPOL_WEIGHTED_INTERLEAVE, []byte{3}},
		"7f00 local heap":                     {"local", unix.MPOL_LOCAL, nil},
		"7f00 prefer=relative:1022 mapped=3 N0=": {
			"prefer=relative:1022",
			unix.MPOL_PREFERRED | unix.MPOL_F_RELATIVE_NODES, append(make([]byte, 127), 1<<6),
		},
	} {
		start, policy := splitPolicy(line)
		p, err := parsePolicy(policy)
		nodes := bytes.TrimRight(p.nodes, "\x00")
		if start != 0x7f00 || policy != want.policy || err != nil || p.mode != want.mode || !bytes.Equal(nodes, want.nodes) {
			t.Errorf("%q is read as %#x, %q, %+v: %v", line, start, policy, p, err)
		}
	}
	if _, policy := splitPolicy("7f00 default anon=1"); policy != "" {
		t.Errorf("the usual policy is %q", policy)
	}
	for _, text := range []string{"", "default", "bind:1-0", "bind:1023", "bind:9999999999", "bind:x", "bind=odd:0", "new:0"} {
		if _, err := parsePolicy(text); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
