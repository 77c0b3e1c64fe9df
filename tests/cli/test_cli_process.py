"""The command as a process of its own: start-up time, Ctrl-C, a reader that leaves."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

TTA = [sys.executable, "-m", "tta_diffusion.cli.main"]


@pytest.fixture
def environment(model_directory: Path) -> dict[str, str]:
    return os.environ | {"TTA_MODEL": str(model_directory), "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["env", "--help"], ["--version"]])
def test_help_answers_at_once(arguments: list[str]) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*TTA, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # Processor time is what the wall clock shows on an idle core; the clock itself also counts other tests' work.
    assert min(seconds() for _ in range(3)) < 0.5


def test_the_command_line_does_not_import_torch() -> None:
    modules = "demo, env, errors, generate, lazy, listing, main, names, output, prompts, request, rewrite, run, ship"
    code = (
        f"import sys; from tta_diffusion import assets; from tta_diffusion.common import devices, progress; "
        f"from tta_diffusion.cli import {modules}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_ctrl_c_keeps_what_is_finished(environment: dict[str, str]) -> None:
    arguments = ["generate", "the pizza", "-n", "5000", "--batch-size", "1", "--steps", "10"]
    with subprocess.Popen(
        [*TTA, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Shells start background jobs with SIGINT ignored, and a suite run that way would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    counted = re.fullmatch(r"Interrupted: (\d+) of 5000 texts finished\.\n", err)
    assert counted
    # The signal may fall between the printing of a text and its counting.
    assert int(counted[1]) in (len(rest.splitlines()), len(rest.splitlines()) + 1)
    assert all(line.startswith("the pizza") for line in [first, *rest.splitlines()])


def test_a_reader_that_leaves_is_no_error(environment: dict[str, str]) -> None:
    command = f"'{sys.executable}' -m tta_diffusion.cli.main generate 'the pizza' -n 200 --batch-size 1 --steps 2"
    done = subprocess.run(["bash", "-c", f"{command} | head -1"], capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    assert done.stdout.startswith("the pizza")
    assert done.stdout.count("\n") == 1
