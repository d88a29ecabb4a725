"""The demo and its report, on a tiny model and a text of its own."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

import twofour
import twofour.hf
from hf_models import save_tiny_model, tiny_llama, tokens
from twofour import _cli, _files, _plots, demo, report

FIELDS = [
    "sparsity", "ppl", "ppl_change_pct", "kl", "top1_pct", "kept_mass", "refined_share",
    "dropped_share", "attention_s", "prefill_s", "ppl_change_se_pct",
]  # fmt: skip


@pytest.fixture
def arguments(tmp_path):
    save_tiny_model(tmp_path / "model")
    book = tmp_path / "book.txt"
    book.write_text("No one who had ever seen her in her infancy would have supposed it. " * 90)
    (tmp_path / "out").mkdir()
    return [
        "--model", str(tmp_path / "model"), "--text", str(book), "--out", str(tmp_path / "out"),
        "--tokens", "1100",
    ]  # fmt: skip


def test_demo_writes_the_report(arguments, tmp_path, capsys):
    assert _cli.run("demo", demo._main, arguments) == 0
    shown = capsys.readouterr()
    assert sorted(os.listdir(tmp_path / "out")) == ["report.html", "report.json"]
    figures = json.loads((tmp_path / "out/report.json").read_text())
    about = {"tokens": 1100, "model": "model", "windows": 1, "calibration": "balanced"}
    about |= {"skip": 90 * 68 - 1100, "text": "book.txt"}
    assert {name: figures.pop(name) for name in about} == about
    assert list(figures) == ["machine", "versions", "modes"]
    assert list(figures["modes"]) == ["sdpa", *twofour.MODES]
    for name, row in figures["modes"].items():
        assert list(row) == FIELDS, name
        assert all(isinstance(row[field], (int, float)) for field in FIELDS[1:])
    assert figures["modes"]["refined"]["sparsity"] == "nm24/pair128/s1/l1/r2"
    for mode in twofour.MODES:
        assert re.search(rf"^{mode} ", shown.out, re.M)
    assert "\ncaution: 1100 tokens are few, and differences may be noise; standard" in shown.out
    assert re.search(r"^dense: ", shown.out, re.M) and re.search(r"^refined: ", shown.out, re.M)

    page = (tmp_path / "out/report.html").read_text()
    assert page.count('src="data:image/') == 3 and "http" not in re.sub(r'"data:[^"]*"', "", page)
    assert "<b>caution: 1100 tokens are few" in page
    assert "data:image/png" in page and "nm24/pair128/s1/l1/r2" in page


def test_interruption_leaves_nothing(arguments, tmp_path, monkeypatch, capsys):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    for place in ("_plots.quality", "eval.evaluate", "_files.os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(f"twofour.{place}", interrupted)
            assert _cli.run("demo", demo._main, arguments) == 130
        assert os.listdir(tmp_path / "out") == []
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert line.endswith("demo: interrupted, nothing was written")


@pytest.mark.parametrize(
    "change, line",
    [
        (["--text", "absent.txt"], "demo: text file absent.txt: no such file"),
        (["--model", "absent"], "demo: model absent: no such file or directory"),
        (["--tokens", "3000"], "demo: text: expected at least 7096 tokens"),
    ],
)
def test_bad_input_is_one_line(arguments, change, line, capsys):
    assert _cli.run("demo", demo._main, arguments + change) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(line)


def test_unwritable_folder_is_one_line(arguments, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert _cli.run("demo", demo._main, [*arguments, "--out", str(tmp_path / "file/x")]) == 2
    assert "--out" in capsys.readouterr().err


def test_failure_leaves_no_empty_folder(arguments, tmp_path):
    out = tmp_path / "new/deep"
    failing = [*arguments, "--out", str(out), "--model", "absent"]
    assert _cli.run("demo", demo._main, failing) == 2
    assert not out.parent.exists()
    (tmp_path / "new").mkdir()
    assert _cli.run("demo", demo._main, failing) == 2
    assert os.listdir(tmp_path / "new") == []
    # What the user has there already stays.
    (out / "kept").mkdir(parents=True)
    assert _cli.run("demo", demo._main, failing) == 2
    assert os.listdir(out) == ["kept"]


def test_a_folder_without_permission_is_refused_before_the_work(
    arguments, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(_files.os, "access", lambda path, _: path != tmp_path / "out")  # root may
    assert _cli.run("demo", demo._main, [*arguments, "--model", "absent"]) == 2
    assert "out: expected a folder that can be written to" in capsys.readouterr().err


def test_a_full_disk_leaves_nothing(tmp_path):
    """A file size limit stands in for a full disk: writes fail half-way."""
    program = (
        "import resource, sys, twofour._files as f\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: f.write_text(sys.argv[1], 'x' * 5000)\n"
        "except f.IoError as e: print(e)\n"
    )
    target = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-c", program, str(target)], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"cannot write {target}: File too large\n"
    assert os.listdir(tmp_path) == []


def test_layout_keeps_calibration_and_evaluation_apart():
    for available in (5196, 20000, 40000, 500000):
        for window in (1100, 4096, 8192):
            if available < 4096 + window:
                with pytest.raises(twofour.InvalidArgumentError):
                    demo._layout(available, window)
                continue
            read, skip = demo._layout(available, window)
            assert 4096 <= read <= skip <= 32768 and skip + window <= available
    assert demo._layout(500000, 8192) == (32768, 32768)  # the measured protocol


def test_calibration_is_kept_and_remade_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("TWOFOUR_CACHE", str(tmp_path))
    model, ids, runs = tiny_llama(), tokens(4096), []
    inner = demo.calibrate.calibrate

    def counted(*args, **options):
        runs.append(1)
        return inner(*args, **options)

    monkeypatch.setattr(demo.calibrate, "calibrate", counted)

    def get(kept=True):
        return demo.calibration_for(model, ids, 4096, kept, lambda _: None)

    first, second = get(), get()
    assert len(runs) == 1 and torch.equal(first.layers[1].t_q, second.layers[1].t_q)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert torch.equal(get().layers[1].t_q, first.layers[1].t_q) and len(runs) == 2
    get(kept=False)
    assert len(runs) == 3


def test_fates_tell_what_became_of_a_pair():
    q, k, v = (torch.randn(1, 1, n, 16) for n in (192, 576, 576))
    # One strong key in the sink drops most units; one in the fourth block has its unit recomputed.
    q[..., 0], k[..., 0] = 8, 0
    k[0, 0, [3, 200], 0] = 9
    mode = "nm24/pair64/s1/l0/r1/d4"
    traced = twofour.trace(q, k, v, mode=mode, causal=True, layout="bhmd")
    live = torch.ones(192, 576, dtype=torch.bool).tril(384)
    what = _plots.fates(traced, 0, live, 64)
    kept = traced.kept[0]
    assert bool((what[~live] == 0).all()) and bool((what[live] > 0).all())
    assert torch.equal(kept, (what == 1) | (what == 2) | (what == 3))
    # The first key block is a sink, the last three are diagonal: all unpruned.
    assert bool((what[:, :64] == 1).all()) and set(what[:, 64:384].unique().tolist()) <= {
        2,
        3,
        4,
        5,
    }
    assert int((what == 3).sum()) > 0 and int((what == 5).sum()) > 0


def test_report_json_has_no_nan():
    model, ids = tiny_llama(), tokens(300)
    found = demo.eval.evaluate(model, ids, ["score"], window=300, samples=0)
    figures = report.report_json(found)
    assert figures["modes"]["score"]["kept_mass"] is None
    json.dumps(figures, allow_nan=False)


def test_atomic_replaces_only_on_success(tmp_path):
    target = tmp_path / "f"
    _files.write_text(target, "old")
    with pytest.raises(ZeroDivisionError), _files.atomic(target) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["f"]
    with pytest.raises(twofour.IoError, match="cannot write in"):
        _files.write_text(tmp_path / "absent/f", "x")
