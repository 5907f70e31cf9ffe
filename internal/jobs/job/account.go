package job

import (
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cucriu/internal/kit/criuimage"
)

// Account is whose job it is.
type Account struct {
	name, home string
	Credential syscall.Credential
}

// LookupAccount finds a user by name or number.
func LookupAccount(name string) (*Account, error) {
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
	var ids []uint32
	for _, text := range append([]string{u.Uid, u.Gid}, groups...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--user %s: %w", name, err)
		}
		ids = append(ids, uint32(id))
	}
	return &Account{u.Username, u.HomeDir, syscall.Credential{Uid: ids[0], Gid: ids[1], Groups: ids[2:]}}, nil
}

// Environment changes those variables that tell a program whose it is.
func (a *Account) Environment(env []string) []string {
	own := []string{"USER=" + a.name, "LOGNAME=" + a.name, "HOME=" + a.home}
	env = slices.DeleteFunc(env, func(v string) bool {
		return slices.ContainsFunc(own, func(o string) bool {
			name, _, _ := strings.Cut(o, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, own...)
}

// Check refuses an image with a process that is somebody else's, or can do more than the user.
func (a *Account) Check(dir string) error {
	all, err := criuimage.ReadCredentials(dir)
	if err != nil {
		return err
	}
	for _, c := range all {
		for _, id := range c.UIDs {
			if id != a.Credential.Uid {
				return fmt.Errorf("process %d of the checkpoint has the credentials of user %d, but the job should run as %s (--user)", c.PID, id, a.name)
			}
		}
		for _, id := range append(slices.Clone(c.GIDs), c.Groups...) {
			if id != a.Credential.Gid && !slices.Contains(a.Credential.Groups, id) {
				return fmt.Errorf("process %d of the checkpoint is in group %d, but %s is not (--user)", c.PID, id, a.name)
			}
		}
		if a.Credential.Uid != 0 && c.Capabilities != 0 {
			return fmt.Errorf("process %d of the checkpoint has capabilities %#x, but the job should run as %s (--user)", c.PID, c.Capabilities, a.name)
		}
	}
	return nil
}
