"""python -m verification.mutation: alter every formula of dpmech.analysis, and see that a test fails.

Every module's tests are collected once and run on each of its mutants in a forked process (Linux, macOS).
Survivors that change no result stand in survivors.toml with the reason; any other survivor, and a reason
for a mutant that is found out or no longer exists, makes the run fail. A run that does not fail writes its
modules' rows of docs/mutation.md.
"""

import argparse
import os
import sys
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from rich.console import Console
from rich.progress import Progress

from verification.mutation._mutants import Mutant, mutants
from verification.mutation._page import Tally, write_page
from verification.mutation._trials import ROOT, SURVIVED, TIMED_OUT, TrialError, Trials, files_that_test

SURVIVORS = Path(__file__).parent / "survivors.toml"
PAGE = ROOT / "docs" / "mutation.md"
MODULES = sorted(path.stem for path in (ROOT / "dpmech" / "analysis").glob("*.py") if path.stem != "__init__")


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for; 1 if a survivor has no reason, or a reason no survivor."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.mutation", description=__doc__.split("\n")[0]
    )
    parser.add_argument("modules", nargs="*", help="modules of dpmech.analysis (all)")
    parser.add_argument("--page", type=Path, default=PAGE, help="where to write (%(default)s)")
    options = parser.parse_args(arguments)
    if unknown := set(options.modules) - set(MODULES):
        parser.error(
            f"no module {', '.join(sorted(unknown))} in dpmech.analysis; known: {', '.join(MODULES)}"
        )
    reasons = load_reasons()
    # The suite's own examples, without the search for the smallest one.
    settings.register_profile(
        "mutation",
        derandomize=True,
        max_examples=100,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
    )
    os.environ["HYPOTHESIS_PROFILE"] = "mutation"
    tallies, failed = [], False
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for module in options.modules or MODULES:
            tally, messages = _module(module, reasons, progress)
            tallies.append(tally)
            failed |= bool(messages)
            for line in (tally.summary(), *messages):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    if not failed:
        write_page(options.page, tallies, reasons, MODULES)
    return int(failed)


def load_reasons(path: Path = SURVIVORS) -> dict[tuple[str, str, str, str, int], str]:
    """Why each mutant that no test can find out changes nothing."""
    reasons: dict[tuple[str, str, str, str, int], str] = {}
    for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []):
        for before, after, *count in entry["changes"]:
            key = entry["module"], entry["function"], before, after, (count or [0])[0]
            if key in reasons:
                raise ValueError(f"{key} stands twice in {path.name}")
            reasons[key] = entry["why"]
    return reasons


def _module(
    module: str, reasons: dict[tuple[str, str, str, str, int], str], progress: Progress
) -> tuple[Tally, list[str]]:
    chosen = list(
        mutants(module, (ROOT / "dpmech" / "analysis" / f"{module}.py").read_text(encoding="utf-8"))
    )
    outcomes: dict[Mutant, str] = {}
    task = progress.add_task(module, total=len(chosen))

    def report(mutant: Mutant, outcome: str) -> None:
        outcomes[mutant] = outcome
        progress.advance(task)

    start = time.perf_counter()
    files = [str(path) for path in files_that_test(module)]
    quiet = ["-m", "not slow", "-o", "addopts=--strict-markers"]
    for plugin in ("terminal", "cacheprovider", "benchmark"):
        quiet += ["-p", f"no:{plugin}"]
    # Hypothesis is here before pytest looks for assertions to rewrite in it.
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    trials = Trials(module, chosen, report)
    status = pytest.main([*quiet, "--rootdir", str(ROOT), *files], plugins=[trials])
    if len(outcomes) != len(chosen):
        raise TrialError(f"the tests of {module} ended with status {status} before all mutants were tried")
    survivors = [mutant for mutant, outcome in outcomes.items() if outcome == SURVIVED]
    keys = {mutant.key for mutant in survivors}
    messages = [
        f"  {module}.py:{mutant.line} in {mutant.function or 'the module'}: {mutant.before} -> {mutant.after}"
        f" [{mutant.count}] SURVIVED"
        for mutant in survivors
        if mutant.key not in reasons
    ]
    messages += [
        f"  {module}: {key[1:]} has a reason, but is killed or gone"
        for key in reasons
        if key[0] == module and key not in keys
    ]
    late = sum(outcome == TIMED_OUT for outcome in outcomes.values())
    explained = sum(key in reasons for key in keys)
    tally = Tally(
        module, len(chosen), len(chosen) - len(survivors), explained, late, time.perf_counter() - start
    )
    return tally, messages


if __name__ == "__main__":
    sys.exit(main())
