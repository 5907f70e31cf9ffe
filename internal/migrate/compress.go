package migrate

import (
	"fmt"

	"cucriu/internal/migrate/wire"
)

// Compress says what of the data is compressed on its way.
type Compress string

// The ways to compress.
const (
	CompressAuto   Compress = ""       // what is sooner at the destination then, by samples and the speed of the link
	CompressNever  Compress = "never"  // nothing
	CompressAlways Compress = "always" // all that gets smaller
)

func (c Compress) check() error {
	switch c {
	case CompressAuto, CompressNever, CompressAlways:
		return nil
	}
	return fmt.Errorf("%.40q is no way to compress", string(c))
}

// apply says so to a sender. The link takes so many bytes a second; 0 is not known.
func (c Compress) apply(o *wire.SendOptions, link float64) {
	if c == CompressNever {
		return
	}
	o.Compress, o.Auto, o.Link = true, c == CompressAuto, link
}
