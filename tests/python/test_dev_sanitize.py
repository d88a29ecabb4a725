"""./dev sanitize: what it makes of compute-sanitizer's answers, and that its calls run."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "dev" / "sanitize.py"
sys.path.insert(0, str(SCRIPT.parent))

import sanitize  # noqa: E402

VERIFIED = "echo '46 cases, 92 checks, 0 failed, 1.0 s'; "
CLEAN = "echo '========= ERROR SUMMARY: 0 errors'"


def program(folder: Path, body: str) -> Path:
    path = folder / "fake"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("tool", "body", "verdict"),
    [
        ("memcheck", VERIFIED + CLEAN, "clean"),
        ("memcheck", CLEAN, "the program failed with exit code 0"),
        ("memcheck", VERIFIED, "compute-sanitizer gave no summary"),
        ("memcheck", VERIFIED + CLEAN + "; exit 1", "the program failed with exit code 1"),
        ("memcheck", "echo '===== ERROR SUMMARY: 3 errors'; exit 99", "3 errors"),
        (
            "racecheck",
            VERIFIED + "echo '= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)'",
            "2 hazards displayed (2 errors, 0 warnings)",
        ),
        (
            "racecheck",
            VERIFIED + "echo '= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'",
            "clean",
        ),
        ("synccheck", "echo 'Device not supported'", "compute-sanitizer does not support"),
        ("synccheck", "sleep 60", "not done after"),
        ("initcheck", "echo calls done; " + CLEAN, "clean"),
        ("initcheck", VERIFIED + CLEAN, "the program failed"),
    ],
)
def test_verdicts(tmp_path, tool, body, verdict):
    fake = str(program(tmp_path, body))
    seconds = 0.5 if "sleep" in body else 20
    assert sanitize.watch(fake, tool, tmp_path, seconds)[0].startswith(verdict)


def test_words_and_a_missing_sanitizer_are_one_line():
    for words, said in (
        (["spellcheck"], "expected memcheck, racecheck, synccheck, initcheck, got 'spellcheck'"),
        (["--sanitizer", "/nowhere/x"], "expected /nowhere/x (CUDA toolkit), found none"),
    ):
        done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
        assert done.returncode != 0
        assert said in done.stderr.strip().splitlines()[-1]


def test_calls_run_here():
    calls = sanitize.CALLS.replace('device="cuda"', 'device="cpu"')
    done = subprocess.run([sys.executable, "-c", calls], capture_output=True, text=True)
    assert done.stdout.strip() == "calls done", done.stderr
