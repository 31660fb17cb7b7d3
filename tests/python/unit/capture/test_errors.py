"""What cannot be captured says so with a code, the place in the user's code and what to do."""

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardwright import CaptureError
from shardwright.capture import capture


def model() -> nn.Module:
    return nn.Linear(4, 4)


def failing(step: Callable[..., Any], *args: Any) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        capture(step, args)
    assert caught.value.where
    assert caught.value.advice
    return caught.value


def line_of(error: CaptureError) -> str:
    """Text of the line that the error names."""
    name, number = error.where.split(":")
    assert name == "test_errors.py"
    return linecache.getline(__file__, int(number)).strip()


def test_item() -> None:
    def step(model: Any, x: Tensor) -> float:
        loss = model(x).sum()
        return loss.item()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E101"
    assert line_of(error) == "return loss.item()"


@pytest.mark.parametrize("read", [bool, float, int, lambda x: x.tolist(), lambda x: x.numpy()])
def test_other_reads_of_a_value(read: Callable[[Tensor], Any]) -> None:
    def step(model: Any, x: Tensor) -> Any:
        return read(model(x).sum())

    assert failing(step, model(), torch.ones(2, 4)).code == "E101"


def test_branch_on_a_value() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        loss = model(x).sum()
        if loss > 0:
            loss = loss * 2
        return loss

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E101"
    assert line_of(error) == "if loss > 0:"


def test_shape_that_depends_on_values() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        out = model(x)
        return out[out > 0].sum()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E102"
    assert line_of(error) == "return out[out > 0].sum()"


def test_loss_is_not_scalar() -> None:
    def step(model: Any, x: Tensor) -> None:
        model(x).backward()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E103"
    assert "[2, 4]" in str(error)
    assert line_of(error) == "model(x).backward()"


def test_no_module_and_no_parameters() -> None:
    def step(*args: Any) -> Tensor:
        return torch.zeros(())

    assert failing(step, torch.ones(2)).code == "E104"
    assert failing(step, nn.ReLU(), torch.ones(2)).code == "E104"
    assert failing(step, model().requires_grad_(False), torch.ones(2)).code == "E104"


def test_wrapped_models(tmp_path: Any) -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    compiled = failing(step, torch.compile(model()), torch.ones(2, 4))
    assert (compiled.code, "torch.compile" in str(compiled)) == ("E105", True)
    assert failing(step, nn.DataParallel(model()), torch.ones(2, 4)).code == "E105"
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model())
        assert failing(step, nn.Sequential(wrapped), torch.ones(2, 4)).code == "E105"
        mesh = init_device_mesh("cpu", (1,))
        assert failing(step, fully_shard(model(), mesh=mesh), torch.ones(2, 4)).code == "E105"
        distributed = model()
        distributed.weight = nn.Parameter(distribute_tensor(distributed.weight, mesh))
        assert failing(step, distributed, torch.ones(2, 4)).code == "E105"
    finally:
        dist.destroy_process_group()


def test_parameter_reached_by_closure() -> None:
    hidden = nn.Linear(4, 4)

    def step(model: Any, x: Tensor) -> Tensor:
        return hidden(model(x)).sum()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E106"
    assert line_of(error) == "return hidden(model(x)).sum()"


def test_optimizer_of_another_model() -> None:
    def step(model: Any, optimizer: Any) -> None:
        optimizer.step()

    error = failing(step, model(), torch.optim.SGD(model().parameters(), lr=0.1))
    assert error.code == "E106"
    assert "optimizer.param_groups[0]['params'][0]" in str(error)


UNSUPPORTED: list[Callable[[], Tensor]] = [
    lambda: torch.ones(2, 2).to_sparse(),
    lambda: torch.ones(2, dtype=torch.complex64),
    lambda: torch._empty_affine_quantized([2], scale=0.1, zero_point=0, dtype=torch.qint8),
]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
@pytest.mark.parametrize("make", UNSUPPORTED, ids=["sparse", "complex", "quantised"])
def test_unsupported_tensors(make: Callable[[], Tensor]) -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    assert failing(step, model(), make()).code == "E107"


def test_lazy_module() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x).sum()

    assert failing(step, nn.LazyLinear(4), torch.ones(2, 4)).code == "E107"


def test_unsupported_argument_and_result() -> None:
    def step(model: Any, other: Any) -> Any:
        return other

    def returns_object(model: Any) -> Any:
        return object()

    error = failing(step, model(), {"deep": [object()]})
    assert error.code == "E108"
    assert "other['deep'][0]" in str(error)
    assert failing(returns_object, model()).code == "E108"


def test_gradient_carried_between_calls() -> None:
    def step(model: Any, optimizer: Any, x: Tensor) -> Tensor:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    linear = model()
    error = failing(step, linear, torch.optim.SGD(linear.parameters(), lr=0.1), torch.ones(2, 4))
    assert error.code == "E109"
    assert "weight" in str(error)


def test_random_numbers() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x + torch.randn_like(x)).sum()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E110"
    assert line_of(error) == "return model(x + torch.randn_like(x)).sum()"


def test_state_that_begins_with_a_gradient() -> None:
    class Remember(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                if "last" not in self.state[p]:
                    self.state[p]["last"] = p.grad.clone()
                p.sub_(self.state[p]["last"])

    def step(model: Any, optimizer: Any, x: Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    linear = model()
    error = failing(step, linear, Remember(linear.parameters()), torch.ones(2, 4))
    assert error.code == "E111"
    assert "'last'" in str(error)


def test_strides() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return F.relu(torch.as_strided(model(x), (2, 2), (1, 4))).sum()

    error = failing(step, model(), torch.ones(2, 4))
    assert error.code == "E112"
    assert line_of(error) == "return F.relu(torch.as_strided(model(x), (2, 2), (1, 4))).sum()"


def test_a_mistake_of_the_step_stays_what_it_is() -> None:
    def step(model: Any, x: Tensor) -> Tensor:
        return model(x) @ x

    with pytest.raises(RuntimeError, match="reduction dim"):
        capture(step, (model(), torch.ones(2, 4)))
    linear = model()
    with pytest.raises(RuntimeError, match="reduction dim"):
        capture(step, (linear, torch.ones(2, 4)))
    assert type(linear.weight) is nn.Parameter  # everything is back in place
