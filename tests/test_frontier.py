"""`scripts/frontier.py` without its trainings: settings, the journal, statistics, tables, pictures."""

import json
import struct
from types import SimpleNamespace

import frontier
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tradeoff import analysis, journal, launch, plots, report, settings, tasks
from tradeoff.journal import Journal, Run

FASHION, TEXT, MOVIELENS = tasks.TASKS
NUMBERS = st.integers(0, 6).map(float)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12), st.sampled_from((1, -1)))
def test_nothing_beats_what_is_on_the_frontier(points, sign):
    def beats(a, b):
        return a != b and a[0] <= b[0] and sign * a[1] >= sign * b[1]

    best = {p for p in points if not any(beats(other, p) for other in points)}
    found = analysis.pareto(points, sign)
    assert {points[i] for i in found} == best
    assert len(found) == len(best)  # of equal points one


def results_of(task, **by_setting):
    """Results by setting: bytes, then the metric by seed."""
    return {
        Run(task.key, key.replace("_", "-"), seed): {
            task.metric.key: value,
            "wire_bytes_per_step": sent,
            "seconds": 3.0,
            "steps": 10,
            "same_weights": True,
        }
        for key, (sent, *values) in by_setting.items()
        for seed, value in enumerate(values)
    }


def rows_of(task, **by_setting):
    chosen = list(settings.chosen(settings.words(), task.importance, task.sparse))
    return {row.setting.key: row for row in analysis.rows(task, chosen, results_of(task, **by_setting))}


def test_rows_hold_statistics_over_the_seeds():
    rows = rows_of(
        FASHION,
        none=(1e6, 0.80, 0.84),
        log4=(125e3, 0.79, 0.81),
        int4=(130e3, 0.79, 0.80),
        deadzone_64=(16e3, 0.85, 0.71),
    )
    assert list(rows) == ["none", "int4", "log4", "deadzone-64"]  # most bytes first
    log4 = rows["log4"]
    assert (log4.mean, log4.values) == (pytest.approx(0.80), (0.79, 0.81))
    assert (log4.ratio, log4.seconds) == (8, 0.3)
    assert log4.kept == pytest.approx(0.80 / 0.82)
    assert [row.within for row in rows.values()] == [True, False, True, False]
    assert [row.frontier for row in rows.values()] == [True, False, True, True]


def test_less_loss_is_better():
    rows = rows_of(TEXT, none=(1e6, 1.50, 1.54), log4=(125e3, 1.53, 1.55), int4=(250e3, 1.6, 1.6))
    assert rows["log4"].kept == pytest.approx(1.52 / 1.54)
    assert [row.within for row in rows.values()] == [True, False, True]
    assert [row.frontier for row in rows.values()] == [True, False, True]


def test_one_seed_has_no_spread_and_no_reference_no_rows():
    assert rows_of(FASHION, none=(1e6, 0.8), log4=(1e5, 0.9))["log4"].within is None
    assert rows_of(FASHION, log4=(1e5, 0.9, 0.9)) == {}


def test_verdicts_hold_figures_against_targets():
    rows = rows_of(
        FASHION,
        none=(1e6, 0.80, 0.84),
        deadzone_64=(14e3, 0.80, 0.80),
        deadzone_128_entropy=(10e3, 0.70, 0.70),
        adaptive_8=(120e3, 0.79, 0.79),
        ddp_powersgd_1=(14e3, 0.79, 0.79),  # as few bytes, headers included
        ddp_powersgd_2=(28e3, 0.81, 0.81),
    )
    fewest, second, first, adaptive = analysis.verdicts(FASHION, list(rows.values()))
    assert (fewest.met, fewest.figure) == (True, "71.4 x, deadzone-64")
    assert (first.met, first.figure) == (True, "80.00 against 79.00 %: deadzone-64, 14.0 kB")
    assert (second.met, second.figure) == (False, "80.00 against 81.00 %: deadzone-64, 14.0 kB")
    assert (adaptive.met, adaptive.figure) == (False, "8.33 x, 96.34 %")
    near = rows_of(
        FASHION, none=(1e6, 0.80, 0.84), adaptive_8=(120e3, 0.801, 0.801), ddp_powersgd_1=(119e3, 0.5)
    )
    _, hook, adaptive = analysis.verdicts(FASHION, list(near.values()))
    assert (adaptive.met, adaptive.figure) == (True, "8.33 x, 97.68 %, within")
    assert (hook.met, hook.figure) == (None, "none of ours has as few bytes")
    one = rows_of(TEXT, none=(1e6, 1.5), ddp_powersgd_1=(14e3, 1.4))
    (alone,) = analysis.verdicts(TEXT, list(one.values()))
    assert (alone.met, alone.figure) == (None, "none of ours has as few bytes")


