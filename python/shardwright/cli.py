"""The `shardwright` command, also `python -m shardwright`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the answer
is no (plans differ, a check of `doctor` fails), 2 a mistake in what was given, 3 nothing fits the
memory, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import ConfigError, InfeasibleError, ShardwrightError
from shardwright.progress import Progress, describe_progress, is_watched
from shardwright.version import __version__

if TYPE_CHECKING:
    from shardwright.plan import Plan

EXIT_DIFFERENT = 1
EXIT_MISTAKE = 2
EXIT_INFEASIBLE = 3
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Words after the program's name, by default those of the process.

    Returns:
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.handler(arguments))
    except ShardwrightError as error:
        if arguments.debug:
            raise
        print(error, file=sys.stderr)
        return EXIT_INFEASIBLE if isinstance(error, InfeasibleError) else EXIT_MISTAKE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; nothing is left to be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardwright",
        description="Plans how a PyTorch training step runs on a cluster.",
        epilog="Exit codes: 0 done, 1 plans differ or a check fails, 2 mistake in what was given, "
        "3 nothing fits the memory.",
    )
    parser.add_argument("--version", action="version", version=f"shardwright {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the trace of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_plan_parser(commands)
    _add_show_parser(commands)
    _add_validate_parser(commands)
    _add_diff_parser(commands)
    _add_solve_parser(commands)
    _add_doctor_parser(commands)
    for command in set(commands.choices.values()):
        command.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    return parser


def _add(commands: Any, name: str, help_text: str, handler: Callable[..., int]) -> Any:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text.capitalize()}.")
    parser.set_defaults(handler=handler)
    return parser


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        required=True,
        metavar="MODULE:FUNCTION",
        help="function that returns the step and its arguments, such as shardwright.zoo:gpt_1_3b",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="keyword argument of the target, such as batch_size=64 (zoo targets default to one "
        "published microbatch); may be repeated",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", metavar="FILE", help="also write the plan as a web page")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")


def _add_plan_parser(commands: Any) -> None:
    parser = _add(commands, "plan", "search for the fastest plan of a training step", _plan)
    _add_target(parser)
    parser.add_argument(
        "--cluster", required=True, metavar="PRESET:HOSTS|FILE",
        help="p3.16xlarge:8, local-cpu:4, ... or a JSON file",
    )  # fmt: skip
    parser.add_argument("--mesh", metavar="AxB", help="mesh shape such as 2x4 (default: try all)")
    parser.add_argument("--memory-limit", metavar="SIZE", help="per device, such as 14GiB")
    parser.add_argument("--num-microbatches", type=int, default=1, metavar="N")
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds for the search (60)"
    )
    parser.add_argument(
        "--gap", type=float, default=1e-4, metavar="G",
        help="relative gap that is good enough; 0 asks for a proof (1e-4)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="save the plan")
    _add_output(parser)


def _add_show_parser(commands: Any) -> None:
    parser = _add(commands, "show", "show a saved plan", _show)
    parser.add_argument("plan", metavar="PLAN")
    _add_output(parser)


def _add_validate_parser(commands: Any) -> None:
    parser = _add(
        commands, "validate", "check a saved plan against a step by recomputing its certificate",
        _validate,
    )  # fmt: skip
    parser.add_argument("plan", metavar="PLAN")
    _add_target(parser)


def _add_diff_parser(commands: Any) -> None:
    parser = _add(commands, "diff", "show where two saved plans differ", _diff)
    parser.add_argument("first", metavar="PLAN")
    parser.add_argument("second", metavar="PLAN")


def _add_solve_parser(commands: Any) -> None:
    from shardwright.solve import add_solve_parser

    add_solve_parser(commands)


def _add_doctor_parser(commands: Any) -> None:
    parser = _add(commands, "doctor", "check this machine and installation", _doctor)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _plan(arguments: argparse.Namespace) -> int:
    from shardwright.cluster import Cluster
    from shardwright.planning import plan
    from shardwright.target import load_target, parse_settings

    _check_writable(arguments.out, arguments.html)
    cluster = Cluster.parse(arguments.cluster)
    mesh = parse_mesh(arguments.mesh)
    with _progress(f"planning {arguments.target} for {cluster}") as on_progress:
        step, args = load_target(arguments.target, parse_settings(arguments.set))
        found = plan(
            step,
            *args,
            cluster=cluster,
            mesh=mesh,
            memory_limit=arguments.memory_limit,
            num_microbatches=arguments.num_microbatches,
            time_limit_s=arguments.time_limit,
            relative_gap=arguments.gap,
            on_progress=on_progress,
        )
    if arguments.out:
        found.save(arguments.out)
    _print_plan(found, arguments)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from shardwright.plan import Plan

    _check_writable(arguments.html)
    _print_plan(Plan.load(arguments.plan), arguments)
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    from shardwright.capture import capture
    from shardwright.plan import Plan
    from shardwright.report.units import bytes_text, time_text
    from shardwright.target import load_target, parse_settings

    loaded = Plan.load(arguments.plan)
    with _progress(f"capturing {arguments.target}"):
        step, args = load_target(arguments.target, parse_settings(arguments.set))
        step_graph = capture(step, args)
    certificate = loaded.validate(step_graph)
    print(
        f"valid: the plan fits the step; cost {time_text(certificate.cost_us)} and peak memory "
        f"{bytes_text(certificate.peak_memory_bytes)} recomputed"
    )
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from shardwright.plan import Plan
    from shardwright.report.difference import difference_lines

    lines = difference_lines(Plan.load(arguments.first), Plan.load(arguments.second))
    print("\n".join(lines) if lines else "the plans are the same")
    return EXIT_DIFFERENT if lines else 0


def _doctor(arguments: argparse.Namespace) -> int:
    from shardwright.doctor import examine

    findings = examine()
    if arguments.json:
        print(json.dumps({f.name: {"ok": f.ok, "found": f.found} for f in findings}))
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else "FAIL"
            print(f"{mark}  {finding.name}: {finding.found}")
            if not finding.ok and finding.advice:
                print(f"      try: {finding.advice}")
    return 0 if all(finding.ok for finding in findings) else EXIT_DIFFERENT


def _print_plan(plan: Plan, arguments: argparse.Namespace) -> None:
    if arguments.html:
        from shardwright.report.html import html_page

        Path(arguments.html).write_text(html_page(plan), encoding="utf-8")
    if arguments.json:
        from shardwright.report.numbers import plan_numbers

        print(json.dumps(plan_numbers(plan), allow_nan=False))
        return
    from shardwright.report.text import terminal_width, text_report

    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(text_report(plan, width=terminal_width(), color=color))


def parse_mesh(text: str | None) -> tuple[int, ...] | None:
    """`"2x4"` as `(2, 4)`; None for None.

    Raises:
        ConfigError: E536 for a text that is no shape.
    """
    if text is None:
        return None
    sizes = text.lower().split("x")
    if not all(size.isascii() and size.isdigit() and int(size) >= 1 for size in sizes):
        raise ConfigError(
            "a mesh is one size per axis, joined by x.",
            code="E536",
            values=[f"mesh: {text!r}"],
            advice="--mesh 2x4",
        )
    return tuple(map(int, sizes))


def _check_writable(*paths: str | None) -> None:
    """Refuses before a long search what could not be written after it."""
    for path in paths:
        if path is None:
            continue
        folder = Path(path).parent
        if Path(path).is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(
                "an output file cannot be written.",
                code="E537",
                values=[f"file: {path}"],
                advice="a file in a folder that exists and is writable",
            )


@contextmanager
def _progress(what: str) -> Iterator[Progress | None]:
    """A moving line on standard error while the block runs, on rank 0's terminal only.

    Gives what adds the state of a running search to the line, or None where nobody reads it.
    """
    if not is_watched(sys.stderr):
        yield None
        return
    from rich.console import Console

    from shardwright.report.units import time_text

    with Console(stderr=True).status(what, refresh_per_second=10) as status:

        def show(phase: str, cost: int | None, lower_bound: int | None, seconds: float) -> None:
            state = describe_progress(
                phase, cost, lower_bound, seconds, unit=lambda value: time_text(value / 1000)
            )
            status.update(f"{what}\n{state}")

        yield show
