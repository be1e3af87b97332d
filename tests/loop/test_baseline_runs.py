"""Baselines through the real trainer: iterations, what is kept between them, and stops and resumes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dtm
from dtm.config import METHODS, IterateConfig, RunConfig, configure_method
from dtm.config.serialise import load_yaml, to_yaml, update
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.loop.plan import training_plan
from dtm.methods.surrogates import bounds
from dtm.random import stream
from dtm.runs.checkpoint import load_latest
from dtm.runs.events import JsonLines, read_events
from dtm.runs.interrupts import Interrupted
from stopping import StopAt
from timeless import timeless_rows

NAMES = [name for name in METHODS if name != "c-dtm"]
FEWER = {"agrpo": {"steps": 3}, "just-grpo": {"positions": 3}, "d2": {"segments": 3}}
"""Fewer rows than by default: enough to choose from five positions."""
LIKE_OTHERS = ("gdsd", "espo", "just-grpo", "d2")
"""Methods in which the loop meets nothing that it does not meet in the others; slow tests leave them out."""
VARIED = [name for name in NAMES if name not in LIKE_OTHERS]
each = pytest.mark.parametrize("name", NAMES)


def upwards(prompts, completions):
    """How many of a path's cells lie in the upper half of the maze."""
    return [sum(cell is not None and cell[0] < 3 for cell in path) / 5 for path in completions]


