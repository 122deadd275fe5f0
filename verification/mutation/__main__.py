"""python -m verification.mutation: alter every formula of dpmech, and see that a test fails.

A mutant meets the quick tests that execute its statement, in a forked process (Linux). Survivors that
change no result stand in survivors.toml with the reason; any other survivor, and a reason for a mutant that
is detected or no longer exists, makes the run fail. Each module gets its line of results.json, if the
library and the tests are as committed, and its row of docs/mutation.md; survivors without a reason stand
there as open.
"""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from verification.mutation._modules import (
    COMPILED,
    GROUPS,
    ROOT,
    UnknownModuleError,
    all_mutants,
    code_of,
    drawn,
    named,
)
from verification.mutation._mutants import Key, Mutant
from verification.mutation._page import write_page
from verification.mutation._recording import KEPT, QUIET, Recording, load_profile, record, test_files
from verification.mutation._results import (
    RESULTS,
    Tally,
    commit,
    keep,
    load_reasons,
    load_results,
    settled,
)
from verification.mutation._trials import NOT_PLANTED, SURVIVED, TIMED_OUT, TrialError, Trials

PAGE = ROOT / "docs" / "mutation.md"
KILLERS = KEPT / "killers.json"


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a survivor has no reason, or a reason no survivor."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.mutation", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "names",
        nargs="*",
        help=f"modules, dotted or by path, or groups (all but compiled ones): {', '.join(GROUPS)}",
    )
    parser.add_argument("--sample", type=int, help="mutants drawn at random over a group (all)")
    parser.add_argument("--seed", type=int, default=14, help="of the draw (%(default)s)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        help="recorded time of the tests that a mutant meets at most (%(default)s)",
    )
    parser.add_argument(
        "--tests", action="append", metavar="PART", help="only test files with this in their path; repeatable"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="what to keep (%(default)s)")
    parser.add_argument("--again", action="store_true", help="only what stands open, after tests were added")
    parser.add_argument(
        "--only-page",
        action="store_true",
        help="write the page from what is kept, and explain what has a reason now",
    )
    options = parser.parse_args(arguments)
    if options.only_page:
        for tally in load_results(options.results).values():
            keep(settled(tally, load_reasons()), options.results)
        write_page(options.page, load_results(options.results), load_reasons())
        return 0
    try:
        names = options.names or [name for name in GROUPS if not COMPILED & set(GROUPS[name])]
        modules = [module for name in names for module in named(name)]
    except UnknownModuleError as error:
        parser.error(str(error))
    if compiled := set(modules) & COMPILED:
        if compiled != set(modules):
            parser.error(f"{', '.join(sorted(compiled))}: compiled; run apart, as it is written")
        os.environ["NUMBA_DISABLE_JIT"] = "1"
    load_profile()
    chosen = {module: drawn(module, options.sample, options.seed) for module in modules}
    earlier: dict[str, Tally] = {}
    files = [path for path in test_files() if any(part in str(path) for part in options.tests or [""])]
    if options.again:
        results = load_results(options.results)
        earlier, chosen = still_open(chosen, results)
    books = Books(chosen, options.sample and (options.sample, options.seed), options.results)
    books.earlier = earlier
    books.close_untouched()
    _try(books, record(files, modules, uncompiled=bool(compiled)), options.seconds)
    write_page(options.page, load_results(options.results), load_reasons())
    return int(books.failed)


def still_open(
    chosen: dict[str, list[Mutant]], results: dict[str, Tally]
) -> tuple[dict[str, Tally], dict[str, list[Mutant]]]:
    """What came of the rest, and the mutants that stand open; all of a module that has changed since."""
    earlier: dict[str, Tally] = {}
    again: dict[str, list[Mutant]] = {}
    for module, drawn_now in chosen.items():
        tally = results.get(module)
        if tally and tally.changed:
            again[module] = drawn_now
        elif tally and tally.open:
            keys = {tuple(key) for key in tally.open}
            earlier[module] = tally
            again[module] = [one for one in all_mutants(module) if one.key[1:] in keys]
    return earlier, {module: several for module, several in again.items() if several}


