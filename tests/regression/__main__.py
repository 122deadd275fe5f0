"""`python -m tests.regression`: what the library says of every plan now, beside what it said before.

Prints whatever moved, and by how much. With `--write` the file is renewed. With words, only plans and
questions that hold all of them are computed (and renewed). Exits with 1 where something moved.
"""

import argparse
import sys

from tests.regression import record


def main(arguments=None, path=record.FILE):
    parser = argparse.ArgumentParser(prog="python -m tests.regression", description=__doc__.split("\n\n")[1])
    parser.add_argument("words", nargs="*", help="of the plans and questions to compute; all by default")
    parser.add_argument("--write", action="store_true", help="renew the file")
    parser.add_argument("--quick", action="store_true", help="only what the quick test computes")
    options = parser.parse_args(arguments)
    old = record.loaded(path) if path.exists() else {}
    every = record.asked()
    chosen = {
        key: make for key, make in every.items() if all(word in " | ".join(key) for word in options.words)
    }
    if options.quick:
        quick = set(record.parts(old)[0])
        chosen = {key: make for key, make in chosen.items() if key in quick}
    answers, changes, seconds = {}, [], 0.0
    rtol = record.tolerance(path) if path.exists() else record.RTOL
    for key, make in chosen.items():
        answers[key] = record.computed(make)
        seconds += answers[key].seconds
        for change in record.moved(key, old.get(key), answers[key], rtol):
            changes.append(change)
            print(change, flush=True)
    for key in old.keys() - every.keys():
        changes.append(record.moved(key, old[key], None)[0])
        print(changes[-1])
    largest = max((abs(one.change) for one in changes if one.change != float("inf")), default=0.0)
    print(
        f"{len(changes)} moved of {sum(len(one.numbers) for one in answers.values())} numbers in "
        f"{len(answers)} answers, at most by {largest:.2e}; {seconds:.0f} CPU seconds"
    )
    if options.write:
        record.saved(
            {key: answers.get(key, old.get(key)) for key in every if key in answers or key in old}, path
        )
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
