#!/usr/bin/env python3
"""Compares two loss files, line by line and bit by bit.

Exit status: 0 equal, 1 they differ (the first difference is printed), 2 a file cannot be
read or is not a loss file.

--by-step is for a run that went back to an older image: it did some steps twice. Each
repetition must have the value of the first time, and then each step is compared once.
--prefix accepts a first file that is shorter, of a run that is still going on.
"""

import argparse
import sys


def read(path):
    """The lines of a loss file as (line number, step, text)."""
    lines = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            fields = line.split()
            # A line without its end is still being written.
            if not line.endswith("\n"):
                continue
            try:
                step = int(fields[0])
                [float.fromhex(v) for v in fields[1:]]
            except (IndexError, ValueError):
                raise ValueError(f"{path}:{number}: not a step and its values: {line.rstrip()!r}") from None
            lines.append((number, step, " ".join(fields)))
    return lines


def by_step(path, lines):
    """One line for each step, or exit 1 where a repeated step came out otherwise."""
    first = {}
    for number, step, text in lines:
        if step in first and first[step][2] != text:
            differ(path, first[step], path, (number, step, text))
        first.setdefault(step, (number, step, text))
    return [first[step] for step in sorted(first)]


def differ(path_a, a, path_b, b):
    for path, line in ((path_a, a), (path_b, b)):
        print(f"{path}:{line[0]}: {line[2]}" if line else f"{path}: ends here")
    sys.exit(1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("run")
    p.add_argument("reference")
    p.add_argument("--by-step", action="store_true", help="the run may have repeated steps")
    p.add_argument("--prefix", action="store_true", help="the run may be shorter than the reference")
    o = p.parse_args()
    try:
        a, b = read(o.run), read(o.reference)
    except (OSError, ValueError) as e:
        print(e, file=sys.stderr)
        return 2
    if o.by_step:
        a, b = by_step(o.run, a), by_step(o.reference, b)
    if not a:
        print(f"{o.run}: no line to compare", file=sys.stderr)
        return 2
    for i in range(max(len(a), len(b))):
        left = a[i] if i < len(a) else None
        right = b[i] if i < len(b) else None
        if left is None and o.prefix:
            break
        if left is None or right is None or left[2] != right[2]:
            differ(o.run, left, o.reference, right)
    print(f"{len(a)} steps are equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
