package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAJobFromAnImageRunsAsTheUserOfTheImage, with --user and without. It is refused as another user, and nothing of
// it is left. Its copies belong to whoever the original's files belong to.
func TestAJobFromAnImageRunsAsTheUserOfTheImage(t *testing.T) {
	testenv.Parallel(t)
	for user, other := range map[string]string{"nobody": "root", "root": "nobody"} {
		t.Run(user, func(t *testing.T) {
			testenv.Simulated(t, func(t *testing.T) {
				w := emptyWorld(t)
				work, err := os.MkdirTemp("/run", "work-") // the user gets to it
				must(t, err)
				t.Cleanup(func() { os.RemoveAll(work) })
				w.work = work
				if out, err := exec.Command("chown", user, work).CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				uid := ownerOf(t, work)
				w.command = []string{"sh", "-c", `exec >>"$0/log"; while :; do id -u; sleep 0.05; done`, work}
				original := w.run("--every", "0", "--user", user)
				capabilities, err := proc.Capabilities()
				must(t, err)
				mayDump := capabilities&(1<<unix.CAP_SYS_RESOURCE) != 0
				if user != "root" && !mayDump {
					original.ends(125, "CAP_SYS_RESOURCE")
					t.Skip("criu needs CAP_SYS_RESOURCE to dump another user's processes")
				}
				original.awaits("it writes", func() bool { return w.logs() > 2 })
				w.checkpoint()
				refused := w.from()
				name := map[string]string{"root": "0", "nobody": uid}[user]
				asOther := "has the credentials of user " + name + ", but the job should run as " + other + " (--user)"
				status := 3
				if other != "root" && !mayDump { // which is known before the image is read
					status, asOther = 125, "criu cannot dump another user's processes without CAP_SYS_RESOURCE"
				}
				refused.startFrom(w, "--user", other).ends(status, asOther)
				if testenv.Exists(refused.dir) {
					t.Errorf("left over: %s", tree(t, refused.dir))
				}
				for _, flags := range [][]string{{"--user", user}, nil} {
					job := w.from()
					r := job.startFrom(w, append(flags, "--on-start", "/usr/bin/id -u")...)
					r.says("--on-start: " + uid)
					r.says("from image")
					for range 2 {
						before := job.logs()
						r.awaits("it writes", func() bool { return job.logs() > before+2 })
						r.signal(unix.SIGTERM)
						r.ends(requeue)
						r = job.again()
						r.says("D resumes from checkpoint")
					}
					if own := ownerOf(t, filepath.Join(job.work, "log")); own != uid {
						t.Errorf("the copy belongs to %s", own)
					}
					r.signal(unix.SIGTERM)
					r.ends(requeue)
					job.again("--user", other).ends(125, asOther)
				}
				original.signal(unix.SIGTERM)
				original.ends(requeue)
				w.noProcesses()
			})
		})
	}
}

// logs is how many lines the job of a world has written, all as its user.
func (w *world) logs() int {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.work, "log"))
	if err != nil {
		return 0
	}
	uid := ownerOf(w.t, filepath.Join(w.work, "log"))
	lines := strings.Fields(string(data))
	for _, line := range lines[:max(0, len(lines)-1)] {
		if line != uid {
			w.t.Fatalf("it ran as user %s, not %s", line, uid)
		}
	}
	return len(lines)
}

// ownerOf returns whose a file is.
func ownerOf(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return strconv.Itoa(int(info.Sys().(*syscall.Stat_t).Uid))
}
