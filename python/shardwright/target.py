"""Targets of the command line: functions that return a step and its arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.errors import ConfigError

Step = Callable[..., Any]


def load_target(target: str, settings: Mapping[str, Any]) -> tuple[Step, tuple[Any, ...]]:
    """Imports a target and calls it.

    Args:
        target: `"package.module:function"`; the current folder is searched too.
        settings: Keyword arguments of the function.

    Returns:
        The step and the arguments of its first call.

    Raises:
        ConfigError: E531 for a text that names no target, E532 for a module or function that is
            not there, E533 for settings the function does not take, E534 for a function that fails
            or returns something else.
    """
    function = _function(target)
    name = target.partition(":")[2]
    _check_settings(target, function, settings)
    try:
        made = function(**settings)
    except Exception as error:
        raise ConfigError(
            f"the target {name!r} failed.",
            code="E534",
            values=[f"settings: {dict(settings)!r}", f"{type(error).__name__}: {error}"],
            where=_innermost_line(error),
            advice="settings that the function accepts; --debug shows where it failed",
        ) from error
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        step, args = made
        if isinstance(args, tuple | list):
            return step, tuple(args)
    raise ConfigError(
        f"the target {name!r} returned no step with its arguments.",
        code="E534",
        values=[f"returned: {type(made).__name__}"],
        advice="return (step, (model, optimizer, batch, ...))",
    )


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`["batch_size=64", "tied=False"]` as keyword arguments; what is no Python literal is text.

    Raises:
        ConfigError: E535 for a pair without a name or a name given twice.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier() or name in settings:
            raise ConfigError(
                "a setting is a name, = and a value, each name once.",
                code="E535",
                values=[f"setting: {pair!r}"],
                advice="--set batch_size=64",
            )
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            settings[name] = text
    return settings


def _function(target: str) -> Callable[..., Any]:
    module_name, colon, name = target.partition(":")
    if not colon or not name.isidentifier() or not all(
        part.isidentifier() for part in module_name.split(".")
    ):  # fmt: skip
        raise ConfigError(
            "a target is a module, a colon and a function.",
            code="E531",
            values=[f"target: {target!r}"],
            advice="--target shardwright.zoo:gpt_1_3b, or your_package.your_module:your_function",
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"the target's module {module_name!r} cannot be imported.",
            code="E532",
            values=[f"{type(error).__name__}: {error}"],
            where=_innermost_line(error),
            advice="run where the module can be imported; the current folder is searched too",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            f"the module {module_name!r} has no function {name!r}.",
            code="E532",
            values=[f"it has: {_public_functions(module)}"],
            advice="one of these",
        )
    return function  # type: ignore[no-any-return]


def _public_functions(module: Any) -> str:
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    functions = [n for n in names if callable(getattr(module, n, None))]
    return ", ".join(functions) or "no function"


def _check_settings(target: str, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [name for name, p in parameters.items() if p.kind in by_name]
    unknown = [name for name in settings if name not in known]
    if unknown:
        raise ConfigError(
            f"the target {target!r} has no setting {', '.join(unknown)}.",
            code="E533",
            values=[f"it has: {', '.join(known) or 'none'}"],
            advice="--set with one of these",
        )


def _innermost_line(error: BaseException) -> str:
    trace = error.__traceback__
    where = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename != __file__ and not code.co_filename.startswith("<frozen"):
            where = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where
