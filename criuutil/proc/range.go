package proc

// Range is a piece of an address space, [Start, End).
type Range struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// Size is in bytes.
func (r Range) Size() uint64 { return r.End - r.Start }
