"""Prices of transfers: worked examples, and an own pricing of the steps that are emitted."""

import itertools
from collections import Counter

import pytest
from tests.python.unit.test_transfer import LAYOUTS, MESH_PAIRS, cluster, submesh
from tests.python.unit.transfer_oracle import specs_of

import shardwright as sw
from shardwright import _core

R = _core.Placement.replicate()
S0, S1 = _core.Placement.shard(0), _core.Placement.shard(1)
MATRIX = _core.TensorAtoms([24, 48], [[0], [1]])
V = 24 * 48 * 4
# NIC 1 byte/us, 7 us and 0.5 us more per further message; port 10 bytes/us, 2 us and 0.25 us.
HOSTS_OF_4 = cluster(8, 4)


def price(source, source_mesh, target, target_mesh, atoms=MATRIX, dtype="float32", on=HOSTS_OF_4):
    plan = _core.plan_transfer(atoms, dtype, source, source_mesh, target, target_mesh, on)
    alone = _core.transfer_cost_us(atoms, dtype, source, source_mesh, target, target_mesh, on)
    assert plan.cost_us == alone
    return plan


def mesh(shape, first_rank, on=HOSTS_OF_4):
    return submesh(shape, first_rank, on)


def test_one_rank_to_one_rank_of_another_host():
    plan = price([R], mesh((1,), 0), [R], mesh((1,), 4))
    assert [(s.kind, s.source_rank, s.target_rank) for s in plan.steps] == [("send", 0, 4)]
    assert plan.cost_us == V / 1 + 7
    assert plan.host_pair_bytes == {(0, 1): V}
    assert plan.rank_traffic == {0: (V, 0), 4: (0, V)}


def test_one_rank_to_one_rank_of_the_same_host():
    plan = price([R], mesh((1,), 0), [R], mesh((1,), 1))
    assert plan.cost_us == V / 10 + 2
    assert plan.host_pair_bytes == {}


