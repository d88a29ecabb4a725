"""Property tests: random shapes, strides and modes against the formula and the reference."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import twofour
from conftest import (
    REFERENCE,
    TOLERANCE,
    assert_close,
    balanced_calibration,
    exact_attention,
    live_pairs,
    make_qkv,
)

pytestmark = pytest.mark.filterwarnings("ignore::twofour.UncalibratedWarning")


@dataclass(frozen=True)
class Case:
    batch: int
    m: int
    n: int
    heads_kv: int
    group: int
    d: int
    dv: int
    dtype: torch.dtype
    causal: bool
    align: str
    window: tuple[int, int] | None
    masked: bool
    strides: str
    seed: int

    def inputs(self):
        torch.manual_seed(self.seed)
        q, k, v = make_qkv(
            self.batch, self.m, self.n, self.heads_kv * self.group, self.heads_kv, self.d, self.dv,
            self.dtype, std=2.0,
        )  # fmt: skip
        return tuple(restride(t, self.strides) for t in (q, k, v))

    def options(self):
        out = {"causal": self.causal, "align": self.align, "window": self.window}
        if self.masked:
            torch.manual_seed(self.seed + 1)
            out["mask"] = torch.rand(self.batch, 1, self.m, self.n) > 0.2
        return out

    def live(self):
        live = live_pairs(self.m, self.n, self.causal, self.align, self.window)
        return live & self.options()["mask"] if self.masked else live


def restride(t, kind):
    """The same values in another place."""
    if kind == "head first":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "row padded":
        wide = torch.full((*t.shape[:-1], t.size(-1) + 3), torch.nan, dtype=t.dtype)
        wide[..., :-3] = t
        return wide[..., :-3]
    if kind == "last stride":
        wide = torch.full((*t.shape, 2), torch.nan, dtype=t.dtype)
        wide[..., 0] = t
        return wide[..., 0]
    if kind == "batch last":
        return t.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    return t


def cases(largest):
    return st.builds(
        Case,
        batch=st.integers(1, 3),
        m=st.integers(1, largest),
        n=st.integers(1, largest),
        heads_kv=st.integers(1, 2),
        group=st.integers(1, 3),
        d=st.sampled_from([8, 24, 64, 72, 128]),
        dv=st.sampled_from([8, 40, 64, 128]),
        dtype=st.sampled_from(list(TOLERANCE)),
        causal=st.booleans(),
        align=st.sampled_from(["bottom_right", "top_left"]),
        window=st.none() | st.tuples(st.integers(-1, 200), st.integers(-1, 200)),
        masked=st.booleans(),
        strides=st.sampled_from(
            ["packed", "head first", "row padded", "last stride", "batch last"]
        ),
        seed=st.integers(0, 2**20),
    )


def sparsities():
    return st.builds(
        lambda qk, score, block, sink, local, refine, drop: twofour.Sparsity(
            qk,
            score,
            block,
            sink,
            local,
            refine if qk == "nm24" and score != "nm24_strided" else None,
            drop if score != "nm24_strided" else None,
        ),
        st.sampled_from(["exact", "nm24", "int8"]),
        st.sampled_from(["none", "pair", "nm24_strided", "nm24_adjacent"]),
        st.sampled_from([0, 64, 128, 192, 256]),
        st.integers(0, 2),
        st.integers(0, 2),
        st.none() | st.sampled_from([0.0, 0.5, 2.0]),
        st.none() | st.sampled_from([0.5, 2.0, 6.0]),
    )


@settings(max_examples=60)
@given(cases(300))
def test_dense_equals_the_formula(case):
    q, k, v = case.inputs()
    o, lse = twofour.attention(q, k, v, mode="dense", return_lse=True, **case.options())
    want_o, want_lse = exact_attention(q, k, v, case.live())
    assert_close(o, want_o, TOLERANCE[case.dtype])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])


@settings(max_examples=60)
@given(cases(500), sparsities(), st.booleans())
def test_modes_equal_the_reference(case, sparsity, calibrated):
    case = replace(case, batch=1, heads_kv=1)
    q, k, v = case.inputs()
    options = case.options() | {"mode": sparsity, "return_lse": True, "return_stats": True}
    if calibrated:
        options["calibration"] = balanced_calibration(1, case.d)
    o, lse, stats = twofour.attention(q, k, v, **options)
    want_o, want_lse, want_stats = twofour.attention(q, k, v, **options, kernel=REFERENCE)
    dead = want_lse == -torch.inf
    assert torch.equal(lse == -torch.inf, dead)
    assert torch.all(o.transpose(1, 2)[dead] == 0)
    # Near ties may fall either way and change single rows: rows are compared in the mean, and
    # the schedule, which has no ties, exactly.
    assert stats[0] == want_stats[0] and torch.equal(stats[3:], want_stats[3:])
    assert (o.double() - want_o.double()).abs().mean() <= 3 * TOLERANCE[case.dtype]
    assert (lse - want_lse)[~dead].abs().sum() <= 1e-2 * max(int((~dead).sum()), 1)


@settings(max_examples=40)
@given(cases(400), sparsities())
def test_strides_do_not_matter(case, sparsity):
    q, k, v = case.inputs()
    options = case.options() | {"mode": sparsity}
    packed = (t.contiguous() for t in (q, k, v))
    assert torch.equal(twofour.attention(q, k, v, **options), twofour.attention(*packed, **options))


@settings(max_examples=40)
@given(cases(400), sparsities(), st.data())
def test_values_of_dead_pairs_do_not_matter(case, sparsity, data):
    case = replace(case, masked=True)
    q, k, v = case.inputs()
    options = case.options() | {"mode": sparsity}
    options["mask"] = options["mask"].clone()
    dead = data.draw(st.lists(st.integers(0, case.n - 1), max_size=5, unique=True))
    options["mask"][..., dead] = False
    want = twofour.attention(q, k, v, **options)
    k, v = k.clone(), v.clone()
    k[:, dead], v[:, dead] = torch.nan, -torch.inf
    assert torch.equal(twofour.attention(q, k, v, **options), want)


@settings(max_examples=40)
@given(cases(300), sparsities(), st.lists(st.integers(0, 250), min_size=1, max_size=4))
def test_packed_equals_alone_bitwise(case, sparsity, lengths):
    case = replace(case, batch=1, m=max(sum(lengths), 1), n=max(sum(lengths), 1), masked=False)
    q, k, v = case.inputs()
    total = sum(lengths)
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    options = case.options() | {"mode": sparsity}
    tokens = [t[0, :total] for t in (q, k, v)]
    o = twofour.attention(*tokens, **options, cu_seqlens_q=cu, cu_seqlens_k=cu)
    for b, length in enumerate(lengths):
        rows = slice(int(cu[b]), int(cu[b]) + length)
        want = twofour.attention(*(t[None, rows] for t in tokens), **options)
        assert torch.equal(o[rows], want[0])


@settings(max_examples=100)
@given(sparsities())
def test_sparsity_strings_round_trip(sparsity):
    again = twofour.Sparsity.parse(str(sparsity))
    assert str(again) == str(sparsity)
    # Dense has one string, whatever its idle fields say.
    assert again == sparsity or again == twofour.Sparsity.parse("dense")


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text):
    try:
        sparsity = twofour.Sparsity.parse(text)
    except twofour.InvalidArgumentError:
        return
    assert twofour.Sparsity.parse(str(sparsity)) == sparsity


@settings(max_examples=40)
@given(cases(200), st.floats(0.0, 1.0))
def test_merge_of_any_split_equals_one_call(case, where):
    case = replace(case, dtype=torch.float32, masked=True)
    q, k, v = case.inputs()
    mask = case.live().expand(case.batch, case.heads_kv * case.group, case.m, case.n)
    cut = round(where * case.n)

    def part(keys):
        return twofour.attention(
            q, k[:, keys], v[:, keys], mode="dense", mask=mask[..., keys], return_lse=True
        )

    o, lse = twofour.merge(*part(slice(0, cut)), *part(slice(cut, case.n)))
    want_o, want_lse = part(slice(0, case.n))
    assert_close(o, want_o, TOLERANCE[torch.float32])
    assert_close(lse, want_lse, TOLERANCE[torch.float32])
