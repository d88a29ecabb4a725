"""The project's own checks can fail: each is given a tree with one fault and must name its line."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name: str):
    sys.path.insert(0, str(ROOT / "tools/dev"))
    try:
        spec = importlib.util.spec_from_file_location(f"dev_{name}", ROOT / f"tools/dev/{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.pop(0)


docs = load("docs_checks")
check = load("check")
run_tests = load("run_tests")
readme_tables = load("readme_tables")


def write(root: Path, name: str, text: str) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """An empty git repository that the checks take for the project."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "BUILD", tmp_path / "build/release")
    monkeypatch.setattr(check, "PACKAGE_BUILD", tmp_path / "build/python")
    return tmp_path


def test_links(tmp_path):
    write(tmp_path, "docs/a.md", "# Some heading, and more\n")
    good = "[a](docs/a.md) [b](docs/a.md#some-heading-and-more) [c](https://example.org) `[d](x)`\n"
    name = write(tmp_path, "good.md", good.replace("`[d](x)`", ""))
    assert list(docs.link_findings(tmp_path, [name])) == []
    name = write(tmp_path, "bad.md", "\n[a](docs/b.md)\n[b](docs/a.md#other)\n![c](picture.svg)\n")
    found = list(docs.link_findings(tmp_path, [name]))
    assert [finding.split(": ")[0] for finding in found] == ["bad.md:2", "bad.md:3", "bad.md:4"]


def test_paths(tmp_path):
    write(tmp_path, "src/core/a.cc", "")
    name = write(tmp_path, "a.md", "`src/core/a.cc` and\n`src/core/b.cc`, `src/<op>.cc`\n")
    found = list(docs.path_findings(tmp_path, [name]))
    assert found == ["a.md:2: `src/core/b.cc` does not exist"]


def test_semantics(tmp_path):
    def found(text: str) -> str:
        write(tmp_path, "docs/semantics.md", text)
        return "\n".join(docs.semantics_findings(tmp_path))

    rules = "".join(f"## {rule}. Rule\n" for rule in range(1, 11))
    rows = "".join(f"| {rule} Rule | `src/ref/a.cc` | `test_a.cc` |\n" for rule in range(1, 9))
    rows += "| 9 rule, 10 rule | `src/ref/a.cc` | |\n"
    write(tmp_path, "src/ref/a.cc", "")
    write(tmp_path, "tests/cpp/test_a.cc", "")
    assert found(rules + rows) == ""
    assert found(rules + rows.replace("| 7 Rule |", "| Rule |")).endswith("no row for rule 7")
    assert "rule 1 names no file" in found(
        rules + rows.replace("`src/ref/a.cc` | `test_a.cc`", "never | ", 1)
    )
    assert "`test_b.cc` does not exist" in found(rules + rows.replace("test_a", "test_b", 1))
    assert "expected rules 1 to 10" in found(rules.replace("## 10. ", "## 11. ") + rows)


def test_environment(tmp_path):
    write(tmp_path, "README.md", "`TWOFOUR_ONE`\n")
    write(tmp_path, "src/core/environment.cc", 'getenv(v.name) "TWOFOUR_ONE"\n')
    ours = write(tmp_path, "a.py", 'os.environ.get("TWOFOUR_ONE")\n')
    assert list(docs.environment_findings(tmp_path, [ours])) == []
    names = [
        write(tmp_path, "b.py", 'os.environ["TWOFOUR_TWO"]\n'),
        write(tmp_path, "src/x.cc", 'std::getenv("TWOFOUR_ONE")\n'),
        write(tmp_path, "dev", "\n${TWOFOUR_THREE:-}\n"),
    ]
    found = list(docs.environment_findings(tmp_path, names))
    assert [finding.split(": ")[0] for finding in found] == ["b.py:1", "src/x.cc:1", "dev:2"]
    write(tmp_path, "README.md", "")
    assert "TWOFOUR_ONE is not documented" in next(docs.environment_findings(tmp_path, []))


def test_length_and_words(tree):
    write(tree, "long.cc", "\n" * 601)
    write(tree, "short.cc", "\n" * 600)
    assert [finding.split(": ")[0] for finding in check.length()] == ["long.cc:601"]
    write(tree, "a.md", "fine\n" + "TO" + "DO later\n" + "see /ho" + "me/someone/x\n")
    assert [finding.split(": ")[0] for finding in check.words()] == ["a.md:2", "a.md:3"]


