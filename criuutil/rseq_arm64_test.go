package criuutil

func runSequence() {} // is written in machine code