def test_the_tables_show_spread_and_verdicts():
    rows = list(rows_of(TEXT, none=(1e6, 1.5, 1.6), adaptive_8=(1e5, 1.55, 1.57)).values())
    assert report.table(TEXT, rows).splitlines()[2:] == [
        "| none * | 1000.0 | 1.0 x | 1.5500 (1.5000 to 1.6000) | 100.00 | yes | 300.0 | yes |",
        "| adaptive-8 * | 100.0 | 10.0 x | 1.5600 (1.5500 to 1.5700) | 99.36 | yes | 300.0 | yes |",
    ]
    said = report.targets([(TEXT, v) for v in analysis.verdicts(TEXT, rows)]).splitlines()[2:]
    assert said == [
        "| text | ≥ 16 x fewer bytes within the spread of none's seeds | 10.0 x, adaptive-8 | no |",
        "| text | adaptive-8: ≥ 8 x fewer bytes at ≥ 99.2 % of none, or within its spread | "
        "10.00 x, 99.36 %, within | yes |",
    ]


def test_sparse_gradients_are_held_against_sparse_ones():
    results = {
        "none": (1e6, 0.90, 0.92),
        "log4": (100e3, 0.91, 0.91),
        "ddp_powersgd_1": (40e3, 0.95, 0.95),
        "none_sparse": (80e3, 0.89, 0.90),
        "log4_sparse": (10e3, 0.91, 0.93),
        "adaptive_8_sparse": (9e3, 0.895, 0.897),
        "adaptive_80_entropy": (12e3, 1.2, 1.2),  # of which nothing of the kind is expected
    }
    rows = rows_of(MOVIELENS, **results)
    log4 = rows["log4-sparse"]
    assert (rows["none-sparse"].ratio, rows["none-sparse"].kept, log4.ratio) == (1, 1, 8)
    assert (log4.kept, log4.within) == (pytest.approx(0.895 / 0.92), False)
    tables = report.table(MOVIELENS, list(rows.values())).split("\n\n")
    assert ["fewer than none |" in t for t in tables] == [True, False]
    assert "| log4-sparse | 10.0 | 8.0 x | 0.9200 (0.9100 to 0.9300) | 97.28 | no |" in tables[1]
    dense, sparse, hook, adaptive = analysis.verdicts(MOVIELENS, list(rows.values()))
    assert (dense.met, dense.figure) == (False, "10.0 x, log4; 83.3 x at 75.83 %, adaptive-80-entropy")
    assert (sparse.met, sparse.figure) == (None, "8.9 x, adaptive-8-sparse")
    # With dense gradients.
    assert (hook.met, hook.figure) == (False, "1.2000 against 0.9500 stars: adaptive-80-entropy, 12.0 kB")
    assert (adaptive.met, adaptive.figure) == (True, "8.89 x, 99.89 %, within")
    del results["none_sparse"]
    assert list(rows_of(MOVIELENS, **results)) == ["none", "log4", "ddp-powersgd-1", "adaptive-80-entropy"]


