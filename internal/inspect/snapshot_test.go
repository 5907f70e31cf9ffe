package inspect

import "testing"

func TestLibrariesThatMayUseAnIOUringAreKnown(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/lib/x86_64-linux-gnu/libuv.so.1.0.0":                                       true,
		"/usr/lib/x86_64-linux-gnu/liburing.so.2.3":                                      true,
		"/venv/lib/python3.11/site-packages/uvloop/loop.cpython-311-x86_64-linux-gnu.so": true,
		"/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so":                   true,
		"/usr/bin/node":                          true,
		"/usr/bin/nodejs":                        true,
		"/usr/lib/x86_64-linux-gnu/libc.so.6":    false,
		"/home/user/node/train.bin":              false,
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1": false,
	} {
		if got := ringUser.MatchString(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
