"""The basis: its mathematics, and its derivation from a model's queries and keys."""

import pytest
import torch

import twofour
import twofour.hf
from hf_models import save_tiny_model, tiny_llama, tokens
from twofour import _basis, calibrate
from twofour.calibration import Calibration

DIM = 32


def samples(seed=0, count=20000):
    """Correlated q and k [count,D] with very unequal channels, and an offset in k."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-1, 1, DIM, dtype=torch.float64)[
        torch.randperm(DIM, generator=generator)
    ]
    turn = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    mix = torch.linalg.qr(torch.eye(DIM, dtype=torch.float64) + 0.1 * turn)[0]
    q = torch.randn(count, DIM, generator=generator, dtype=torch.float64) * scale.sqrt()
    k = torch.randn(count, DIM, generator=generator, dtype=torch.float64) * scale + 3.0
    return q @ mix, k @ mix


def moments(q, k):
    gathered = _basis.Moments(1, 1, DIM)
    half = len(q) // 2
    for part in (slice(0, half), slice(half, None)):
        gathered.add(q[part][None, None].float(), k[part][None, None].float())
    return gathered.cov_k()[0], gathered.second_q()[0]


def pruned_logit_error(q, k, t_q, t_k, w):
    """Mean squared error of centred logits when two of each four channels of q' are kept."""
    q2, k2 = q @ t_q, k @ t_k
    order = (q2.abs() * w).unflatten(-1, (-1, 4)).argsort(dim=-1, descending=True, stable=True)
    keep = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order[..., :2], True)
    dropped = torch.where(keep.flatten(-2), 0.0, q2)
    error = dropped[:300] @ (k2[:300] - k2.mean(0)).mT
    return float(error.square().mean())