def test_settings_are_told_apart_and_fit_their_task():
    assert len(settings.BY_KEY) == len(settings.SETTINGS)
    of_fashion = [s.key for s in settings.chosen(["log4", "deadzone"], "energy", sparse=False)]
    assert of_fashion == [
        "none",
        "log4",
        *(f"deadzone-{r}" for r in ("32", "64", "64-entropy", "70-entropy-small", "128-entropy")),
    ]
    of_movielens = [s.key for s in settings.chosen(["log4"], "coordinate", sparse=True)]
    assert of_movielens == ["none", "log4", "none-sparse", "log4-sparse"]
    assert [task.importance for task in tasks.TASKS] == ["energy", "coordinate", "coordinate"]
    step = settings.BY_KEY["deadzone-64"]
    assert step.options_for("coordinate") == {"domain": "normalized", "target_ratio": 64}
    assert step.options_for("energy") == {"target_ratio": 64}
    assert set(settings.QUICK) <= settings.words()


def test_horovod_gathers_rows_and_indices_of_sparse_gradients_uncompressed():
    torch = pytest.importorskip("torch")
    from tradeoff.ways import ByHorovod
    from training.models import Recommender

    four = SimpleNamespace(size=lambda: 4)
    horovod = ByHorovod(four, None, SimpleNamespace(compression="fp16"))
    net = Recommender(10, 20, width=8, sparse=True)
    horovod.watch(net)
    for rows in (2, 4):
        net(
            torch.tensor([[3, 5]] * rows)
        ).sum().backward()  # as Horovod gets them: with rows that occur twice
        net.zero_grad()
    dense = 2 * (16 * 64 + 64 + 64 + 1)
    tables = 2 * 3 * (8 + 4 * 8)  # of both, three rows on average: an index and eight numbers
    assert horovod.bytes_per_step(net) == 2 * 3 / 4 * dense + 3 * tables


def test_other_variables_take_a_launch_of_their_own(tmp_path, monkeypatch):
    started, file = [], Journal(tmp_path / "journal.jsonl")

    def ranks(plan, watched, timeout, environment):
        planned = json.loads(plan.read_text())["runs"]
        started.append((environment, [Run(*run) for _, run in planned]))
        for recipe, run in planned:
            file.add(journal.DONE, Run(*run), recipe=recipe)

    monkeypatch.setattr(launch, "_launch", ranks)
    keys = ["none", "deadzone-70-entropy-small", "log4"]
    recipes = {f"fashion/{key}": settings.BY_KEY[key].recipe("energy") for key in keys}
    launch.trained(journal.in_order(keys, [0, 1], "fashion"), recipes, file, tmp_path, 1.0, print)
    small = {"GRADFLOW_MIN_ELEMENTS": "1"}
    assert started == [
        ({}, [Run("fashion", key, seed) for seed in (0, 1) for key in ("none", "log4")]),
        (small, [Run("fashion", "deadzone-70-entropy-small", seed) for seed in (0, 1)]),
    ]
    assert recipes["fashion/deadzone-70-entropy-small"]["environment"] == small  # so that --resume can tell
    assert len(file.results(recipes)) == 6


def test_what_a_build_lacks_is_said_and_what_it_has_can_be_made():
    absent = settings.Setting("x", "x", settings.OURS, "log5")
    assert "unknown codec 'log5'; known: " in absent.missing("energy")
    wrong = settings.Setting("x", "x", settings.OURS, "log4", {"blocks": 3})
    assert "blocks" in wrong.missing("energy")
    for kind in ("energy", "coordinate"):
        for setting in settings.chosen(
            ["none", "fp16", "int8", "int4", "log4", "deadzone", "adaptive"], kind, True
        ):
            assert setting.missing(kind) is None, setting.key


