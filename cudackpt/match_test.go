package cudackpt

import "testing"

func TestLibrariesMatchByFileOrByVersion(t *testing.T) {
	host := mappedFile{"/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", "fe:01", "77"}
	for _, row := range []struct {
		what  string
		other mappedFile
		same  bool
	}{
		{"the same file under another name", mappedFile{"/usr/local/nvidia/lib64/libcuda.so.1", "fe:01", "77"}, true},
		{"a copy of the version", mappedFile{"/usr/lib64/libcuda.so.580.159.04", "00:2a", "5"}, true},
		{"another version", mappedFile{"/usr/local/cuda/compat/libcuda.so.580.82.07", "fe:01", "78"}, false},
		{"a file without a version", mappedFile{"/opt/libcuda.so.1", "fe:01", "78"}, false},
		{"the inode on another device", mappedFile{"/opt/libcuda.so.1", "fe:02", "77"}, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			if got := host.same(row.other); got != row.same {
				t.Errorf("%s: same is %v", row.what, got)
			}
		})
	}
	nameless := mappedFile{"/opt/libcuda.so.1", "fe:01", "1"}
	if nameless.same(mappedFile{"/other/libcuda.so.1", "fe:01", "2"}) {
		t.Error("two files of the name libcuda.so.1 are taken for one version")
	}
}
