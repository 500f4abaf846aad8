"""Runs the test tiers, one pytest each, and leaves one JUnit file per tier.

    python -m tools.testing                          all five tiers
    python -m tools.testing --tier vm --area devices a part of them
    python -m tools.testing -- -k reconnect          more arguments for pytest

The tiers contract and vm run two of their files at a time: most of contract waits for programs,
and an emulated machine keeps one CPU busy.

A tier is a process of its own: a hung or crashed one doesn't take the others'
results along, and each starts with no state of another. The reports are in
build/reports/TIER.xml. Ctrl-C ends the tier that runs, in order, and no other starts.

The exit status is 0 when something was found to run and nothing of it failed.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "reports"
TIERS = ("style", "unit", "contract", "privileged", "vm")
AREAS = (
    "boot",
    "devices",
    "storage",
    "network",
    "containers",
    "operations",
    "workload",
    "templates",
)
AT_ONCE = {"contract": 2, "vm": 2}
"""Files of a tier at the same time; the tests of a file share their machine."""
# Exit statuses of pytest.
TESTS_FAILED = 1
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one tier came to; `status` is pytest's, 0 where it found no test."""

    tier: str
    status: int
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def found(self) -> int:
        return self.passed + self.failed + self.skipped


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; the exit status as above, 130 after Ctrl-C."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    # The terminal sends Ctrl-C to pytest too, which then cleans up and ends.
    interrupted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    start = time.monotonic()
    outcomes: list[Outcome] = []
    if options.tier in {"", "vm"}:
        # Before all: unit tests run Debian 13's programs, which come with it.
        _build_image()
    for tier in (options.tier,) if options.tier else TIERS:
        if not interrupted.is_set():
            outcomes.append(_run(tier, options.area, options.pytest))
    if len(outcomes) > 1:
        _print_summary(outcomes, time.monotonic() - start)
    if interrupted.is_set():
        return 130
    if any(outcome.status for outcome in outcomes):
        return 1
    if not any(outcome.found for outcome in outcomes):
        asked = " ".join((options.tier, options.area, *options.pytest)).strip()
        print(f"no test is left to run by: {asked}", file=sys.stderr)
        return 1
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs the test tiers.")
    parser.add_argument("--tier", default="", choices=("", *TIERS), help="one tier only")
    parser.add_argument("--area", default="", choices=("", *AREAS), help="one area only")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    return parser.parse_args(arguments)


def _run(tier: str, area: str, extra: list[str]) -> Outcome:
    print(f"\n=== tier {tier} ===", flush=True)
    report = REPORTS / f"{tier}.xml"
    report.unlink(missing_ok=True)
    marks = f"{tier} and {area}" if area else tier
    named = any(argument.startswith("tests/") for argument in extra)
    command = [
        *(sys.executable, "-m", "pytest", *([] if named else [f"tests/{tier}"]), "-m", marks),
        *("--junitxml", str(report), "-o", f"junit_suite_name={tier}", *_at_once(tier), *extra),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return _outcome(tier, 0 if status == NO_TESTS_COLLECTED else status, report)


def _at_once(tier: str) -> tuple[str, ...]:
    count = AT_ONCE.get(tier, 1)
    if count == 1:
        return ()
    # In the tier's own order: the longest first (tests/vm/conftest.py).
    return ("-n", str(count), "--dist", "loadfile", "--no-loadscope-reorder")


def _build_image() -> None:
    """Out of pytest, which would hide the progress. A failure comes again there, as a test's."""
    innkeeper = Path(sys.executable).with_name("innkeeper")
    subprocess.run([innkeeper, "image", "build", "--flavour", "cloud"], cwd=ROOT, check=False)


def _outcome(tier: str, status: int, report: Path) -> Outcome:
    if not report.exists():
        return Outcome(tier=tier, status=status)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {} if suite is None else suite.attrib
    failed = int(counts.get("failures", 0)) + int(counts.get("errors", 0))
    skipped = int(counts.get("skipped", 0))
    passed = int(counts.get("tests", 0)) - failed - skipped
    return Outcome(tier=tier, status=status, passed=passed, failed=failed, skipped=skipped)


def _print_summary(outcomes: list[Outcome], seconds: float) -> None:
    """A line for each tier, then one for all, in pytest's own form."""
    print()
    for each in outcomes:
        ended = "" if each.status in {0, TESTS_FAILED} else f" (pytest's status: {each.status})"
        print(f"{each.tier:11}{_counts([each])}{ended}")
    print(f" {_counts(outcomes)} in {seconds:.2f}s ".center(80, "="), flush=True)


def _counts(outcomes: list[Outcome]) -> str:
    failed = sum(each.failed for each in outcomes)
    passed = sum(each.passed for each in outcomes)
    skipped = sum(each.skipped for each in outcomes)
    counts = [(failed, "failed"), (passed, "passed"), (skipped, "skipped")]
    return ", ".join(f"{count} {word}" for count, word in counts if count) or "no tests ran"


if __name__ == "__main__":
    sys.exit(main())
