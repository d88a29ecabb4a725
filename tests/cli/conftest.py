"""Runs the built command line: build/release/tools/twofour, or what TWOFOUR_CLI names."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program() -> str:
    path = os.environ.get("TWOFOUR_CLI") or str(ROOT / "build/release/tools/twofour")
    assert os.access(path, os.X_OK), f"expected the command line at {path}; run ./dev build"
    return path


@pytest.fixture
def cli(program, tmp_path):
    """cli(*words) runs in an empty folder and checks what holds of every run."""

    def run(*words, code=0, env=None, **kwargs):
        result = subprocess.run(
            [program, *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "TWOFOUR_TUNE_FILE": "off", **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            **kwargs,
        )
        assert result.returncode == code, (result.returncode, result.stdout, result.stderr)
        if code == 2:
            lines = result.stderr.splitlines()
            assert len(lines) == 1 and lines[0].startswith("twofour: "), result.stderr
        return result

    return run
