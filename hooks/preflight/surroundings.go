package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/image"
)

// SurroundingsFindings refuse a restore on a host that lacks what the job was connected
// with. criu finds that only when it has created processes. input is the standard input of
// the criu that is to restore.
func SurroundingsFindings(o image.Options, input *os.File) Findings {
	var findings Findings
	for _, name := range o.Sockets {
		if !hasUNIXSocket(name) {
			findings = append(findings, Finding{
				Name: FindingUNIXSocket, Severity: SeverityError,
				Message: fmt.Sprintf("the job sends to the UNIX socket %s, which does not exist here", name),
				Remedy:  "start the service that has this socket, and restore again",
			})
		}
	}
	if _, err := unix.IoctlGetTermios(int(input.Fd()), unix.TCGETS); err != nil && o.Terminal {
		findings = append(findings, Finding{
			Name: FindingTerminal, Severity: SeverityError,
			Message: "the job uses a terminal, and the restore has none on its standard input",
			Remedy:  "restore from a terminal, or with one of its own, as in: script -qc 'cucriu restore …' /dev/null",
		})
	}
	return findings
}

func hasUNIXSocket(name string) bool {
	if filepath.IsAbs(name) {
		info, err := os.Stat(name)
		return err == nil && info.Mode().Type() == os.ModeSocket
	}
	list, err := os.ReadFile("/proc/net/unix")
	return err != nil || strings.Contains(string(list), " "+name+"\n")
}
