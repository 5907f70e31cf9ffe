package inspect

import (
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
)

// snapshot is a look at a tree of processes, which all that judge the tree share.
type snapshot struct{ *inventory.Tree }

// about returns the finding, marked as one about a process.
func about(p *inventory.Process, f preflight.Finding) preflight.Finding {
	f.PID, f.Process = p.PID, p.Status().Name
	return f
}

// how says for people how a process uses a file.
func how(f *inventory.File) string {
	switch f.At {
	case inventory.AtProgram:
		return "as its program"
	case inventory.AtDirectory:
		return "as its working directory"
	case inventory.AtRoot:
		return "as its root directory"
	}
	if f.Number == "" {
		return "mapped"
	}
	return "open (descriptor " + f.Number + ")"
}
