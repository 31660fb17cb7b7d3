"""Torch calls that capture answers itself while the user's step runs on fake tensors.

Attention, cross entropy and dropout become ops whose meaning does not depend on device or mesh;
devices become the CPU; reading a value out of a tensor becomes an error that names the line.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from shardwright.capture import ops
from shardwright.capture.arguments import check_tensor
from shardwright.capture.source import current_user_line
from shardwright.capture.tags import Tags
from shardwright.errors import CaptureError

_CPU = torch.device("cpu")
_VALUE_READS = frozenset({
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__float__, Tensor.__int__,
    Tensor.__index__, Tensor.__complex__,
})  # fmt: skip
_MOVES = frozenset({Tensor.cuda, Tensor.cpu, Tensor.pin_memory})
# In-place or out-of-place calls whose scalar factor may be a 0-d tensor (a traced lr).
_SCALED: dict[Any, tuple[str, Callable[..., Tensor]]] = {
    Tensor.addcdiv_: ("value", lambda x, a, b, value: x.add_(value * a / b)),
    Tensor.addcdiv: ("value", lambda x, a, b, value: x.add(value * a / b)),
    Tensor.addcmul_: ("value", lambda x, a, b, value: x.add_(value * a * b)),
    Tensor.addcmul: ("value", lambda x, a, b, value: x.add(value * a * b)),
    Tensor.add_: ("alpha", lambda x, a, alpha: x.add_(alpha * a)),
    Tensor.add: ("alpha", lambda x, a, alpha: x.add(alpha * a)),
    Tensor.sub_: ("alpha", lambda x, a, alpha: x.sub_(alpha * a)),
    Tensor.sub: ("alpha", lambda x, a, alpha: x.sub(alpha * a)),
}


class Interception(TorchFunctionMode):
    """Function mode active while the user's step is traced.

    Attributes:
        tags: phase, module path and source of what is being traced.
        seed: traced 0-d int64 input from which dropout masks are drawn.
        next_stream: stream number of the next dropout call.
    """

    def __init__(self, tags: Tags, seed: Tensor, where: str) -> None:
        super().__init__()
        self.tags = tags
        self.seed = seed
        self.next_stream = 0
        self._where = where
        self._handlers: dict[Any, Callable[..., Any]] = {
            F.scaled_dot_product_attention: self._attention,
            F.cross_entropy: self._cross_entropy,
            F.dropout: self._dropout,
            torch.dropout: self._dropout,
            F.dropout1d: functools.partial(self._channel_dropout, 2),
            F.dropout2d: functools.partial(self._channel_dropout, 2),
            F.dropout3d: functools.partial(self._channel_dropout, 2),
            Tensor.backward: self._tensor_backward,
            Tensor.data.__set__: self._replace_data,  # type: ignore[attr-defined]
        }
        self._engine_grad = torch.autograd.grad

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Answers one torch call of the step."""
        kwargs = kwargs or {}
        self.tags.set_source(current_user_line())
        for argument in args:
            if isinstance(argument, Tensor) and not isinstance(argument, FakeTensor):
                self._check_foreign(argument)
        if func in _VALUE_READS:
            return self._read_value(func, args, kwargs)
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if func in _MOVES:
            return args[0]
        if func is Tensor.to:
            args = (args[0], *(_on_cpu(a) for a in args[1:]))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _CPU}
        scaled = _SCALED.get(func)
        if scaled is not None and isinstance(kwargs.get(scaled[0]), Tensor):
            return scaled[1](*args, **kwargs)
        return func(*args, **kwargs)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Also answers calls that reach these functions from inside torch, and torch.autocast."""
        targets: list[tuple[Any, str, Any]] = [
            (F, "scaled_dot_product_attention", self._attention),
            (F, "dropout", self._dropout),
            (torch.autograd, "backward", self._backward),
            (torch.autograd, "grad", self._grad),
            (torch.amp.autocast_mode.autocast, "__init__", _autocast_on_cpu()),
            (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator",
             self._replaying(torch.utils.checkpoint._checkpoint_without_reentrant_generator)),
            (torch.utils.checkpoint.CheckpointFunction, "apply",
             self._replaying(torch.utils.checkpoint.CheckpointFunction.apply)),
            (math, "sqrt", _tensor_or(math.sqrt, torch.sqrt)),
            (math, "pow", _tensor_or(math.pow, torch.pow)),
            (math, "exp", _tensor_or(math.exp, torch.exp)),
            (math, "log", _tensor_or(math.log, torch.log)),
        ]  # fmt: skip
        patches = [mock.patch.object(owner, name, new) for owner, name, new in targets]
        try:
            for patch in patches:
                patch.start()
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()

    def _check_foreign(self, tensor: Tensor) -> None:
        """Refuses real tensors that the step trains although they are no arguments."""
        where = current_user_line() or self._where
        check_tensor("a tensor reached by the step", tensor, where)
        if tensor.requires_grad or isinstance(tensor, torch.nn.Parameter):
            raise CaptureError(
                "the step uses a parameter that is not among its arguments",
                code="E106",
                values=[f"shape {list(tensor.shape)}, dtype {tensor.dtype}"],
                where=where,
                advice="pass the module that owns it as an argument of the step",
            )

    def _read_value(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            raise CaptureError(
                f"the step reads a tensor's value with {func.__name__}, which is unknown when it "
                "is captured",
                code="E101",
                values=[f"tensor: {args[0].dtype} {list(args[0].shape)}"],
                where=current_user_line() or self._where,
                advice="return the tensor and read it outside the step, or use torch.where "
                "instead of a branch",
            ) from error

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = (t.to(dtype) for t in (query, key, value))
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        gqa = enable_gqa and query.shape[-3] != key.shape[-3]
        learned_mask = attn_mask is not None and attn_mask.requires_grad
        if query.dim() == 4 and dropout_p == 0.0 and not learned_mask:
            if attn_mask is not None and attn_mask.dim() < 4:
                attn_mask = attn_mask.reshape([1] * (4 - attn_mask.dim()) + list(attn_mask.shape))
            return ops.attention.attention(query, key, value, attn_mask, is_causal, scale, gqa)
        if query.dim() == 3 and dropout_p == 0.0 and not learned_mask and not gqa:
            if attn_mask is not None:
                attn_mask = attn_mask.reshape([1] * (4 - attn_mask.dim()) + list(attn_mask.shape))
            out = ops.attention.attention(
                query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0), attn_mask, is_causal,
                scale, False,
            )  # fmt: skip
            return out.squeeze(0)
        return self._explicit_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, gqa
        )

    def _explicit_attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
        dropout_p: float, is_causal: bool, scale: float, gqa: bool,
    ) -> Tensor:  # fmt: skip
        """Attention from matmul, softmax and dropout."""
        if gqa:
            group = query.shape[-3] // key.shape[-3]
            key, value = (t.repeat_interleave(group, -3) for t in (key, value))
        scores = torch.matmul(query, key.transpose(-2, -1)) * scale
        if is_causal:
            rows = torch.arange(scores.shape[-2]).unsqueeze(1)
            columns = torch.arange(scores.shape[-1]).unsqueeze(0)
            scores = scores.masked_fill(columns > rows, -math.inf)
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attn_mask, -math.inf)
            else:
                scores = scores + attn_mask
        weights = torch.softmax(scores, -1).to(value.dtype)
        return torch.matmul(self._dropout(weights, dropout_p, True), value)

    def _cross_entropy(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        plain = (
            weight is None
            and size_average is None
            and reduce is None
            and label_smoothing == 0.0
            and not target.is_floating_point()
        )
        if not plain:
            return F.cross_entropy(
                input, target, weight, size_average, ignore_index, reduce, reduction,
                label_smoothing,
            )  # fmt: skip
        low_precision = input.dtype in (torch.bfloat16, torch.float16)
        dtype = torch.float32 if low_precision and torch.is_autocast_enabled("cpu") else None
        return ops.loss.cross_entropy(input, target, ignore_index, reduction, dtype)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False,
        train: bool | None = None,
    ) -> Tensor:  # fmt: skip
        training = training if train is None else train
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        if not training or p == 0.0:
            return input
        out = ops.dropout.dropout(input, self.seed, self._stream(), float(p))
        return input.copy_(out) if inplace else out

    def _channel_dropout(
        self, kept_dims: int, input: Tensor, p: float = 0.5, training: bool = True,
        inplace: bool = False,
    ) -> Tensor:  # fmt: skip
        """Drops whole channels: the leading dims draw, the rest follow."""
        if not training or p == 0.0:
            return input
        shape = [*input.shape[:kept_dims], *[1] * (input.dim() - kept_dims)]
        mask = ops.dropout.dropout(
            torch.ones(shape, dtype=input.dtype), self.seed, self._stream(), float(p)
        )
        out = input * mask
        return input.copy_(out) if inplace else out

    def _stream(self) -> int:
        self.next_stream += 1
        return self.next_stream - 1

    def _replaying(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Checkpointing whose recomputation draws the same dropout masks as the first run."""

        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            first = self.next_stream

            def replay(*inner: Any, **named: Any) -> Any:
                saved, self.next_stream = self.next_stream, first
                try:
                    return function(*inner, **named)
                finally:
                    self.next_stream = max(saved, self.next_stream)

            return original(replay, *args, **kwargs)

        return checkpoint

    def _replace_data(self, tensor: Tensor, value: Tensor) -> None:
        """tensor.data = value, as a copy: the tensor keeps its place among the inputs."""
        with torch.no_grad():
            tensor.copy_(value)

    def _tensor_backward(
        self, tensor: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None,
        create_graph: bool = False, inputs: Any = None,
    ) -> None:  # fmt: skip
        self._backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)

    def _backward(
        self, tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None,
        create_graph: bool = False, grad_variables: Any = None, inputs: Any = None,
    ) -> None:  # fmt: skip
        """torch.autograd.backward with this mode on, for what checkpointing runs again."""
        roots = _as_tuple(tensors)
        given = _as_tuple(grad_variables if grad_tensors is None else grad_tensors)
        grads: list[Tensor | None] = []
        for root, grad in zip(roots, given or (None,) * len(roots), strict=True):
            if grad is None and root.requires_grad:
                self._check_scalar(root)
                grad = torch.ones_like(root)
            grads.append(grad)
        retain = create_graph if retain_graph is None else retain_graph
        with self.tags.backward(roots), self:
            torch.autograd.graph._engine_run_backward(
                roots, tuple(grads), retain, create_graph, _as_tuple(inputs),
                allow_unreachable=True, accumulate_grad=True,
            )  # fmt: skip

    def _grad(self, outputs: Any, inputs: Any, grad_outputs: Any = None, *args: Any, **kwargs: Any
              ) -> Any:  # fmt: skip
        roots = _as_tuple(outputs)
        if grad_outputs is None:
            for root in roots:
                self._check_scalar(root)
        with self.tags.backward(roots):
            return self._engine_grad(outputs, inputs, grad_outputs, *args, **kwargs)

    def _check_scalar(self, root: Tensor) -> None:
        if root.numel() != 1:
            raise CaptureError(
                f"backward starts from a tensor of shape {list(root.shape)}, not from a scalar",
                code="E103",
                where=current_user_line() or self._where,
                advice="reduce the loss with .mean() or .sum() before backward()",
            )


def _as_tuple(tensors: Any) -> tuple[Any, ...]:
    """One tensor, several, a dict of them or None as a tuple."""
    if tensors is None:
        return ()
    if isinstance(tensors, Tensor):
        return (tensors,)
    return tuple(tensors.values() if isinstance(tensors, dict) else tensors)


def _on_cpu(argument: Any) -> Any:
    """The CPU in place of any device argument."""
    if isinstance(argument, (torch.device, str)):
        return _CPU
    return argument


def _autocast_on_cpu() -> Callable[..., None]:
    """torch.autocast's constructor with any device type replaced by the CPU's."""
    original = torch.amp.autocast_mode.autocast.__init__

    def init(
        self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        dtype = torch.get_autocast_dtype(device_type) if dtype is None else dtype
        original(self, "cpu", dtype, enabled, cache_enabled)

    return init


def _tensor_or(scalar: Callable[..., float], tensor: Callable[..., Tensor]) -> Callable[..., Any]:
    """A math function that also takes traced 0-d tensors, as hand-written optimizers need."""

    def function(x: Any, *rest: Any) -> Any:
        return tensor(x, *rest) if isinstance(x, Tensor) else scalar(x, *rest)

    return function
