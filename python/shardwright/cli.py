"""The `shardwright` command, also `python -m shardwright`.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the answer
is no (plans differ, a check of `doctor` fails), 2 a mistake in what was given, 3 nothing fits the
memory, 130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwright.errors import ConfigError, InfeasibleError, ShardwrightError
from shardwright.progress import Progress, describe_progress, is_watched
from shardwright.version import __version__

if TYPE_CHECKING:
    from shardwright.pipeline.plan import PipelinePlan
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
    parser.add_argument(
        "--trace", metavar="FILE", help="also write the schedule of stages as a Chrome trace"
    )
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
    parser.add_argument(
        "--num-microbatches", type=_count_or_auto, default=None, metavar="N|auto",
        help="parts in which the batch goes through forward and backward; auto: the fastest "
        "(1; auto where --num-stages is)",
    )  # fmt: skip
    parser.add_argument(
        "--recompute", choices=("none", "full"), default="none",
        help="make the forward of every layer again in its backward",
    )  # fmt: skip
    _add_stages(parser)
    parser.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds for all searches (60)"
    )
    parser.add_argument(
        "--gap", type=float, default=1e-4, metavar="G",
        help="relative gap that is good enough; 0 asks for a proof (1e-4)",
    )  # fmt: skip
    parser.add_argument(
        "--evaluate", metavar="FILE",
        help="price a pipeline written by hand instead of searching one (docs/concepts/stages.md)",
    )  # fmt: skip
    parser.add_argument("--out", metavar="FILE", help="save the plan")
    _add_output(parser)


def _add_stages(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-stages", type=_count_or_auto, default=1, metavar="N|auto",
        help="pipeline stages; auto: as many as are fastest (1)",
    )  # fmt: skip
    parser.add_argument(
        "--schedule", default="1f1b", help="1f1b, gpipe, interleaved_1f1b or zero_bubble (1f1b)"
    )
    parser.add_argument(
        "--stages-per-rank", type=int, default=1, metavar="N",
        help="stages that share ranks, with interleaved_1f1b (1)",
    )  # fmt: skip
    parser.add_argument(
        "--stage-ranks", metavar="N,N", help="devices of every stage (default: equally many)"
    )
    parser.add_argument(
        "--stage-meshes", metavar="AxB,C", help="mesh shape of every stage (default: try all)"
    )
    parser.add_argument(
        "--stage-boundaries", metavar="NAME,NAME",
        help="modules or nodes that begin the second, third, ... stage (default: even)",
    )  # fmt: skip


def _count_or_auto(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


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

    _check_writable(arguments.out, arguments.html, arguments.trace)
    if arguments.evaluate:
        return _evaluate(arguments)
    cluster = Cluster.parse(arguments.cluster)
    meshes, boundaries = arguments.stage_meshes, arguments.stage_boundaries
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
            recompute=arguments.recompute,
            num_stages=arguments.num_stages,
            schedule=arguments.schedule,
            stages_per_rank=arguments.stages_per_rank,
            stage_ranks=parse_counts(arguments.stage_ranks),
            stage_meshes=meshes and [parse_stage_mesh(text) for text in meshes.split(",")],
            stage_boundaries=boundaries and boundaries.split(","),
            time_limit_s=arguments.time_limit,
            relative_gap=arguments.gap,
            on_progress=on_progress,
        )
    if arguments.out:
        found.save(arguments.out)
    _print_plan(found, arguments)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from shardwright.capture import capture
    from shardwright.cluster import Cluster
    from shardwright.pipeline.written import evaluate, read_written
    from shardwright.planning import SearchRequest, parse_bytes
    from shardwright.target import load_target, parse_settings

    asked = {
        "--num-stages": arguments.num_stages != 1,
        "--num-microbatches": arguments.num_microbatches is not None,
        "--mesh": arguments.mesh is not None,
        "--recompute": arguments.recompute != "none",
        "--schedule": arguments.schedule != "1f1b",
        "--stages-per-rank": arguments.stages_per_rank != 1,
        "--stage-ranks": arguments.stage_ranks is not None,
        "--stage-meshes": arguments.stage_meshes is not None,
        "--stage-boundaries": arguments.stage_boundaries is not None,
    }
    if any(asked.values()):
        raise ConfigError(
            "the file of a written pipeline says how the step is cut.",
            code="E539",
            values=[f"also given: {', '.join(name for name, given in asked.items() if given)}"],
            advice="either --evaluate or these",
        )
    written = read_written(arguments.evaluate)
    cluster = Cluster.parse(arguments.cluster)
    written.placed(cluster)  # what is wrong there is told before a long capture
    request = SearchRequest(
        parse_bytes(arguments.memory_limit),
        time_limit_s=arguments.time_limit,
        relative_gap=arguments.gap,
    )
    with _progress(f"evaluating {arguments.evaluate} for {cluster}") as on_progress:
        step, args = load_target(arguments.target, parse_settings(arguments.set))
        request = dataclasses.replace(request, on_progress=on_progress)
        found = evaluate(written, capture(step, args), cluster, request)
    if arguments.out:
        found.save(arguments.out)
    _print_plan(found, arguments)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from shardwright.plan_files import load_plan

    _check_writable(arguments.html, arguments.trace)
    _print_plan(load_plan(arguments.plan), arguments)
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    from shardwright.capture import capture
    from shardwright.plan_files import load_plan
    from shardwright.report.units import bytes_text, time_text
    from shardwright.target import load_target, parse_settings

    loaded = load_plan(arguments.plan)
    with _progress(f"capturing {arguments.target}"):
        step, args = load_target(arguments.target, parse_settings(arguments.set))
        step_graph = capture(step, args)
    loaded.validate(step_graph)
    print(
        f"valid: the plan fits the step; cost {time_text(loaded.time_us)} and peak memory "
        f"{bytes_text(loaded.peak_memory_bytes)} recomputed"
    )
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    from shardwright.plan_files import load_plan
    from shardwright.report.difference import difference_lines

    lines = difference_lines(load_plan(arguments.first), load_plan(arguments.second))
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


def _print_plan(plan: Plan | PipelinePlan, arguments: argparse.Namespace) -> None:
    from shardwright.report.of_plan import report_numbers, report_page, report_text
    from shardwright.report.text import terminal_width

    if arguments.html:
        Path(arguments.html).write_text(report_page(plan), encoding="utf-8")
    if arguments.trace:
        _write_trace(plan, arguments.trace)
    if arguments.json:
        print(json.dumps(report_numbers(plan), allow_nan=False))
        return
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    print(report_text(plan, width=terminal_width(), color=color))


def _write_trace(plan: Plan | PipelinePlan, path: str) -> None:
    from shardwright.pipeline.plan import PipelinePlan
    from shardwright.report.trace import write_chrome_trace

    if not isinstance(plan, PipelinePlan):
        raise ConfigError(
            "a plan without stages has no schedule to trace.",
            code="E538",
            values=[f"--trace {path}"],
            advice="--num-stages 2, or no --trace",
        )
    write_chrome_trace(path, *plan.simulate())


def parse_counts(text: str | None) -> tuple[int, ...] | None:
    """`"1,2"` as `(1, 2)`; None for None.

    Raises:
        ConfigError: E536 for a text that is no list of counts.
    """
    if text is None:
        return None
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and int(word) >= 1 for word in words):
        raise ConfigError(
            "ranks of stages are whole numbers, joined by commas.",
            code="E536",
            values=[f"--stage-ranks {text!r}"],
            advice="--stage-ranks 1,2",
        )
    return tuple(map(int, words))


def parse_mesh(text: str | None) -> tuple[int, ...] | None:
    """`"2x4"` as `(2, 4)`; None for None.

    Raises:
        ConfigError: E536 for a text that is no shape.
    """
    return None if text is None else _sizes(text, "--mesh 2x4")


def parse_stage_mesh(text: str) -> tuple[int, ...]:
    """`"1x2"` as `(1, 2)`, of one stage.

    Raises:
        ConfigError: E536 for a text that is no shape.
    """
    return _sizes(text, "--stage-meshes 2,1x2")


def _sizes(text: str, advice: str) -> tuple[int, ...]:
    sizes = text.lower().split("x")
    if not all(size.isascii() and size.isdigit() and int(size) >= 1 for size in sizes):
        raise ConfigError(
            "a mesh is one size per axis, joined by x.",
            code="E536",
            values=[f"mesh: {text!r}"],
            advice=advice,
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
