"""The first seconds of the commands: Ctrl-C during imports, and packages that are not installed.

Each command runs in its own interpreter, whose imports a sitecustomize module watches.
"""

import os
import subprocess
import sys

import pytest

COMMANDS = ("demo", "eval", "calibrate", "passkey")
WATCH = """
import os, signal, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("INTERRUPT_AT"):
            os.kill(os.getpid(), signal.SIGINT)
        if name in os.environ.get("MISSING", "").split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
sys.meta_path.insert(0, Watch())
"""


@pytest.fixture
def python(tmp_path):
    """Runs an interpreter with arguments and settings of the watch."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)

    def run(*arguments, **settings):
        # The cache is empty: what should fail early must not get as far as the network.
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(paths)}
        environment["TWOFOUR_CACHE"] = str(tmp_path / "cache")
        return subprocess.run(
            [sys.executable, *arguments], env=os.environ | environment | settings, cwd=tmp_path,
            capture_output=True, text=True,
        )  # fmt: skip

    return run


def options(command, tmp_path):
    (tmp_path / "book.txt").write_text("It is a truth universally acknowledged. " * 200)
    return ["--text", "book.txt", "--model", "absent"] + (
        ["--out", "basis.safetensors"] if command == "calibrate" else []
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "place"),
    [(c, p) for c in COMMANDS for p in ("torch.autograd", f"twofour.{c}")]
    + [("eval", "transformers"), ("demo", "matplotlib")],
)
def test_ctrl_c_while_importing_is_one_line(python, tmp_path, command, place):
    name = f"twofour.{command}"
    done = python("-m", name, *options(command, tmp_path), INTERRUPT_AT=place)
    assert done.stderr.splitlines() == ["", f"{name}: interrupted, nothing was written"]
    assert (done.returncode, done.stdout) == (130, "")


def test_ctrl_c_in_a_program_that_imports_twofour_is_its_own(python):
    program = (
        "try:\n import twofour\nexcept KeyboardInterrupt:\n print('caught')\n"
        "import signal\nprint(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    )
    done = python("-c", program, "twofour.eval", INTERRUPT_AT="torch.autograd")
    assert (done.returncode, done.stdout.split()) == (0, ["caught", "True"])


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["transformers", "safetensors", "gguf", "matplotlib"])
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_packages_are_one_line(python, tmp_path, command, missing):
    arguments = options(command, tmp_path)
    done = python("-m", f"twofour.{command}", *arguments, MISSING=missing)
    assert done.returncode == 2
    extra = "hf"
    if missing == "matplotlib":
        if command != "demo":  # not needed, so the absent model is what is wrong
            assert "model absent: no such file" in done.stderr
            return
        extra = "report"
    assert done.stderr.splitlines() == [
        f"twofour.{command}: No module named '{missing}'; pip install '.[{extra}]' in the folder "
        "of twofour installs what is needed"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_help_needs_only_torch(python, command):
    missing = "transformers,safetensors,gguf,matplotlib,numpy,tokenizers"
    done = python("-m", f"twofour.{command}", "--help", MISSING=missing)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: twofour.{command}")


def test_the_module_for_transformers_names_what_to_install(python):
    program = (
        "import twofour\n"
        "try:\n import twofour.hf\n"
        "except ImportError as e:\n print(type(e).__name__, e.code, e)"
    )
    done = python("-c", program, MISSING="transformers")
    assert done.stdout == (
        "MissingPackageError unsupported No module named 'transformers'; pip install '.[hf]' in "
        "the folder of twofour installs what is needed\n"
    )
