"""The needle test: its prompts, its counting, and that every mode really reads the prompt."""

import json
import re

import pytest
import torch
from tokenizers import decoders
from transformers import AutoTokenizer, LlamaForCausalLM

import twofour
import twofour.hf
from hf_models import save_tiny_model, tiny_llama
from twofour import _cli, models, passkey

PRUNED = "exact/pair64/s0/l0"
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
BOOK = "She was the youngest of the two daughters. Was he pleased? Not at all! " * 60
TOKENS = 1000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model whose tokenizer has one token a character and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    save_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def ids(tokenizer):
    return passkey.tokenize(tokenizer, BOOK)


class Copying(LlamaForCausalLM):
    """Answers with the key of its prompt, whatever its attention computes."""

    tokenizer = None
    wrong = False

    def forward(self, input_ids=None, **options):
        out = super().forward(input_ids=input_ids, **options)
        if input_ids.size(1) > 1:
            prompt = self.tokenizer.decode(input_ids[0])
            key = re.search(r"pass key is \D*(\d{5})", prompt)[1]
            answer = f" {key[::-1] if self.wrong else key}."
            self.answer = iter(passkey.tokenize(self.tokenizer, answer).tolist() + [2] * 9)
        out.logits.zero_()[..., next(self.answer)] = 1
        return out


def copying(tokenizer, wrong=False):
    model = tiny_llama()
    model.__class__ = Copying
    model.tokenizer, model.wrong = tokenizer, wrong
    return model


def trials(tokenizer, ids, **options):
    return passkey.trials_of(tokenizer, ids, TOKENS, **{"trials": 8, "depths": 4} | options)


def test_prompts_hold_the_key_once_between_sentences(tokenizer, ids):
    asked = trials(tokenizer, ids)
    assert [trial.depth for trial in asked] == [0, 1, 2, 3] * 2
    assert len({trial.key for trial in asked}) == 8
    head, tail = passkey.frame(tokenizer)
    for trial in asked:
        assert trial.prompt.numel() == TOKENS - passkey.NEW_TOKENS
        words = tokenizer.decode(trial.prompt)
        needle = passkey._NEEDLE.format(key=trial.key)
        assert words.startswith("[user]") and words.count(needle) == 1
        assert words.endswith(f"[assistant]{passkey._ANSWER}")
        before, after = (len(part) for part in words.split(needle))
        before, after = before - head.numel(), after - tail.numel()
        wanted = (trial.depth + 0.5) / 4 * (before + after)
        assert abs(before - wanted) <= 30  # sentences of at most 43 characters
        assert words[head.numel() + before - 1] in ".!?"
        assert words.replace(needle, "")[head.numel() : -tail.numel()] in BOOK


def test_the_seed_decides_and_nothing_else(tokenizer, ids):
    def prompts(**options):
        return [(trial.key, trial.prompt.tolist()) for trial in trials(tokenizer, ids, **options)]

    first = prompts()
    torch.manual_seed(5)
    assert prompts() == first != prompts(seed=1)
    assert prompts(trials=3) == first[:3]


@pytest.mark.parametrize(
    ("answer", "right"),
    [(" 12345.", True), ("12345", True), (": 12345 or 1", True), (" 123456", False),
     (" 1 12345", False), (" 12,345", False), (" none", False), ("", False)],
)  # fmt: skip
def test_the_first_number_counts(answer, right):
    assert passkey.matches(answer, "12345") is right


def test_copying_the_key_finds_them_all_in_every_mode(tokenizer, ids, monkeypatch):
    prefills = []
    inner = twofour.hf.attention

    def watched(q, *arguments, mode, **options):
        prefills.append((q.size(1), mode))
        return inner(q, *arguments, mode=mode, **options)

    monkeypatch.setattr(twofour.hf, "attention", watched)
    model = copying(tokenizer)
    found = passkey.evaluate(
        model, tokenizer, ids, ["dense", PRUNED], lengths=[700, TOKENS], trials=4, depths=2
    )
    assert list(found.scores) == ["sdpa", "dense", PRUNED]
    for scores in found.scores.values():
        assert list(scores) == [700, TOKENS]
        for score in scores.values():
            assert (score.correct, score.by_depth, score.misses) == (4, [2, 2], [])
    # Two layers read each prompt in the mode; the tokens after it are dense.
    assert prefills == [
        (tokens - passkey.NEW_TOKENS, mode)
        for tokens in (700, TOKENS) for mode in ("exact/none", PRUNED) for _ in range(4 * 2)
    ]  # fmt: skip
    assert model.config._attn_implementation == "sdpa"


