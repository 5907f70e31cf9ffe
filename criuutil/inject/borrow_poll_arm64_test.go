package inject

func (w *worker) poll() uint64 { return w.ppoll() } // there is no other
