package inject

func runSequence() {} // the test is written in amd64 machine code
