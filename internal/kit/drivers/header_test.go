package drivers

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// -update writes the header instead of comparing it.
var update = flag.Bool("update", false, "write test/cudasim/drivers.h")

// TestTheSimulatedDriversAreMadeFromTheTable: the simulator is built from a header that says what the table says.
func TestTheSimulatedDriversAreMadeFromTheTable(t *testing.T) {
	const path = "../../../test/cudasim/drivers.h"
	want := header(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not what the table says: go test ./internal/kit/drivers -update (%v)", path, err)
	}
}

// header returns what the simulator knows of drivers.
func header(t *testing.T) string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	line("/* drivers.h: written by go test ./internal/kit/drivers -update. What is known of drivers is there. */")
	line("#ifndef CUDASIM_DRIVERS_H\n#define CUDASIM_DRIVERS_H\n")
	line("/* The simulated ones: series, version of the kernel module, CUDA version. */\n#define SIM_DRIVERS(DRIVER) \\")
	measured := ""
	for _, b := range branches {
		if b.simulated == "" {
			continue
		}
		line("\tDRIVER(%s, %q, %d) \\", b.number, b.simulated, b.cuda)
		if measured == "" && For(b.simulated).Module == Measured {
			measured = b.number
		}
	}
	facts := For("")
	line("\n#define SIM_DEFAULT %s /* measured */", measured)
	line("#define SIM_CHECKPOINT %s /* the first with the checkpoint API */", Checkpoint.Driver)
	line("#define SIM_GPU_PAIRS %s /* the first that restores onto other GPUs */", GPUPairs.Driver)
	line("#define SIM_PEER_LIMIT (%dull << 20)", facts.FabricLeast>>20)
	line("#define SIM_EVENT_THREAD %q", EventThread)
	line("#define SIM_SOCKET_PREFIX %q", SocketPrefix)
	line("#define SIM_CONTROL_NODE %q\n", ControlNode)
	line("/* Numbers of the kernel module. */")
	file, err := parser.ParseFile(token.NewFileSet(), "module.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is {
			line("#define RM_%s %s", inCapitals(spec.Names[0].Name), spec.Values[0].(*ast.BasicLit).Value)
		}
		return true
	})
	line("\n#endif")
	return text.String()
}

var words = regexp.MustCompile(`([a-z])([A-Z])|([A-Z])([A-Z][a-z])`)

// inCapitals makes RM_CLASS_GPU_MEMORY of RMClassGPUMemory.
func inCapitals(name string) string {
	name = strings.TrimPrefix(strings.ReplaceAll(name, "PIDs", "Pids"), "RM")
	return strings.ToUpper(words.ReplaceAllString(name, "$1${3}_$2$4"))
}
