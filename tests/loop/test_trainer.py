"""The annealing loop: what a step does, what a phase leaves, and why a run ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import dtm
from dtm.config import AdapterConfig, configure_method
from dtm.errors import ConfigError, DivergedError
from dtm.loop.assemble import assemble
from dtm.loop.learner import Learner
from dtm.loop.meter import Meter
from dtm.methods import Method
from dtm.models import policy as policy_module
from dtm.models.merging import merged
from dtm.runs.checkpoint import load_latest
from dtm.runs.events import Event
from dtm.runs.interrupts import Interrupted
from stopping import StopAt


def changed(config, section: str, **fields):
    return replace(config, **{section: replace(getattr(config, section), **fields)})


def weights(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def base_weights(config) -> torch.Tensor:
    return weights(dtm.load_model(config.model.base))


class Recorder(list[Event]):
    """Keeps every event."""

    __call__ = list.append

    def of(self, kind: str) -> list[dict]:
        return [dict(event.values) for event in self if event.kind == kind]


# ── one step ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("micro_batch", [4, 5, 16])
def test_the_gradient_does_not_depend_on_the_micro_batch(micro_batch, tiny, make_trainer):
    """With plain descent at rate 1 the weights move by the gradient itself."""
    after = []
    for size in (None, micro_batch):
        config = changed(tiny, "optimizer", micro_batch=size, lr=1.0, clip_norm=1e9)
        trainer = make_trainer(config)
        trainer.optimizer = torch.optim.SGD(trainer.policy.student.parameters())
        trainer._advance()
        after.append(weights(trainer.policy.student))
    assert (after[0] - base_weights(tiny)).abs().max() > 1e-2
    torch.testing.assert_close(after[1], after[0], atol=1e-6, rtol=0)


def test_the_gradient_is_clipped_to_its_limit(tiny, make_trainer):
    seen = Recorder()
    trainer = make_trainer(changed(tiny, "optimizer", lr=1.0, clip_norm=0.01), callbacks=[seen])
    trainer.optimizer = torch.optim.SGD(trainer.policy.student.parameters())
    trainer._advance()
    moved = weights(trainer.policy.student) - base_weights(tiny)
    assert seen.of("step")[0]["grad_norm"] > 0.1
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)


def test_adam_has_the_memory_of_the_settings(tiny, make_trainer):
    """Without memory Adam moves every weight by the learning rate, whatever the gradient is."""
    config = changed(tiny, "optimizer", betas=(0.0, 0.0), warmup=0.0, decay=0.0, lr=1e-3)
    trainer = make_trainer(config)
    trainer._advance()
    for _ in range(2):
        before = weights(trainer.policy.student)
        trainer._advance()
        moved = (weights(trainer.policy.student) - before).abs()
        assert float(moved[moved > 1e-6].median()) == pytest.approx(1e-3, rel=1e-3)


def test_weights_decay_as_the_settings_say(tiny, make_trainer):
    """The first step takes lr · decay · θ more from the weights; the gradient is the same."""
    base, after = base_weights(tiny), []
    for decay in (0.0, 0.5):
        trainer = make_trainer(changed(tiny, "optimizer", weight_decay=decay, warmup=0.0, lr=1e-3))
        trainer._advance()
        after.append(weights(trainer.policy.student))
    torch.testing.assert_close(after[0] - after[1], 1e-3 * 0.5 * base, atol=1e-6, rtol=0)


def test_no_gradient_is_left_after_a_step(tiny, make_trainer):
    trainer = make_trainer(tiny)
    trainer._advance()
    assert all(parameter.grad is None for parameter in trainer.policy.trained())


def test_the_average_is_half_way_after_one_step_at_ema_one_half(tiny, make_trainer):
    trainer = make_trainer(tiny)
    trainer._advance()
    base, student = base_weights(tiny), weights(trainer.policy.student)
    assert not torch.equal(student, base)
    assert torch.equal(weights(trainer.policy.teacher), base)
    torch.testing.assert_close(weights(trainer.policy.average), (base + student) / 2)


def test_a_closed_phase_promotes_the_average(tiny, make_trainer, monkeypatch):
    trainer, averages, before = make_trainer(tiny), [], []
    promote = trainer.policy.promote

    def noted() -> None:
        before.extend(weights(model) for model in (trainer.policy.average, trainer.policy.student))
        promote()

    monkeypatch.setattr(trainer.policy, "promote", noted)
    while trainer.progress.phase == 0:
        averages.append(weights(trainer.policy.average))
        trainer._advance()
    teacher = weights(trainer.policy.teacher)
    assert torch.equal(teacher, before[0])
    assert not torch.equal(teacher, before[1])
    assert torch.equal(weights(trainer.policy.student), teacher)
    assert torch.equal(weights(trainer.policy.average), teacher)
    assert not torch.equal(teacher, averages[-1])
    assert (trainer.progress.tilt, trainer.progress.step) == (1.0, 4)


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_does_harm(tiny, make_trainer, tmp_path):
    class Broken(Method):
        masks = None

        def loss(self, policy, states, weights, phase):
            loss = inner.loss(policy, states, weights, phase)
            return replace(loss, value=loss.value * (torch.nan if trainer.progress.step == 3 else 1))

    trainer = make_trainer(tiny, tmp_path)
    inner, trainer.learner = trainer.learner.method, replace(trainer.learner, method=Broken())
    with pytest.raises(DivergedError, match=r"step 3 is not finite.*--optimizer\.lr"):
        trainer.run()
    saved = load_latest(tmp_path)
    assert saved.state["step"] == 3
    assert all(torch.isfinite(value).all() for value in saved.tensors["student"].values())


# ── phases ────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_ends_at_the_final_tilt_and_says_so(tiny, make_trainer):
    seen = Recorder()
    config = changed(tiny, "tilt", step=1.5)
    progress = make_trainer(config, callbacks=[seen]).run()
    assert progress.finished == "reached the final tilt A = 2"
    assert progress.tilt == 2.0
    assert [row["h"] for row in seen.of("phase")] == [1.5, 0.5]
    assert [row["tilt"] for row in seen.of("evaluation")] == [0, 1.5, 2]
    assert [row["reason"] for row in seen.of("phase")] == ["step limit"] * 2
    assert seen[-1].kind == "stopped"
    assert seen[-1].values["reason"] == progress.finished


def test_a_run_ends_at_a_plateau_and_says_so(tiny, make_trainer):
    config = changed(changed(tiny, "evaluation", patience=1), "tilt", final=9.0)
    progress = make_trainer(config, reward=lambda prompts, completions: [0.5] * len(prompts)).run()
    assert progress.finished == "held-out reward has not risen for 1 evaluations"
    assert progress.tilt == 1.0


def test_equal_rewards_teach_nothing(tiny, make_trainer):
    seen = Recorder()
    trainer = make_trainer(tiny, callbacks=[seen], reward=lambda prompts, completions: [0.5] * len(prompts))
    progress = trainer.run()
    assert (progress.tilt, progress.step) == (2.0, 0)
    assert all("nothing to learn" in row["reason"] for row in seen.of("phase"))
    for model in (trainer.policy.student, trainer.policy.teacher):
        assert torch.equal(weights(model), base_weights(tiny))


def test_a_single_prompt_leaves_the_error_of_the_meter_unknown(tiny, make_trainer):
    config = changed(tiny, "replay", prompts=4, held_out=0.25, completions=8)
    progress = make_trainer(config, reward=lambda prompts, completions: range(len(prompts))).run()
    assert progress.absorbed is not None
    assert progress.absorbed_error is None


def test_a_resumed_run_does_not_read_the_step_again_at_which_it_diverged(
    tiny, make_trainer, tmp_path, monkeypatch
):
    """Or one reading would count as two in a row."""
    config = changed(changed(tiny, "replay", held_out=0.5), "tilt", max_steps=8, step=2.0)
    config = changed(config, "checkpoint", every=100)
    trainer = make_trainer(config, checkpoints=tmp_path)

    def update(self, optimizer, replay, progress, lr):
        if progress.phase_step == 2:
            raise DivergedError("not finite")
        return kept(self, optimizer, replay, progress, lr)

    kept = Learner.update
    monkeypatch.setattr(Learner, "update", update)
    with pytest.raises(DivergedError):
        trainer.run()
    monkeypatch.setattr(Learner, "update", kept)
    read = len(trainer.meter.ratios)
    resumed = make_trainer(config, checkpoints=tmp_path)
    resumed.resume(tmp_path)
    resumed._advance()
    assert (read, resumed.progress.phase_step, len(resumed.meter.ratios)) == (2, 3, 2)


def test_the_meter_reads_rollouts_that_are_not_in_the_buffer(tiny, make_trainer):
    trainer = make_trainer(changed(tiny, "replay", held_out=0.5))
    replay, drawn = trainer.open_phase(), trainer.progress.asked
    assert set(trainer.meter.rollouts.group.tolist()).isdisjoint(replay.rollouts.group.tolist())
    assert drawn == 1.5 * trainer.config.replay.prompts
    assert int(replay.rollouts.group.max()) == trainer.config.replay.prompts - 1


@pytest.fixture
def landing(tiny, make_trainer, monkeypatch):
    """The phase of a run whose meter gives the readings, one every two steps, and its learning rates."""

    def run(readings, stalled=False):
        given, latest = iter(readings), [(0.0, 0.0)]

        def read(self, policy, together, group):
            latest[0] = next(given)
            return latest[0]

        monkeypatch.setattr(Meter, "read", read)
        monkeypatch.setattr(Meter, "surely_absorbed", property(lambda self: latest[0][0] - latest[0][1]))
        monkeypatch.setattr(Meter, "has_stalled", stalled)
        seen = Recorder()
        config = changed(changed(tiny, "tilt", max_steps=20, final=1.0), "replay", refresh_every=100)
        make_trainer(config, callbacks=[seen]).run()
        (phase,) = seen.of("phase")
        return phase, [row["lr"] / config.optimizer.lr for row in seen.of("step")]

    return run


def test_a_phase_lands_and_ends_once_enough_is_absorbed(landing):
    phase, rates = landing([(0.5, 0.1), (0.95, 0.1), (0.95, 0.04), (0.97, 0.04)])
    assert (phase["steps"], phase["reason"]) == (10, "absorbed")
    assert (phase["absorbed"], phase["absorbed_error"], phase["cause"]) == (0.97, 0.04, None)
    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_a_phase_lands_once_it_absorbs_no_more(landing):
    phase, _ = landing([(0.6, 0.1), (0.6, 0.1)], stalled=True)
    assert (phase["steps"], phase["reason"]) == (6, "no longer rising")


def test_a_phase_that_absorbs_little_is_told_with_its_cause(landing):
    """Ten readings in a phase of 20 steps, the closing one, and one on the buffer."""
    phase, _ = landing([(0.1, 0.05)] * 10 + [(0.9, 0.05)])
    assert (phase["steps"], phase["reason"]) == (20, "step limit")
    assert "absorbed 90% of the tilt on the rollouts that it is trained on" in phase["cause"]
    phase, _ = landing([(0.1, 0.05)] * 11)
    assert "--optimizer.lr" in phase["cause"]


@pytest.mark.parametrize(("decay", "max_steps"), [(0.0, 2), (0.2, 5), (0.5, 1), (0.5, 5)])
def test_no_phase_exceeds_its_step_limit(decay, max_steps, tiny, make_trainer):
    seen = Recorder()
    config = changed(tiny, "tilt", max_steps=max_steps, absorbed="never", final=1.0)
    make_trainer(changed(config, "optimizer", decay=decay), callbacks=[seen]).run()
    assert [row["steps"] for row in seen.of("phase")] == [max_steps]


def test_the_optimiser_starts_anew_in_every_phase(tiny, make_trainer):
    trainer = make_trainer(tiny)
    while trainer.progress.step < 5:
        trainer._advance()
    counts = {int(state["step"]) for state in trainer.optimizer.state.values()}
    assert counts == {1}


def test_the_buffer_is_rebuilt_by_phases_and_refreshed_in_quarters(tiny, make_trainer):
    seen = Recorder()
    make_trainer(tiny, callbacks=[seen]).run()
    drawn = [(event.step, event.values["purpose"]) for event in seen if event.kind == "rollouts"]
    assert drawn == [
        (0, "rebuild"), (2, "refresh"), (4, "rebuild"), (6, "refresh"),
    ]  # fmt: skip


def test_adaptive_control_remembers_the_batches_of_its_phase_alone(tiny, make_trainer):
    trainer = make_trainer(tiny)
    trainer._advance()
    first = trainer.progress.control
    assert first.denominator > 0
    assert first.value != 1.0
    assert trainer.learner.phase(trainer.replay, trainer.progress).control == first.value
    while trainer.progress.phase == 0:
        trainer._advance()
    trainer.open_phase()
    assert trainer.progress.control.value == 1.0


def test_a_batch_weighs_its_rows_by_how_often_they_are_drawn(tiny, make_trainer):
    """Row weights are L/k of the masks times 1/(N p) of the draw, which looks at c̄ of the method."""
    config = changed(
        replace(tiny, method=configure_method("c-dtm", control_variate="one")), "replay", priority=0.8
    )
    trainer = make_trainer(config)
    replay = trainer.open_phase()
    states, weights = trainer.learner.batch(replay, trainer.progress)
    surprise = (replay.weights.log_weight.double().exp() - math.exp(-replay.weights.log_z)).abs()
    probability = 0.2 / len(replay) + 0.8 * surprise / surprise.sum()
    factor = dict(
        zip(replay.weights.log_weight.tolist(), (1 / len(replay) / probability).tolist(), strict=True)
    )
    masks = states.row_length / states.eligible.sum(1)
    expected = [factor[value] for value in weights.log_weight.tolist()]
    assert len({round(value, 6) for value in expected}) > 1
    assert (states.row_weight / masks).tolist() == pytest.approx(expected, rel=1e-4)


def test_a_run_learns(tiny, make_trainer, tmp_path):
    """From random weights, towards cells of the upper half: an exact tilt would bring the reward to 0.8."""

    def upwards(prompts, completions):
        return [sum(cell is not None and cell[0] < 3 for cell in path) / 5 for path in completions]

    dtm.save_model(assemble(tiny).new_model(), tmp_path)
    config = changed(tiny, "model", base=str(tmp_path))
    config = changed(config, "tilt", step=5.0, final=5.0, max_steps=40, absorbed="never")
    config = changed(config, "replay", prompts=64, refresh_every=100)
    config = changed(config, "optimizer", lr=1e-2, batch=64)
    progress = make_trainer(config, reward=upwards).run()
    base, tuned = progress.evaluations[0]["reward"], progress.evaluations[-1]["reward"]
    assert tuned > base + 0.2


# ── settings that only a run can check ────────────────────────────────────────────────────────────


def test_a_base_of_another_task_is_refused(tiny, make_trainer):
    with pytest.raises(ConfigError, match="has vocab_size 52, task maze-9 needs 84"):
        make_trainer(changed(tiny, "task", size=9))


@pytest.mark.parametrize("device", ["banana", "cuda"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="cuda is there")
def test_a_device_that_is_not_there_is_refused_before_training(device, tiny, tmp_path):
    with pytest.raises(ConfigError, match="device"):
        dtm.train(replace(tiny, device=device), out=tmp_path / "run")


def test_a_base_of_another_maze_is_refused(tmp_path):
    config = dtm.recipe("maze-small")
    with pytest.raises(ConfigError, match=r"was trained with task\.seed 0, not 1"):
        dtm.train(replace(config, task=replace(config.task, seed=1)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_runs_on_different_devices_fit_into_one_process(tiny, tmp_path):
    config = replace(changed(tiny, "tilt", final=1.0, max_steps=1), device="auto")
    assert dtm.train(config, out=tmp_path / "run").is_finished


def test_a_merged_teacher_is_made_once_for_each_promotion_and_again_after_a_stop(
    tiny, make_trainer, monkeypatch, tmp_path
):
    made = []

    def counted(model):
        made.append(model)
        return merged(model)

    monkeypatch.setattr(policy_module, "merged", counted)
    config = replace(tiny, adapter=AdapterConfig(rank=2, merge=True))
    whole = make_trainer(config)
    whole.run()
    assert len(made) == 3  # two phases, and the π_a that they lead to, which is measured
    first = make_trainer(config, checkpoints=tmp_path, between=StopAt(9))
    with pytest.raises(Interrupted):
        first.run()
    assert first.progress.phase_step > 0
    second = make_trainer(config, checkpoints=tmp_path)
    second.resume(tmp_path)
    second.run()
    assert second.progress.evaluations == whole.progress.evaluations
    assert torch.equal(weights(second.policy.teacher), weights(whole.policy.teacher))
