"""Figures draw what they were given."""

from __future__ import annotations

import pytest

from dtm.errors import ConfigError
from dtm.report.figures import annealing_figure, comparison_figure, diversity_figure

ROWS = [
    {"tilt": 0.0, "valid": 0.80, "reward": 0.30, "coverage": 2.8},
    {"tilt": 2.5, "valid": 0.85, "reward": 0.38, "coverage": 2.6},
    {"tilt": 5.0, "valid": 0.91, "reward": 0.45, "coverage": 2.5},
]


def drawn(line):
    return list(line.get_xdata()), list(line.get_ydata())


def test_each_panel_draws_its_measure_against_the_tilt():
    figure = annealing_figure(ROWS)
    assert [axes.get_title() for axes in figure.axes] == ["Valid completions", "Mean reward", "Coverage"]
    for axes, key in zip(figure.axes, ("valid", "reward", "coverage"), strict=True):
        assert drawn(axes.lines[0]) == ([0.0, 2.5, 5.0], [row[key] for row in ROWS])
    assert figure.get_supxlabel() == "tilt $a$"


def test_a_long_label_and_large_amounts_are_readable():
    """One label below all panels, inside the figure; millions as 1M, without a 1e6 at the end of the axis."""
    spent = [{**row, "spent": 1e6 * row["tilt"]} for row in ROWS]
    label = "tokens through the models (measured on validation prompts)"
    figure = comparison_figure({"c-dtm": [spent], "spg": [spent]}, axis=label, amount="spent")
    figure.canvas.draw()
    (box,) = (text.get_window_extent() for text in figure.texts if text.get_text() == label)
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert not box.overlaps(figure.legends[0].get_window_extent())
    for axes in figure.axes:
        assert "2M" in [tick.get_text() for tick in axes.get_xticklabels()]
        assert axes.xaxis.get_offset_text().get_text() == ""


def test_diversity_is_drawn_against_the_reward_at_equal_cost():
    seeds = [
        [{"spent": 0, "reward": 0.0, "distinct": 1.0}, {"spent": 2, "reward": 1.0, "distinct": 0.5}],
        [{"spent": 0, "reward": 0.2, "distinct": 0.8}, {"spent": 4, "reward": 1.0, "distinct": 0.2}],
    ]
    figure = diversity_figure({"c-dtm": seeds, "spg": seeds[:1]}, "spent")
    (axes,) = figure.axes
    both, alone = axes.lines
    reward, distinct = drawn(both)  # the second seed is interpolated at a cost of 2, the most that both have
    assert reward == pytest.approx([0.1, 0.8])
    assert distinct == pytest.approx([0.9, 0.5])
    assert drawn(alone) == ([0.0, 1.0], [1.0, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["c-dtm", "spg"]
    assert diversity_figure({"own": [[{"spent": 0, "reward": 0.5}]]}, "spent") is None


def test_the_reward_panel_marks_the_base_and_the_best_possible():
    _, reward, _ = annealing_figure(ROWS, best=0.6).axes
    _, base, best = reward.lines
    assert drawn(base)[1] == [0.30, 0.30]
    assert drawn(best)[1] == [0.6, 0.6]
    assert (base.get_linestyle(), best.get_linestyle()) == (":", "--")
    assert [text.get_text() for text in reward.texts] == ["base 0.3", "best possible 0.6"]
    low, high = reward.get_ylim()
    assert low < 0.30 < 0.6 < high


def test_without_a_known_best_only_the_base_is_marked():
    _, reward, _ = annealing_figure(ROWS).axes
    assert [text.get_text() for text in reward.texts] == ["base 0.3"]


def test_settings_are_told_apart_by_colour_and_named_in_the_legend():
    better = [{**row, "reward": row["reward"] + 0.1} for row in ROWS]
    figure = comparison_figure({"c one": [ROWS], "c zero": [better]})
    lines = figure.axes[0].lines[:2]
    assert len({line.get_color() for line in lines}) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["c one", "c zero"]
    assert drawn(figure.axes[1].lines[1])[1] == pytest.approx([0.40, 0.48, 0.55])


def test_a_task_with_a_reward_alone_gets_one_panel():
    figure = annealing_figure([{"tilt": row["tilt"], "reward": row["reward"]} for row in ROWS])
    assert [axes.get_title() for axes in figure.axes] == ["Mean reward"]


def test_other_measures_are_drawn_on_request():
    rows = [{**row, "length": 9.0 + row["tilt"]} for row in ROWS]
    (axes,) = comparison_figure({"": [rows]}, panels={"length": "Length"}).axes
    assert axes.get_title() == "Length"
    assert drawn(axes.lines[0])[1] == [9.0, 11.5, 14.0]


def test_several_runs_become_their_mean_and_a_band_between_the_extremes():
    better = [{**row, "reward": row["reward"] + 0.1} for row in ROWS]
    _, reward, _ = annealing_figure(ROWS, better).axes
    assert drawn(reward.lines[0])[1] == pytest.approx([0.35, 0.43, 0.50])
    (band,) = reward.collections
    edge = {(round(x, 6), round(y, 6)) for x, y in band.get_paths()[0].vertices}
    assert edge == {(r["tilt"], round(r["reward"] + up, 6)) for r in ROWS for up in (0, 0.1)}


def test_runs_at_different_tilts_are_compared_where_both_have_been():
    other = [{"tilt": 0.0, "reward": 0.2}, {"tilt": 4.0, "reward": 0.4}]
    (reward,) = annealing_figure(ROWS, other).axes
    tilts, mean = drawn(reward.lines[0])
    assert tilts == [0.0, 2.5, 4.0]
    assert mean == pytest.approx([(0.30 + 0.2) / 2, (0.38 + 0.325) / 2, (0.422 + 0.4) / 2])


def test_nothing_to_draw_is_said():
    for runs in ([], [[]], [ROWS, []], [[{"tilt": 0.0, "loss": 1.0}]]):
        with pytest.raises(ConfigError, match="no measures to plot"):
            annealing_figure(*runs)
