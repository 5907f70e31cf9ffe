package place

import (
	"os"
	"time"
)

// FencePeriod is how often init looks whether the job still belongs to this place.
const FencePeriod = 5 * time.Second

// Fence is a file that says to which place a job belongs. Once it says something else, somebody
// has taken the job over, and this place must end although nobody may be left to end it. A file
// that cannot be read says nothing.
type Fence struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// watch returns when the job has been taken over.
func (f Fence) watch() {
	for range time.Tick(FencePeriod) {
		if text, err := os.ReadFile(f.Path); err == nil && string(text) != f.Text {
			return
		}
	}
}
