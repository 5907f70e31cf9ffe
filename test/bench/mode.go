package main

import "runtime"

// The ways to dump and restore that are compared.
const (
	modeSerial   = "serial"   // the baseline: serial-hook
	modeHook     = "hook"     // cucriu-hook; criu writes all pages
	modeFastlane = "fastlane" // cucriu-hook; it writes the GPU content itself
	modeGuest    = "guest"    // the same, and the library of cucriu run --dir is in the job
)

// allModes returns the modes in the order in which they are shown.
func allModes() []string { return []string{modeSerial, modeHook, modeFastlane, modeGuest} }

// The configuration files of the modes with cucriu-hook.
const (
	hookConfig     = "version: 1\npages: criu\nfast_lane: {prefault: false}\n"
	fastlaneConfig = "version: 1\npages: fast\n"
)

// actionScript returns the action script for a mode.
func (o options) actionScript(mode string) string {
	if mode == modeSerial {
		return o.artefact("build", "test", "serial-hook")
	}
	return o.artefact("bin", "cucriu-hook")
}

// environment returns what a job is started with in a mode.
func (o options) environment(mode string) []string {
	if mode == modeGuest {
		return []string{"LD_PRELOAD=" + o.artefact("internal", "kit", "guest", "built", "guest-"+runtime.GOARCH+".so")}
	}
	return nil
}

// configuration returns the text of the hook's configuration file for a mode.
func (o options) configuration(mode string) string {
	if mode == modeFastlane || mode == modeGuest {
		return fastlaneConfig + o.config + "\n"
	}
	return hookConfig
}

// modesOf returns the order of the modes in a repetition. The order rotates, so that no
// mode always follows the same other one.
func (o options) modesOf(repetition int) []string {
	at := repetition % len(o.modes)
	return append(append([]string{}, o.modes[at:]...), o.modes[:at]...)
}
