"""Recordings of what kernels computed: of the CPU's made here, those of GPUs in tests/golden."""

import json
import struct
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CASES = GOLDEN / "rows.cases"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_recordings_agree_with_the_reference(cli, path):
    said = cli("golden", "check", path).stdout
    assert " entries, 0 failed, " in said
    # One for every row of that device, as far as this build knows it.
    recorded = {text.split("\n")[0] for text in header(path.read_bytes())["__metadata__"].values()}
    arch = f".{path.stem.replace('_', '')}."
    rows = [k["id"] if isinstance(k, dict) else k for k in kernels(cli)]
    wanted = {row for row in rows if arch in row and not row.endswith(".trace")}
    assert wanted <= recorded, sorted(wanted - recorded)


def kernels(cli):
    return json.loads(cli("info", "--json").stdout)["kernels"]


def header(content):
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


def entry(content, name):
    """First byte of a tensor in the file."""
    (length,) = struct.unpack("<Q", content[:8])
    return 8 + length + header(content)[name]["data_offsets"][0]


@pytest.fixture
def recording(cli, tmp_path):
    (tmp_path / "few.cases").write_text(
        "mode=int8,refined,nm24/pair/s1/l1/r2/d6 dtype=fp16,bf16 len=16x700 causal=bottom_right\n"
    )
    said = cli(
        "golden", "record", "--device", "cpu", "--cases", "few.cases", "--out", "it.safetensors"
    )
    # nm24.pair of the CPU serves the last two.
    assert said.stdout == "6 entries in it.safetensors\n"
    return tmp_path / "it.safetensors"


def test_only_some_kernels(cli, recording):
    words = ("--device", "cpu", "--cases", "few.cases", "--out", "some.safetensors")
    said = cli("golden", "record", "--filter", "nm24", *words).stdout
    assert said == "4 entries in some.safetensors\n"


def test_what_is_recorded_passes(cli, recording):
    said = cli("golden", "check", recording).stdout
    assert said.startswith("6 entries, 0 failed, worst error 0.")


@pytest.mark.parametrize(
    ("part", "flip", "said"),
    [
        ("o", 0x04, "o of row 0, head 0, channel 0: expected"),
        ("lse", 0xFF, "lse of row 0, head 0: expected"),
        ("stats", 0x01, "counts: expected"),
        ("kept", 0xFF, "head 0"),
        ("scale", 0x40, ""),
    ],
)
def test_what_is_wrong_is_found(cli, recording, part, flip, said):
    content = bytearray(recording.read_bytes())
    # The sign, exponent or high bits of the first number.
    byte = {"o": 1, "lse": 2, "scale": 2}.get(part, 0)
    content[entry(content, f"000.{part}") + byte] ^= flip
    recording.write_bytes(content)
    answer = cli("golden", "check", recording, code=1).stdout
    assert answer.startswith("FAILED attention.cpu.") and said in answer
    assert "6 entries, 1 failed" in answer


def test_other_inputs_are_found(cli, recording):
    content = recording.read_bytes()
    changed = content.replace(b"len=16x700", b"len=16x701")
    assert changed != content
    recording.write_bytes(changed)
    answer = cli("golden", "check", recording, code=1).stdout
    assert "inputs: expected checksum" in answer and "6 entries, 6 failed" in answer


def test_refusals_are_one_line(cli, tmp_path):
    for words in (
        ("golden",),
        ("golden", "record"),
        ("golden", "check"),
        ("golden", "check", "absent"),
        ("golden", "record", "--device", "tpu", "--out", "x"),
    ):
        cli(*words, code=2)
    assert not (tmp_path / "x").exists()
