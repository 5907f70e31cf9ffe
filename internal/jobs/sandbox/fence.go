package sandbox

import (
	"fmt"
	"os"
	"time"
)

// FencePeriod is how often init looks whether the job still belongs to this sandbox.
const FencePeriod = 5 * time.Second

// Fence is a file that says to which sandbox a job belongs. Once it names a later one, somebody
// has taken the job over, and this sandbox must end although nobody may be left to end it. A file
// that cannot be read says nothing, nor does one that comes from a backup.
type Fence struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// FenceText names a sandbox: whoever makes it is in a pid namespace of a boot, and has the job's
// directory in its generation.
func FenceText(boot string, namespace, generation uint64) string {
	return fmt.Sprintf("%s %d %d %d\n", boot, namespace, generation, time.Now().UnixNano())
}

// watch returns when the job has been taken over.
func (f Fence) watch() {
	for range time.Tick(FencePeriod) {
		if text, err := os.ReadFile(f.Path); err == nil && string(text) != f.Text && !isEarlier(string(text), f.Text) {
			return
		}
	}
}

// isEarlier reports whether a fence was raised before another one, by the generation of the job's
// directory and by the clock.
func isEarlier(text, other string) bool {
	var boot string
	var namespace, generation, otherGeneration uint64
	var at, otherAt int64
	if _, err := fmt.Sscanf(text, "%s %d %d %d\n", &boot, &namespace, &generation, &at); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(other, "%s %d %d %d\n", &boot, &namespace, &otherGeneration, &otherAt); err != nil {
		return false
	}
	return generation <= otherGeneration && at <= otherAt
}
