"""twofour tune: what it measures, keeps, shows and refuses."""

import json

import pytest

CASE = ("mode=int8", "heads=2/1", "dim=16", "len=40x600", "causal=bottom_right")
KERNEL = "attention.cpu.int8.pair"


def explained(cli, path, *words):
    words = words or CASE
    out = cli("explain", *words, "--device", "cpu", "--json", env={"TWOFOUR_TUNE_FILE": str(path)})
    rows = json.loads(out.stdout)["plans"][0]["candidates"]
    return {row["kernel"]: row.get("measured_seconds") for row in rows}


def tune(cli, path, *words):
    options = ("--device", "cpu", "--repeat", "3", "--file", path, "--json")
    return json.loads(cli("tune", *words, *options).stdout)


def test_tuned_times_are_kept_and_plans_see_them(cli, tmp_path):
    path = tmp_path / "below" / "tune.tsv"
    assert explained(cli, path)[KERNEL] is None
    (case,) = tune(cli, path, *CASE)["cases"]
    assert [row["kernel"] for row in case["kernels"]] == [KERNEL]
    (row,) = case["kernels"]
    assert row["chosen"] and row["modelled_s"] > 0
    assert 0 < row["min_s"] <= row["median_s"] <= row["max_s"]
    found = explained(cli, path)
    assert found.pop(KERNEL) == row["median_s"]
    assert set(found.values()) == {None}
    # Lengths between the same powers of two share times, others do not.
    assert explained(cli, path, *CASE[:3], "len=63x1000", CASE[4])[KERNEL] == row["median_s"]
    assert explained(cli, path, *CASE[:3], "len=64x600", CASE[4])[KERNEL] is None
    shown = cli("explain", *CASE, "--device", "cpu", env={"TWOFOUR_TUNE_FILE": str(path)}).stdout
    assert "measured" in shown.splitlines()[2] and "ignored" not in shown


def test_list_and_forget(cli, tmp_path):
    path = tmp_path / "tune.tsv"
    listed = ("tune", "--list", "--json", "--file", path)
    assert json.loads(cli(*listed).stdout)["times"] == []
    tune(cli, path, *CASE)
    tune(cli, path, "mode=dense", *CASE[1:])
    times = json.loads(cli(*listed).stdout)["times"]
    assert [time["kernel"] for time in times] == [KERNEL, "attention.cpu.exact.none"]
    tune(cli, path, *CASE)  # again: replaced, not added
    assert len(json.loads(cli(*listed).stdout)["times"]) == 2
    assert KERNEL in cli("tune", "--list", "--file", path).stdout
    cli("tune", "--forget", "--file", path)
    assert json.loads(cli(*listed).stdout)["times"] == []


def test_times_of_another_version_do_not_count(cli, tmp_path):
    path = tmp_path / "tune.tsv"
    tune(cli, path, *CASE)
    header, line = path.read_text().splitlines()
    path.write_text(header + "\n" + "0.0.0-older" + line[line.index("\t") :] + "\n")
    assert explained(cli, path)[KERNEL] is None


def test_a_damaged_file_is_ignored_by_plans_and_kept_by_tune(cli, tmp_path):
    path = tmp_path / "tune.tsv"
    path.write_text("twofour-tune 1\nnonsense\n")
    env = {"TWOFOUR_TUNE_FILE": str(path)}
    lines = cli("explain", *CASE, "--device", "cpu", env=env).stdout.splitlines()
    ignored = [line for line in lines if line.startswith("measured times are ignored: ")]
    assert len(ignored) == 1 and f"{path}:2: expected version" in ignored[0]
    said = cli("tune", *CASE, "--device", "cpu", env=env, code=2).stderr
    assert ":2: expected version" in said and "--forget" in said
    assert path.read_text() == "twofour-tune 1\nnonsense\n"
    cli("tune", "--forget", env=env)
    tune(cli, path, *CASE)
    assert explained(cli, path)[KERNEL] > 0


@pytest.mark.parametrize(
    "words, says",
    [
        ((), "expected one of a case"),
        ((*CASE, "--list"), "expected one of a case"),
        (("--list", "--forget"), "expected one of a case"),
        ((*CASE, "--top", "0"), "--top"),
        ((*CASE, "--repeat", "x"), "expected a whole number in 1..1000"),
        ((*CASE, "--device", "tpu"), "--device: expected cpu"),
    ],
)
def test_refusals(cli, tmp_path, words, says):
    assert says in cli("tune", *words, "--file", tmp_path / "t", code=2).stderr
    assert not (tmp_path / "t").exists()


def test_no_file(cli):
    said = cli("tune", *CASE, env={"TWOFOUR_TUNE_FILE": "off"}, code=2).stderr
    assert said.startswith("twofour: tune: expected --file or a TWOFOUR_TUNE_FILE that is not off")
