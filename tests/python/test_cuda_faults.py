"""The faults planted in the GPU kernels: each can still be planted, and a run is judged rightly."""

import json
import stat
import sys
from pathlib import Path

import pytest

MUTATION = Path(__file__).resolve().parents[1] / "mutation"
sys.path.insert(0, str(MUTATION))

import cuda_build  # noqa: E402
import cuda_run  # noqa: E402
from cuda_faults import FAULTS, Edit  # noqa: E402


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_changes_the_kernel(fault):
    texts = cuda_build.edited(fault.edits)
    assert bool(texts) == bool(fault.edits)
    for file, text in texts.items():
        assert text != (cuda_build.ROOT / file).read_text()
    assert fault.mode in cuda_build.ROWS
    assert fault.expect in ("passes", "noticed", "maybe") and (fault.why or fault.expect != "maybe")


def test_names_are_folders_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("old", ["absent", "twice"])
def test_a_string_that_moved_is_an_error(tmp_path, old):
    (tmp_path / "a.h").write_text("twice twice")
    with pytest.raises(ValueError, match=r"a\.h: expected once, found [02] times"):
        cuda_build.edited((Edit("a.h", old, ""),), tmp_path)


DOCUMENTS = {
    "passes": ({"ok": True, "rows": [{"passed": 3}], "failures": []}, 0),
    "noticed": ({"ok": False, "rows": [], "failures": [{"message": "o [0,0]: got nan"}]}, 1),
    "did not run": ({"error": {"message": "no device"}}, 2),
}


@pytest.mark.parametrize("outcome", [*DOCUMENTS, "hangs", "crashes"])
def test_outcomes(tmp_path, outcome):
    program = tmp_path / "bin" / "twofour"
    program.parent.mkdir()
    if outcome == "hangs":
        body = "sleep 60"
    elif outcome == "crashes":
        body = "kill -SEGV $$"
    else:
        document, code = DOCUMENTS[outcome]
        body = f"echo '{json.dumps(document)}'; echo why >&2; exit {code}"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    fault = {"name": "x", "mode": "dual"}
    got, detail = cuda_run.verify(tmp_path, fault, "cuda", 0.5 if outcome == "hangs" else 20)
    assert got == {"crashes": "noticed"}.get(outcome, outcome)
    assert detail


@pytest.mark.parametrize(
    ("expect", "outcome", "text", "good"),
    [
        ("passes", "passes", "passes", True),
        ("passes", "noticed", "FAILS (noticed)", False),
        ("noticed", "noticed", "noticed", True),
        ("noticed", "hangs", "hangs", True),
        ("noticed", "passes", "NOT noticed", False),
        ("maybe", "passes", "not observable here", True),
        ("maybe", "noticed", "noticed", True),
        ("maybe", "did not run", "did not run", False),
    ],
)
def test_judgement(expect, outcome, text, good):
    assert cuda_run.judge({"expect": expect}, outcome) == (text, good)
