package hosts

import (
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

func TestRemoteCommandsHaveTheHostsEnvironment(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		p.B.Setenv("SET_LATER", "by the test")
		out := p.A.Run("ssh", "b", `hostname; echo $CUDASIM_ROOT $CUCRIU_RUN_DIR "$SET_LATER"; command -v cucriu`)
		want := "b\n/run/nvidia /run/cucriu by the test\n" + filepath.Join(filepath.Dir(p.B.HookBin), "cucriu") + "\n"
		if out != want {
			t.Fatalf("it said %q, want %q", out, want)
		}
	})
}

// remotes are the ways from a host to the other one.
func remotes(h *Host) map[string][]string {
	return map[string][]string{"ssh": {"ssh"}, "rsh": {h.RSH()}}
}

func TestRemoteCommandsAreLikeLocalOnes(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		for name, remote := range remotes(p.A) {
			t.Run(name, func(t *testing.T) {
				p.In(t)
				run := func(stdin, command string) (string, string, int) {
					cmd := p.A.Command(t.Context(), remote[0], append(remote[1:], "b", command)...)
					var stdout, stderr strings.Builder
					cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
					_ = cmd.Run()
					return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
				}
				if out, err, status := run("words", "cat; echo of error >&2; hostname; exit 7"); out != "wordsb\n" || err != "of error\n" || status != 7 {
					t.Errorf("it said %q and %q, and ended with %d", out, err, status)
				}
				big := strings.Repeat("0123456789abcdef", 1<<18)
				if out, _, status := run(big, "cat"); out != big || status != 0 {
					t.Errorf("of %d bytes %d came back, status %d", len(big), len(out), status)
				}
			})
		}
	})
}

// TestARemoteCommandHearsThatItsClientHasDied: a peer notices a lost control connection by
// the end of its standard input.
func TestARemoteCommandHearsThatItsClientHasDied(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := New(t, Options{})
		for name, remote := range remotes(p.A) {
			t.Run(name, func(t *testing.T) {
				p.In(t)
				heard := "/tmp/heard-" + name
				cmd := p.A.Command(t.Context(), remote[0], append(remote[1:], "b", "touch "+heard+".started; cat; touch "+heard)...)
				in, err := cmd.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				testenv.Eventually(t, testenv.Soon, "it has started", func() bool { return testenv.Exists(p.B.Path(heard + ".started")) })
				for _, client := range p.A.Find("b touch " + heard) {
					if err := client.Kill(); err != nil {
						t.Fatal(err)
					}
				}
				_ = cmd.Wait()
				testenv.Eventually(t, testenv.Soon, "its standard input ends", func() bool { return testenv.Exists(p.B.Path(heard)) })
			})
		}
	})
}
