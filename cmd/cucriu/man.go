//go:build man

package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"cucriu/internal/kit/version"
)

// manCommands has the command that writes the manual pages, which only make install builds in.
func manCommands() []*cobra.Command {
	return []*cobra.Command{hidden("man DIR", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		cmd.Root().DisableAutoGenTag = true
		epoch := time.Unix(0, 0) // the same bytes each time
		return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Section: "8", Source: "cucriu " + version.Version, Manual: "cucriu", Date: &epoch}, args[0])
	})}
}
