package prepare

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// TestFilesAreDescribedByTheirUse: each way to use a file is told from the others.
func TestFilesAreDescribedByTheirUse(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host, dir := testenv.NewHost(t, 1), t.TempDir()
		hook := hookOf(t, host)
		pid, _ := startProgram(t, host, dir, "")
		other, err := os.OpenFile(filepath.Join(dir, "both"), os.O_WRONLY, 0) // this test is no process of the job
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		reader, err := os.Open(filepath.Join(dir, "written"))
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		var j *Job
		testenv.Eventually(t, testenv.Soon, "what is open for a moment is left out", func() bool {
			if j, err = Describe(t.Context(), hook, pid, testenv.Criu(t)); err != nil {
				t.Fatal(err)
			}
			// On a busy machine a moment may be long.
			return !slices.ContainsFunc(j.Files, func(f File) bool { return f.Path == filepath.Join(dir, "passing") })
		})
		for name, want := range map[string]File{
			"appended":          {Written: true, AppendOnly: true},
			"written":           {Written: true},
			"both":              {Written: true, Shared: true},
			"pipe":              {Written: true, Pipe: true},
			"shared":            {Written: true, Size: 4096},
			"renamed (deleted)": {Written: true},
		} {
			at := slices.IndexFunc(j.Files, func(f File) bool { return f.Path == filepath.Join(dir, name) })
			if at < 0 {
				t.Errorf("%s is not described", name)
				continue
			}
			f := j.Files[at]
			if f.Written != want.Written || f.AppendOnly != want.AppendOnly || f.Shared != want.Shared || f.Pipe != want.Pipe || f.Size != want.Size || f.PID != pid || f.Mode&0o777 != 0o600 {
				t.Errorf("%s is described as %+v", name, f)
			}
		}
		for _, f := range j.Files {
			name := strings.TrimSuffix(filepath.Base(f.Path), " (deleted)")
			if slices.Contains([]string{"ghost", "passing", "passed", "said", "folder"}, name) {
				t.Errorf("nobody needs %s", f.Path)
			}
		}
		if !slices.Contains(j.Directories, filepath.Join(dir, "folder")) || !slices.Contains(j.Directories, "/") {
			t.Errorf("an open directory or the working directory is not among %q", j.Directories)
		}
		if j.DriverVersion != "" || j.manifest() != nil {
			t.Error("it uses CUDA")
		}

		findings, _, err := fileFindings(j, j.Host.BootID, CopyNone)
		if err != nil {
			t.Fatal(err)
		}
		// A file by a removed name is never there; a dump gives it that name for its time.
		f := only(t, findings, preflight.SeverityError, preflight.FindingFileMissing)
		if !strings.Contains(f.Message, "renamed (deleted)") {
			t.Error(f)
		}
	})
}

// TestConnectionsAreToldApart: those of the job with itself move with it, the others only as the
// user says.
func TestConnectionsAreToldApart(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 1)
		hook := hookOf(t, host)
		server, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		pid, said := startProgram(t, host, t.TempDir(), server.Addr().String())
		j, err := Describe(t.Context(), hook, pid, testenv.Criu(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(j.Listening) != 1 || j.Listening[0].Local.String() != said.Listening || j.Listening[0].PID != pid {
			t.Errorf("it listens on %s, and this is described: %+v", said.Listening, j.Listening)
		}
		var inside, outside []string
		for _, c := range j.Connections {
			if c.Inside {
				inside = append(inside, c.Local.String())
			} else {
				outside = append(outside, c.Local.String())
			}
		}
		slices.Sort(inside)
		want := []string{said.Inside, said.Listening}
		slices.Sort(want)
		if !slices.Equal(inside, want) || !slices.Equal(outside, []string{said.Outside}) {
			t.Errorf("inside are %v, want %v; outside %v, want %v", inside, want, outside, said.Outside)
		}
		if !j.Options.TCPEstablished {
			t.Errorf("criu is to be told %+v", j.Options)
		}
		room := roomOf(t)
		for tcp, severity := range map[TCP]preflight.Severity{TCPRefuse: preflight.SeverityError, TCPClose: preflight.SeverityWarning, TCPKeep: preflight.SeverityWarning} {
			room.TCP = tcp
			judgement, err := JudgeSource(t.Context(), hook, j, room)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(judgement.Findings, func(f preflight.Finding) bool { return f.Name == preflight.FindingTCP })
			if at < 0 || judgement.Findings[at].Severity != severity || !strings.Contains(judgement.Findings[at].Message, said.Outside) {
				t.Errorf("with %q: %v", tcp, judgement.Findings)
			}
		}
		j.Connections = slices.DeleteFunc(j.Connections, func(c Connection) bool { return !c.Inside })
		only(t, connectionFindings(j, TCPRefuse), preflight.SeverityOK, preflight.FindingTCP)
		// The destination is this host, on which the job itself listens.
		judgement, err := Judge(t.Context(), hook, j, room)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(verdicts(judgement.Findings), "error "+preflight.FindingTCPAddress) {
			t.Errorf("%v", judgement.Findings)
		}
	})
}

// TestAJobInItsOwnNamespacesNeedsNoPids as a job of cucriu run has them.
func TestAJobInItsOwnNamespacesNeedsNoPids(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host, dir := testenv.NewHost(t, 1), t.TempDir()
		hook := hookOf(t, host)
		mounted := filepath.Join(dir, "folder")
		pid, _ := startProgram(t, host, dir, "", "unshare", "--pid", "--fork", "--mount-proc", "--time", "--boottime", "1000", "--kill-child",
			"sh", "-c", `mount -t tmpfs mine "$0" && exec "$@"`, mounted)
		j, err := Describe(t.Context(), hook, pid, testenv.Criu(t))
		if err != nil {
			t.Fatal(err)
		}
		if want := (Namespaces{PID: true, Mount: true, Time: true}); j.Own != want {
			t.Errorf("its own are %+v, want %+v", j.Own, want)
		}
		if len(j.Numbers) > 0 || !slices.Contains(j.Features, "timens") {
			t.Errorf("it needs the numbers %v and the features %v", j.Numbers, j.Features)
		}
		if !slices.Contains(j.Mounts, Mount{Path: mounted, FileSystem: "tmpfs", Source: "mine"}) {
			t.Errorf("its mounts are %+v", j.Mounts)
		}
		judgement, err := Judge(t.Context(), hook, j, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		only(t, slices.DeleteFunc(judgement.Findings, func(f preflight.Finding) bool { return f.Name != preflight.FindingMounts }), preflight.SeverityWarning, preflight.FindingMounts)
		if slices.ContainsFunc(judgement.Findings.Of(preflight.SeverityError), func(f preflight.Finding) bool { return f.Name == preflight.FindingPIDTaken }) {
			t.Errorf("%v", judgement.Findings)
		}
	})
}