def test_moments_are_those_of_the_samples():
    q, k = samples()
    cov, second = moments(q, k)
    torch.testing.assert_close(cov, torch.cov(k.mT, correction=0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(second, q.mT @ q / len(q), atol=1e-4, rtol=1e-4)


def test_grouped_query_heads_count_equally():
    gathered = _basis.Moments(4, 2, 4)
    q = torch.zeros(1, 4, 5, 4)
    q[0, :, :, 0] = torch.tensor([1.0, 3.0, 0.0, 2.0])[:, None]
    gathered.add(q, torch.randn(1, 2, 5, 4))
    assert gathered.second_q()[:, 0, 0].tolist() == [(1 + 9) / 2, (0 + 4) / 2]


@pytest.mark.parametrize("basis", [_basis.balanced, _basis.permutation, _basis.identity])
def test_every_basis_keeps_the_scores(basis):
    q, k = samples()
    t_q, t_k, w = basis(*moments(q, k))
    torch.testing.assert_close((q @ t_q) @ (k @ t_k)[:50].mT, q @ k[:50].mT, rtol=1e-7, atol=1e-6)
    assert bool((w > 0).all())


def test_balanced_basis_whitens_keys_and_decorrelates_queries():
    q, k = samples()
    t_q, t_k, _ = _basis.balanced(*moments(q, k))
    cov = torch.cov((k @ t_k).mT, correction=0)
    torch.testing.assert_close(cov, torch.eye(DIM, dtype=torch.float64), atol=2e-3, rtol=0)
    second = (q @ t_q).mT @ (q @ t_q) / len(q)
    energy = second.diagonal()
    off = second - torch.diag(energy)
    assert float(off.abs().max()) < 1e-3 * float(energy.max())
    # Each aligned group of four: two of the upper half of the energies, then two of the lower.
    upper = energy > energy.median()
    assert upper.view(-1, 4).tolist() == [[True, True, False, False]] * (DIM // 4)


def test_groups_follow_rank_and_ties_follow_channel():
    energy = torch.tensor([5.0, 8, 1, 6, 7, 2, 3, 4])
    # Ranks: channels 1 4 3 0 | 7 6 5 2; two groups take them in turn.
    assert _basis.group_channels(energy).tolist() == [1, 3, 7, 5, 4, 0, 6, 2]
    assert _basis.group_channels(torch.ones(8)).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_a_better_basis_loses_less():
    q, k = samples()
    cov, second = moments(q, k)
    losses = [
        pruned_logit_error(q, k, *basis(cov, second))
        for basis in (_basis.balanced, _basis.permutation, _basis.identity)
    ]
    assert losses[0] < 0.8 * losses[1] and losses[1] < losses[2]


@pytest.mark.parametrize("basis", [_basis.balanced, _basis.permutation])
def test_constant_keys_give_a_finite_basis(basis):
    zero = torch.zeros(DIM, DIM, dtype=torch.float64)
    for part in basis(zero, torch.eye(DIM, dtype=torch.float64)):
        assert bool(part.isfinite().all())


def test_calibration_of_a_model_has_its_queries_and_keys():
    model, ids = tiny_llama(), tokens(4200)
    seen = {}

    def catch(layer, q, k, v, scale):
        seen.setdefault(layer, []).append((q[0].double(), k[0].double()))

    twofour.hf.enable(model, mode="sdpa")
    with torch.no_grad(), twofour.hf.record(model, catch):
        for piece in ids.split(2048):
            model.model(piece[None], use_cache=False)
    twofour.hf.disable(model)
    found = calibrate.calibrate(model, ids, window=2048)
    assert model.config._attn_implementation == "sdpa"  # left as it was
    assert (found.model, found.kind, len(found.layers)) == ("llama", "balanced", 2)
    for layer, parts in seen.items():
        q = torch.cat([p[0] for p in parts], 1)
        k = torch.cat([p[1] for p in parts], 1)
        for head in range(2):
            cov = torch.cov(k[head].mT, correction=0)
            group = q[2 * head : 2 * head + 2].flatten(0, 1)
            want = _basis.balanced(cov, group.mT @ group / len(group))
            got = found.layers[layer]
            # Eigenvectors may come with either sign.
            torch.testing.assert_close(
                got.t_q[head].abs(), want[0].abs().float(), atol=1e-3, rtol=1e-3
            )
    found.check("llama", 2, 4, 2, 16)


def test_calibration_lowers_the_error_of_a_pruned_query():
    model, ids = tiny_llama(), tokens(4096)
    balanced = calibrate.calibrate(model, ids)
    identity = calibrate.calibrate(model, ids, kind="identity")
    q, k, v = {}, {}, {}

    def catch(layer, *qkv):
        q[layer], k[layer], v[layer] = qkv[:3]

    twofour.hf.enable(model, mode="sdpa")
    with torch.no_grad(), twofour.hf.record(model, catch):
        model.model(tokens(1, 1200, seed=9), use_cache=False)
    losses = []
    for calibration in (balanced, identity):
        out = twofour.attention(
            q[1], k[1], v[1], mode="nm24/none64/s0/l0", causal=True, layout="bhmd",
            calibration=calibration.layers[1],
        )  # fmt: skip
        exact = twofour.attention(q[1], k[1], v[1], mode="dense", causal=True, layout="bhmd")
        losses.append(float((out - exact).norm() / exact.norm()))
    assert losses[0] < losses[1]


def test_too_few_tokens_and_unknown_kinds_are_refused():
    with pytest.raises(twofour.InvalidArgumentError, match="at least 4096 tokens, got 4095"):
        calibrate.calibrate(tiny_llama(), tokens(4095))
    with pytest.raises(twofour.InvalidArgumentError, match="balanced, permutation, identity"):
        calibrate.calibrate(tiny_llama(), tokens(4096), kind="best")


def test_enable_refuses_the_calibration_of_another_model(tmp_path):
    found = calibrate.calibrate(tiny_llama(), tokens(4096), kind="permutation")
    path = tmp_path / "c.safetensors"
    found.save(path)
    twofour.hf.enable(tiny_llama(), mode="refined", calibration=path)
    with pytest.raises(twofour.InvalidArgumentError, match="layers 2 against 3"):
        twofour.hf.enable(tiny_llama(num_hidden_layers=3), mode="refined", calibration=path)
    other = tiny_llama()
    other.config._name_or_path = "somewhere/else"
    with pytest.raises(twofour.InvalidArgumentError, match="model 'llama' against 'else'"):
        twofour.hf.enable(other, mode="refined", calibration=path)
    assert other.config._attn_implementation == "sdpa"  # refused before anything changed


def test_command_line(tmp_path, capsys):
    save_tiny_model(tmp_path / "model")
    book = tmp_path / "book.txt"
    book.write_text("It is a truth universally acknowledged. " * 200)
    out = tmp_path / "basis.safetensors"
    arguments = ["--model", str(tmp_path / "model"), "--text", str(book), "--out", str(out)]
    run = calibrate._cli.run
    assert run("calibrate", calibrate._main, [*arguments, "--tokens", "5000"]) == 0
    assert Calibration.load(out).model == "model"
    capsys.readouterr()
    book.write_text("Too short.")
    assert run("calibrate", calibrate._main, arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error == "calibrate: calibration text: expected at least 4096 tokens, got 10"
    assert run("calibrate", calibrate._main, [*arguments[:-1], str(tmp_path / "no/x")]) == 2


def test_command_line_refuses_a_folder_to_write_before_any_work(tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--model", str(tmp_path / "none")]
    assert calibrate._cli.run("calibrate", calibrate._main, arguments) == 2
    assert "--out: expected a file to write, got a folder" in capsys.readouterr().err


def test_command_line_names_an_option_once(tmp_path, capsys):
    with pytest.raises(SystemExit):
        calibrate._main(["--out", str(tmp_path / "c"), "--tokens", "few"])
    assert "argument --tokens: expected a number, got 'few'" in capsys.readouterr().err
