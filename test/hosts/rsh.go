package hosts

func runRSH(args []string) (int, error) { return 0, nil }
func serveRSH(addr string) error        { return nil }
