"""The decorator in a plain process, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from tests.python.parity.bug_net import make_step
from torch import nn

import shardwright as sw
from shardwright import zoo


@pytest.fixture
def float64():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_a_plain_process_trains_as_before(float64):
    step, args = make_step()
    _, reference = make_step()
    parallel = sw.parallelize(step)
    assert parallel.plan is None
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(a[1], 0.5) for a in (args, reference)]
    for _ in range(4):
        assert abs(parallel(*args).item() - step(*reference).item()) < 1e-12
        for scheduler in schedulers:
            scheduler.step()
    for ours, theirs in zip(args[0].parameters(), reference[0].parameters(), strict=True):
        assert type(ours) is nn.Parameter
        assert ours.grad is None
        assert (ours - theirs).abs().max() < 1e-10
    first = next(iter(args[1].state.values()))
    assert first["step"].item() == 4
    assert parallel.plan.mesh_shape == (1,)
    assert [s.phase for s in parallel.program.sections] == ["forward", "backward", "update"]


def test_dampening_starts_with_the_second_step(float64):
    def build():
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
        return model, sgd, torch.randn(8, 4)

    def step(model, optimizer, x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "note": "kept", "norm": model.weight.detach().norm()}

    ours, theirs = build(), build()
    parallel = sw.parallelize(step)
    for _ in range(3):
        found, expected = parallel(*ours), step(*theirs)
        assert found["note"] == "kept"
        assert abs(found["loss"].item() - expected["loss"].item()) < 1e-12
        assert abs(found["norm"].item() - expected["norm"].item()) < 1e-12


def test_a_returned_parameter_is_the_one_before_the_update(float64):
    def step(model, optimizer, x):
        before = model.weight.detach()[:1]
        before = before * 1
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return before

    model = nn.Linear(3, 3)
    weight = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert torch.equal(sw.parallelize(step)(model, optimizer, torch.ones(2, 3)), weight[:1])


def test_a_saved_plan_is_used_again(tmp_path, float64):
    step, args = make_step()
    first = sw.parallelize(step)
    first(*args)
    first.plan.save(tmp_path / "plan.json")
    step, args = make_step()
    second = sw.parallelize(plan=tmp_path / "plan.json")(step)
    second(*args)
    assert second.plan == first.plan


def test_another_batch_is_planned_with_the_recomputation_of_the_given_plan(float64):
    step, args = make_step()
    first = sw.parallelize(recompute="full", num_microbatches="auto")(step)
    first(*args)
    assert first.plan.recompute == "full"
    step, (model, optimizer, *batch) = make_step()
    second = sw.parallelize(plan=first.plan, num_microbatches="auto")(step)
    second(model, optimizer, *batch)
    second(model, optimizer, *(part[:4] for part in batch))
    assert second.plan.recompute == "full"


def test_a_plan_of_another_step_is_refused(tmp_path):
    step, args = zoo.mlp_integer()
    first = sw.parallelize(step)
    first(*args)
    other, other_args = zoo.mlp_tiny()
    with pytest.raises(sw.PlanError, match="E325"):
        sw.parallelize(plan=first.plan)(other)(*other_args)


def small():
    model = nn.Linear(4, 4)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 4)


def plain_step(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon", float("inf")])
def test_a_timeout_that_is_none_is_refused(timeout):
    with pytest.raises(sw.ConfigError, match="E505"):
        sw.parallelize(timeout=timeout)(plain_step)


@pytest.mark.parametrize("limit", [0, -5, float("nan"), "much"])
def test_a_memory_limit_that_is_none_is_refused(limit):
    with pytest.raises(sw.ConfigError, match=r"E5\d\d"):
        sw.parallelize(memory_limit=limit)(plain_step)


def test_an_unknown_cluster_is_refused():
    with pytest.raises(sw.ClusterError, match="E352"):
        sw.parallelize(cluster="p9.gigantic")(plain_step)


def test_a_mesh_larger_than_the_world_is_refused_before_anything_changes():
    model, optimizer, x = small()
    before = model.weight
    with pytest.raises(sw.ClusterError, match=r"E351|E357"):
        sw.parallelize(mesh=(4,))(plain_step)(model, optimizer, x)
    assert model.weight is before
    assert not optimizer.state


def test_meta_parameters_are_refused_with_advice():
    model = nn.Linear(4, 4, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(sw.ConfigError, match="E503"):
        sw.parallelize(plain_step)(model, optimizer, torch.randn(2, 4))


def test_a_memory_limit_that_is_too_small_says_what_would_do():
    step, args = zoo.mlp_tiny()
    with pytest.raises(sw.InfeasibleError):
        sw.parallelize(memory_limit=1000)(step)(*args)


def test_a_wrapped_model_is_refused():
    model, optimizer, x = small()
    with pytest.raises(sw.CaptureError, match="E105"):
        sw.parallelize(plain_step)(nn.DataParallel(model), optimizer, x)


def test_a_loss_that_is_no_scalar_is_refused():
    def step(model, optimizer, x):
        model(x).backward()
        optimizer.step()

    with pytest.raises(sw.CaptureError, match="E103"):
        sw.parallelize(step)(*small())


def test_an_op_without_a_rule_is_named():
    def step(model, optimizer, x):
        loss = torch.linalg.qr(model(x))[1].sum() + F.relu(model(x)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with pytest.raises(sw.ShardwrightError) as caught:
        sw.parallelize(step)(*small())
    assert caught.value.code in ("E201", "E110", "E111")
    assert "qr" in str(caught.value)
