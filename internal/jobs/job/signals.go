package job

import (
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
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

// Received is a signal and when it came, which may be long before somebody has time for it.
type Received struct {
	Signal unix.Signal
	At     time.Time
}

// Take returns the signals, for a starter that passes them on itself. It is called once.
func (s *Signals) Take() <-chan Received {
	taken := make(chan Received, cap(s.got))
	go func() {
		for sig := range s.got {
			taken <- Received{sig.(unix.Signal), time.Now()}
		}
	}()
	return taken
}

// IsForGroup reports whether a terminal sends this signal to all processes of a job.
func IsForGroup(sig os.Signal) bool { return slices.Contains(toGroup(), sig) }

// IsForFirst reports whether this signal is passed on to the first process of a job only.
func IsForFirst(sig os.Signal) bool { return slices.Contains(toFirst(), sig) }

// action is a kernel's struct sigaction. Its zero value is the default. os/signal knows no way back to that:
// it leaves Go's handler, which does nothing.
type action [4]uint64

const ignored = 1 // SIG_IGN

// swapAction sets what a signal does, unless set is nil, and returns what it did before.
func swapAction(sig unix.Signal, set *action) (before action) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	return before
}

// StopSelf stops this program as the terminal asks it to, and not the job, and returns once it was
// continued. If nobody could continue it, the kernel does not stop it.
func StopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := swapAction(unix.SIGTSTP, &action{})
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTSTP) // to this thread, so that it takes effect here
	swapAction(unix.SIGTSTP, &before)
}

// DeferStops has the signals by which a terminal stops programs wait until over is called: a program
// that holds a job must not stop. say is called when one comes.
func DeferStops(say func()) (over func()) {
	// A program in the background may be sent these again and again. They must not be caught.
	in, out := swapAction(unix.SIGTTIN, &action{ignored}), swapAction(unix.SIGTTOU, &action{ignored})
	stop, got, done := swapAction(unix.SIGTSTP, nil), make(chan os.Signal, 1), make(chan bool)
	if stop[0] != ignored {
		signal.Notify(got, unix.SIGTSTP)
	}
	go func() {
		_, asked := <-got
		if asked {
			say()
		}
		done <- asked
	}()
	return func() {
		signal.Stop(got)
		close(got)
		asked := <-done
		swapAction(unix.SIGTSTP, &stop)
		swapAction(unix.SIGTTIN, &in)
		swapAction(unix.SIGTTOU, &out)
		if asked {
			StopSelf()
		}
	}
}
