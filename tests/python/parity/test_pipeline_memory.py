"""Peak memory of pipeline stages: the certificate's claim against what is allocated as they run."""

import dataclasses
import math

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardwright import Cluster, Plan, _core, planning, zoo
from shardwright.capture import capture
from shardwright.errors import ConfigError, InfeasibleError, PlanError
from shardwright.pipeline import parity
from shardwright.pipeline.microbatches import split_microbatches
from shardwright.pipeline.options import StageConstraints
from shardwright.pipeline.planning import plan_pipeline
from shardwright.runtime.section_loop import StepRun


class _Ledger(TorchDispatchMode):
    """Bytes that stages have allocated or received and not yet freed; a storage counts once."""

    def __init__(self, num_stages):
        super().__init__()
        self.stage = None
        self.alive = [{} for _ in range(num_stages)]
        self.peak = [0] * num_stages

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        if self.stage is not None:
            known = {_address(t) for t in tree_leaves((args, kwargs)) if _is_tensor(t)}
            made = [t for t in tree_leaves(outputs) if _is_tensor(t) and _address(t) not in known]
            self.hold(self.stage, made)
        return outputs

    def hold(self, stage, tensors):
        held = {k: v for k, v in self.alive[stage].items() if not v[0].expired()}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            held[_address(tensor)] = StorageWeakRef(storage), storage.nbytes()
        self.alive[stage] = held
        self.peak[stage] = max(self.peak[stage], sum(count for _, count in held.values()))


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _address(tensor):
    return tensor.untyped_storage()._cdata


def _pipeline(target, meshes, num_microbatches, schedule):
    step, args = target()
    graph = split_microbatches(capture(step, args), num_microbatches)
    constraints = StageConstraints.given(len(meshes), schedule, None, meshes, None, mesh=None)
    machines = Cluster.local_cpu(sum(math.prod(mesh) for mesh in meshes))
    pipeline = plan_pipeline(graph, machines, constraints, planning.SearchRequest())
    return pipeline, (step, args)


def _measured(pipeline, step, args, monkeypatch):
    """Most bytes that each stage had allocated at once, per rank, beside what is stored."""
    ledger = _Ledger(len(pipeline.plans))
    run, receive = StepRun.run, StepRun.receive
    stage_of = {id(program): stage for stage, program in enumerate(pipeline.programs)}

    def run_in_stage(self, number, microbatch):
        ledger.stage = stage_of[id(self._program)]
        run(self, number, microbatch)
        ledger.stage = None

    def receive_in_stage(self, ref, value, microbatch):
        ledger.hold(stage_of[id(self._program)], value)
        receive(self, ref, value, microbatch)

    monkeypatch.setattr(StepRun, "run", run_in_stage)
    monkeypatch.setattr(StepRun, "receive", receive_in_stage)
    simulated = parity._SimulatedPipeline(pipeline, step, args)
    with ledger:
        simulated.run(0)
    counts = [program.table.num_ranks for program in pipeline.programs]
    return [peak / count for peak, count in zip(ledger.peak, counts, strict=True)]


def _claimed(plan, step_graph):
    """The certificate's peak without the inputs that are there before the step begins."""
    stored = [spec.name for spec in step_graph.inputs if spec.kind != "boundary"]
    total = plan.peak_memory_bytes
    for name in stored:
        if name in plan.inputs:
            tensor = plan.inputs[name]
            axes = zip(plan.mesh_shape, tensor.spec, strict=True)
            shards = math.prod(size for size, word in axes if word.startswith("S"))
            total -= math.prod(tensor.shape) * getattr(torch, tensor.dtype).itemsize // shards
    return total


def _gpt():
    return zoo.gpt_tiny(layers=3, batch_size=24, seq_len=64, dtype=torch.float32)


# Bytes of one microbatch's hidden state in the GPT above: [4, 64, 32] in float32.
_HIDDEN_BYTES = 4 * 64 * 32 * 4
_TOLERANCE_BYTES = 16 * 1024


