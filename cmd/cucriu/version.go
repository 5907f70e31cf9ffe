package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"cucriu/internal/kit/version"
)

// versionOutput is what version --json prints.
type versionOutput struct {
	Version  string `json:"version"`
	Go       string `json:"go"`       // the release of Go that built it
	Platform string `json:"platform"` // such as linux/amd64
}

func versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of cucriu",
		Example: "  cucriu version --json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionOutput{Version: version.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return show(cmd, v, func(out io.Writer) {
				fmt.Fprintf(out, "cucriu %s (%s, %s)\n", v.Version, v.Go, v.Platform)
			})
		},
	}
	jsonFlag(cmd)
	return cmd
}
