package prepare

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"

	"cucriu/hooks/checkpoint"
	"cucriu/hooks/preflight"
)

// surroundingsFindings look for what else a job is used to: users, a control group, services.
func surroundingsFindings(j *Job) (preflight.Findings, error) {
	findings := checkpoint.CheckSurroundings(j.Options)
	for i := range findings {
		if findings[i].Name == preflight.FindingTerminal {
			findings[i].Message, findings[i].Remedy = "the job uses a terminal, which cannot be migrated", "start the job without one: with its output in a file, or by cucriu run --dir"
		}
	}
	findings = append(findings, userFindings(j, lookupUser)...)
	if j.Own.User {
		data, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if most := strings.TrimSpace(string(data)); most == "" || most == "0" {
			const message = "the job is in a user namespace, which this host does not allow"
			findings = append(findings, preflight.New(preflight.FindingUserNamespace, message, "sysctl user.max_user_namespaces=10000"))
		}
	}
	if j.Cgroup == "" {
		return findings, nil
	}
	there, err := hasGroup(j.Cgroup)
	if err != nil {
		return nil, err
	}
	if !there {
		findings = append(findings, preflight.New(preflight.FindingCgroup, "the job's control group "+j.Cgroup+" does not exist here",
			"the job will run in the receiver's, with other limits: create the group first if that matters"))
	}
	return findings, nil
}

// lookupUser names a user of this host; empty if there is none.
func lookupUser(uid int) string {
	known, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ""
	}
	return known.Username
}

// userFindings compare the names of users. A job keeps the number.
func userFindings(j *Job, lookup func(uid int) string) preflight.Findings {
	var findings preflight.Findings
	seen := make(map[int]bool)
	for _, p := range j.Processes {
		if seen[p.UID] || p.User == "" {
			continue
		}
		seen[p.UID] = true
		here := lookup(p.UID)
		if here == p.User {
			continue
		}
		is := "this host has no such user"
		if here != "" {
			is = "here that user is " + here
		}
		findings = append(findings, preflight.Finding{
			Name: preflight.FindingUser, Severity: preflight.SeverityWarning, PID: p.PID, Process: p.Name,
			Message: fmt.Sprintf("belongs to user %d, named %s on the source; %s", p.UID, p.User, is), Remedy: "the job keeps the numeric ID: check whose files it writes",
		})
	}
	return findings
}

// hasGroup reports whether this host has a control group of cgroup v2.
func hasGroup(path string) (bool, error) {
	mounts, err := procfs.GetMounts()
	if err != nil {
		return false, fmt.Errorf("find the mounted control groups: %w", err)
	}
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			info, err := os.Stat(filepath.Join(m.MountPoint, path))
			return err == nil && info.IsDir(), nil
		}
	}
	return false, nil
}
