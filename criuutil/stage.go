package criuutil

// The stages at which criu calls its action scripts and notifies its RPC client, under the
// names that criu gives them.
const (
	StagePreDump             = "pre-dump"
	StagePostDump            = "post-dump"
	StageNetworkLock         = "network-lock"
	StageNetworkUnlock       = "network-unlock"
	StagePreRestore          = "pre-restore"
	StageSetupNamespaces     = "setup-namespaces"
	StagePostSetupNamespaces = "post-setup-namespaces"
	StagePostRestore         = "post-restore"
	StagePreResume           = "pre-resume"
	StagePostResume          = "post-resume"
)
