package testenv

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Soak returns what a soak test reads from the environment: its length (SOAK), if one is asked
// for, and its seed (SEED). The seed does not determine which of two processes is faster, so it
// may take several runs to find again what one run has found.
func Soak(t *testing.T, usual time.Duration) (length time.Duration, seed uint64, asked bool) {
	t.Helper()
	length, seed = usual, 1
	var err error
	if text := os.Getenv("SOAK"); text != "" {
		asked = true
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("SOAK: %v", err)
		}
	}
	if text := os.Getenv("SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("SEED: %v", err)
		}
	}
	return length, seed, asked
}

// SoakDone logs what a soak test has done, in the form that `make soak` collects.
func SoakDone(t *testing.T, done any) {
	t.Helper()
	length, seed, _ := Soak(t, 0)
	result := "passed"
	if t.Failed() {
		result = "FAILED"
	}
	t.Logf("soak: %s %s, SEED=%d SOAK=%v: %v", t.Name(), result, seed, length, done)
}
