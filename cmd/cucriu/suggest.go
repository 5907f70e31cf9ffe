package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// criuOnly are options of criu's command line that dump and restore do not have.
var criuOnly = strings.Fields("auto-dedup cgroup-dump-controller cgroup-props cgroup-props-file cgroup-yard config cpu-cap display-stats " +
	"empty-ns enable-external-masters enable-external-sharing enable-fs evasive-devices ext-mount-map file-validation force-irmap " +
	"ghost-fiemap inherit-fd irmap-scan-path join-ns lazy-pages lsm-mount-context lsm-profile mntns-compat-mode page-server " +
	"pre-dump-mode prev-images-dir restore-sibling skip-file-rwx-check skip-mnt stream timeout tls track-mem unprivileged veth-pair weak-sysctls")

// advice says what was meant by an option that a command does not have; "" if nobody knows.
func advice(cmd *cobra.Command, err error) string {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return ""
	}
	name := unknown.GetSpecifiedName()
	drivesCriu := cmd.Flags().Lookup("criu-config") != nil
	switch {
	case len(name) < 2:
		return ""
	case drivesCriu && name == "action-script":
		return ": it is not needed, " + cmd.CommandPath() + " does the hook's work itself"
	case drivesCriu && name == "libdir":
		return ": it is not needed, " + cmd.CommandPath() + " gives criu no plugins"
	case drivesCriu && slices.Contains(criuOnly, name):
		return ": an option of criu's that is not here goes into a file, for --criu-config"
	}
	// cobra knows which of several names are near.
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	if near := names.SuggestionsFor(name); len(near) > 0 {
		return ": did you mean --" + strings.Join(near, " or --")
	}
	return ""
}