def test_whitespace(tree):
    write(tree, "a.txt", "fine\ntrailing \n")
    subprocess.run(["git", "-C", str(tree), "add", "a.txt"], check=True)
    assert [finding.split(": ")[0] for finding in check.whitespace()] == ["a.txt:2"]


def test_formatting(tree):
    write(tree, "good.cc", "int x;\n")
    assert list(check.format_cpp()) == []
    write(tree, "bad.cc", "int   x;\n")
    assert next(check.format_cpp()).startswith("bad.cc:1:")
    write(tree, "good.py", "x = 1\n")
    assert list(check.format_python()) == []
    write(tree, "bad.py", "import os\nx  = 1\n")
    assert {finding.split(":")[0] for finding in check.format_python()} == {"bad.py"}


def test_headers(tree):
    write(tree, "include/twofour/good.h", "#pragma once\n#include <string>\nstd::string f();\n")
    assert list(check.headers()) == []
    write(tree, "include/twofour/bad.h", "#pragma once\n\nstd::string f();\n")
    (finding,) = check.headers()
    assert finding.startswith("include/twofour/bad.h:3:")


VARIANTS = """
inline constexpr Variant kVariants[] = {
    {QKProduct::kExact, ScorePattern::kPair},
    {QKProduct::kInt8, ScorePattern::kPair, false, true},
};
"""
CONFIG = "inline constexpr int kRowCount = 8 * kVariantCount;\n"


def ptxas_said(row: int, spills: int, code: str = "C7519") -> str:
    name = f"_ZN7twofour4cuda4sm9016attention_kernelILi{row}EEEvNS1_6ParamsE"
    return (
        f"ptxas info    : ({code}) something about wgmma in function '{name}'\n"
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'\n"
        f"    480 bytes stack frame, {spills} bytes spill stores, 0 bytes spill loads\n"
    )


@pytest.mark.parametrize(
    "said, expected",
    [
        (ptxas_said(0, 0), None),
        (ptxas_said(1, 900, "C7520"), None),
        (ptxas_said(0, 0, "C7520"), "attention_kernel<0> (exact pair, timed): C7520"),
        (ptxas_said(1, 0, "C7513"), "attention_kernel<1> (int8 pair drop, deciding): C7513"),
        (ptxas_said(2, 1900), "attention_kernel<2> (exact pair, timed): 1900 bytes of spills"),
        (ptxas_said(8, 1700), None),
        (ptxas_said(9, 9000), "attention_kernel<9> (int8 pair drop, debugging): 9000 bytes"),
        ("", "ptxas reported no kernel"),
    ],
)
def test_ptxas(tree, monkeypatch, said, expected):
    monkeypatch.setattr(check, "nvcc_for_hopper", lambda: ["nvcc"])
    monkeypatch.setattr(check, "mma_rows_of", lambda root: [])
    write(tree, "src/cuda/variants.h", VARIANTS)
    write(tree, "src/cuda/sm90/config.h", CONFIG)
    commands = []
    for part, text in enumerate((said, "".join(ptxas_said(row, 0) for row in range(16)))):
        command = f"nvcc -DTWOFOUR_PART={part} -o {part}.o"
        source = str(tree / "src/cuda/sm90/a.cu")
        commands.append({"directory": str(tree), "file": source, "command": command})
        write(tree, f"{part}.o.ptxas", text)
    host = {"directory": str(tree), "file": str(tree / "src/cuda/sm90/a.cc")}
    commands.append({**host, "command": "g++ -o a.o"})  # ptxas has nothing to say of it
    write(tree, "build/release/compile_commands.json", json.dumps(commands))
    *found, absent = check.ptxas()
    assert absent.startswith("src/cuda/sm80/config.h:1: expected the variants")
    if expected is None:
        assert found == []
    else:
        (finding,) = found
        assert finding.startswith(f"src/cuda/sm90/a.cu:1: part 0 {expected}")
    (tree / "1.o.ptxas").unlink()
    assert any(
        f"ptxas reported {int(len(said) > 0)} of 16 kernels" in line for line in check.ptxas()
    )


