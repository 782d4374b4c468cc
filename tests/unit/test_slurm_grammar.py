"""Slurm's notations: examples, properties, hostile input, and Slurm's own answer where its client is installed."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainpkg.errors import UserError
from trainpkg.launch.slurm.grammar import (
    MAX_HOSTS,
    Gres,
    count_gpus,
    expand_counts,
    expand_hosts,
    parse_devices,
    parse_gres,
)

failure = pytest.mark.failure


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        pytest.param("linux[1,2]", ["linux1", "linux2"], marks=failure("F037"), id="F037"),
        pytest.param(
            "rack[1-2]n[1-4]",
            [f"rack{rack}n{node}" for rack in (1, 2) for node in (1, 2, 3, 4)],
            marks=failure("F039"),
            id="F039",
        ),
        pytest.param(
            "nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"], marks=failure("F040"), id="F040"
        ),
        pytest.param("host-[001-002]", ["host-001", "host-002"], marks=failure("F042"), id="F042-dash"),
        pytest.param("c[1-2]", ["c1", "c2"], marks=failure("F042"), id="F042-short"),
        pytest.param("n", ["n"], marks=failure("F042"), id="F042-n"),
        (
            "rack[1-2]n[1-3],login5",
            ["rack1n1", "rack1n2", "rack1n3", "rack2n1", "rack2n2", "rack2n3", "login5"],
        ),
        ("n[001-003,7]", ["n001", "n002", "n003", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-011]", ["n8", "n9", "n10", "n11"]),  # the first number gives the width
        ("n[1,01,001]", ["n1", "n01", "n001"]),
        ("n[3,1],a", ["n3", "n1", "a"]),  # not sorted
        ("n[1-2][3-4]", ["n13", "n14", "n23", "n24"]),
        ("n[1-2]x[1-2]y[1-2]", ["n1x1y1", "n1x1y2", "n2x1y1", "n2x1y2", "n1x2y1", "n1x2y2", "n2x2y1", "n2x2y2"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("n[1-2]-ib.site", ["n1-ib.site", "n2-ib.site"]),  # beyond Slurm, for --hosts
        ("n[1-2,2-3]", ["n1", "n2", "n2", "n3"]),
    ],
)
def test_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


BLANK = ["", " ", " a", "a ", "a b", "a,,b", ",a", "a,", "n[1,]", "n[,1]", "n[1, 2]", "a\nb", "a\tb", "a\0"]
BRACKETS = ["n[", "n]", "n[]", "n[[1-2]]", "n[1-2", "1-2]", "[" * 100_000, "n[1" * 30_000]
RANGES = ["a[3-1]", "n[1-]", "n[-3]", "n[1-2-3]", "n[a-c]", "n[0x1-0x3]", "n[1-99999999999999999999]"]
FOREIGN = ["a\x1b[31m", "n[\u0661-\u0663]", "n\uff11", "n[\u00b2]", "caf\u00e9", "-oX=y", ".", "a;b", "a$(b)", "a/b"]
HUGE = [
    "n[1-1000000]",
    "n[0-65536]",
    "n[1-300]x[1-300]",
    "n[1-3000]x[1-2000]",
    "n[1-40000],m[1-40000]",
    "a," * MAX_HOSTS + "a",
]
LONG = ["n" * 256, "n[1]" * 400]


@pytest.mark.parametrize(
    "text", [*BLANK, *BRACKETS, *RANGES, *FOREIGN, *HUGE, *LONG], ids=lambda text: ascii(text)[:20]
)
@failure("F042")
def test_bad_host_lists_are_refused_at_once_and_quoted(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UserError) as caught:
        expand_hosts(text, "SLURM_JOB_NODELIST")
    assert time.perf_counter() - start < 1
    message = str(caught.value)
    assert message.startswith(f"SLURM_JOB_NODELIST is {ascii(text)[:100]}")
    assert message.isprintable() and message.isascii() and len(message) < 800


PIECE = st.tuples(st.integers(0, 1200), st.integers(0, 9), st.integers(1, 5)).map(
    lambda piece: (f"{piece[0]:0{piece[2]}d}", piece[0] + piece[1])
)
BRACKET = st.lists(PIECE, min_size=1, max_size=3)
NAME = st.from_regex(r"[a-z][a-z0-9]{0,3}-?", fullmatch=True)
ITEM = st.tuples(NAME, st.lists(st.tuples(BRACKET, st.from_regex(r"[a-z.]{0,2}", fullmatch=True)), max_size=3))


Items = list[tuple[str, list[tuple[list[tuple[str, int]], str]]]]


def render(items: Items) -> tuple[str, list[str]]:
    """A host list and what it means, the second computed in another way than the parser does it."""
    texts, hosts = [], []
    for name, brackets in items:
        if brackets:  # Slurm wants nothing behind the last bracket
            brackets = [*brackets[:-1], (brackets[-1][0], "")]
        text, sets = name.rstrip("-") if not brackets else name, []
        for bracket, part in brackets:
            text += "[" + ",".join(low if int(low) == high else f"{low}-{high}" for low, high in bracket) + "]" + part
            sets.append([str(n).zfill(len(low)) + part for low, high in bracket for n in range(int(low), high + 1)])
        texts.append(text)
        prefix = name if brackets else name.rstrip("-")
        order = [len(sets) - 1, *range(len(sets) - 1)] if sets else []  # fastest first
        for index in itertools.product(*(range(len(sets[dim])) for dim in reversed(order))):
            chosen = dict(zip(reversed(order), index, strict=True))
            hosts.append(prefix + "".join(sets[dim][chosen[dim]] for dim in range(len(sets))))
    return ",".join(texts), hosts


@settings(deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=4))
def test_rendered_lists_expand_to_what_they_mean(
    items: Items,
) -> None:
    text, hosts = render(items)
    assert expand_hosts(text) == hosts


@settings(deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="an0123,-[]. ", max_size=40))
def test_any_text_gives_clean_names_or_a_user_error(text: str) -> None:
    try:
        hosts = expand_hosts(text)
    except UserError:
        return
    assert hosts and all(host.isascii() and host.isprintable() and not set(host) & set(" ,[]") for host in hosts)


@pytest.fixture(scope="module")
def scontrol(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Slurm's client with a configuration of its own: it needs one, but no controller."""
    if shutil.which("scontrol") is None:
        pytest.skip("scontrol is not installed: Slurm's own answer is not compared")
    conf: Path = tmp_path_factory.mktemp("slurm") / "slurm.conf"
    conf.write_text("ClusterName=t\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=localhost\n")
    return {**os.environ, "SLURM_CONF": str(conf)}