def test_a_replicated_value_crosses_once_and_is_gathered():
    # Each target receives V / 4 over the NIC and 3 parts of V / 4 from its three neighbours. The
    # sends of four replicas start with one message each, gathers with six at each rank.
    plan = price([R, R], mesh((1, 4), 0), [R, R], mesh((1, 4), 4))
    kinds = Counter(step.kind for step in plan.steps)
    assert kinds == {"send": 4, "gather": 12}
    assert plan.host_pair_bytes == {(0, 1): V}
    assert plan.cost_us == (V / 1 + 7) + (3 * V / 4 / 10 + 2 + 5 * 0.25)
    assert set(plan.rank_traffic.values()) == {(V // 4, 0), (3 * V // 4, V)}


def test_a_small_value_is_passed_on_whole():
    # 1 element: parts are impossible, one rank receives it and sends it to three others.
    one = _core.TensorAtoms([1], [[0]])
    plan = price([R, R], mesh((1, 4), 0), [R, R], mesh((1, 4), 4), atoms=one)
    assert [step.kind for step in plan.steps] == ["send"] + 3 * ["gather"]
    assert plan.cost_us == (4 / 1 + 7) + (3 * 4 / 10 + 2 + 2 * 0.25)


def test_replicas_share_the_work_of_sending():
    # Both source hosts hold everything, so each sends one half: an eighth per rank.
    plan = price([R, S1], mesh((2, 4), 0), [S0, S1], mesh((2, 4), 8))
    by_source = Counter()
    for (source, _), sent in plan.host_pair_bytes.items():
        by_source[source] += sent
    assert by_source == {0: V // 2, 1: V // 2}
    assert set(plan.rank_traffic.values()) == {(V // 8, 0), (0, V // 8)}


def test_hosts_that_need_the_same_relay_it():
    # The source's NIC sends each half once, then the two hosts exchange halves: V + V / 2 instead
    # of 2 V. Each rank enters an eighth and gets one by relay; of 4 such quarters it gathers 3.
    plan = price([R, R], mesh((1, 4), 0), [R, R], mesh((2, 4), 4))
    kinds = Counter(step.kind for step in plan.steps)
    assert kinds == {"send": 8, "relay": 8, "gather": 24}
    assert plan.host_pair_bytes == {(0, 1): V // 2, (0, 2): V // 2, (1, 2): V // 2, (2, 1): V // 2}
    sends, relays = V / 1 + 7 + 0.5, V / 2 / 1 + 7 + 0.5
    assert plan.cost_us == sends + relays + (3 * V / 4 / 10 + 2 + 5 * 0.25)


def test_matching_shards_go_straight_from_rank_to_rank():
    plan = price([S0, S1], mesh((2, 4), 0), [S0, S1], mesh((2, 4), 8))
    assert [(s.source_rank, s.target_rank) for s in plan.steps] == [(r, r + 8) for r in range(8)]
    assert plan.cost_us == V / 2 / 1 + 7


def test_what_does_not_move_costs_nothing():
    one = mesh((2, 4), 0)
    for source, target in [([S0, S1], [S0, S1]), ([R, S1], [S0, S1]), ([R, R], [S1, S0])]:
        plan = price(source, one, target, one)
        assert {step.kind for step in plan.steps} == {"copy"}
        assert plan.cost_us == 0
        assert plan.rank_traffic == {}
    nothing = _core.TensorAtoms([0, 48], [[0], [1]])
    assert price([R], mesh((1,), 0), [R], mesh((1,), 4), atoms=nothing).steps == []


def own_price(plan, hosts, on) -> tuple[float, float]:
    """Price of the steps, and bytes by bandwidth of the busiest link over all phases."""
    total, phases = Counter(), []
    for kind in ("send", "relay", "gather"):
        load, partners, crosses = Counter(), Counter(), set()
        for step in plan.steps:
            if step.kind != kind:
                continue
            for side, rank in (("out", step.source_rank), ("in", step.target_rank)):
                load[side, "port", rank] += step.bytes / on.intra_host.bandwidth_bytes_per_us
                partners[rank] += 1
                if step.crosses_hosts:
                    crosses.add(rank)
                    nic = (side, "nic", hosts[rank])
                    load[nic] += step.bytes / on.inter_host.bandwidth_bytes_per_us
        start_ups = [
            (link := on.inter_host if rank in crosses else on.intra_host).latency_us
            + link.hop_latency_us * (count - 1)
            for rank, count in partners.items()
        ]
        phases.append(max(load.values(), default=0) + max(start_ups, default=0))
        total += load
    return sum(phases), max(total.values(), default=0)


@pytest.mark.parametrize("shapes", MESH_PAIRS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_price_is_that_of_the_steps_and_grows_with_the_bytes(shapes, layout):
    source_shape, target_shape, per_host = shapes
    sizes, dims = LAYOUTS[layout]
    atoms = _core.TensorAtoms(sizes, dims)
    wider = _core.TensorAtoms([2 * sizes[0], *sizes[1:]], dims)
    on = cluster(8, per_host)
    source_mesh = submesh(source_shape, 0, on)
    target_mesh = submesh(target_shape, len(source_mesh.ranks), on)
    hosts = dict(
        zip(source_mesh.ranks + target_mesh.ranks, source_mesh.hosts + target_mesh.hosts,
            strict=True)
    )  # fmt: skip
    for source, target in itertools.product(
        specs_of(atoms, source_shape), specs_of(atoms, target_shape)
    ):
        plan = price(source, source_mesh, target, target_mesh, atoms, on=on)
        cost, busiest = own_price(plan, hosts, on)
        assert plan.cost_us == pytest.approx(cost, rel=1e-12)
        assert plan.cost_us >= busiest
        meshes = source, source_mesh, target, target_mesh
        bigger = [
            _core.transfer_cost_us(wider, "float32", *meshes, on),
            _core.transfer_cost_us(atoms, "float64", *meshes, on),
        ]
        assert min(bigger) > plan.cost_us
        assert _core.transfer_cost_us(atoms, "int8", *meshes, on) < plan.cost_us


def test_pending_reductions_are_refused_on_either_side():
    partial = _core.Placement.partial()
    for source, target in [([partial], [R]), ([R], [partial])]:
        with pytest.raises(sw.PlanError, match=r"E341.*pending reduction"):
            price(source, mesh((1,), 0), target, mesh((1,), 4))


def test_specs_that_do_not_fit_are_refused():
    with pytest.raises(sw.PlanError, match="E341"):
        price([R, R], mesh((1,), 0), [R], mesh((1,), 4))
    seven = _core.TensorAtoms([7], [[0]])
    with pytest.raises(sw.PlanError, match="E341"):
        price([S0], mesh((4,), 0), [R], mesh((1,), 4), atoms=seven)
    row = _core.TensorAtoms([8, 8], [[1]])
    with pytest.raises(sw.PlanError, match=r"E341.*does not have"):
        price([S0], mesh((4,), 0), [R], mesh((1,), 4), atoms=row)


def test_submeshes_that_are_none_are_refused():
    for shape, ranks in [((2,), [0]), ((2,), [0, 0]), ((2,), [31, 32]), ((0,), []), ((), [])]:
        with pytest.raises(sw.ClusterError, match="E358"):
            _core.Submesh.on_cluster(shape, ranks, HOSTS_OF_4)
    abstract = cluster(8, 4)
    abstract.abstract_axes = [_core.AxisCost(1.0, 1.0)]
    with pytest.raises(sw.ClusterError, match="E358"):
        price([R], mesh((1,), 0), [R], mesh((1,), 4), on=abstract)
