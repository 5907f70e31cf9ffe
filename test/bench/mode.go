package main

// The ways to dump and restore that are compared.
const (
	modeSerial   = "serial"   // the baseline: serial-hook
	modeHook     = "hook"     // cucriu-hook, all pages through criu
	modeFastlane = "fastlane" // cucriu-hook, GPU content past criu
)

// allModes are in the order in which they are shown.
func allModes() []string { return []string{modeSerial, modeHook, modeFastlane} }

// The configuration files of the modes with cucriu-hook.
const (
	hookConfig     = "version: 1\npages: criu\nfast_lane: {prefault: false}\n"
	fastlaneConfig = "version: 1\npages: fast\n"
)

// actionScript is what criu is given in a mode.
func (o options) actionScript(mode string) string {
	if mode == modeSerial {
		return o.artefact("build", "test", "serial-hook")
	}
	return o.artefact("bin", "cucriu-hook")
}

// configuration is the text of the hook's configuration file in a mode.
func (o options) configuration(mode string) string {
	if mode == modeFastlane {
		return fastlaneConfig + o.config + "\n"
	}
	return hookConfig
}

// modesOf is the order of the modes in a repetition. It rotates, so that none
// always comes after the same other one.
func (o options) modesOf(repetition int) []string {
	at := repetition % len(o.modes)
	return append(append([]string{}, o.modes[at:]...), o.modes[:at]...)
}