def test_scontrol_says_the_same(scontrol: dict[str, str]) -> None:
    def compare(items: Items) -> None:
        text, _ = render(items)
        command = ["scontrol", "show", "hostnames", text]
        answer = subprocess.run(command, env=scontrol, capture_output=True, text=True, check=True).stdout.split()
        assert expand_hosts(text) == answer

    settings(max_examples=80, deadline=None)(given(st.lists(ITEM, min_size=1, max_size=3))(compare))()


# What Slurm makes of texts that no Slurm writes and no person means. Here each is refused, and quoted.
LENIENT = [
    ("", []), (" a ", ["a"]), ("a b", ["a", "b"]), ("a,,b", ["a", "b"]), ("a,", ["a"]), ("n[1, 2]", ["n1", "n02"]),
    ("n[1 - 2]", ["n01", "n02"]), ("n[1-]", ["n1"]), ("n[", ["n]"]), ("n[1-2", ["n]"]), ("n]", ["n]"]), (".n", [".n"]),
    ("a/b", ["a/b"]), ("a;b", ["a;b"]), ("n(1-2)", ["n(1-2)"]), ("n'1", ["n'1"]),
    ("n[99999999999999999999]", ["n18446744073709551615"]),
    ("n[1,]", []), ("n[,1]", []), ("n[]", []), ("n[[1-2]]", []), ("a[3-1]", []), ("n[-3]", []), ("n[1-2-3]", []),
    ("n[a-c]", []), ("n[0x1-0x3]", []), ("n[\u0661]", []),
]  # fmt: skip
# What is read here beyond Slurm, which answers nothing: text behind the last bracket.
BEYOND = [("n[1-2]-ib", ["n1-ib", "n2-ib"]), ("n[1-2].site", ["n1.site", "n2.site"]), ("n[1-2]1", ["n11", "n21"])]


def hostnames(scontrol: dict[str, str], text: str) -> list[str]:
    command = ["scontrol", "show", "hostnames", text]
    return subprocess.run(command, env=scontrol, capture_output=True, text=True, check=False).stdout.split("\n")[:-1]


@failure("F042")
@pytest.mark.parametrize(("text", "slurms"), LENIENT, ids=lambda value: ascii(value)[:20])
def test_what_slurm_lets_pass_is_refused(text: str, slurms: list[str], scontrol: dict[str, str]) -> None:
    assert hostnames(scontrol, text) == slurms
    with pytest.raises(UserError):
        expand_hosts(text)


@pytest.mark.parametrize(("text", "hosts"), BEYOND)
def test_what_is_read_beyond_slurm(text: str, hosts: list[str], scontrol: dict[str, str]) -> None:
    assert hostnames(scontrol, text) == []
    assert expand_hosts(text) == hosts


