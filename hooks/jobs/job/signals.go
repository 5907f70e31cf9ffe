package job

import (
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/proc"
)

// Signals are those that this program gets for its job.
type Signals struct{ got chan os.Signal }

// toGroup are the signals that a terminal sends to all processes of a job.
func toGroup() []os.Signal {
	return []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT}
}

// toFirst are the signals that only the first process of a job gets.
func toFirst() []os.Signal {
	return []os.Signal{unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM}
}

// TakeSignals takes this program's signals for a job that is started next. The job finds the
// signals as this program was given them: SIGHUP and SIGINT that are ignored stay so (nohup).
func TakeSignals() (*Signals, error) {
	signal.Reset()
	status, err := proc.ReadStatus(os.Getpid())
	if err != nil {
		return nil, err
	}
	s := &Signals{got: make(chan os.Signal, 16)}
	// SIGPIPE is not passed on. It must not end us if nobody reads what we say, and the job
	// must not find it ignored.
	signal.Notify(s.got, unix.SIGPIPE)
	for _, sig := range slices.Concat(toGroup(), toFirst()) {
		if !status.Ignored.Has(sig.(unix.Signal)) {
			signal.Notify(s.got, sig)
		}
	}
	return s, nil
}

// PassTo passes the signals on to a job until the program ends.
func (s *Signals) PassTo(job *Job) {
	for sig := range s.got {
		switch {
		case sig == unix.SIGTSTP:
			// Nobody would continue a job that has a session of its own, so the kernel lets
			// no terminal's stop have an effect there. SIGCONT continues both.
			_ = unix.Kill(-job.PID, unix.SIGSTOP)
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		case slices.Contains(toGroup(), sig):
			_ = unix.Kill(-job.PID, sig.(unix.Signal)) // it may have ended
		case slices.Contains(toFirst(), sig):
			_ = job.cmd.Process.Signal(sig)
		}
	}
}

// Got are the signals, for a starter that passes them on itself.
func (s *Signals) Got() <-chan os.Signal { return s.got }

// PutBack has signals come again that were got and not looked at.
func (s *Signals) PutBack(signals ...unix.Signal) {
	for _, sig := range signals {
		select {
		case s.got <- sig:
		default: // so many that one more says nothing new
		}
	}
}

// IsForGroup reports whether a terminal sends this signal to all processes of a job.
func IsForGroup(sig os.Signal) bool { return slices.Contains(toGroup(), sig) }

// IsForFirst reports whether this signal is passed on to the first process of a job only.
func IsForFirst(sig os.Signal) bool { return slices.Contains(toFirst(), sig) }

// StopSelf stops this program as the terminal asks it to, and not the job. If nobody could
// continue it, the kernel does not stop it.
func (s *Signals) StopSelf() {
	signal.Reset(unix.SIGTSTP)
	_ = unix.Kill(os.Getpid(), unix.SIGTSTP)
}

// Continued is to be called at SIGCONT after [Signals.StopSelf].
func (s *Signals) Continued() { signal.Notify(s.got, unix.SIGTSTP) }
