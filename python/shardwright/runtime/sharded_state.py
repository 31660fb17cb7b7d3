"""Parameters, buffers and optimizer state as this rank holds them: its shards, in place.

At the first call every tensor is cut, its shard put where the whole one was (as a DTensor under
the unsharded name), and the whole one let go. From then on programs update the shards in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardwright.capture import InputSpec, StepArguments
from shardwright.errors import ConfigError, InternalError
from shardwright.lowering.program import Program
from shardwright.lowering.table import Atoms, LocalTensor, Placement, Spec
from shardwright.runtime.dtensor_form import ShardForm, whole_of
from shardwright.runtime.groups import MeshGroups
from shardwright.runtime.ownership import owners, replace_tensors

_STORED = ("parameter", "buffer", "optimizer_state")


class ShardedState:
    """The shards of one model and its optimizers on this rank.

    Attributes:
        locals: stored graph input (by name) -> shard.
        forms: -> how it lies on the mesh.
    """

    def __init__(
        self, mesh_shape: tuple[int, ...], coordinate: tuple[int, ...], groups: MeshGroups
    ) -> None:
        self.locals: dict[str, Tensor] = {}
        self.forms: dict[str, ShardForm] = {}
        self._mesh_shape = mesh_shape
        self._coordinate = coordinate
        self._groups = groups
        self._state_of: dict[str, tuple[Optimizer, str, str]] = {}
        self._parameters: dict[str, Tensor] = {}
        self._hooked: set[int] = set()

    @property
    def specs(self) -> dict[str, Spec]:
        """Spec of every stored tensor: what another plan must keep to."""
        return {name: form.tensor.spec for name, form in self.forms.items()}

    def check_same(self, arguments: StepArguments) -> None:
        """Refuses arguments that have other tensors or optimizers than those held, by name.

        Raises:
            ConfigError: E506.
        """
        given = {**arguments.parameters, **arguments.buffers}
        owners_given = {
            id(p): o for o in arguments.optimizers.values() for g in o.param_groups
            for p in g["params"]
        }  # fmt: skip
        for name, held in self._parameters.items():
            if name in arguments.parameters and given[name] is not held:
                _refuse(name, "parameter")
        for name, (optimizer, parameter, _) in self._state_of.items():
            owner = owners_given.get(id(self._parameters[parameter]), optimizer)
            if owner is not optimizer:
                _refuse(name, "optimizer")

    def refresh(self) -> None:
        """Follows parameters whose data the user replaced; on a single process only."""
        if self._groups.device_mesh is None:
            for name, held in self._parameters.items():
                if held.data_ptr() != self.locals[name].data_ptr():
                    self.locals[name] = held.detach()

    def adopt(self, program: Program, arguments: StepArguments) -> None:
        """Cuts what `program` stores and this object does not hold yet.

        Args:
            program: names and specs.
            arguments: the user's modules and optimizers; changed in place.

        Raises:
            InternalError: E942 when a tensor already held lies differently in the program.
        """
        fresh: list[tuple[InputSpec, ShardForm]] = []
        for index, spec in enumerate(program.inputs):
            if spec.kind not in _STORED:
                continue
            tensor = program.input_tensor(index) or _replicated(spec.meta, len(self._mesh_shape))
            form = ShardForm(tensor, self._mesh_shape, self._coordinate, self._groups)
            if spec.name not in self.forms:
                fresh.append((spec, form))
            elif self.forms[spec.name].placements != form.placements:
                raise InternalError(
                    "a plan moves a tensor that is already sharded",
                    code="E942",
                    values=[f"{spec.name}: {self.forms[spec.name].tensor.spec} -> {tensor.spec}"],
                )
        optimizer_of = {
            id(p): o for o in arguments.optimizers.values() for g in o.param_groups
            for p in g["params"]
        }  # fmt: skip
        for spec, form in fresh:
            if spec.kind == "optimizer_state":
                self._cut_state(spec, form, arguments, optimizer_of)
        self._cut_tensors(
            {s.name: form for s, form in fresh if s.kind != "optimizer_state"}, arguments
        )
        self._install_state()
        self._hook(arguments)

    def _cut_state(
        self,
        spec: InputSpec,
        form: ShardForm,
        arguments: StepArguments,
        optimizer_of: Mapping[int, Optimizer],
    ) -> None:
        assert spec.parameter is not None
        assert spec.key is not None
        assert spec.init is not None
        parameter = arguments.parameters[spec.parameter]
        optimizer = optimizer_of[id(parameter)]
        held = optimizer.state.get(parameter, {}).get(spec.key)
        device = parameter.device if spec.meta.dim() else torch.device("cpu")
        dtype = spec.meta.dtype
        if held is not None:
            whole = whole_of(held) if isinstance(held, Tensor) else torch.tensor(held, dtype=dtype)
            local = form.cut(whole.to(dtype))
        elif spec.init.kind == "parameter":
            local = form.cut(whole_of(parameter).to(dtype))
        else:
            shape = form.tensor.local_shape
            local = torch.full(shape, spec.init.value, dtype=dtype, device=device)
        self.locals[spec.name] = local
        self.forms[spec.name] = form
        self._state_of[spec.name] = (optimizer, spec.parameter, spec.key)

    def _cut_tensors(self, forms: Mapping[str, ShardForm], arguments: StepArguments) -> None:
        """Parameters and buffers; one whole tensor more than its shard at a time."""
        replacement: dict[int, Tensor] = {}
        for name, form in forms.items():
            old = arguments.parameters.get(name)
            if old is None:
                old = arguments.buffers[name]
            alone = self._groups.device_mesh is None
            local = old.detach() if alone else form.cut(old)
            self.locals[name] = local
            self.forms[name] = form
            if alone:
                self._parameters[name] = old
                continue
            new = form.wrap(local)
            if isinstance(old, nn.Parameter):
                new = nn.Parameter(new, requires_grad=old.requires_grad)
                new.__dict__.update(old.__dict__)
            elif form.is_replicated:
                new = local
            replacement[id(old)] = new
            self._parameters[name] = new
        replace_tensors(arguments.modules.values(), arguments.optimizers.values(), replacement)

    def _install_state(self) -> None:
        """Puts the shards of optimizer state where the optimizers look for them."""
        for name, (optimizer, parameter, key) in self._state_of.items():
            local, form = self.locals[name], self.forms[name]
            value = form.wrap(local) if local.dim() else local
            optimizer.state[self._parameters[parameter]][key] = value

    def _hook(self, arguments: StepArguments) -> None:
        """State dicts show plain DTensors and load from any form."""
        for optimizer in arguments.optimizers.values():
            if id(optimizer) not in self._hooked:
                self._hooked.add(id(optimizer))
                optimizer.register_state_dict_post_hook(self._state_shown)
                optimizer.register_load_state_dict_post_hook(self._state_loaded)
        if self._groups.device_mesh is None:
            return
        places: dict[int, tuple[nn.Module, dict[str, str]]] = {}
        labels = {id(t): name for name, t in self._parameters.items()}
        for module, local_name, label in owners(arguments.modules.values(), labels):
            places.setdefault(id(module), (module, {}))[1][local_name] = label
        for key, (module, names) in places.items():
            if key not in self._hooked:
                self._hooked.add(key)
                module.register_state_dict_post_hook(self._shown(names))  # type: ignore[no-untyped-call]
                module.register_load_state_dict_pre_hook(self._loaded(names))  # type: ignore[no-untyped-call]

    def _shown(self, names: Mapping[str, str]) -> Any:
        def hook(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            for local_name, label in names.items():
                if prefix + local_name in state_dict and not self.forms[label].is_plain:
                    value = self.forms[label].state_dict_form(self.locals[label])
                    state_dict[prefix + local_name] = value

        return hook

    def _loaded(self, names: Mapping[str, str]) -> Any:
        def hook(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
            for local_name, label in names.items():
                value = state_dict.get(prefix + local_name)
                shape = self.forms[label].tensor.global_shape
                if isinstance(value, Tensor) and tuple(value.shape) == shape:
                    self.load(label, value)
                    state_dict[prefix + local_name] = self._parameters[label].detach()

        return hook

    def load(self, name: str, value: Tensor) -> None:
        """Overwrites a stored tensor with a whole one or a DTensor of any placements."""
        form, local = self.forms[name], self.locals[name]
        if isinstance(value, DTensor) and value.to_local().data_ptr() == local.data_ptr():
            return
        with torch.no_grad():
            local.copy_(form.cut(whole_of(value.detach())) if form.tensor.local_shape else value)

    def _state_shown(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
        numbers = _packed_numbers(optimizer)
        for name, (owner, parameter, key) in self._state_of.items():
            if owner is not optimizer or self.forms[name].is_plain:
                continue
            number = numbers[id(self._parameters[parameter])]
            entry = dict(state_dict["state"][number])
            entry[key] = self.forms[name].state_dict_form(self.locals[name])
            state_dict["state"][number] = entry

    def _state_loaded(self, optimizer: Optimizer) -> None:
        for name, (owner, parameter, key) in self._state_of.items():
            if owner is not optimizer:
                continue
            value = optimizer.state.get(self._parameters[parameter], {}).get(key)
            if isinstance(value, Tensor):
                self.load(name, value)
            elif value is not None:
                self.locals[name].fill_(value)
        self._install_state()


def _refuse(name: str, kind: str) -> None:
    raise ConfigError(
        f"the step was called with another {kind} than the one it holds.",
        code="E506",
        values=[f"{name} belongs to an object of an earlier call"],
        advice="keep model and optimizer together; load a state dict to change their values, or "
        "decorate the function once more for the new object",
    )


def _packed_numbers(optimizer: Optimizer) -> dict[int, int]:
    """Id of a parameter -> its number in the optimizer's state dict."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers: dict[int, int] = {}
    for parameter in parameters:
        numbers.setdefault(id(parameter), len(numbers))
    return numbers


def _replicated(meta: Tensor, num_axes: int) -> LocalTensor:
    """Form of a tensor that the program never reads."""
    shape = tuple(meta.shape)
    atoms = Atoms(shape, tuple((dim,) for dim in range(len(shape))))
    spec = tuple(Placement("R") for _ in range(num_axes))
    return LocalTensor(shape, shape, str(meta.dtype).removeprefix("torch."), atoms, spec)
