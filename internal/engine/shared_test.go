package engine

import "testing"

func TestEachMeetsEachOtherOnce(t *testing.T) {
	for n := range 10 {
		met := make(map[[2]int]int)
		for _, round := range rounds(n) {
			busy := make(map[int]bool)
			for _, pair := range round {
				for _, who := range pair {
					if who < 0 || who >= n || busy[who] {
						t.Errorf("%d participants: %v", n, round)
					}
					busy[who] = true
				}
				met[[2]int{min(pair[0], pair[1]), max(pair[0], pair[1])}]++
			}
		}
		if len(met) != n*max(n-1, 0)/2 {
			t.Errorf("%d participants: %v", n, met)
		}
	}
}
