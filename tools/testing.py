"""Runs the test tiers, one pytest each, and leaves one JUnit file per tier.

    python -m tools.testing                          all five tiers
    python -m tools.testing --tier vm --area devices a part of them
    python -m tools.testing -- -k reconnect          more arguments for pytest

A tier is a process of its own: a hung or crashed one doesn't take the others'
results along, and each starts with no state of another. The reports are in
build/reports/TIER.xml.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
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
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one tier came to."""

    tier: str
    status: int
    passed: int
    failed: int
    skipped: int


def main(arguments: list[str] | None = None) -> int:
    """Runs what is asked for; 0 when every test that ran has passed."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    tiers = (options.tier,) if options.tier else TIERS
    outcomes = [_run(tier, options.area, options.pytest) for tier in tiers]
    _print_summary(outcomes)
    ran = any(outcome.passed + outcome.failed for outcome in outcomes)
    return 0 if ran and all(outcome.status == 0 for outcome in outcomes) else 1


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
    command = [
        *(sys.executable, "-m", "pytest", f"tests/{tier}", "-m", marks),
        *("--junitxml", str(report), "-o", f"junit_suite_name={tier}", *extra),
    ]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return _outcome(tier, 0 if status == NO_TESTS_COLLECTED else status, report)


def _outcome(tier: str, status: int, report: Path) -> Outcome:
    if not report.exists():
        return Outcome(tier=tier, status=status, passed=0, failed=0, skipped=0)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {} if suite is None else suite.attrib
    failed = int(counts.get("failures", 0)) + int(counts.get("errors", 0))
    skipped = int(counts.get("skipped", 0))
    passed = int(counts.get("tests", 0)) - failed - skipped
    return Outcome(tier=tier, status=status, passed=passed, failed=failed, skipped=skipped)


def _print_summary(outcomes: list[Outcome]) -> None:
    print()
    for each in outcomes:
        print(f"{each.tier:11}{each.passed} passed, {each.failed} failed, {each.skipped} skipped")
    passed = sum(each.passed for each in outcomes)
    failed = sum(each.failed for each in outcomes)
    skipped = sum(each.skipped for each in outcomes)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)


if __name__ == "__main__":
    sys.exit(main())
