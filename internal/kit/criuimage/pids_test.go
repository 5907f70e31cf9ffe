package criuimage

import "testing"

func TestPIDsForTheRestoreAreAGap(t *testing.T) {
	for _, test := range []struct {
		used       []int
		most, want int
	}{
		{nil, 32768, 1000},
		{[]int{1000, 1001, 1002}, 32768, 1003},
		{[]int{1000, 3000, 5097}, 32768, 5098},
		{[]int{1000, 3000, 7097}, 32768, 3001},
		{[]int{6000, 1000}, 32768, 1001}, // they need not be in order
		{[]int{4000}, 8000, 0},
	} {
		got, err := gapIn(test.used, 1000, test.most)
		if got != test.want || (err != nil) != (test.want == 0) {
			t.Errorf("%v below %d: %d, %v; want %d", test.used, test.most, got, err, test.want)
		}
	}
}
