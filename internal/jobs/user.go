package jobs

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cucriu/internal/criuimage"
)

// account is whose job it is.
type account struct {
	name, home string
	credential syscall.Credential
}

// lookupAccount finds a user by name or number.
func lookupAccount(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("--user %s: there is no such user", name)
		}
	}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of %s: %w", u.Username, err)
	}
	a := &account{name: u.Username, home: u.HomeDir}
	for _, to := range []struct {
		text string
		id   *uint32
	}{{u.Uid, &a.credential.Uid}, {u.Gid, &a.credential.Gid}} {
		id, err := strconv.ParseUint(to.text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--user %s: %w", name, err)
		}
		*to.id = uint32(id)
	}
	for _, text := range groups {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("groups of %s: %w", u.Username, err)
		}
		a.credential.Groups = append(a.credential.Groups, uint32(id))
	}
	return a, nil
}

// environment changes those variables that tell a program whose it is.
func (a *account) environment(env []string) []string {
	own := []string{"USER=" + a.name, "LOGNAME=" + a.name, "HOME=" + a.home}
	env = slices.DeleteFunc(env, func(v string) bool {
		return slices.ContainsFunc(own, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, own...)
}

// check refuses an image with a process that is somebody else's, or can do more than the user.
func (a *account) check(dir string) error {
	all, err := criuimage.ReadCredentials(dir)
	if err != nil {
		return err
	}
	for _, c := range all {
		for _, id := range c.UIDs {
			if id != a.credential.Uid {
				return fmt.Errorf("process %d of the checkpoint has the rights of user %d, and the job is to be %s's (--user)", c.PID, id, a.name)
			}
		}
		for _, id := range append(slices.Clone(c.GIDs), c.Groups...) {
			if id != a.credential.Gid && !slices.Contains(a.credential.Groups, id) {
				return fmt.Errorf("process %d of the checkpoint is in group %d, and %s is not (--user)", c.PID, id, a.name)
			}
		}
		if a.credential.Uid != 0 && c.Capabilities != 0 {
			return fmt.Errorf("process %d of the checkpoint has capabilities %#x, and the job is to be %s's (--user)", c.PID, c.Capabilities, a.name)
		}
	}
	return nil
}
