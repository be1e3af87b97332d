"""Peak memory is the run's own."""

from __future__ import annotations

import subprocess
import sys

import torch

from dtm.capacity.peak import peak_memory


def test_the_resident_set_at_its_peak_counts_what_is_gone_already():
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(before // 4 + 2**24)  # four bytes each: more than was ever held
    assert held[0] == 1
    del held
    assert peak_memory(torch.device("cpu")) > before


def test_a_process_does_not_answer_for_the_one_that_started_it():
    held = torch.ones(3 * 2**26)  # 768 MiB, more than torch needs to start
    code = "import torch; from dtm.capacity.peak import peak_memory; print(peak_memory(torch.device('cpu')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < held.numel() * 4
