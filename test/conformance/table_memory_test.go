package conformance

import "time"

// memoryCases are about what a checkpoint saves, refuses, or loses.
func memoryCases() []testCase {
	return []testCase{
		{
			name: "managed memory",
			with: program{args: []string{"--managed"}},
			rows: []row{
				{from: locked, call: checkpoint, want: results(notSupported), to: locked},
				{call: unlock, want: results(success), to: running},
			},
		},
		{
			// Its CPU thread compares the memory all the time.
			name: "pinned memory",
			with: program{args: []string{"--pinned"}},
			rows: []row{
				{from: locked, call: checkpoint, want: results(success), to: checkpointed},
				{name: "read while checkpointed", do: func(b *bench) (string, error) {
					if b.targets[0].waitEnd(300 * time.Millisecond) {
						return b.targets[0].end(), nil
					}
					return "lives", nil
				}, text: "lives"},
				{call: restore, want: results(success), to: locked},
			},
		},
		{
			name: "NVML in the same process",
			with: program{own: true, args: []string{"--nvml"}},
			rows: []row{{from: locked, call: checkpoint, want: results(success), to: checkpointed}, {call: restore, want: results(success), to: locked}},
		},
		{
			name:   "CUDA graph",
			notSim: "the simulated driver has no graphs",
			with:   program{own: true, args: []string{"--graph"}},
			rows:   []row{{from: locked, call: checkpoint, want: results(success), to: checkpointed}, {call: restore, want: results(success), to: locked}},
		},
		{
			name:    "PyTorch training",
			notSim:  "PyTorch does not run on the simulated driver",
			notReal: "an end-to-end test, with test/workload/torch: it takes longer than this whole table",
			bare:    true,
			rows:    []row{{call: checkpoint, want: results(success), to: checkpointed}},
		},
		{
			name: "too little GPU memory", lost: true,
			with: program{mib: staging},
			rows: []row{
				{from: checkpointed, given: hog, call: restore, want: results(outOfMemory), to: checkpointed},
				{name: "Restore, memory free again", given: unhog, call: restore, want: results(noProcess), to: checkpointed},
				{name: "Restore, for ever", call: restore, want: results(noProcess), to: checkpointed},
			},
		},
		{
			name: "staging memory",
			with: program{mib: staging},
			rows: []row{
				{name: "Checkpoint", from: locked, do: stagesAtOnce, text: "one mapping for all, populated by the kernel at once", to: checkpointed},
				{name: "Checkpoint into memory that was made ready", call: restore, want: results(success), to: locked},
			},
		},
		{
			name: "target killed", lost: true,
			with: program{mib: staging},
			rows: []row{{name: "Checkpoint under way", from: locked, call: checkpoint, kill: theTarget, want: results(noProcess), to: gone}},
		},
		{
			name: "controller killed",
			with: program{mib: staging},
			rows: []row{
				{name: "Checkpoint under way", from: locked, call: checkpoint, kill: theController, to: checkpointed},
				{name: "Restore under way", from: checkpointed, call: restore, kill: theController, to: locked},
				{call: unlock, want: results(success), to: running},
			},
		},
	}
}