def test_wrong_keys_are_misses(tokenizer, ids):
    model = copying(tokenizer, wrong=True)
    found = passkey.evaluate(model, tokenizer, ids, [], lengths=[TOKENS], trials=3, depths=3)
    score = found.scores["sdpa"][TOKENS]
    asked = trials(tokenizer, ids, trials=3, depths=3)
    assert score.correct == 0 and score.by_depth == [0, 0, 0]
    assert score.misses == [passkey.Miss(t.key, t.depth, f" {t.key[::-1]}. ") for t in asked]


def test_scores_against_the_reference(tokenizer, ids):
    """A model that fails in one mode only."""
    model = copying(tokenizer)
    plain = model.forward

    def forward(*arguments, **options):
        settings = model.model.layers[0].self_attn._twofour_settings
        model.wrong = settings.modes[0] == PRUNED
        return plain(*arguments, **options)

    model.forward = forward
    options = {"lengths": [TOKENS], "trials": 3, "depths": 3}
    found = passkey.evaluate(model, tokenizer, ids, ["dense", PRUNED], **options)
    rows = found.as_json()["modes"]
    assert [rows[mode]["tokens"]["1000"]["correct"] for mode in rows] == [3, 3, 0]
    assert [rows[mode]["tokens"]["1000"]["against_reference"] for mode in rows] == [0, 0, -3]
    lines = [re.split(r"\s{2,}", line) for line in passkey.table(found).splitlines()]
    assert lines[2:] == [
        ["sdpa (torch)", "exact/none", "3 of 3"], ["dense", "exact/none", "3 of 3"],
        [f"{PRUNED:<14}{PRUNED}", "0 of 3"],
    ]  # fmt: skip


def test_requests_that_cannot_be_met(tokenizer, ids, tmp_path):
    model = tiny_llama(max_position_embeddings=500)
    with pytest.raises(twofour.InvalidArgumentError, match="at most 500 tokens"):
        passkey.evaluate(model, tokenizer, ids, ["dense"], lengths=[501])
    with pytest.raises(twofour.InvalidArgumentError, match=r"tokens: expected at least \d+, half"):
        passkey.trials_of(tokenizer, ids, 300)
    with pytest.raises(twofour.InvalidArgumentError, match=r"text: expected at least \d+ tokens"):
        passkey.trials_of(tokenizer, ids[:600], TOKENS)
    save_tiny_model(tmp_path)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    with pytest.raises(twofour.UnsupportedError, match="a chat template, got none"):
        passkey.trials_of(plain, ids, TOKENS)
    plain.chat_template = "question"
    with pytest.raises(twofour.UnsupportedError, match="shows the question once, got it 0 times"):
        passkey.trials_of(plain, ids, TOKENS)


def test_command_line(folder, tmp_path, capsys):
    book = tmp_path / "book.txt"
    book.write_text(BOOK)
    arguments = ["--model", str(folder), "--text", str(book), "--tokens", "700,900"]
    arguments += ["--modes", "dense,score,int8", "--trials", "2", "--device", "cpu"]
    run = _cli.run
    assert run("passkey", passkey._main, [*arguments, "--skip", "100", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["text"] == "book.txt" and shown["skip"] == 100 and shown["trials"] == 2
    assert list(shown["modes"]) == ["sdpa", "dense", "score", "int8"]
    assert shown["modes"]["int8"]["sparsity"].startswith("int8/pair")
    for mode in shown["modes"].values():
        for tokens in ("700", "900"):
            row = mode["tokens"][tokens]
            assert row["correct"] + len(row["misses"]) == 2 and len(row["by_depth"]) == 10
    assert run("passkey", passkey._main, [*arguments, "--skip", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "700 tokens" in lines[0] and "900 tokens" in lines[0]
    assert [line.split()[0] for line in lines[2:]] == ["sdpa", "dense", "score", "int8"]
    assert run("passkey", passkey._main, ["--modes", "fast"]) == 2
    assert "fast" in capsys.readouterr().err
    for usage in (["--tokens", "1"], ["--tokens", "a"], ["--modes", ""], ["--trials", "0"]):
        with pytest.raises(SystemExit, match="2"):
            passkey._main(usage)
        assert "--help lists the options" in capsys.readouterr().err


@pytest.mark.slow
def test_smollm2_finds_some_keys():
    """The real model on the real book: five right digits are no coincidence."""
    try:
        model, tokenizer = models.load(device="cpu")
        words = passkey.text.read(None)
    except twofour.IoError as error:
        pytest.skip(f"the model or the text cannot be fetched: {error}")
    ids = passkey.tokenize(tokenizer, words[:60000])
    found = passkey.evaluate(model, tokenizer, ids, ["dense"], lengths=[768], trials=2, depths=2)
    scores = [found.scores[mode][768] for mode in ("sdpa", "dense")]
    assert scores[0].correct == scores[1].correct >= 1