@pytest.mark.parametrize(
    ("rows_of", "first"), [(check.rows_of, "exact none"), (check.mma_rows_of, "d128 exact none")]
)
def test_ptxas_knows_the_rows(rows_of, first):
    rows = rows_of(ROOT)
    assert [row.kind for row in rows].count("debugging") == len(rows) / 2 > 0
    assert [row.number for row in rows] == list(range(len(rows)))
    assert str(rows[0]) == f"attention_kernel<0> ({first}, timed)"
    assert {row.kind for row in rows} == {"timed", "deciding", "debugging"}


def test_ptxas_budgets_of_mma_rows():
    rows = check.mma_rows_of(ROOT)
    assert str(rows[19]) == "attention_kernel<19> (d64 nm24 pair, timed)"
    assert rows[19].max_spill_bytes == rows[43].max_spill_bytes
    said = ptxas_said(19, rows[19].max_spill_bytes + 1).replace("sm90", "sm80")
    (finding,) = check.ptxas_findings("a.cu:1:", said, rows, "sm_90a")
    assert finding.startswith("a.cu:1: attention_kernel<19> (d64 nm24 pair, timed): ")
    said = ptxas_said(19, rows[19].max_spill_bytes).replace("sm90", "sm80")
    assert list(check.ptxas_findings("a.cu:1:", said, rows, "sm_90a")) == []
    (finding,) = check.ptxas_findings("a.cu:1:", said, rows, "sm_80")
    assert finding == "a.cu:1: ptxas reported no kernel for sm_80"


def test_shell(tree):
    write(tree, ".ci/run", "#!/bin/sh\n")
    write(tree, "dev", "#!/bin/bash\necho $1\n")
    (finding,) = check.shell()
    assert finding.startswith("dev:2:")


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"seconds": 29.9, "mib": 2000}, None),
        ({"seconds": 44.9, "mib": 2000}, None),
        ({"seconds": 45.1, "mib": 2000}, "45.1 s"),
        ({"seconds": 1.0, "mib": 2049}, "2049 MiB"),
        (None, "no compile cost recorded"),
    ],
)
def test_compile_cost(tree, capsys, record, expected):
    assert "not built" in next(check.cost())
    command = {"directory": str(tree), "file": str(tree / "a.cc"), "command": "g++ -o a.o"}
    for build in ("release", "python"):
        write(tree, f"build/{build}/compile_commands.json", json.dumps([command]))
    if record:
        write(tree, "a.o.cost", json.dumps(record))
    found = "".join(check.cost())
    assert expected in found if expected else not found
    wanted = capsys.readouterr().out.count("44.9 s to compile, 30 s wanted")
    assert wanted == (2 if record and record["seconds"] == 44.9 else 0)


