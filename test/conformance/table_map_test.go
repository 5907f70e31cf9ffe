package conformance

// mapCases are about the pairs of a restore. Their old side must be exactly the GPUs that
// the target saw at its checkpoint, used or not. Their new side must be GPUs that it sees
// at its restore, and no GPU may appear twice.
func mapCases() []testCase {
	accepted := func(c call) row { return row{call: c, want: results(success), to: locked} }
	refused := func(c call) row { return row{call: c, want: results(invalidValue), to: checkpointed} }
	tooFew := func(c call) row { return row{call: c, want: results(notSupported), to: checkpointed} }

	// one makes a case that captures a set of GPUs, uses those that uses names, and is then
	// shown another set. A refused call leaves it checkpointed, and then the GPUs that it
	// had at first bring it back intact.
	one := func(captured, now, uses, endsOn, busOf string, rows ...row) testCase {
		rows[0].given = show(now)
		for i := range rows {
			rows[i].from = checkpointed
		}
		return testCase{
			name:   "map, captured " + captured + " now " + now,
			gpus:   2,
			with:   program{sees: captured, args: []string{"--gpus", uses}},
			rows:   rows,
			endsOn: endsOn,
			busOf:  busOf,
		}
	}
	alone := func(rows ...row) testCase {
		c := one("A", "A", "0", "A", "A", rows...)
		c.gpus = 1
		return c
	}
	under := func(visible string, c testCase) testCase {
		c.name += ", CUDA_VISIBLE_DEVICES=" + visible
		c.with.env = []string{"CUDA_VISIBLE_DEVICES=" + visible}
		return c
	}
	return []testCase{
		alone(accepted(restore)),
		alone(accepted(restoreEmpty)),
		alone(accepted(withNull(restore))),
		alone(accepted(restoreMap("A>A"))),
		alone(refused(restoreMap("A>X")), refused(restoreMap("X>A")), refused(restoreMap("A>A X>Y")), refused(restoreMap("A>A A>A"))),

		one("AB", "AB", "0,1", "AB", "AB", accepted(restore)),
		one("AB", "AB", "0", "A", "A", accepted(restoreMap("A>A B>B"))),
		one("AB", "AB", "0,1", "BA", "AB", accepted(restoreMap("A>B B>A"))),
		one("AB", "AB", "0", "A", "A",
			refused(restoreMap("A>A")), refused(restoreMap("A>A B>B X>Y")), refused(restoreMap("A>A X>B")),
			refused(restoreMap("A>A A>B")), refused(restoreMap("A>A B>A")), refused(restoreMap("A>A B>X")),
			accepted(restoreMap("A>A B>B"))),

		one("A", "AB", "0", "A", "A", accepted(restoreMap("A>A"))),
		one("A", "AB", "0", "B", "A", accepted(restoreMap("A>B"))),
		one("A", "AB", "0", "A", "A", accepted(restore)),
		one("A", "AB", "0", "A", "A", refused(restoreMap("A>B B>A"))),

		one("AB", "A", "0", "A", "A", tooFew(restore), tooFew(restoreMap("A>A B>B")), tooFew(restoreMap("A>A")),
			row{name: "Restore, nodes back", given: show("AB"), call: restore, want: results(success), to: locked}),
		one("AB", "B", "0", "A", "A", tooFew(restore), tooFew(restoreMap("A>B B>A")), tooFew(restoreMap("B>B")),
			row{name: "Restore(A>A B>B), nodes back", given: show("AB"), call: restoreMap("A>A B>B"), want: results(success), to: locked}),

		one("A", "B", "0", "B", "A", accepted(restore)),
		one("A", "B", "0", "B", "A", accepted(restoreMap("A>B"))),

		under("0", one("AB", "AB", "0", "A", "A", refused(restoreMap("A>A")), accepted(restoreMap("A>A B>B")))),
		under("1", one("AB", "AB", "0", "A", "B", refused(restoreMap("B>B")), accepted(restoreMap("A>B B>A")))),
	}
}
