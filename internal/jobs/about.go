package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"cucriu/cudackpt"
	"cucriu/internal/jobs/job"
	"cucriu/internal/jobs/relay"
	"cucriu/internal/jobs/sandbox"
)

// A job can read in its sandbox who it is, and where: jobs that are started from one image differ in nothing else. The
// file is in the job's folder of the run directory, which the sandbox shows, read-only.
const (
	aboutDir  = "/run/cucriu-job" // on the host an empty directory
	aboutName = "instance.json"
	// aboutUnit is of what the size of the file is a multiple, in bytes: criu restores a job that has it open or mapped
	// only if it has the size that it had.
	aboutUnit    = 4096
	aboutVersion = 1
	mostAddress  = 32
)

// about is what a job can read of itself. All users can, so it has no secrets.
type about struct {
	Version       int             `json:"version"`
	Name          string          `json:"name"`
	Directory     string          `json:"directory"`                // as the job sees it
	HostDirectory string          `json:"host_directory,omitempty"` // if it is another one
	Incarnation   string          `json:"incarnation"`              // another one after each start and resume
	Image         string          `json:"image,omitempty"`          // that the job was started from
	GPUs          []cudackpt.GPU  `json:"gpus,omitempty"`           // that the job sees, in the order of the PCI bus
	Ports         []relay.Publish `json:"ports,omitempty"`
	Host          string          `json:"host"`
	Addresses     []string        `json:"addresses,omitempty"` // of the host
}

// showAbout writes what a job can read of itself, before its first thread runs, and has the sandbox show it. Where that
// cannot be, the job runs without.
func (s *starter) showAbout(g job.GPUs, spec *sandbox.Spec) {
	a := about{Version: aboutVersion, Directory: filepath.Dir(s.seenOutput()), GPUs: g.Visible}
	a.Incarnation = strings.Join(strings.Fields(s.fence.Text), "-")
	if a.Directory != s.Dir {
		a.HostDirectory = s.Dir
	}
	if from := s.record.Image; from != nil {
		a.Image = from.Path
	}
	a.Host, _ = os.Hostname()
	addresses, _ := net.InterfaceAddrs()
	for _, address := range addresses {
		if at, is := address.(*net.IPNet); is && at.IP.IsGlobalUnicast() && len(a.Addresses) < mostAddress {
			a.Addresses = append(a.Addresses, at.IP.String())
		}
	}
	data, err := s.encodeAbout(a)
	path := s.aboutPath()
	dir := filepath.Dir(path)
	for _, dir := range []string{aboutDir, dir} {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	if err == nil {
		err = os.Chmod(dir, 0o755) // whatever the umask is
	}
	if err == nil { // by another name first: an earlier sandbox may have to end yet
		err = renameio.WriteFile(path, data, 0o644, renameio.WithTempDir(dir), renameio.IgnoreUmask())
	}
	if err != nil {
		s.say(fmt.Sprintf("the job has no %s: %v", filepath.Join(aboutDir, aboutName), err))
		return
	}
	spec.Shown = append(spec.Shown, sandbox.Shown{Dir: dir, At: aboutDir, ReadOnly: true})
}

func (s *starter) aboutPath() string {
	return filepath.Join(s.runDir, filepath.Base(aboutDir), aboutName)
}

// encodeAbout adds what belongs to the supervisor.
func (s *starter) encodeAbout(a about) ([]byte, error) {
	if a.Name, a.Ports = s.record.Name, nil; s.relay != nil {
		a.Ports = s.relay.Published()
	}
	data, err := json.MarshalIndent(a, "", "\t")
	data = append(data, bytes.Repeat([]byte(" "), aboutUnit-1-len(data)%aboutUnit)...)
	return append(data, '\n'), err
}

// updateAbout tells a job that runs what its new supervisor has changed. It writes over the file: criu could not restore
// a job that has one open whose name leads to another one.
func (s *starter) updateAbout() error {
	before, err := os.ReadFile(s.aboutPath())
	if err != nil {
		return nil // an earlier version has started the job, or it was adopted
	}
	var a about
	if err := json.Unmarshal(before, &a); err != nil {
		return err
	}
	now, err := s.encodeAbout(a)
	if err != nil || bytes.Equal(now, before) {
		return err
	}
	f, err := os.OpenFile(s.aboutPath(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(now, 0)
	return errors.Join(err, f.Truncate(int64(len(now))))
}
