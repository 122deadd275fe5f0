"""Verdicts as servers read them: JUnit, SARIF, and commands of GitHub workflows."""

from dpmech.cli.formats.github import github
from dpmech.cli.formats.junit import junit
from dpmech.cli.formats.sarif import sarif
from dpmech.cli.formats.verdicts import Verdicts, exit_code

__all__ = ["Verdicts", "exit_code", "github", "junit", "sarif"]
