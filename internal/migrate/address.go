package migrate

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/migrate/commit"
)

// What the command that moves the address of a job is told.
const (
	addressThere = "there" // the job stands still, and is about to be restored at the destination
	addressBack  = "back"  // the job goes on here; its address may be here still
)

// addressPatience is how long it may take to have the address back.
const addressPatience = time.Minute

// moveAddress runs the user's command, if there is one.
func (s *source) moveAddress(ctx context.Context, where string) error {
	command := s.record.MoveAddress
	if len(command) == 0 {
		return nil
	}
	return s.phase("move address "+where, func() error {
		cmd := exec.CommandContext(ctx, command[0], append(command[1:len(command):len(command)], where)...)
		cmd.Env = append(os.Environ(), "CUCRIU_MIGRATION="+s.record.ID, "CUCRIU_DESTINATION="+s.record.Host)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		cmd.WaitDelay = time.Second
		// It ends with us: who recovers asks for the address back, and it must not leave after that.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true} // the terminal does not stop it
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", command[0], where, err)
		}
		return nil
	})
}

// addressBackIfStaying brings the address back for a job that goes on here. The job does so even if
// that fails.
func (s *source) addressBackIfStaying() {
	state, err := sourceState(s.hook, s.record.ID)
	if err != nil || state == commit.End {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), addressPatience)
	defer cancel()
	if err := s.moveAddress(ctx, addressBack); err != nil {
		s.hook.Log.Warn("the address of the job may be at the other host, and its connections stand still without it", "migration", s.record.ID, "error", err)
	}
}