@pytest.mark.parametrize(
    ("meshes", "schedule", "in_flight"),
    [
        ([(1,)] * 3, "1f1b", [3, 2, 1]),
        ([(1,)] * 3, "gpipe", [6, 6, 6]),
        ([(2,), (1,)], "1f1b", [2, 1]),
    ],
)
def test_certificate_is_what_stages_allocate(meshes, schedule, in_flight, monkeypatch):
    pipeline, step = _pipeline(_gpt, meshes, 6, schedule)
    assert [plan.microbatches_in_flight for plan in pipeline.plans] == in_flight
    measured = _measured(pipeline, *step, monkeypatch)
    for stage, (plan, graph) in enumerate(zip(pipeline.plans, pipeline.stages.graphs, strict=True)):
        claimed = _claimed(plan, graph)
        # Not in the claim: attention's result copied once more for its strides, of every microbatch
        # that waits and, until backward comes to the layer, of the one that runs.
        layers = len({op.module_path for op in plan.stages[0].ops if "sdpa.default" in op.op})
        copies = [
            layers * (plan.microbatches_in_flight - waits) * _HIDDEN_BYTES for waits in (1, 0)
        ]
        assert claimed + copies[0] - _TOLERANCE_BYTES <= measured[stage]
        assert measured[stage] <= claimed + copies[1] + _TOLERANCE_BYTES
        if plan.microbatches_in_flight > 1:
            # Neither one microbatch alone nor sums counted for each would be within these bounds.
            width = copies[1] - copies[0] + 2 * _TOLERANCE_BYTES
            assert plan.peak_memory_bytes - _alone(plan, graph) > width
            sums = (plan.microbatches_in_flight - 1) * plan.certificate.at_peak.gradients
            assert layers > 1 or sums > width


def test_zero_bubble_allocates_no_more_than_its_certificate_claims(monkeypatch):
    """Weight gradients wait for their turn, some microbatches for backward: counted as if both."""
    pipeline, step = _pipeline(_gpt, [(1,)] * 3, 6, "zero_bubble")
    assert [plan.microbatches_in_flight for plan in pipeline.plans] == [3, 3, 3]
    measured = _measured(pipeline, *step, monkeypatch)
    for stage, (plan, graph) in enumerate(zip(pipeline.plans, pipeline.stages.graphs, strict=True)):
        copies = 3 * _HIDDEN_BYTES  # of attention's result, as above
        claimed = _claimed(plan, graph)
        assert measured[stage] <= claimed + copies + _TOLERANCE_BYTES
        assert claimed <= 2 * measured[stage]


def _alone(plan, step_graph):
    """Peak of the same choices with one microbatch in flight."""
    graph = planning.sharded_graph(step_graph)
    core = dataclasses.replace(plan, microbatches_in_flight=1).to_core(graph)
    return _core.certify_plan(graph, core).peak_memory_bytes


def _search(in_flight, memory_limit=None):
    step, args = _gpt()
    graph = split_microbatches(capture(step, args), 6)
    return planning.plan(
        graph, mesh=(2,), microbatches_in_flight=in_flight, memory_limit=memory_limit
    ), graph


def test_search_and_certificate_agree_on_microbatches_in_flight():
    free, _ = _search(1)
    crowded, graph = _search(6)
    assert crowded.peak_memory_bytes > 2 * free.peak_memory_bytes
    assert crowded.certificate.at_peak.activations > 3 * free.certificate.at_peak.activations
    assert crowded.certificate.at_peak.parameters == free.certificate.at_peak.parameters
    # A limit that the plan meets binds nothing; one below is met at a price, or refused.
    again, _ = _search(6, crowded.peak_memory_bytes)
    assert again.time_us == crowded.time_us
    assert Plan.from_dict(crowded.to_dict()).validate(graph) == crowded.certificate
    smaller, _ = _search(6, crowded.peak_memory_bytes - 1)
    assert smaller.peak_memory_bytes < crowded.peak_memory_bytes
    assert smaller.time_us >= crowded.time_us
    with pytest.raises(InfeasibleError, match="6 microbatches in flight") as caught:
        _search(6, free.peak_memory_bytes)
    assert caught.value.code == "E203"


def test_validate_finds_another_number_of_microbatches_in_flight():
    plan, graph = _search(3)
    document = plan.to_dict()
    document["microbatches_in_flight"] = 1
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(document).validate(graph)
    assert caught.value.code == "E324"
    del document["microbatches_in_flight"]  # as files of earlier versions
    assert Plan.from_dict(document).microbatches_in_flight == 1
    document["microbatches_in_flight"] = 7  # of six
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(document)
    assert caught.value.code == "E323"
    assert "6 microbatches, 3 microbatches in flight" in str(plan)


def test_more_microbatches_in_flight_than_there_are_are_refused():
    with pytest.raises(ConfigError) as caught:
        _search(7)
    assert caught.value.code == "E520"
