"""State dicts and torch.distributed.checkpoint, from one mesh to another and to plain files."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.python.distributed.process_group import run_ranks
from tests.python.parity.bug_net import make_step
from tests.python.parity.clusters import slow_compute
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import _StridedShard

import shardwright as sw


def _parallel(world, mesh):
    step, args = make_step()
    options = {"mesh": mesh, "cluster": slow_compute(world), "timeout": 60, "time_limit_s": 20}
    return sw.parallelize(**options)(step), args


def _whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def _snapshot(args):
    """Whole copies of everything, by name."""
    model, optimizer = args[:2]
    found = {name: _whole(v).clone() for name, v in model.state_dict().items()}
    for number, entry in optimizer.state_dict()["state"].items():
        found |= {f"{number}.{key}": _whole(v).clone() for key, v in entry.items()}
    return found


def _save(rank, world, mesh, folder):
    torch.set_default_dtype(torch.float64)
    parallel, args = _parallel(world, mesh)
    parallel(*args)
    model, optimizer = args[:2]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    held = list(model.parameters())
    strided = [any(isinstance(x, _StridedShard) for x in p.placements) for p in held]
    shown = [v for v in state["model"].values() if isinstance(v, DTensor)]
    assert all(type(x) is not _StridedShard for v in shown for x in v.placements)
    dcp.save(state, checkpoint_id=folder)
    saved = _snapshot(args)
    loss = parallel(*args).item()
    return {n: v.numpy() for n, v in saved.items()}, loss, any(strided)


def _load(rank, world, mesh, folder):
    torch.set_default_dtype(torch.float64)
    parallel, args = _parallel(world, mesh)
    with torch.no_grad():
        for p in args[0].parameters():
            p.mul_(0.5)
    parallel(*args)
    parallel(*args)
    model, optimizer = args[:2]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loaded = _snapshot(args)
    return {n: v.numpy() for n, v in loaded.items()}, parallel(*args).item()


@pytest.mark.distributed
def test_a_checkpoint_loads_on_another_mesh(tmp_path):
    saved = run_ranks(4, _save, (2, 2), str(tmp_path / "c"))
    loaded = run_ranks(2, _load, (2,), str(tmp_path / "c"))
    assert saved[0][2], "the plan has no strided shard: the test would prove less than it says"
    for values, loss in loaded:
        assert set(values) == set(saved[0][0])
        for name, value in values.items():
            assert (value == saved[0][0][name]).all(), name
        assert abs(loss - saved[0][1]) < 1e-12


def _load_plain(rank, world, folder):
    torch.set_default_dtype(torch.float64)
    parallel, args = _parallel(world, (2,))
    parallel(*args)
    model, optimizer = args[:2]
    plain = torch.load(f"{folder}/plain.pt")
    model.load_state_dict(plain["model"], strict=True)
    optimizer.load_state_dict(plain["optimizer"])
    loss = parallel(*args).item()
    return loss, {n: v.numpy() for n, v in _snapshot(args).items()}


@pytest.mark.distributed
def test_a_plain_checkpoint_loads_and_training_goes_on(tmp_path):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        step, args = make_step()
        for _ in range(2):
            step(*args)
        state = {"model": args[0].state_dict(), "optimizer": args[1].state_dict()}
        torch.save(state, tmp_path / "plain.pt")
        expected_loss = step(*args).item()
        expected = _snapshot(args)
    finally:
        torch.set_default_dtype(before)
    for loss, values in run_ranks(2, _load_plain, str(tmp_path)):
        assert abs(loss - expected_loss) < 1e-12
        for name, value in expected.items():
            assert abs(value.detach().numpy() - values[name]).max() < 1e-9, name
