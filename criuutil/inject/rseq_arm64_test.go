package inject

func runSequence() {} // is written in machine code