def test_compile_launcher_keeps_what_ptxas_says(tmp_path):
    nvcc = tmp_path / "nvcc"
    said = ptxas_said(0, 4) + "a.cu(1): warning #177-D\n"
    nvcc.write_text(f'#!/bin/sh\necho "$@"\ncat <<"END" >&2\n{said}END\nexit 3\n')
    nvcc.chmod(0o755)
    launcher = [sys.executable, ROOT / "tools/dev/compile_cost.py"]
    command = [*launcher, nvcc, "-c", "a.cu", "-o", tmp_path / "a.o"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3
    assert result.stdout.strip().endswith("-Xptxas=-v")
    assert result.stderr == "a.cu(1): warning #177-D\n"
    assert (tmp_path / "a.o.ptxas").read_text() == ptxas_said(0, 4)


def test_compile_launcher_records_the_cost(tmp_path):
    source = write(tmp_path, "a.cc", "int f() { return 1; }\n")
    launcher = [sys.executable, str(ROOT / "tools/dev/compile_cost.py")]
    command = [*launcher, "g++", "-o", "a.o", "-c", source]
    assert subprocess.call(command, cwd=tmp_path) == 0
    record = json.loads((tmp_path / "a.o.cost").read_text())
    assert record["seconds"] > 0 and record["mib"] > 1 and record["source"].endswith("a.cc")
    write(tmp_path, "a.cc", "int f( {\n")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode != 0


def test_junit_counts(tmp_path):
    report = tmp_path / "report.xml"
    assert run_tests.read_junit(report, 0) == run_tests.Counts(failed=1)  # the runner wrote nothing
    report.write_text(
        '<testsuite><testcase name="a" status="run"/><testcase name="b" status="fail"/>'
        '<testcase name="c"><skipped/></testcase><testcase name="d"><error/></testcase></testsuite>'
    )
    assert run_tests.read_junit(report, 1) == run_tests.Counts(passed=1, failed=2, skipped=1)
    report.write_text('<testsuite><testcase name="a"/></testsuite>')
    assert run_tests.read_junit(report, 139) == run_tests.Counts(passed=1, failed=1)  # it crashed


def test_readme_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    text = "before\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nafter\n"
    assert readme_tables.rewritten(text, "README.md")[1] == [
        "README.md:1: the speed table has no bench/results/cpu.json to come from"
    ]
    row = {"mode": "int8", "sparsity": "int8/pair128/s1/l0", "seqlen": 8192, "head_dim": 64}
    row |= {"inputs": "random", "heads": 4, "kv_heads": 4, "threads": 2, "ratio_vs_sdpa": 1.234}
    row |= {"ratio_min": 1.2, "ratio_max": 1.3}
    bench = {"rows": [row], "dtype": "fp32", "repeats": 7, "date": "2026-01-01"}
    bench |= {"versions": {"torch": "2.13.0"}, "machine": {"cpu": "X"}, "command": "./dev bench"}
    write(tmp_path, "bench/results/cpu.json", json.dumps(bench))
    new, problems = readme_tables.rewritten(text, "README.md")
    assert not problems and "| **1.23x** | 1.20 to 1.30 |" in new and "old" not in new
    assert new.startswith("before\n") and new.endswith("after\n")
    assert readme_tables.rewritten(new, "README.md")[0] == new
    assert (
        "no <!-- speed:begin --> table" in readme_tables.rewritten("nothing\n", "README.md")[1][0]
    )


def test_gpu_table(tmp_path, monkeypatch):
    monkeypatch.setattr(readme_tables, "ROOT", tmp_path)
    results = tmp_path / "bench/results"
    results.mkdir(parents=True)
    head = "kernel,mode,head_dim,causal,N,regime,tflops,tflops_fa2,tflops_cudnn,tflops_fa3"
    lines = [
        "fa3,,64,1,512,burst,500,250,400,500",
        "twofour,dual,64,1,512,burst,600,250,400,500",
        "twofour,dual,64,1,512,sustained,550,250,500,500",
        "twofour,dual,64,1,256,burst,1,1,1,1",
    ]
    (results / "nvidia-h200.csv").write_text("\n".join([head, *lines]) + "\n")
    text = "<!-- h200:begin -->\n<!-- h200:end -->\n"
    new, problems = readme_tables.rewritten(text, "docs/performance.md")
    assert problems == []
    assert (
        "| 64 | causal | `dual` | 600 / 550 | 1.50x / 1.10x | 1.20x / 1.10x | 2.40x / 2.20x |"
        in new
    )
    assert "| 64 | causal | cuDNN | 400 / 500 |" in new
    assert readme_tables.rewritten(new, "docs/performance.md")[0] == new


def dev(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "dev"), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


def test_dev_says_in_one_line_what_is_wrong(tmp_path):
    for arguments, expected in [
        (["nonsense"], "unknown command 'nonsense'"),
        (["--nonsense"], "unknown option --nonsense"),
        (["bench", "gpu"], "expected cpu, got 'gpu'"),
        (["--python"], "expected a path"),
        (["--python="], "expected a path"),
        (["build", "extra"], "build: expected no further words, got 'extra'"),
        (["setup", "-v", "x"], "setup: expected no further words, got '-v x'"),
        (["format", "src"], "format: expected no further words, got 'src'"),
    ]:
        result = dev(*arguments)
        assert result.returncode == 2 and expected in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert dev().returncode == 2 and dev("--help").returncode == 0


def copy_of_dev(folder: Path) -> Path:
    for name in ("dev", "tools/dev/setup.sh", "requirements"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, target)
    return folder / "dev"


def test_dev_refuses_an_unfit_python(tmp_path):
    script = copy_of_dev(tmp_path / "project")
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9.2\n")
    old.chmod(0o755)
    hello = tmp_path / "hello"
    hello.write_text("#!/bin/sh\necho hello\n")
    hello.chmod(0o755)
    for python, expected in [
        (str(old), "expected Python 3.11 or newer, found 3.9.2"),
        (str(tmp_path / "missing"), "expected a Python 3.11 or newer or its environment, got"),
        (str(hello), "expected a Python 3.11 or newer or its environment, got"),
    ]:
        for words, name in ([], "TWOFOUR_PYTHON"), (["--python", python], "--python"):
            environment = {"PATH": "/usr/bin:/bin", "TWOFOUR_SKIP_APT": "1"}
            environment |= {} if words else {"TWOFOUR_PYTHON": python}
            result = subprocess.run(
                [script, *words, "setup"], capture_output=True, text=True, env=environment
            )
            assert result.returncode == 2 and expected in result.stderr
            assert result.stderr.startswith(f"dev: {name}: ")
            assert not (tmp_path / "project/.venv").exists()


@pytest.mark.parametrize(
    "words, expected",
    [
        (["test", "--bogus"], "unrecognized arguments: --bogus"),
        (["test", "--only", "nothing"], "invalid choice: 'nothing'"),
        (["check", "nothing"], "unknown check nothing"),
        (["demo", "--bad"], "twofour.demo: unrecognized arguments: --bad; --help lists"),
        (["demo", "--tokens", "x"], "--tokens: expected a number, got 'x'"),
    ],
)
def test_dev_refuses_words_before_it_sets_up(tmp_path, words, expected):
    script = copy_of_dev(tmp_path / "project")
    for file in (ROOT / "tools/dev").glob("*.py"):
        shutil.copy2(file, script.parent / "tools/dev")
    modules = script.parent / "python/twofour"
    shutil.copytree(ROOT / "python/twofour", modules, ignore=shutil.ignore_patterns("_*.so"))
    torch = write(tmp_path, "absent/torch.py", "raise ModuleNotFoundError('torch')\n")
    folder = Path(sys.executable).resolve().parent  # a Python that is new enough

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *words],
            capture_output=True,
            text=True,
            env={
                "PATH": f"{folder}:/usr/bin:/bin",
                "PYTHONPATH": str((tmp_path / torch).parent),
                "TWOFOUR_SKIP_APT": "1",
            },
        )

    result = run(*words)
    assert result.returncode == 2 and expected in result.stderr.splitlines()[-1]
    help = run(words[0], "--help")
    assert help.returncode == 0 and help.stdout.startswith("usage: ")
    for done in (result, help):
        assert "==>" not in done.stdout and not (script.parent / ".venv").exists()


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "raise"])  # pip does the first
def test_dev_interrupted_in_a_step_says_so(tmp_path, code):
    copy_of_dev(tmp_path)
    write(
        tmp_path,
        "work.py",
        "import sys, time\n"
        "try:\n    print('begun', flush=True)\n    time.sleep(60)\n"
        f"except KeyboardInterrupt:\n    print('cancelled', file=sys.stderr)\n    {code}\n",
    )
    step = f"set -euo pipefail; root={tmp_path}; source tools/dev/setup.sh; "
    step += f"work() {{ {sys.executable} work.py; }}; step pip 'Python packages' work; echo after"
    with subprocess.Popen(
        ["bash", "-c", step],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A test run started in the background inherits an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        while process.stdout.readline() != "begun\n":
            pass
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == ""
    # What the interrupted program says, a traceback perhaps, is kept for whoever looks.
    assert err == "dev: interrupted; run the same command again to go on\n"
    log = (tmp_path / "build/log/pip.log").read_text()
    assert "cancelled" in log and ("Traceback" in log) == (code == "raise")


def test_dev_says_which_signal_ended_a_step(tmp_path):
    copy_of_dev(tmp_path)
    step = f"set -euo pipefail; root={tmp_path}; source tools/dev/setup.sh; "
    step += "step build 'the build' bash -c 'kill -SEGV $$'"
    result = subprocess.run(["bash", "-c", step], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("dev: the build: failed: exit code 139")


def test_dev_interrupted_while_it_reads_words_says_so(tmp_path):
    script = copy_of_dev(tmp_path)
    write(
        tmp_path,
        "tools/dev/run_tests.py",
        "import os, signal, time\nos.killpg(0, signal.SIGINT)\ntime.sleep(60)\n",
    )
    folder = Path(sys.executable).resolve().parent  # a Python that is new enough
    result = subprocess.run(
        [script, "test"],
        capture_output=True,
        text=True,
        env={"PATH": f"{folder}:/usr/bin:/bin", "TWOFOUR_SKIP_APT": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        timeout=30,
    )
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "dev: interrupted; run the same command again to go on\n"
