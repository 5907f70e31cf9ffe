package proc

// Range is a part of an address space: [Start, End).
type Range struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// Size returns the size in bytes.
func (r Range) Size() uint64 { return r.End - r.Start }
