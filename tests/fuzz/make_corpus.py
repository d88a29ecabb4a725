"""Writes the seed corpus of the fuzz targets: python tests/fuzz/make_corpus.py

The seeds are committed; this script is here so that they can be read and extended.
"""

import io
import json
import struct
from pathlib import Path

import numpy as np
from safetensors.numpy import save

CORPUS = Path(__file__).parent / "corpus"


def put(name: str, content: bytes | str) -> None:
    path = CORPUS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def npy(array: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def safetensors(header: bytes | dict, data: bytes = b"") -> bytes:
    if isinstance(header, dict):
        header = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header)) + header + data


def calibration(dim=4, heads=1, layers=1, kind="identity", **changed: str) -> bytes:
    tensors = {}
    for i in range(layers):
        tensors[f"layers.{i}.t_q"] = np.stack([np.eye(dim, dtype="<f4")] * heads)
        tensors[f"layers.{i}.t_k"] = np.stack([np.eye(dim, dtype="<f4")] * heads)
        tensors[f"layers.{i}.w"] = np.ones((heads, dim), dtype="<f4")
    metadata = {
        "format": "twofour-calibration",
        "version": "1",
        "model": "tiny",
        "kind": kind,
        "layers": str(layers),
        "heads_q": str(2 * heads),
        "heads_kv": str(heads),
        "head_dim": str(dim),
    }
    # Not through the safetensors package, which writes metadata in another order every time.
    header, data = {"__metadata__": metadata | changed}, b""
    for name, array in tensors.items():
        header[name] = tensor("F32", list(array.shape), len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return safetensors(header, data)


def tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def main() -> None:
    put("npy/f4_v1", npy(np.arange(6, dtype="<f4").reshape(2, 3)))
    put("npy/f2_v2", npy(np.arange(6, dtype="<f2"), (2, 0)))
    put("npy/f8_v3", npy(np.zeros((1, 2, 1, 2)), (3, 0)))
    put("npy/bool", npy(np.array([[True, False]])))
    put("npy/u2_scalar", npy(np.array(7, dtype="<u2")))
    put("npy/bf16", npy(np.zeros(3, dtype="V2")))
    put("npy/empty", npy(np.zeros((0, 4), dtype="<i4")))
    put("npy/fortran", npy(np.asfortranarray(np.ones((2, 3), dtype="<f4"))))
    put("npy/big_endian", npy(np.ones(2, dtype=">f4")))
    put("npy/record", npy(np.zeros(1, dtype=[("a", "<f4")])))

    two = {"a": np.ones((2, 2), dtype="<f4"), "b": np.zeros(3, dtype="<f2")}
    put("safetensors/two", save(two, metadata={"é": "\n"}))
    put("safetensors/empty", safetensors({}))
    zero = {"z": tensor("I64", [0, 7], 0, 0), "y": tensor("BOOL", [2], 0, 2)}
    put("safetensors/zero_size", safetensors(zero, b"\0\1"))
    put("safetensors/four_bit", safetensors({"z": tensor("F4", [4], 0, 2)}, b"ab"))
    escapes = rb'{"\u00e9\ud83d\ude00":{"shape":[],"data_offsets":[0,1],"dtype":"U8"}}  '
    put("safetensors/escapes", safetensors(escapes, b"x"))
    put("safetensors/nested", safetensors(b'{"a":' + b"[" * 200))
    overlap = {"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}
    put("safetensors/overlap", safetensors(overlap, b"abc"))
    put("safetensors/bomb", b"\xff" * 8 + b"{}")

    put("calibration/identity", calibration())
    put("calibration/two_layers", calibration(4, 2, 2, "balanced"))
    put("calibration/version_2", calibration(version="2"))
    put("calibration/wrong_heads", calibration(heads_q="3", heads_kv="2"))
    infinite = calibration(kind="permutation")
    put("calibration/not_inverse", infinite[:-8] + b"\0\0\x80\x7f" + infinite[-4:])

    strings = (
        "dense score int8 dual refined int8/pair192/s1/l0 nm24/pair128/s1/l1/r2 exact/none"
        " exact/nm24_strided/s2 exact/pair64/d6.5/l3 nm24/nm24_adjacent/r0.125/d1e-3"
    )
    for i, text in enumerate(strings.split()):
        put(f"sparsity/{i:02}", text)

    put(
        "cases/modes",
        "mode=dense,score dtype=fp32,bf16 heads=9/3 dim=64/32 len=113x203 causal=no # c\n",
    )
    put(
        "cases/packed", "mode=int8/pair64/s1 packed=5x5+0x0+1x7 heads=2 causal=top_left window=3:-1"
    )
    put(
        "cases/masks",
        "mode=dual transform=random mask=rows:0.25,keys,blocks:0.5 batch=2 len=70x130"
        " input=peaky,huge layout=fused,bhmd scale=0.5\n",
    )
    put("cases/bad", "mode=dense len=3\nlen=1x-1")


if __name__ == "__main__":
    main()
