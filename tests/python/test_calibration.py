"""The calibration file: what is written is read back, and nothing else is accepted."""

import os

import pytest
import torch
from safetensors.torch import load, save

import twofour
from twofour._basis import balanced
from twofour.calibration import Calibration, LayerCalibration


def sample(layers=2, heads_kv=2, dim=16, seed=0) -> Calibration:
    generator = torch.Generator().manual_seed(seed)

    def moment():
        x = torch.randn(3 * dim, dim, generator=generator, dtype=torch.float64)
        return x.mT @ x / len(x)

    made = []
    for _ in range(layers):
        heads = [balanced(moment(), moment()) for _ in range(heads_kv)]
        made.append(LayerCalibration(*(torch.stack(p).float() for p in zip(*heads, strict=True))))
    return Calibration("tiny", "balanced", 2 * heads_kv, tuple(made))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tiny.safetensors"
    sample().save(path)
    return path


def test_round_trip(path, tmp_path):
    want, got = sample(), Calibration.load(path)
    assert (got.model, got.kind, got.heads_q, got.heads_kv, got.head_dim) == (
        "tiny", "balanced", 4, 2, 16,
    )  # fmt: skip
    for a, b in zip(want.layers, got.layers, strict=True):
        assert torch.equal(a.t_q, b.t_q) and torch.equal(a.t_k, b.t_k) and torch.equal(a.w, b.w)
    assert os.listdir(tmp_path) == [path.name]


def test_the_file_is_what_is_documented(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        assert file.metadata() == {
            "format": "twofour-calibration",
            "version": "1",
            "model": "tiny",
            "kind": "balanced",
            "layers": "2",
            "heads_q": "4",
            "heads_kv": "2",
            "head_dim": "16",
        }
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    assert shapes == {
        f"layers.{i}.{name}": [2, 16, 16] if name != "w" else [2, 16]
        for i in range(2)
        for name in ("t_q", "t_k", "w")
    }


@pytest.mark.parametrize(
    "field, value",
    [("model", "other"), ("layers", 3), ("heads_q", 8), ("heads_kv", 1), ("head_dim", 32)],
)
def test_another_model_is_refused_by_name(field, value):
    mine = {"model": "tiny", "layers": 2, "heads_q": 4, "heads_kv": 2, "head_dim": 16}
    sample().check(**mine)
    text = f"{field} {mine[field]!r} against {value!r}"
    with pytest.raises(twofour.InvalidArgumentError, match=text):
        sample().check(**mine | {field: value})


def edit(path, metadata=None, **tensors):
    """Rewrites the file with some parts replaced (None: removed)."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        head = dict(file.metadata())
    parts = load(path.read_bytes())
    for name, tensor in tensors.items():
        parts.pop(name.replace("__", "."))
        if tensor is not None:
            parts[name.replace("__", ".")] = tensor
    head |= metadata or {}
    path.write_bytes(save(parts, {k: v for k, v in head.items() if v is not None}))


@pytest.mark.parametrize(
    "metadata, text",
    [
        ({"format": "else"}, "twofour-calibration"),
        ({"format": None}, "twofour-calibration"),
        ({"version": "2"}, "expected '1', got '2'"),
        ({"kind": "magic"}, "balanced"),
        ({"model": ""}, "model"),
        ({"layers": "-2"}, "layers"),
        ({"layers": "99999999999999999999"}, "layers"),
        ({"layers": "٢"}, "layers"),
        ({"layers": "3"}, "layers.2"),
        ({"heads_q": "3"}, "multiple"),
        ({"head_dim": "18"}, "multiple"),
        ({"head_dim": "8"}, "F32"),
    ],
)
def test_wrong_metadata_is_refused(path, metadata, text):
    edit(path, metadata)
    with pytest.raises(twofour.CorruptError, match=text):
        Calibration.load(path)


def test_wrong_tensors_are_refused(path):
    good = path.read_bytes()
    layer = sample().layers[1]
    nan = layer.t_q.clone()
    nan[0, 0, 0] = torch.nan
    for change, text in [
        ({"layers__1__w": None}, "layers.1.w"),
        ({"layers__1__w": layer.w.half()}, "F16"),
        ({"layers__1__w": layer.w[:, :8].contiguous()}, r"\[2, 8\]"),
        ({"layers__1__w": layer.w * 0}, "positive"),
        ({"layers__1__t_q": nan}, "non-finite"),
        ({"layers__1__t_q": layer.t_q * 1.1}, "inverse"),
    ]:
        path.write_bytes(good)
        edit(path, **change)
        with pytest.raises(twofour.CorruptError, match=text):
            Calibration.load(path)


def test_truncated_and_foreign_files_are_refused(path):
    good = path.read_bytes()
    for cut in [0, 4, 8, 50, len(good) // 2, len(good) - 1]:
        path.write_bytes(good[:cut])
        with pytest.raises(twofour.CorruptError):
            Calibration.load(path)
    path.write_bytes(b"\xff" * 7 + b"\x7f" + good[8:])  # a header longer than any file
    with pytest.raises(twofour.CorruptError):
        Calibration.load(path)
    with pytest.raises(twofour.NotFoundError, match="no such file"):
        Calibration.load(path.with_name("absent"))


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    good = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.write_bytes", lambda *_: (_ for _ in ()).throw(
        OSError(28, "No space left on device")))  # fmt: skip
    with pytest.raises(twofour.IoError, match="No space left"):
        sample(seed=5).save(path)
    assert path.read_bytes() == good and os.listdir(path.parent) == [path.name]
