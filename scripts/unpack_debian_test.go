package scripts

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// unpack runs unpack-debian.sh on an archive, into a new folder, and returns its output.
func unpack(t *testing.T, archive, releases string) (said string, err error) {
	t.Helper()
	dir := t.TempDir()
	// The archive is on this machine, whatever proxy the system's apt uses.
	testenv.WriteFile(t, filepath.Join(dir, "apt.conf"), `Acquire::http::Proxy::127.0.0.1 "DIRECT";`+"\n")
	cmd := script(t, "unpack-debian.sh", filepath.Join(dir, "criu"), releases, "criu")
	cmd.Env = append(os.Environ(), "DEBIAN_MIRROR="+archive, "APT_CONFIG="+filepath.Join(dir, "apt.conf"))
	out, err := cmd.CombinedOutput()
	if left, _ := filepath.Glob(filepath.Join(dir, "criu*")); len(left) > 0 {
		t.Errorf("it leaves %v behind", left)
	}
	return string(out), err
}

func TestAPackageListThatCannotBeHadIsNamedWithTheReason(t *testing.T) {
	needApt(t)
	nothing := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nothing.Close)
	unsigned := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if filepath.Base(r.URL.Path) != "Release" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("Origin: Debian\nSuite: sid\nComponents: main\nDate: Sat, 21 Nov 2026 00:00:00 UTC\n"))
	}))
	t.Cleanup(unsigned.Close)
	for name, test := range map[string]struct{ archive, why string }{
		"nobody there":       {"http://127.0.0.1:" + testenv.FreePort(t) + "/debian", "Connection refused"},
		"no such host":       {"http://nosuch.invalid/debian", "resolv"},
		"no such release":    {nothing.URL + "/debian", "404  Not Found"},
		"not signed":         {unsigned.URL + "/debian", "is not signed"},
		"an unknown method":  {"nosuch://127.0.0.1/debian", "nosuch"},
		"a folder, not http": {"file:///nonexistent/debian", "does not have a Release file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said, err := unpack(t, test.archive, "sid trixie")
			if err == nil {
				t.Fatalf("it succeeds:\n%s", said)
			}
			for _, release := range []string{"sid", "trixie"} {
				found := false
				for line := range strings.Lines(said) {
					found = found || strings.Contains(line, "the list of Debian "+release+" (main, ") && strings.Contains(line, " at "+test.archive+",") && strings.Contains(line, test.why)
				}
				if !found {
					t.Errorf("no line names %s's list at %s with the reason %q:\n%s", release, test.archive, test.why, said)
				}
			}
		})
	}
}
