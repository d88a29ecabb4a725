"""The other sub-commands: what they print, what they exit with, and Ctrl-C."""

import json
import os
import signal
import subprocess
import time

import pytest

CASE = ("heads=2/1", "dim=16", "len=40x600", "causal=bottom_right")


def test_version_and_help(cli):
    assert cli("--version").stdout.startswith("twofour 0.")
    for command in ("attend", "verify", "bench", "explain", "info", "tune"):
        assert command in cli("--help").stdout
        assert "--json" in cli(command, "--help").stdout


@pytest.mark.parametrize("words", [(), ("bogus",), ("info", "extra"), ("bench", "--repeat", "0")])
def test_bad_usage(cli, words):
    cli(*words, code=2)


def test_a_command_that_does_not_exist(cli):
    names = "attend, verify, bench, explain, golden, info, tune"
    for words, got in [((), "none"), (("foo",), "'foo'"), (("a\nb", "--json"), "'a\\x0ab'")]:
        said = cli(*words, code=2).stderr
        assert said == f"twofour: expected a command ({names}), got {got}; see --help\n"


@pytest.mark.parametrize(
    "words, expected",
    [
        (("attend", "--scale"), "a finite number"),
        (("attend", "--layer"), "a whole number"),
        (("attend", "--out"), "a file name"),
        (("attend", "--device"), "cpu, cuda or cuda:N"),
        (("verify", "--device"), "cpu, cuda or cuda:N"),
        (("verify", "--show"), "a whole number"),
        (("bench", "--repeat"), "a whole number in 1..1000"),
    ],
)
def test_values_of_options(cli, words, expected):
    for value in ("", "abc", "1x"):
        if value and not expected.endswith(("number", "1000")):
            continue
        said = cli(*words, value, code=2).stderr
        assert said.startswith(f"twofour: {words[1]}: expected {expected}, got '{value}'")


def test_info(cli):
    info = json.loads(cli("info", "--json").stdout)
    ids = [row["id"] for row in info["kernels"]]
    assert ids[-1] == "attention.ref" and "attention.cpu.int8.pair" in ids
    present = [target["name"] for target in info["targets"] if target["present"]]
    assert info["device"]["arch"] in present
    assert {"TWOFOUR_CPU_TARGET", "TWOFOUR_NUM_THREADS"} <= {v["name"] for v in info["environment"]}
    text = cli("info").stdout
    assert all(name in text for name in ids + present)


def test_environment_is_obeyed_and_checked(cli):
    info = json.loads(cli("info", "--json").stdout)
    for target in info["targets"]:
        env = {"TWOFOUR_CPU_TARGET": target["name"], "TWOFOUR_NUM_THREADS": "1"}
        if target["present"]:
            device = json.loads(cli("info", "--json", env=env).stdout)["device"]
            assert device["arch"] == target["name"] and device["threads"] == 1
        else:
            cli("info", env=env, code=2)
    for name, value in {"TWOFOUR_CPU_TARGET": "avx9", "TWOFOUR_NUM_THREADS": "0"}.items():
        assert name in cli("info", env={name: value}, code=2).stderr
    # Under this value info cannot list the names, so the message does.
    said = cli("info", env={"TWOFOUR_CPU_TARGET": "SSE4"}, code=2).stderr
    here = [target["name"] for target in info["targets"] if target["present"]]
    assert 'got "SSE4"' in said and all(name in said.split("here it can be")[1] for name in here)


def test_explain(cli):
    document = json.loads(cli("explain", "mode=int8", *CASE, "--json").stdout)
    (plan,) = document["plans"]
    assert plan["sparsity"] == "int8/pair128/s1/l0" and plan["kernel"] == "attention.cpu.int8.pair"
    chosen = [row for row in plan["candidates"] if row["chosen"]]
    assert [row["kernel"] for row in chosen] == [plan["kernel"]]
    assert all("why_not" in row or row["seconds"] > 0 for row in plan["candidates"])
    assert "* attention.cpu.int8.pair" in cli("explain", "mode=int8", *CASE).stdout
    assert len(json.loads(cli("explain", "mode=score,dual", *CASE, "--json").stdout)["plans"]) == 2
    forced = cli("explain", "mode=int8", *CASE, "--kernel", "attention.ref", "--json").stdout
    assert json.loads(forced)["plans"][0]["kernel"] == "attention.ref"


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "expected a case"),
        (("mode=fast",), 'got "fast"'),
        (("len=3x-1",), "cannot read 'len=3x-1': expected N or MxN, whole numbers in 0..16777216"),
        (("len=3x3", "scale=nan"), "cannot read 'scale=nan': expected a finite number"),
        (("input=zzz",), "cannot read 'input=zzz': expected random, peaky, flat, "),
        (("dtype=fp8",), "cannot read 'dtype=fp8': expected fp32, fp16 or bf16"),
        (("batch=x",), "cannot read 'batch=x': expected one of the whole numbers in 0.."),
        (("heads=0",), "cannot read 'heads=0': expected Hq or Hq/Hkv, whole numbers in 1.."),
        (("dim=",), "cannot read 'dim=': expected D or D/Dv"),
        (("packed=x",), "cannot read 'packed=x': expected MxN of each"),
        (("causal=yes",), "cannot read 'causal=yes': expected no, bottom_right or top_left"),
        (("window=3",), "cannot read 'window=3': expected none or LEFT:RIGHT"),
        (("mask=rows:2",), "cannot read 'mask=rows:2': expected none, random, rows, blocks or"),
        (("layout=b",), "cannot read 'layout=b': expected bmhd, bhmd or fused"),
        (("transform=x",), "cannot read 'transform=x': expected none or random"),
        (("mode=score\x07",), 'sparsity "score\\x07": expected'),
        (("--device", ""), "--device: expected cpu, cuda or cuda:N, got ''"),
        (("--cases", ""), "--cases: expected a file or folder, got ''"),
        (("--no\nsense",), "--no\\x0asense"),
        (("size=3x3",), "unknown key 'size'"),
        (("dim=16", "dim=32"), "came before"),
        (("3x3",), "expected key=value"),
        (("heads=3/2", "len=3x3"), "multiple of heads_kv"),
        (("dim=7", "len=3x3"), "head_dim 7"),
        (("--cases", "none.cases"), "none.cases"),
        (("dim=8", "--cases", "x"), "got both"),
    ],
)
def test_explain_refuses(cli, words, says):
    assert says in cli("explain", *words, code=2).stderr


