"""What `import dtm` and `dtm --help` cost beside `import torch`: python benchmarks/startup.py.

Every time is the median over fresh processes. `import torch` is the unit, since any program that uses
the package pays for it once; `import dtm` is timed in the same process right after it, because the
difference of two processes drowns in their noise.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

IMPORTS = """
import time
begin = time.perf_counter()
import torch
between = time.perf_counter()
import dtm
print(between - begin, time.perf_counter() - between)
"""


def imports() -> tuple[float, float]:
    """Seconds of `import torch`, then of `import dtm`, in one fresh process."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    torch, dtm = map(float, done.stdout.split())
    return torch, dtm


def help_text() -> float:
    """Seconds from the shell's prompt and back for `dtm --help`."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "dtm", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="processes of each kind (default: 7)")
    runs = parser.parse_args().runs
    imports()  # the first one reads everything from disk
    rounds = [(*imports(), help_text()) for _ in range(runs)]
    torch, *others = (statistics.median(column) for column in zip(*rounds, strict=True))
    print("| | seconds | in units of `import torch` |\n|---|--:|--:|")
    for name, value in zip(("import torch", "import dtm", "dtm --help"), (torch, *others), strict=True):
        print(f"| `{name}` | {value:.4f} | {value / torch:.4f} |")


if __name__ == "__main__":
    main()
