"""`twofour attend` against numpy, and what it refuses."""

import itertools
import json
import resource
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

RNG = np.random.default_rng(0)


def attention(q, k, v, live=None):
    """Dense attention in fp64; q [B,M,H,D], k and v [B,N,Hkv,D], live [B,H,M,N] or None."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, axis=2), np.repeat(v, group, axis=2)
    scores = np.einsum("bmhd,bnhd->bhmn", q, k) / np.sqrt(q.shape[-1])
    if live is not None:
        scores = np.where(np.broadcast_to(live, scores.shape), scores, -np.inf)
    top = np.maximum(scores.max(axis=-1, keepdims=True), -1e300)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0]) + np.where(total[..., 0] > 0, top[..., 0], 0)
    out = np.einsum("bhmn,bnhd->bmhd", weights / np.maximum(total, 1e-300), v)
    return out, lse


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def qkv(b=2, m=37, n=150, h=6, hkv=2, d=32, dv=16, dtype=np.float32):
    return (
        normal(b, m, h, d, dtype=dtype),
        normal(b, n, hkv, d, dtype=dtype),
        normal(b, n, hkv, dv, dtype=dtype),
    )


def save_npy(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


QKV = ("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")


def causal(m, n, bottom_right=True):
    return np.arange(n)[None, :] <= np.arange(m)[:, None] + (n - m if bottom_right else 0)


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 2e-6), (np.float16, 2e-3)])
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_npy_matches_numpy(cli, tmp_path, dtype, tolerance, align):
    q, k, v = qkv(dtype=dtype)
    save_npy(tmp_path, q=q, k=k, v=v)
    cli("attend", *QKV, "--causal", "--align", align, "--out", "o.npy", "--lse", "l.npy")
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "l.npy")
    want, want_lse = attention(q, k, v, causal(37, 150, align == "bottom_right"))
    assert o.dtype == dtype and lse.dtype == np.float32
    np.testing.assert_allclose(o, want, atol=tolerance)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


def test_bhmd_is_the_same_transposed(cli, tmp_path):
    q, k, v = qkv()
    save_npy(
        tmp_path,
        **{
            x: np.ascontiguousarray(a.swapaxes(1, 2)) for x, a in zip("qkv", (q, k, v), strict=True)
        },
    )
    cli("attend", *QKV, "--layout", "bhmd", "--out", "o.npy")
    o = np.load(tmp_path / "o.npy")
    assert o.shape == (2, 6, 37, 16)
    np.testing.assert_allclose(o.swapaxes(1, 2), attention(q, k, v)[0], atol=2e-6)


def test_one_safetensors_in_one_out(cli, tmp_path):
    q, k, v = qkv()
    save_file({"q": q, "k": k, "v": v}, tmp_path / "in.safetensors")
    result = cli("attend", "--input", "in.safetensors", "--out", "out.safetensors", "--json")
    report = json.loads(result.stdout)
    assert (
        report["kernel"] == "attention.cpu.exact.none" and report["live_pairs"] == 2 * 6 * 37 * 150
    )
    assert report["units"] == report["pruned_pairs"] == 0  # dense, though key block 0 is whole
    out = load_file(tmp_path / "out.safetensors")
    want, want_lse = attention(q, k, v)
    np.testing.assert_allclose(out["o"], want, atol=2e-6)
    np.testing.assert_allclose(out["lse"], want_lse, atol=1e-5)


def test_bf16_from_uint16(cli, tmp_path):
    q, k, v = (np.round(x * 8) / 8 for x in qkv())  # exact in bf16
    save_npy(
        tmp_path,
        **{
            x: (a.view(np.uint32) >> 16).astype(np.uint16)
            for x, a in zip("qkv", (q, k, v), strict=True)
        },
    )
    cli("attend", *QKV, code=2)
    cli("attend", *QKV, "--uint16-bf16", "--out", "o.npy")
    bits = np.load(tmp_path / "o.npy").view(np.uint16).astype(np.uint32) << 16
    np.testing.assert_allclose(bits.view(np.float32), attention(q, k, v)[0], atol=1e-2)


@pytest.mark.parametrize("shape", [(37, 150), (6, 1, 150), (2, 1, 1, 150), (2, 6, 37, 150), ()])
def test_masks_broadcast(cli, tmp_path, shape):
    q, k, v = qkv()
    mask = np.asarray(RNG.random(shape) < 0.7)
    if mask.ndim >= 2 and mask.shape[-2] == 37:
        mask[..., 5, :] = False  # a row without keys
    save_npy(tmp_path, q=q, k=k, v=v, mask=mask)
    cli("attend", *QKV, "--mask", "mask.npy", "--out", "o.npy", "--lse", "l.npy")
    want, want_lse = attention(q, k, v, mask)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), want, atol=2e-6)
    np.testing.assert_allclose(np.load(tmp_path / "l.npy"), want_lse, atol=1e-5)


@pytest.mark.parametrize("offsets_dtype", [np.int32, np.int64])
def test_packed_sequences(cli, tmp_path, offsets_dtype):
    lengths = [5, 0, 70, 1]
    offsets = np.cumsum([0, *lengths]).astype(offsets_dtype)
    q, k, v = normal(76, 4, 16), normal(76, 2, 16), normal(76, 2, 16)
    save_npy(tmp_path, q=q, k=k, v=v, cu=offsets)
    cli("attend", *QKV, "--cu-seqlens", "cu.npy", "--causal", "--out", "o.npy", "--lse", "l.npy")
    o, lse = np.load(tmp_path / "o.npy"), np.load(tmp_path / "l.npy")
    for begin, end in itertools.pairwise(offsets):
        part = slice(int(begin), int(end))
        if begin == end:
            continue
        n = int(end - begin)
        want, want_lse = attention(q[None, part], k[None, part], v[None, part], causal(n, n))
        np.testing.assert_allclose(o[part], want[0], atol=2e-6)
        np.testing.assert_allclose(lse[:, part], want_lse[0], atol=1e-5)


def test_window_and_scale(cli, tmp_path):
    q, k, v = qkv()
    save_npy(tmp_path, q=q, k=k, v=v)
    cli("attend", *QKV, "--causal", "--window", "20:-1", "--scale", "0.5", "--out", "o.npy")
    position, key = np.arange(37)[:, None] + 113, np.arange(150)[None, :]
    live = (key <= position) & (key >= position - 20)
    want = attention(q * np.float32(0.5 * np.sqrt(32)), k, v, live)[0]
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), want, atol=4e-6)


def test_the_mode_is_dense_unless_given_and_auto_by_length(cli, tmp_path):
    help_text = cli("attend", "--help").stdout
    assert "dense (the default)" in help_text and "needs --layer" in " ".join(help_text.split())
    for m, n, sparsity in [(64, 1024, "int8/pair128/s1/l0"), (64, 1023, "exact/none")]:
        save_npy(tmp_path, **dict(zip("qkv", qkv(b=1, m=m, n=n), strict=True)))
        report = json.loads(cli("attend", *QKV, "--mode", "auto", "--json").stdout)
        assert report["sparsity"] == sparsity
        report = json.loads(cli("attend", *QKV, "--json").stdout)
        assert report["sparsity"] == "exact/none"


def test_devices_may_be_written_twice(cli, tmp_path):
    save_npy(tmp_path, **dict(zip("qkv", qkv(), strict=True)))
    cli("attend", *QKV, "--out", "/dev/null", "--lse", "/dev/null")


def calibration(folder, dim=32, heads=2, name="c.safetensors", **changed):
    lower = np.tril(RNG.standard_normal((heads, dim, dim)) * 0.1) + np.eye(dim)
    tensors = {}
    for i in range(2):
        tensors[f"layers.{i}.t_q"] = lower.astype(np.float32)
        inverse = np.linalg.inv(lower).swapaxes(1, 2)
        tensors[f"layers.{i}.t_k"] = np.ascontiguousarray(inverse).astype(np.float32)
        tensors[f"layers.{i}.w"] = np.ones((heads, dim), np.float32)
    metadata = {
        "format": "twofour-calibration",
        "version": "1",
        "model": "test",
        "kind": "balanced",
        "layers": "2",
        "heads_q": "6",
        "heads_kv": str(heads),
        "head_dim": str(dim),
    }
    save_file(tensors, folder / name, metadata=metadata | changed)


def test_calibration_written_by_python(cli, tmp_path):
    q, k, v = qkv(n=600)
    save_npy(tmp_path, q=q, k=k, v=v)
    calibration(tmp_path)
    run = ("attend", *QKV, "--mode", "dual", "--causal", "--out")
    plain = cli(*run, "plain.npy")
    assert "warning" in plain.stderr
    turned = cli(*run, "turned.npy", "--calibration", "c.safetensors", "--layer", "1")
    assert "warning" not in turned.stderr
    plain, turned = (np.load(tmp_path / f"{x}.npy") for x in ("plain", "turned"))
    assert (
        np.isfinite(turned).all() and np.abs(plain - turned).max() > 1e-3
    )  # another query is kept
    # Without pruned blocks the basis changes nothing but rounding.
    cli(
        "attend",
        *QKV,
        "--mode",
        "nm24/none/s9",
        "--out",
        "o.npy",
        "--calibration",
        "c.safetensors",
        "--layer",
        "0",
    )
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), attention(q, k, v)[0], atol=2e-5)


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"version": "2"}, "version '2'; expected version '1'"),
        ({"heads_q": "8"}, "8/2 heads"),
        ({"layers": "3"}, "3 for each of 3 layers"),
        ({"head_dim": "64"}, "expected F32 of shape"),
        ({"format": "other"}, "is not a calibration"),
    ],
)
def test_calibration_mismatch_is_refused(cli, tmp_path, changed, says):
    save_npy(tmp_path, **dict(zip("qkv", qkv(), strict=True)))
    calibration(tmp_path, **changed)
    options = ("--mode", "dual", "--calibration", "c.safetensors", "--layer", "0")
    assert says in cli("attend", *QKV, *options, code=2).stderr


REFUSALS = [
    (("--q", "q.npy", "--k", "k.npy"), "v: expected either --input or --v, got neither"),
    ((*QKV, "--input", "x.safetensors"), "got both"),
    (("--input", "none.safetensors"), "cannot open 'none.safetensors'"),
    (("--input", "/nope"), "cannot open '/nope': No such file"),
    (("--q", "q.txt", "--k", "k.npy", "--v", "v.npy"), "expected a .npy or .safetensors file"),
    (("--q", "short.npy", "--k", "k.npy", "--v", "v.npy"), "bytes of data"),
    (("--q", "double.npy", "--k", "k.npy", "--v", "v.npy"), "fp32, fp16 or bf16, got fp64"),
    (("--q", "flat.npy", "--k", "k.npy", "--v", "v.npy"), "expected 4 axes"),
    (("--q", "half.npy", "--k", "k.npy", "--v", "v.npy"), "fp16"),
    ((*QKV[:4], "--v", "wide.npy"), "v: expected"),
    (("--q", "odd.npy", *QKV[2:]), "multiple of heads_kv"),
    ((*QKV, "--mode", "fast"), 'got "fast"'),
    ((*QKV, "--mode", "exact/pair100"), "block"),
    ((*QKV, "--scale", "inf"), "finite"),
    ((*QKV, "--window", "3"), "LEFT:RIGHT"),
    ((*QKV, "--window", "3:4 mode=int8"), "LEFT:RIGHT"),
    ((*QKV, "--layout", "mbhd"), "layout"),
    ((*QKV, "--mask", "q.npy"), "mask: expected bool"),
    ((*QKV, "--mask", "mask.npy"), "broadcasts to [2, 6, 37, 150]"),
    ((*QKV, "--cu-seqlens", "cu.npy"), "expected 3 axes"),
    ((*QKV, "--cu-seqlens-k", "cu.npy"), "expected --cu-seqlens"),
    ((*QKV, "--layer", "0"), "--layer: expected --calibration FILE with it"),
    ((*QKV, "--calibration", "q.npy"), "--calibration: expected --layer N with it"),
    ((*QKV, "--calibration", "q.npy", "--layer", "0"), "not a valid .safetensors"),
    ((*QKV, "--kernel", "nope"), "kernel: expected one of"),
    ((*QKV, "--kernel", "attention.cpu.int8.pair"), "cannot serve"),
    ((*QKV, "--out", "o.txt"), "expected a name ending in"),
    ((*QKV, "--out", "q.npy"), "--out: expected a file of its own, got 'q.npy', which is --q too"),
    ((*QKV, "--lse", "../{folder}/v.npy"), "which is --v too"),
    ((*QKV, "--out", "link.npy"), "which is --k too"),
    ((*QKV, "--mask", "mask.npy", "--out", "mask.npy"), "which is --mask too"),
    ((*QKV, "--out", "o.npy", "--lse", "./o.npy"), "which is --out too"),
    ((*QKV, "--out", "none/o.npy"), "cannot write 'none/o.npy'"),
    ((*QKV, "--out", "o.npy", "--lse", "none/l.npy"), "cannot write 'none/l.npy'"),
    ((*QKV, "--out", "o.npy", "--lse", "/dev/full"), "No space left"),
    ((*QKV, "--out", "o.safetensors", "--lse", "/dev/full"), "No space left"),
    ((*QKV, "--out", "/dev/full"), "No space left"),
    ((*QKV, "--nonsense"), "--nonsense"),
    (("--scale", "x"), "x"),
]


@pytest.mark.parametrize("words, says", REFUSALS, ids=[says for _, says in REFUSALS])
def test_bad_input_is_one_line_and_no_file(cli, tmp_path, words, says):
    q, k, v = qkv()
    save_npy(
        tmp_path,
        q=q,
        k=k,
        v=v,
        double=q.astype(np.float64),
        flat=q[0],
        half=q.astype(np.float16),
        wide=normal(2, 151, 2, 16),
        odd=normal(2, 37, 5, 32),
        mask=np.ones((38, 150), bool),
        cu=np.array([0, 5], np.int32),
    )
    (tmp_path / "q.txt").write_text("1 2 3")
    (tmp_path / "short.npy").write_bytes((tmp_path / "q.npy").read_bytes()[:-1])
    (tmp_path / "link.npy").symlink_to("k.npy")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words = [word.format(folder=tmp_path.name) for word in words]
    assert says in cli("attend", *words, code=2).stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("offsets", [[1, 5], [0, 5, 3], [0], [[0, 5]], [0, -1]])
def test_bad_offsets(cli, tmp_path, offsets):
    save_npy(
        tmp_path,
        q=normal(5, 2, 16),
        k=normal(5, 2, 16),
        v=normal(5, 2, 16),
        cu=np.array(offsets, np.int32),
    )
    assert "cu_seqlens: expected" in cli("attend", *QKV, "--cu-seqlens", "cu.npy", code=2).stderr


def test_errors_in_json(cli):
    result = cli("attend", "--input", "none.safetensors", "--json", code=2)
    error = json.loads(result.stdout)["error"]
    assert error["code"] == "not_found" and error["message"] in result.stderr


def test_both_files_replace_older_ones(cli, tmp_path):
    q, k, v = qkv()
    save_npy(tmp_path, q=q, k=k, v=v)
    for name in ("o.npy", "l.safetensors"):
        (tmp_path / name).write_bytes(b"old")
    before = sorted(tmp_path.iterdir())
    cli("attend", *QKV, "--out", "o.npy", "--lse", "l.safetensors")
    want, want_lse = attention(q, k, v)
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), want, atol=2e-6)
    lse = load_file(tmp_path / "l.safetensors")["lse"]
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_keeps_the_old_file(cli, tmp_path):
    save_npy(tmp_path, **dict(zip("qkv", qkv(), strict=True)))
    (tmp_path / "o.npy").write_bytes(b"old")
    before = sorted(tmp_path.iterdir())

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)

    result = cli("attend", *QKV, "--out", "o.npy", code=2, preexec_fn=limit)
    assert "cannot write 'o.npy'" in result.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "o.npy").read_bytes() == b"old"
