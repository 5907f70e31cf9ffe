package inject

import (
	"encoding/base64"
	"fmt"
	"unsafe"
)

// MarshalText encodes the registers as raw bytes, which takes a third of the room that
// named fields would: a job may have thousands of threads.
func (r registers) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, r.bytes()), nil
}

// UnmarshalText decodes what MarshalText has encoded.
func (r *registers) UnmarshalText(text []byte) error {
	data, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(data) != len(r.bytes()) {
		return fmt.Errorf("registers of %d bytes, want %d (%v)", len(data), len(r.bytes()), err)
	}
	copy(r.bytes(), data)
	return nil
}

// calling returns registers with which a thread makes a system call by the instruction at an address.
func (r registers) calling(address, number uint64, arguments ...uint64) registers {
	r.setCall(address, number)
	for i, value := range arguments {
		r.setArgument(i, value)
	}
	return r
}

func (r *registers) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), unsafe.Sizeof(*r))
}