def test_no_text_has_two_meanings(scontrol: dict[str, str]) -> None:
    """Where both Slurm and we read a text, we read the same; where one does not, it is of a kind listed above."""
    numbers = st.from_regex(r"[0-9]{1,3}(-[0-9]{1,3})?", fullmatch=True)
    piece = st.sampled_from(["a", "n1", "-", ".", "[", "]", ",", " ", "["]) | numbers
    texts = st.lists(piece, max_size=8).map("".join) | st.text(alphabet="an0129,-[]. ", max_size=16)

    def compare(text: str) -> None:
        if text.startswith("-"):  # an option of scontrol
            return
        slurms = hostnames(scontrol, text)
        try:
            ours = expand_hosts(text)
        except UserError:
            kinds = [" " in text, ",," in f",{text},", text.count("[") != text.count("]"), "-]" in text, "-," in text]
            kinds += ["]" in "".join(slurms), text.startswith(".") or ",." in text or ",-" in text]
            kinds += [bool(re.search(r"[0-9]{19}", text))]
            assert not slurms or any(kinds), (text, slurms)
            return
        assert ours == slurms or (not slurms and re.search(r"\][^\[\],]+(,|$)", text)), (text, slurms, ours)

    settings(max_examples=120, deadline=None)(given(texts)(compare))()


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        pytest.param("1(x2)", [1, 1], marks=failure("F043"), id="F043"),
        pytest.param("4(x2)", [4, 4], marks=failure("F045"), id="F045"),
        pytest.param("4,2", [4, 2], marks=failure("F046"), id="F046-comma"),
        pytest.param("2(x3),1", [2, 2, 2, 1], marks=failure("F046"), id="F046"),
        pytest.param("3,1(x2),2", [3, 1, 1, 2], marks=failure("F058"), id="F058"),
        ("0", [0]),
    ],
)
def test_counts(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 50)), min_size=1, max_size=20))
def test_rendered_counts_expand_to_what_they_mean(runs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{repeat})" if repeat > 1 else str(count) for count, repeat in runs)
    assert expand_counts(text) == [count for count, repeat in runs for _ in range(repeat)]


@pytest.mark.parametrize(
    "text",
    ["", " ", "4 ", "4,", "4(x)", "4(x0)", "4(2)", "x2", "-1", "4(x2", "4(x99999)", "\u0664", "4.0", "1e3", "9" * 30],
)
def test_bad_counts_are_refused_and_quoted(text: str) -> None:
    with pytest.raises(UserError) as caught:
        expand_counts(text, "SLURM_TASKS_PER_NODE")
    assert str(caught.value).startswith(f"SLURM_TASKS_PER_NODE is {text!a}")


@failure("F057")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:a100:4(S:0-1),gpu:v100:2", [Gres("gpu", "a100", 4, "S:0-1"), Gres("gpu", "v100", 2)]),
        ("gpu:turing:1,gpu:ampere:3", [Gres("gpu", "turing", 1), Gres("gpu", "ampere", 3)]),
        ("gpu:v100:4", [Gres("gpu", "v100", 4)]),
        ("gres/gpu:type=1", [Gres("gpu", "type", 1)]),
        ("gpu:8(S:0-3)", [Gres("gpu", None, 8, "S:0-3")]),
        ("gpu:4(S:0,2),nic:1", [Gres("gpu", None, 4, "S:0,2"), Gres("nic", None, 1)]),
        ("gpu", [Gres("gpu", None, 1)]),
        ("gpu:a100-sxm4:4", [Gres("gpu", "a100-sxm4", 4)]),
        ("gpu:1g.10gb:2", [Gres("gpu", "1g.10gb", 2)]),
        ("cpu=4,mem=4M,gres/gpu=2", [Gres("cpu", None, 4), Gres("mem", None, 4 << 20), Gres("gpu", None, 2)]),
        ("(null)", []),
    ],
)
def test_gres(text: str, expected: list[Gres]) -> None:
    assert parse_gres(text) == expected


@pytest.mark.parametrize(
    "text", ["", "gpu:", "gpu:a:b", "gpu:a:1:2", "gpu(", "gpu:4(S:0", "gpu 4", "4", ",", "gpu:\u0661"]
)
def test_bad_gres_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(UserError, match="GRES is "):
        parse_gres(text)


@failure("F057")
def test_gpus_of_a_request() -> None:
    assert [count_gpus(text, "X") for text in ("4", "a100:2,v100:2", "gpu:a100:4(S:0-1)", "gpu:2")] == [4, 4, 4, 2]
    for text in ("", "gpu:", "nic:a:2", "4,", "\u0664"):
        with pytest.raises(UserError, match="X is"):
            count_gpus(text, "X")


@failure("F061")
def test_devices_are_opaque() -> None:
    assert parse_devices("2,3") == ["2", "3"]
    assert parse_devices("GPU-5ebe9f43-ac33,MIG-7f8a") == ["GPU-5ebe9f43-ac33", "MIG-7f8a"]
    assert [parse_devices(text) for text in ("", "-1", "NoDevFiles")] == [[], [], []]
    for text in ("all", "0,0", "0,,1", "0;1", "\u0660", "0,1,x", " "):
        with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES is"):
            parse_devices(text)


def test_sixteen_thousand_nodes_take_no_time() -> None:
    racks = ",".join(f"rack{rack}n[1-16]" for rack in range(1024))
    for text in ("n[00001-16384]", racks):
        start = time.process_time()
        assert len(expand_hosts(text)) == 16_384
        assert time.process_time() - start < 0.1
