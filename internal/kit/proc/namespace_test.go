package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
)

func TestTheBoottimeOffsetIsInTicks(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime            0         0\n":       0,
		"monotonic          77         5\nboottime      1000003 990000000\n":       100000399,
		"monotonic           0         0\nboottime          -10 500000000\n":       -950,
		"monotonic           0         0\nboottime       100000         9999999\n": 10000000,
	} {
		if got, err := parseBoottimeOffset(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	if _, err := parseBoottimeOffset("monotonic 0 0\n"); err == nil {
		t.Error("an offset was found where there is none")
	}
}

// TestAnIdentityIsTheSameInAnotherTimeNamespace: /proc adds the offset of the reader's time
// namespace to start times.
func TestAnIdentityIsTheSameInAnotherTimeNamespace(t *testing.T) {
	const variable = "CRIUUTIL_TEST_IDENTITY_OF"
	if pid := os.Getenv(variable); pid != "" {
		n, _ := strconv.Atoi(pid)
		data, _ := json.Marshal(open(t, n).Ident)
		fmt.Printf("identity: %s\n", data)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("a time namespace needs root")
	}
	cmd := exec.Command("unshare", "--time", "--boottime", "1000003", "--fork", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", variable, os.Getpid()))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("unshare: %v\n%s", err, out)
	}
	want, _ := json.Marshal(open(t, os.Getpid()).Ident)
	if got := string(out[:min(len(out), len(want)+len("identity: "))]); got != "identity: "+string(want) {
		t.Fatalf("in another time namespace this process is %s, want %s", out, want)
	}
}

func TestAProcessOfAnotherPIDNamespaceIsNotCalledGone(t *testing.T) {
	id := open(t, os.Getpid()).Ident
	id.PIDNamespace++
	if _, err := Reopen(id); !errors.Is(err, ErrElsewhere) || errors.Is(err, ErrGone) {
		t.Fatalf("reopen: %v, want %v", err, ErrElsewhere)
	}
}