@pytest.fixture
def iterating(tiny):
    """Two iterations of two updates, in blocks of two; evaluations after each."""

    def make(name: str, **fields) -> RunConfig:
        return replace(
            tiny,
            seed=2,  # rewards differ in both iterations
            method=configure_method(name, updates=2, **FEWER.get(name, {}), **fields),
            iterate=IterateConfig(iterations=2),
            decoding=replace(tiny.decoding, block=2, certainty=None),
            replay=replace(tiny.replay, prompts=5),
            optimizer=replace(tiny.optimizer, batch=32),
            checkpoint=replace(tiny.checkpoint, every=1),
        )

    return make


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def run(make_trainer, config, folder, point=None, resume=False):
    """A run, or its continuation; the trainer, and whether it was stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    log = JsonLines(folder / "metrics.jsonl")
    trainer = make_trainer(config, folder / "checkpoints", [log], StopAt(point), upwards)
    if resume:
        trainer.resume(folder / "checkpoints")
    try:
        trainer.run()
    except Interrupted:
        return trainer, True
    return trainer, False


@pytest.mark.parametrize("name", VARIED)
def test_a_run_stopped_and_resumed_is_the_run_that_was_not(name, iterating, make_trainer, tmp_path):
    config = iterating(name)
    whole, _ = run(make_trainer, config, tmp_path / "whole")
    assert whole.progress.finished == "finished 2 iterations"
    assert whole.progress.step == 4
    # Between the updates of an iteration each method has a state of its own; rollouts are common to all.
    for point in (2, 5, 9) if name == "spg" else (5,):
        folder = tmp_path / str(point)
        _, stopped = run(make_trainer, config, folder, point)
        assert stopped
        again, _ = run(make_trainer, config, folder, resume=True)
        first, second = (t.policy for t in (whole, again))
        assert torch.equal(weights(first.student), weights(second.student))
        assert torch.equal(weights(first.teacher), weights(second.teacher))
        rows = [
            timeless_rows(read_events(f / "metrics.jsonl", kind))
            for f in (tmp_path / "whole", folder)
            for kind in ("step", "evaluation")
        ]
        assert rows[:2] == rows[2:]
        saved = [load_latest(f / "checkpoints").tensors["optimizer"] for f in (tmp_path / "whole", folder)]
        assert all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


@each
def test_every_update_sees_every_rollout_of_its_iteration(name, iterating, make_trainer):
    """VRPO sees the best and the worst of each prompt; a prompt with equal rewards has none."""
    trainer = make_trainer(iterating(name), reward=upwards)
    replay = trainer.open_phase()
    states, chosen = trainer.learner.batch(replay, trainer.progress)
    sizes = torch.unique(chosen.group, return_counts=True)[1].tolist()
    if name == "vrpo":
        differ = [len(torch.unique(part)) > 1 for part in replay.rollouts.reward.view(-1, 4)]
        assert len(differ) == 16
        assert sizes == [2] * sum(differ) != []
        assert (chosen.credit.view(-1, 2).sum(1) == 0).all()
    else:
        assert sizes == [4] * 8
    assert states.sequences == len(chosen.credit)


@pytest.mark.parametrize(("micro_batch", "name"), [*((3, name) for name in VARIED), (7, "spg"), (7, "vrpo")])
def test_the_gradient_does_not_depend_on_the_micro_batch(name, micro_batch, iterating, make_trainer):
    """The second update of an iteration, where ratios are no longer 1; plain descent at rate 0.01."""
    after = []
    for size in (None, micro_batch):
        config = iterating(name)
        config = replace(
            config, optimizer=replace(config.optimizer, micro_batch=size, lr=0.01, clip_norm=1e9)
        )
        trainer = make_trainer(config, reward=upwards)
        trainer.optimizer = torch.optim.SGD(trainer.policy.student.parameters())
        before = weights(trainer.policy.student)
        trainer._advance()
        trainer._advance()
        after.append(weights(trainer.policy.student))
    change = float((after[0] - before).abs().max())
    assert change > 1e-4
    torch.testing.assert_close(after[1], after[0], atol=1e-3 * change, rtol=0)


def test_masks_fill_up_from_update_to_update(iterating, make_trainer):
    """UniGRPO masks everything in the last update of an iteration."""
    trainer = make_trainer(iterating("unigrpo"), reward=upwards)
    replay = trainer.open_phase()
    shares = []
    for number in range(2):
        trainer.progress.phase_step = number
        states, _ = trainer.learner.batch(replay, trainer.progress)
        shares.append(float(states.eligible.sum() / states.row_length.sum()))
    assert shares[0] < 0.9
    assert shares[1] == 1


def test_moments_are_kept_the_rate_is_constant_and_the_student_promoted(iterating, make_trainer, tmp_path):
    config = iterating("diffu-grpo")
    trainer, _ = run(make_trainer, config, tmp_path)
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {4}
    rows = read_events(tmp_path / "metrics.jsonl", "step")
    assert [row["lr"] for row in rows] == [config.optimizer.lr] * 4
    assert [row["clipped"] for row in rows[::2]] == [0, 0]  # π_θ = π_a at the start of an iteration
    assert [row["tilt"] for row in read_events(tmp_path / "metrics.jsonl", "evaluation")] == [0, 1, 2]
    purposes = [row["purpose"] for row in read_events(tmp_path / "metrics.jsonl", "rollouts")]
    assert purposes == ["rebuild", "rebuild"]
    policy, base = trainer.policy, dtm.load_model(config.model.base)
    assert policy.average is None
    assert torch.equal(weights(policy.student), weights(policy.teacher))
    assert torch.equal(weights(policy.base), weights(base))
    assert not torch.equal(weights(policy.student), weights(base))


@pytest.mark.parametrize(("name", "kept"), [("spg", False), ("wd1", False), ("vrpo", True), ("gdpo", False)])
def test_the_base_is_kept_where_it_is_asked(name, kept, iterating, make_trainer):
    assert (make_trainer(iterating(name)).policy.base is not None) == kept


@each
def test_an_iteration_without_differences_changes_nothing(name, iterating, make_trainer):
    trainer = make_trainer(iterating(name), reward=lambda prompts, completions: [0.1] * len(prompts))
    before = weights(trainer.policy.student)
    progress = trainer.run()
    assert (progress.step, progress.phase) == (0, 2)
    assert torch.equal(weights(trainer.policy.student), before)


def test_dmpo_stores_the_ratio_of_base_and_rollout_model_with_the_rollouts(iterating, make_trainer):
    """0 as long as π_a is π_0; then the difference of bounds, which the credits weigh by."""
    trainer = make_trainer(iterating("dmpo"), reward=upwards)
    policy, method = trainer.policy, trainer.method
    assert (trainer.open_phase().rollouts.log_ratio == 0).all()
    with torch.no_grad():
        for number, parameter in enumerate(policy.student.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=stream(number, "move")))
    trainer._close_phase(trainer.replay, "moved")
    replay = trainer.open_phase()
    rollouts, ratio = replay.rollouts, replay.rollouts.log_ratio
    masking = replace(trainer.learner.masking, plan=method.ratio_plan)
    states = masking.states(rollouts, policy.student.mask_id, trainer.learner._stream("log-ratio", 1))
    with torch.no_grad():
        expected = bounds(policy.log_pi_0(states), states) - bounds(policy.log_pi_a(states), states)
    torch.testing.assert_close(ratio.float(), expected, atol=1e-4, rtol=1e-4)
    assert ratio.abs().max() > 0.1
    credit = method.credit(rollouts.reward, rollouts.group, ratio)
    torch.testing.assert_close(replay.weights.credit, credit)
    assert not torch.allclose(credit, method.credit(rollouts.reward, rollouts.group), atol=0.01)


@pytest.mark.parametrize(("name", "fields"), [("dmpo", {}), ("spg", {"self_normalise": True})])
def test_weights_that_read_the_student_are_those_of_the_whole_batch(name, fields, iterating, make_trainer):
    """In micro-batches of three rows: the gradient of the loss with credits from all scores at once."""
    config = iterating(name, **fields)
    config = replace(config, optimizer=replace(config.optimizer, micro_batch=3))
    trainer = make_trainer(config, reward=upwards)
    learner, method, policy, replay = trainer.learner, trainer.method, trainer.policy, trainer.open_phase()
    with torch.no_grad():
        for number, parameter in enumerate(policy.student.parameters()):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=stream(number, "move")))
    states, weights = learner.batch(replay, trainer.progress)
    phase = learner.phase(replay, trainer.progress)
    learner.gradient(states, weights, phase, 0)
    found = torch.cat([parameter.grad.flatten() for parameter in policy.trained()])
    with torch.no_grad():
        score = method.score(policy, states)
    reweighed = method.reweigh(weights, score)
    assert not torch.allclose(reweighed.credit, weights.credit, atol=1e-3)
    whole = torch.autograd.grad(method.loss(policy, states, reweighed, phase).value, policy.trained())
    expected = torch.cat([gradient.flatten() for gradient in whole])
    torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.abs().max()), rtol=0)


def test_evaluations_can_be_far_between_and_the_last_is_always_made(iterating, make_trainer):
    config = iterating("wd1")
    config = replace(
        config,
        evaluation=replace(config.evaluation, every=2),
        iterate=IterateConfig(iterations=3),
    )
    progress = make_trainer(config, reward=upwards).run()
    assert [row["tilt"] for row in progress.evaluations] == [0, 2, 3]


@each
def test_a_recipe_runs_with_another_method_and_survives_yaml(name, iterating, tmp_path):
    config = replace(iterating(name), evaluation=replace(RunConfig().evaluation, prompts=4, completions=2))
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    assert load_yaml(tmp_path / "run.yaml", RunConfig()) == config
    plan = training_plan(assemble(config))
    assert plan["method"] == name
    assert plan["iterations"] == "2, each of 2 updates"
    if name not in ("spg", "vrpo", "dmpo", "agrpo"):  # one of each kind: plain, pairs, stored ratios, traces
        return
    run = dtm.train(config, out=tmp_path / "run")
    assert run.is_finished
    has_learnt = run.summary["tuned"]["reward"] > run.summary["base"]["reward"]
    assert (f"tuned by {name}" in (run.folder.model / "README.md").read_text()) == has_learnt


def test_a_baseline_learns(iterating, make_trainer):
    """Twenty-four updates towards the upper half of the maze."""
    config = iterating("spg")
    config = replace(
        config,
        iterate=IterateConfig(iterations=12),
        optimizer=replace(config.optimizer, batch=64, lr=1e-2),
        evaluation=replace(config.evaluation, prompts=1, completions=128, every=12),
    )
    progress = make_trainer(config, reward=upwards).run()
    assert progress.evaluations[-1]["reward"] > progress.evaluations[0]["reward"] + 0.1


@pytest.mark.parametrize(
    ("name", "batch", "prompts", "seen"), [("spg", 100, 25, 4), ("wd1", 6, 1, 4), ("vrpo", 7, 3, 2)]
)
def test_a_plan_and_a_forecast_count_what_an_iteration_draws(name, batch, prompts, seen, iterating):
    config = iterating(name)
    config = replace(config, optimizer=replace(config.optimizer, batch=batch))
    assembly = assemble(config)
    drawn = training_plan(assembly)["rollouts per iteration"]
    assert drawn == f"{prompts} prompts × 4 completions, {seen} of each in an update"
    masks = {"spg": 2, "wd1": 1, "vrpo": 8}[name]
    assert assembly.loop.work().rows == 2 * 2 * prompts * seen * masks
    assert assembly.loop.work().rollouts == 2 * prompts * 4 + 3 * 4 * 2


@pytest.mark.parametrize("name", ["agrpo", "d2", "trace-rl", "spg"])
@pytest.mark.parametrize("micro_batch", [1, 8])
def test_the_memory_forecast_counts_the_positions_that_a_micro_batch_holds(
    name, micro_batch, iterating, make_trainer
):
    """One token per step and five per completion; a rollout's rows stay together also in a smaller batch."""
    fields = {"merged": 2} if name == "trace-rl" else {}
    config = iterating(name, **fields)
    config = replace(config, optimizer=replace(config.optimizer, micro_batch=micro_batch))
    trainer, run = make_trainer(config, reward=upwards), assemble(config).training_shape
    states, _ = trainer.learner.batch(trainer.open_phase(), trainer.progress)
    held = states.select(slice(0, trainer.learner._sequences_together(states)))
    if name != "trace-rl":  # whose forecast assumes 64 decoding steps
        assert run.rows == len(held)
    scored = states.eligible.sum(1).float()
    assert scored.mean() <= run.scored <= scored.max()


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        ("diffu-grpo", "epsilon", 1.0),
        ("wd1", "psi", 0.0),
        ("unigrpo", "updates", 0),
        ("spg", "mix", 1.5),
        ("spg", "prompt_noise", 1.0),
        ("vrpo", "draws", 0),
        ("gdpo", "nodes", 0),
        ("trace-rl", "merged", 0),
    ],
)
def test_a_value_that_cannot_run_is_refused_under_its_own_name(method, field, value):
    with pytest.raises(ConfigError) as caught:
        update(RunConfig(), {"method": {"name": method, field: value}}, where="test")
    assert f"method.{field}".replace("_", "-") in str(caught.value)


def test_a_batch_that_holds_no_whole_prompt_is_refused(iterating):
    config = iterating("spg")
    with pytest.raises(ConfigError, match=r"takes 4 completions of a prompt.*holds 3: raise it to 4"):
        assemble(replace(config, optimizer=replace(config.optimizer, batch=3)))
    paired = iterating("vrpo")
    assert assemble(replace(paired, optimizer=replace(paired.optimizer, batch=3))).loop.prompts == 1