def _try(books: "Books", recording: Recording, seconds: float) -> None:
    """Try all that was chosen."""
    mutants = [one for several in books.chosen.values() for one in several]
    places = {(one.module, one.lines) for one in mutants}
    tests = {test for module, lines in places for test in recording.tests_of(module, lines)}
    files = sorted({test.partition("::")[0] for test in tests})
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("mutants", total=len(mutants))

        def report(mutant: Mutant, outcome: str, killer: str, met: int) -> None:
            progress.advance(task)
            books.enter(mutant, outcome, killer, met)

        trials = Trials(mutants, recording, books.killers, seconds, report)
        status = pytest.main([*QUIET, *(str(ROOT / file) for file in files)], plugins=[trials])
    if books.missing():
        raise TrialError(f"the tests ended with status {status} before all mutants were tried")


class Books:
    """Takes the outcomes in, and closes a module's tally when its last mutant was tried.

    Args:
        chosen: the mutants by module.
        draw: size and seed of the sample, if one was drawn.
        results: where the tallies are kept.
    """

    def __init__(self, chosen: dict[str, list[Mutant]], draw: tuple[int, int] | None, results: Path) -> None:
        self.failed = False
        self.killers = _load_killers()
        self.chosen = chosen
        self._draw = draw
        self._results = results
        self._reasons = load_reasons()
        self.earlier: dict[str, Tally] = {}
        self._outcomes: dict[str, dict[Key, str]] = {module: {} for module in chosen}

    def close_untouched(self) -> None:
        """Close the modules of which no mutant was drawn."""
        for module, chosen in self.chosen.items():
            if not chosen:
                self._close(module)

    def enter(self, mutant: Mutant, outcome: str, killer: str, met: int) -> None:
        """One outcome."""
        outcomes = self._outcomes[mutant.module]
        outcomes[mutant.key] = outcome
        if killer:
            self.killers[mutant.key] = killer
        if outcome in {SURVIVED, NOT_PLANTED} and mutant.key not in self._reasons:
            _say(
                f"  {mutant.module}:{mutant.line} in {mutant.function or 'the module'}: "
                f"{mutant.before} -> {mutant.after} [{mutant.count}] {outcome.upper()} ({met} tests)"
            )
        if len(outcomes) == len(self.chosen[mutant.module]):
            self._close(mutant.module)

    def missing(self) -> bool:
        """Whether a mutant was not tried."""
        return any(len(self._outcomes[module]) < len(chosen) for module, chosen in self.chosen.items())

    def _close(self, module: str) -> None:
        outcomes = self._outcomes[module]
        survivors = {key for key, outcome in outcomes.items() if outcome in {SURVIVED, NOT_PLANTED}}
        existing = {one.key for one in all_mutants(module)}
        wrong = [key for key in self._reasons if key[0] == module and key not in existing]
        wrong += [key for key in outcomes if key in self._reasons and key not in survivors]
        for key in wrong:
            _say(f"  {module}: {key[1:]} has a reason, but is killed or gone")
        size, seed = self._draw if self._draw and len(outcomes) < len(existing) else (None, None)
        now = commit()
        tally = Tally(
            module=module,
            mutants=len(existing),
            tried=len(outcomes),
            found=len(outcomes) - len(survivors),
            late=sum(outcome == TIMED_OUT for outcome in outcomes.values()),
            explained=len(survivors & self._reasons.keys()),
            open=[list(key[1:]) for key in outcomes if key in survivors and key not in self._reasons],
            sample=size,
            seed=seed,
            commit=now or "",
            code=code_of(module),
        )
        if module in self.earlier:
            tally = _together(self.earlier[module], tally)
        _say(tally.summary())
        self.failed |= bool(tally.open or wrong)
        if now is None:
            _say(f"  {module}: not kept, for the library or its tests have uncommitted changes")
        elif not wrong:
            keep(tally, self._results)
        KILLERS.parent.mkdir(parents=True, exist_ok=True)
        known = _load_killers() | self.killers
        KILLERS.write_text(json.dumps([[*key, test] for key, test in known.items()]), encoding="utf-8")


def _together(earlier: Tally, again: Tally) -> Tally:
    """The tally after what stood open was tried again."""
    return dataclasses.replace(
        earlier,
        found=earlier.found + again.found,
        late=(earlier.late or 0) + (again.late or 0),
        explained=earlier.explained + again.explained,
        open=again.open,
        commit=again.commit,
    )


def _load_killers() -> dict[Key, str]:
    if not KILLERS.exists():
        return {}
    return {
        (module, function, before, after, count): test
        for module, function, before, after, count, test in json.loads(KILLERS.read_text(encoding="utf-8"))
    }


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
