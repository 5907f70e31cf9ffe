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
	// aboutSize is the size of the file, in bytes, on every host: criu restores a job that has it open or mapped only if
	// it has the size that it had.
	aboutSize   = 64 << 10
	mostAddress = 32
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
	a := about{Version: 1, Directory: filepath.Dir(s.seenOutput()), GPUs: g.Visible}
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
	err := errors.Join(os.MkdirAll(aboutDir, 0o755), os.MkdirAll(s.aboutFolder(), 0o755),
		os.Chmod(s.aboutFolder(), 0o755), s.writeAbout(a)) // whatever the umask is
	dir, linkErr := filepath.EvalSymlinks(s.aboutFolder()) // the run directory is root's alone, and links may lead there
	if err = errors.Join(err, linkErr); err != nil {
		s.say(fmt.Sprintf("the job has no %s: %v", filepath.Join(aboutDir, aboutName), err))
		return
	}
	spec.Shown = append(spec.Shown, sandbox.Shown{Dir: dir, At: aboutDir, ReadOnly: true, Optional: true})
}

func (s *starter) aboutFolder() string { return filepath.Join(s.runDir, filepath.Base(aboutDir)) }

// updateAbout tells a job that runs what its new supervisor has changed.
func (s *starter) updateAbout() error {
	data, err := os.ReadFile(filepath.Join(s.aboutFolder(), aboutName))
	if err != nil {
		return nil // an earlier version has started the job, or it was adopted
	}
	var a about
	if err := json.Unmarshal(data, &a); err != nil {
		return err
	}
	return s.writeAbout(a)
}

// writeAbout adds what belongs to the supervisor. It writes over the file, at once: criu could not restore a job that
// has one open whose name leads to another one.
func (s *starter) writeAbout(a about) error {
	if a.Name, a.Ports = s.record.Name, nil; s.relay != nil {
		a.Ports = s.relay.Published()
	}
	data, err := a.encode()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(s.aboutFolder(), aboutName), os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Truncate(int64(len(data))), f.Chmod(0o644))
}

// encode fills the file. What does not fit is left out: the addresses first, and then the ports.
func (a about) encode() ([]byte, error) {
	for {
		data, err := json.MarshalIndent(a, "", "\t")
		switch {
		case err != nil:
			return nil, err
		case len(data) < aboutSize:
			return append(append(data, bytes.Repeat([]byte(" "), aboutSize-1-len(data))...), '\n'), nil
		case len(a.Addresses) > 0:
			a.Addresses = nil
		case len(a.Ports) > 0:
			a.Ports = nil
		default:
			return nil, fmt.Errorf("it has %d bytes, more than %d", len(data), aboutSize-1)
		}
	}
}