def test_a_torn_journal_is_read_and_continued(tmp_path):
    file = Journal(tmp_path / "deep" / "journal.jsonl")
    first, second = Run("fashion", "none", 0), Run("fashion", "log4", 0)
    assert file.events() == [] and file.unfinished() is None
    file.add(journal.BEGUN, first)
    file.add(journal.DONE, first, recipe={"steps": 3}, accuracy=0.5)
    whole = file.path.read_bytes()
    file.add(journal.BEGUN, second)
    for end in range(len(whole), file.path.stat().st_size):  # cut off anywhere in the last line, or before it
        torn = file.path.read_bytes()
        file.path.write_bytes(torn[:end])
        file.add(journal.DONE, second, recipe={"steps": 3}, accuracy=0.6)
        done = file.results({"fashion/none": {"steps": 3}, "fashion/log4": {"steps": 3}})
        assert {run: result["accuracy"] for run, result in done.items()} == {first: 0.5, second: 0.6}
        file.path.write_bytes(torn)
    assert file.unfinished() == second
    assert list(file.results({"fashion/none": {"steps": 4}, "fashion/log4": {"steps": 3}})) == []


def test_only_the_first_word_of_a_failure_counts(tmp_path):
    file, run = Journal(tmp_path / "journal.jsonl"), Run("text", "log4", 2)
    file.add(journal.BEGUN, run)
    file.add(journal.FAILED, run, error="ValueError: 3", rank=1)
    file.add(journal.FAILED, run, error="the domain failed", rank=0)
    assert file.failures() == {run: "ValueError: 3"}
    assert file.failures(since=3) == {} and file.unfinished() is None
    file.begin_anew()
    assert file.events() == [] and len(Journal(tmp_path / "journal.jsonl.old").events()) == 3


def test_a_report_of_what_lies_there(tmp_path, capsys):
    file = Journal(tmp_path / "journal.jsonl")
    for run, result in results_of(
        FASHION, none=(1e6, 0.80, 0.84), log4=(125e3, 0.70, 0.81), int4=(250e3, 0.8)
    ).items():
        options = settings.BY_KEY[run.setting].options_for(FASHION.importance)
        file.add(journal.DONE, run, recipe={**FASHION.recipe(7), "options": options}, **result)
    words = [
        "--report",
        "--tasks",
        "fashion",
        "--steps",
        "7",
        "--journal",
        str(file.path),
        "--seeds",
        "0",
        "1",
    ]
    found, plot = tmp_path / "found.json", tmp_path / "plots"
    assert frontier.main([*words, "--json", str(found), "--plot", str(plot)]) == 0
    text = capsys.readouterr().out
    assert "| log4 * | 125.0 | 8.0 x | 75.50 (70.00 to 81.00) | 92.07 | no | 300.0 | yes |" in text
    assert "| int4 | 250.0 | 4.0 x | 80.00 (one seed) | 97.56 | yes | 300.0 | yes |" in text.replace(
        "int4 *", "int4"
    )
    assert [row["setting"] for row in json.loads(found.read_text())["tasks"]["fashion"]] == [
        "none",
        "int4",
        "log4",
    ]
    for name in ("frontier.png", "frontier-fashion.png"):
        head = (plot / name).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", head[16:])) > 600
    assert frontier.main([*words, "--seeds", "5"]) == 1
    assert "has no result of none" in capsys.readouterr().err


def test_texts_stand_apart_where_there_is_room():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rows = list(
        rows_of(
            FASHION,
            none=(1e6, 0.87),
            deadzone_64=(1.00e5, 0.85),
            deadzone_128_entropy=(1.05e5, 0.851),
            powersgd_1=(1.03e5, 0.8505),
        ).values()
    )
    plots._panel(axes, FASHION, rows)
    plots._name(figure, axes, FASHION, rows)
    boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "log4", "log5"], "--only log5: unknown; known: "),
        (["--steps", "0"], "--steps 0: expected more than 0"),
        (["--tasks", "digits"], "invalid choice: 'digits'"),
    ],
)
def test_options_that_make_no_sense(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        frontier.main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
