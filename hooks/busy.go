package hooks

import (
	"cucriu/hooks/preflight"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
)

// SessionFindings says which open session of the journal is in the way of a dump of the tree
// below root. Only a suspend refuses the dump. It waits for any other session, for a while.
func (h *Hook) SessionFindings(root int) (preflight.Findings, error) {
	runDir := h.Filled().Config.RunDir
	if journal.IsForeign(runDir) {
		return nil, nil
	}
	members, err := membersOfTree(root)
	if err != nil {
		return nil, err
	}
	other, err := journal.FindOpen(runDir, proc.Ident{}, members)
	if err != nil || other == nil {
		return nil, err
	}
	severity := preflight.SeverityWarning
	if other.Suspended() {
		severity = preflight.SeverityError
	}
	return preflight.Findings{preflight.SessionFinding(severity, other.Conflict())}, nil
}

// Refuse fails if there are errors among the findings that are not overridden. It logs what
// is overridden, and warnings.
func (h *Hook) Refuse(findings preflight.Findings) error { return h.Filled().refuse(findings) }
