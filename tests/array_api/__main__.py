"""`python -m tests.array_api SUITE [pytest options]`: the array API's public test suite, run on flnb. See README.md."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXCEPTIONS = HERE / "exceptions.txt"
EXAMPLES = "--max-examples=20"


def main(argv: list[str]) -> int:
    """Run the suite in the checkout ``argv[0]`` and print what passed; 1 where a test failed that is not listed."""
    if not argv or not (Path(argv[0]) / "array_api_tests").is_dir():
        print(__doc__.splitlines()[0], "\nSUITE is a checkout of https://github.com/data-apis/array-api-tests")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable, "-m", "pytest", "array_api_tests", "-q", "--tb=short", "--disable-deadline", EXAMPLES,
            "-p", "no:cacheprovider", "-W", "ignore::UserWarning", f"--xfails-file={EXCEPTIONS}",
            f"--junitxml={report}", *argv[1:],
        ]  # fmt: skip
        paths = (ROOT, ROOT / "telemetry", ROOT / "backends", os.environ.get("PYTHONPATH", ""))
        environment = {
            "ARRAY_API_TESTS_MODULE": "flnb",
            "ARRAY_API_TESTS_VERSION": "2024.12",
            "PYTHONPATH": os.pathsep.join(str(p) for p in paths if p),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        subprocess.run(command, cwd=argv[0], env=os.environ | environment, check=False)
        if not report.exists():
            print("pytest did not run; the suite's requirements.txt says what it needs beside flnb")
            return 2
        outcomes = Counter(_outcome(case) for case in ElementTree.parse(report).iter("testcase"))
    ran = outcomes.total() - outcomes["skipped"]
    print(
        f"array API 2024.12: {outcomes['passed']} of {ran} passed ({100 * outcomes['passed'] / ran:.2f} %), "
        f"{outcomes['listed']} listed exceptions, {outcomes['failed']} other failures; {outcomes['skipped']} skipped"
    )
    return 1 if outcomes["failed"] else 0


def _outcome(case: ElementTree.Element) -> str:
    """ "passed", "failed", "listed" (failed, as exceptions.txt says) or "skipped"."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "listed" if skipped.get("type") == "pytest.xfail" else "skipped"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
