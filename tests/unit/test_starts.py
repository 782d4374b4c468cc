"""Command lines of torchrun and of any program, placeholders, c10d's order in the plan, what the keys may say."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.distributed.start import TINY
from trainpkg import template
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch import facts
from trainpkg.launch.head import own
from trainpkg.launch.head.blame import units
from trainpkg.launch.head.blame.failure import Record, find_cause
from trainpkg.launch.head.meeting import settings
from trainpkg.launch.node.evidence import says_port_taken
from trainpkg.launch.node.orders import make_orders
from trainpkg.launch.plan import LaunchPlan, make_plan
from trainpkg.launch.slurm.grammar import expand_counts
from trainpkg.launch.spec import Spec
from trainpkg.launch.start.command import placeholders, program_command
from trainpkg.launch.start.torchrun import agent_command, order_of_ranks, simulated_address

ROOT = Path(__file__).parents[2]
HOSTS = ["n1", "n2", "n3", "n4"]


def spec(**changes: Any) -> Spec:
    base = Spec("train", "a", "/r", "/r/train.json", "/r/config.yaml", 1, len(HOSTS), HOSTS, "slurm", "/r/launch/1")
    return dataclasses.replace(base, **{"slurm_job_id": "7", "nonce": "abcd", **changes})


def plan(counts: int | list[int] = 8, **changes: Any) -> LaunchPlan:
    return make_plan(HOSTS, counts, **{"master_addr": "10.0.0.1", "master_port": 20_000, **changes})


def run(base: str | None = "digits", **sections: Any) -> Run:
    tree = {**(TINY[base] if base else {}), "run": "a", "recipe": "r"}
    return Run.model_validate({**tree, **sections})


def refusal(base: str | None = "digits", **sections: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        run(base, **sections)
    return str(caught.value)


@pytest.mark.parametrize(
    ("keys", "hidden"),
    [
        ({}, True), ({"backend": "srun"}, False), ({"backend": "mpi", "mpi": "pmix"}, False),
        ({"backend": "mpi", "mpi": "mpirun"}, True),
    ],
)  # fmt: skip
def test_a_script_is_not_told_of_a_task_that_is_not_its_own(keys: dict[str, Any], hidden: bool) -> None:
    mine = spec(script=["train.py"], **keys)
    [order, *_] = make_orders(mine, Path("/r/spec.json"), plan(2), 0, "cpu", {}, None).ranks
    assert (order.env.get("SLURM_PROCID", "") is None) == hidden


# torchrun


@pytest.mark.failure("F006")
@pytest.mark.failure("F016")
@pytest.mark.failure("F045")
@pytest.mark.failure("F074")
@pytest.mark.failure("F076")
def test_torchrun_s_command_line_leaves_nothing_to_its_guesses() -> None:
    counts = expand_counts("8(x2),4,8", "SLURM_TASKS_PER_NODE")
    command = agent_command(spec(backend="torchrun"), plan(counts), 2, "10.0.0.3", "/tmp/x")
    options = dict(word.removeprefix("--").split("=", 1) for word in command[3:] if word.startswith("--"))
    assert options["nnodes"] == "4" and options["nproc-per-node"] == "4"
    assert options["rdzv-endpoint"] == "10.0.0.1:20000" and options["local-addr"] == "10.0.0.3"
    assert "is_host=0" in options["rdzv-conf"] and "join_timeout=600" in options["rdzv-conf"]
    assert "SIGUSR2" in options["signals-to-handle"] and int(options["shutdown-timeout"]) > 120
    assert options["max-restarts"] == "0"
    assert command[-2:] == ["-m", "trainpkg.launch.start.guard"]
    first = agent_command(spec(backend="torchrun"), plan(), 0, "10.0.0.1", "/tmp/x")
    assert any("is_host=1" in word for word in first)
    assert "--rdzv-endpoint=[fd00::1]:20000" in agent_command(
        spec(backend="torchrun"), plan(master_addr="fd00::1"), 0, "fd00::1", "/tmp/x"
    )


@pytest.mark.failure("F032")
def test_no_two_starts_share_a_rendezvous() -> None:
    def name(**changes: Any) -> str:
        generation = changes.pop("generation", 0)
        command = agent_command(spec(backend="torchrun", **changes), plan(generation=generation), 0, "", "")
        return next(word for word in command if word.startswith("--rdzv-id="))

    assert len({name(), name(generation=1), name(attempt=2), name(nonce="other"), name(slurm_job_id="8")}) == 5


@pytest.mark.failure("F035")
@pytest.mark.parametrize("backend", ["torchrun", "torchrun-static"])
def test_one_node_is_started_as_many_are(backend: str) -> None:
    alone = make_plan(HOSTS[:1], 8, master_addr="10.0.0.1", master_port=20_000)
    one = agent_command(spec(backend=backend, num_nodes=1, hosts=HOSTS[:1]), alone, 0, "10.0.0.1", "/tmp/x")
    many = agent_command(spec(backend=backend), plan(), 0, "10.0.0.1", "/tmp/x")
    assert [word for word in one if word not in many] == ["--nnodes=1"]
    assert len(one) == len(many)


def test_static_rendezvous_takes_the_order_of_the_plan() -> None:
    command = agent_command(spec(backend="torchrun-static"), plan(), 3, "10.0.0.4", "/tmp/x")
    assert {"--node-rank=3", "--master-addr=10.0.0.1", "--master-port=20000"} <= set(command)
    assert "--rdzv-backend=static" in command and "--nnodes=4" in command


def test_the_second_port_of_c10d_is_told_where_few_are_open() -> None:
    nodes = [facts.NodeFacts(index, host, 1, 8, "cuda") for index, host in enumerate(HOSTS)]
    asked = spec(backend="torchrun", ports=[20_000, 20_010])
    assert any("c10d opens one more" in text for text in settings.warnings(asked, nodes))
    for other in (spec(backend="torchrun"), dataclasses.replace(asked, backend="torchrun-static")):
        assert not any("c10d" in text for text in settings.warnings(other, nodes))


def test_torchrun_knows_these_options() -> None:
    """Its own parser, so that a torch that renames one is noticed here."""
    from torch.distributed.run import get_args_parser

    for backend in ("torchrun", "torchrun-static"):
        command = agent_command(spec(backend=backend), plan(), 1, "10.0.0.2", "/tmp/x")
        args = get_args_parser().parse_args(command[3:])
        assert args.module and args.training_script == "trainpkg.launch.start.guard"
        assert args.nproc_per_node == "8" and args.shutdown_timeout == 180


# the order of nodes


@pytest.mark.failure("F010")
def test_the_plan_states_c10d_s_own_order_of_nodes() -> None:
    order = order_of_ranks(["10.0.0.9", "10.0.0.10", "10.0.0.11", "10.0.0.8"])
    assert order == [1, 2, 3, 0]  # as text
    made = plan(expand_counts("1,2,3,4", "counts"), rank_order=order)
    assert [node.rank_offset for node in made.nodes] == [9, 0, 2, 5]
    assert [node.index for node in made.nodes] == [0, 1, 2, 3]
    assert made.rank_order == order
    assert [made.node_of_rank(rank).index for rank in (0, 1, 2, 4, 5, 8, 9)] == [1, 1, 2, 2, 3, 3, 0]
    assert LaunchPlan.from_json(made.to_json()) == made
    torn = made.to_dict()
    torn["nodes"][0]["rank_offset"] = 10  # rank 9 is nobody's
    with pytest.raises(UserError, match="do not add up"):
        LaunchPlan.from_dict(torn)


def test_simulated_nodes_have_an_address_each() -> None:
    many = spec(where="local", hosts=[f"sim{i}" for i in range(600)], num_nodes=600)
    found = {simulated_address(many, index, "127.0.0.1") for index in range(600)}
    assert len(found) == 600 and {"127.0.0.1", "127.0.0.2", "127.0.2.88"} <= found
    assert simulated_address(spec(where="local", hosts=["a", "127.0.0.9"]), 1, "127.0.0.1") == "127.0.0.9"


# any program


def test_the_arguments_of_corenet_on_each_node() -> None:
    recipe = yaml.safe_load((ROOT / "config/recipes/corenet.yaml").read_text())
    corenet = run(None, **recipe)
    fields = own.fields_of_spec(corenet, "train", Path("/r"))
    for index in range(4):
        assert program_command(spec(**fields), plan(), index) == [
            "corenet-train", "--common.config-file",
            "/path/to/corenet/projects/openelm/pretraining_configs/openelm_3B.yaml",
            "--common.results-loc", "/r", "--ddp.rank", str(8 * index), "--ddp.world-size", "32", "--ddp.dist-url", "tcp://10.0.0.1:20000",
            "--ddp.backend", "nccl",
        ]  # fmt: skip
    assert own.fields_of_spec(corenet, "smoke", Path("/r"))["backend"] == "spawn"  # our own smoke test, beside it


def test_accelerate_starts_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = yaml.safe_load((ROOT / "config/recipes/accelerate.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"entry.script = 'train.py': there is no such file"):
        own.fields_of_spec(run(None, **recipe), "train", Path("/r"))
    Path("train.py").touch()
    fields = own.fields_of_spec(run(None, **recipe), "train", Path("/r"))
    command = program_command(spec(**fields), plan(), 1)
    assert command[:4] == ["accelerate", "launch", "--multi_gpu", "--num_processes"]
    assert command[-2:] == ["-m", "trainpkg.launch.start.guard"]
    assert fields["script"] == ["train.py", "--epochs", "3"]


def test_placeholders_are_filled_word_by_word() -> None:
    values = placeholders(spec(), plan([8, 4, 8, 8], master_addr="fd00::1"), 1)
    assert values["rank_offset"] == "8" and values["gpus_per_node"] == "4" and values["world_size"] == "28"
    assert values["dist_url"] == "tcp://[fd00::1]:20000" and values["hosts"] == "n1,n2,n3,n4"
    line = "run '{{a b}}' --x={node_rank}/{num_nodes} {entry} \"{hosts}\""
    assert template.fill_line(line, values, ["-m", "g"]) == ["run", "{a b}", "--x=1/4", "-m", "g", "n1,n2,n3,n4"]
    assert template.fill_line("bash -c 'torchrun {entry}'", values, ["-m", "g"])[-1] == "torchrun -m g"
    assert template.uses_entry("bash -c 'x {entry}'") and not template.uses_entry("x {{entry}}")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("x {rank}", "unknown placeholder {rank}; nearest: {node_rank}; known are {rank_offset} {world_size}"),
        ("x {}", "unknown placeholder {}"),
        ("x {node_rank:>3}", "{node_rank:>3} is more than a name in braces"),
        ("x {node_rank.real}", "unknown placeholder {node_rank.real}"),
        ("x { y", "write {{ and }} for literal braces"),
        ("x 'y", "cannot be split as a shell would"),
    ],
)
def test_a_wrong_template_is_refused_when_the_config_is_read(line: str, sentence: str) -> None:
    assert sentence in refusal(None, launch={"backend": "command", "command": line})


# keys that contradict each other


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"launch": {"backend": "command"}}, "needs launch.command"),
        ({"launch": {"command": "x"}}, "launch.backend = 'spawn' does not read it"),
        ({"launch": {"backend": "command", "command": "x"}}, "model is given, but launch.command without {entry}"),
        ({"entry": {"script": "t.py"}}, "train is given, but entry names a program of your own"),
        ({"launch": {"backend": "torchrun", "nodes": 10_000}}, "take torchrun-static or spawn"),
        ({"launch": {"oversubscribe": True}}, "nccl refuses two ranks on one GPU"),
        ({"launch": {"oversubscribe": True, "dist_backend": "gloo", "device": "cpu"}}, "has no effect with launch.dev"),
    ],
)
def test_keys_beside_our_own_trainer(sections: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**sections)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({}, "task is missing: images: classification"),
        ({"launch": {"backend": "command", "command": "x {entry}"}}, "train is missing: Length"),
        ({"entry": {}}, "entry.script = None and entry.module = None: one of the two is needed"),
        ({"entry": {"script": "a", "module": "b"}}, "one of the two is needed"),
        ({"entry": {"script": "a", "args": ["{local}"]}}, "unknown placeholder {local}; nearest: {local_rank}"),
        ({"entry": {"script": "a"}, "seed": 3}, "seed is given, but entry"),
        (
            {"entry": {"script": "a", "args": ["{dist_url}"]}, "launch": {"backend": "torchrun"}},
            "the ranks meet where c10d says, not at {dist_url}",
        ),
        ({"entry": {"script": "a"}, "launch": {"backend": "command", "command": "x"}}, "has no {entry} where"),
    ],
)
def test_keys_beside_a_program_of_one_s_own(sections: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(None, **sections)


def test_what_a_program_of_one_s_own_computes_is_its_identity() -> None:
    def print_of(**sections: Any) -> str:
        return run(None, **sections).fingerprint()

    script = {"entry": {"script": "a", "args": ["1"]}}
    command = {"launch": {"backend": "command", "command": "x {node_rank}"}}
    prints = [print_of(**script), print_of(entry={"script": "a", "args": ["2"]}), print_of(**command)]
    prints.append(print_of(launch={"backend": "command", "command": "y"}))
    assert len(set(prints)) == 4
    assert print_of(**script, launch={"nodes": 2, "backend": "torchrun"}) == prints[0]
    read_again = Run.model_validate(run(None, **script).tree())
    assert read_again.own_program and read_again.fingerprint() == prints[0]
    with pytest.raises(UserError, match="trains a program of its own"):
        own.fields_of_spec(read_again, "evaluate", Path("/r"))


# ranks and devices


@pytest.mark.failure("F054")
def test_more_ranks_than_gpus_are_refused_or_wanted() -> None:
    asked = spec(gpus_per_node=[4] * 4, device="cuda")
    with pytest.raises(UserError, match=r"launch.gpus_per_node = 4, but 2 GPUs are visible \(0,1\).*Duplicate GPU"):
        facts.count_ranks(asked, 0, "cuda", ["0", "1"])
    assert facts.count_ranks(dataclasses.replace(asked, oversubscribe=True), 0, "cuda", ["0", "1"]) == 4
    assert facts.count_ranks(asked, 0, "cuda", ["0", "1", "2", "3", "4"]) == 4


# sentences


def test_ends_of_programs_are_told_by_their_own_names() -> None:
    foreign = spec(backend="command", command="x")
    assert units.units(foreign, plan()) == {0: 0, 1: 1, 2: 2, 3: 3} and units.num_programs(foreign) == 0
    dead = Record("signal", 1, "n2", 1.0, rank=1, signal=9)
    failed = find_cause([units.as_seen(foreign, plan(), dead, {})])
    assert failed.sentence.startswith("the program of node 1 (n2) was killed by SIGKILL") and failed.rank is None
    assert "step" not in failed.sentence
    ended = {"trouble": "while its ranks ran", "exit_code": None, "signal": 9, "last_lines": [], "name": "torchrun"}
    record = units.of_program(plan(), 2, ended | {"pid": 5}, 1.0, 7)
    assert record is not None and units.num_programs(spec(backend="torchrun")) == 4
    cause = find_cause([record])
    assert cause.sentence.startswith(
        "the torchrun (process 5) of node 2 (n3) was killed by SIGKILL while its ranks ran"
    )
    assert cause.status == 137
    assert units.of_program(plan(), 2, ended | {"trouble": "", "pid": 5}, 1.0, 7) is None


def test_a_taken_port_is_told_from_other_failures() -> None:
    torch = (
        "DistNetworkError: The server socket has failed to listen. port: 20000, code: -98, name: EADDRINUSE, message"
    )
    assert says_port_taken(torch, 20000) and not says_port_taken(torch, 20001)
    assert says_port_taken("OSError: [Errno 98] Address already in use: ('', 20000)", 20000)
    assert not says_port_taken("connection to 20000 refused", 20000)
    assert not says_port_taken(torch + "\n" + "step\n" * 200, 20000)  # long ago
    record = units.as_seen(spec(script=["a"]), plan(), Record("exit", 0, "n1", 1.0, rank=0, exit_code=1),
                           {"port_taken": True})  # fmt: skip
    assert record.kind == "port_taken"
    assert "found port 20000 of 10.0.0.1 taken" in find_cause([record]).sentence


def test_commands_can_be_typed_as_they_are_shown() -> None:
    command = agent_command(spec(backend="torchrun"), plan(), 0, "10.0.0.1", "/tmp/x")
    assert shlex.split(shlex.join(command)) == command
