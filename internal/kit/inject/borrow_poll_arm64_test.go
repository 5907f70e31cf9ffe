package inject

func (w *worker) poll() uint64 { return w.ppoll() } // this architecture has no poll
