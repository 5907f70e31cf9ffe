package migrate

import (
	"testing"
	"time"

	"cucriu/internal/testenv"
	"cucriu/internal/testenv/hosts"
)

// took returns how long a phase was.
func (r result) took(phase string) (took time.Duration) {
	for _, p := range r.Phases {
		if p.Name == phase {
			took += p.Took
		}
	}
	return took
}

func TestASlowLinkIsSparedWhatCompresses(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		p := hosts.New(t, hosts.Options{})
		w := p.A.Start(1, "--mib", "8", "--flat", "64")
		w.Is(p.A)
		p.Shape(hosts.Shape{Rate: 16 << 20})
		plain := move(t, w, p.A, p.B, "--compress", "never", "--precopy=never") // which a busy machine might find to pay
		auto := move(t, w, p.B, p.A, "--precopy=never")
		for name, r := range map[string]result{"never": plain, "auto": auto} {
			t.Logf("%s: %d bytes, %d over the link, which takes %.0f MB/s: sent in %v, stood still for %v", name, r.Bytes, r.Link, r.Bandwidth/1e6, r.took("send"), r.Pause)
		}
		if plain.Link < plain.Bytes*3/4 || plain.Bytes < 64<<20 {
			t.Errorf("of %d bytes, %d went over the link without compression", plain.Bytes, plain.Link)
		}
		if auto.Link > plain.Link/2 {
			t.Errorf("compressed, %d bytes went over the link, and %d without", auto.Link, plain.Link)
		}
	})
}