def test_verify_one_case(cli):
    document = json.loads(cli("verify", "mode=refined", *CASE, "--json").stdout)
    rows = {row["kernel"]: row for row in document["rows"]}
    assert document["ok"] and document["failures"] == []
    for name in ("attention.cpu.nm24.pair", "attention.cpu.nm24.pair.trace"):
        assert rows[name]["passed"] == 1 and rows[name]["pruned_pairs"] > 0
        assert 0 < rows[name]["worst_error"] <= 1
    assert rows["attention.cpu.exact.none"]["refused"] == 1


def test_verify_fails_when_a_row_is_not_exercised(cli):
    result = cli("verify", "mode=score", *CASE, "--coverage", "--json", code=1)
    document = json.loads(result.stdout)
    missed = {failure["kernel"] for failure in document["failures"]}
    assert not document["ok"]
    assert "attention.cpu.int8.pair" in missed and "attention.cpu.exact.pair" not in missed
    assert (
        "FAILED attention.cpu.int8.pair"
        in cli("verify", "mode=score", *CASE, "--coverage", code=1).stdout
    )


def test_verify_notices_a_row_without_pruned_blocks(cli):
    words = ("mode=score", "dim=16", "len=40x40", "--coverage", "--filter", "exact.pair", "--json")
    document = json.loads(cli("verify", *words, code=1).stdout)
    assert any("pruned block" in failure["message"] for failure in document["failures"])


def test_verify_asks_of_the_filtered_rows_alone(cli):
    words = ("mode=exact/none64/s1/d1", *CASE, "--coverage", "--filter", "exact.none")
    shown = cli("verify", *words).stdout
    assert "error/bound" in shown and "decision/bound" in shown
    assert "attention.cpu.exact.none.trace" in shown and "attention.ref" not in shown


def test_verify_refuses(cli, tmp_path):
    (tmp_path / "bad.cases").write_text("# fine\nmode=score len=3x3\nmode=score len=\n")
    assert "bad.cases:3: cannot read" in cli("verify", "--cases", "bad.cases", code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "found none" in cli("verify", "--cases", "empty", code=2).stderr
    assert "avx9" in cli("verify", "mode=score", *CASE, "--target", "avx9", code=2).stderr
    assert "nope" in cli("verify", "mode=score", *CASE, "--filter", "nope", code=2).stderr


def test_bench(cli):
    words = ("bench", "mode=score,int8", *CASE, "--repeat", "3")
    document = json.loads(cli(*words, "--json").stdout)
    assert [row["sparsity"] for row in document["rows"]] == [
        "exact/pair128/s1/l0",
        "int8/pair128/s1/l0",
    ]
    for row in document["rows"]:
        for times in (row["warm"], row["cold"], row["dense"]):
            assert 0 < times["min_s"] <= times["median_s"] <= times["max_s"]
        assert row["ratio_min"] <= row["ratio_vs_dense"] <= row["ratio_max"]
        assert row["dense_equivalent_gflops"] > 0 and 0 < row["pruned_share"] <= 1
    assert "x dense" in cli(*words).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_is_one_line(program, tmp_path, number):
    words = ["bench", "mode=dense", "dim=64", "len=2048x2048", "--repeat", "1000", "--json"]
    process = subprocess.Popen(
        [program, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background inherits an ignored SIGINT.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    time.sleep(1)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (2, "", "twofour: interrupted\n")
    assert os.listdir(tmp_path) == []


def test_a_full_disk_under_stdout(program):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "twofour: cannot write the output: No space left on device\n"


def test_a_device_is_there_or_the_reason_is_one_line(cli):
    info = json.loads(cli("info", "--json").stdout)
    words = ("mode=score", "dtype=fp16", "len=64x64")
    for command in ("explain", "verify", "bench"):
        there = info["cuda"] is not None
        result = cli(command, "--device", "cuda", *words, code=0 if there else 2)
        if there:
            assert info["cuda"]["arch"] in result.stdout
        else:
            assert result.stderr == f"twofour: {info['cuda_why_not']}\n"
            assert info["cuda_why_not"].startswith("CUDA")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda0", "CPU"])
def test_a_device_has_a_known_name(cli, name):
    result = cli("explain", "--device", name, "mode=dense", code=2)
    assert result.stderr == (f"twofour: --device: expected cpu, cuda or cuda:N, got '{name}'\n")


def test_the_cpu_can_be_asked_for(cli):
    plan = json.loads(cli("explain", "--json", "--device", "cpu", "mode=dense").stdout)
    assert plan["device"]["kind"] == "cpu" and plan["plans"][0]["device"]["kind"] == "cpu"
    rows = json.loads(cli("verify", "--json", "--device", "cpu", "mode=dense", "len=9x9").stdout)
    assert {row["kernel"].split(".")[1] for row in rows["rows"]} == {"cpu", "ref"}
