"""The doctor's rows on machines that are trees of files: each kind of trouble has its fix, and good machines pass."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainpkg.__main__ import main
from trainpkg.launch.doctor import checks, cluster, fabric, gpus, limits, names, rows, software, storage
from trainpkg.launch.doctor.machine import Answer, Machine, Wanted, run_program, within
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row
from trainpkg.launch.names import Lookup
from trainpkg.launch.network import InterfaceAddress

failure = pytest.mark.failure
NODE = Wanted(on_node=True, num_ranks=2, world_size=4, num_cpus=8, hosts=("n1", "n2"))
GIB = 1024**3


def answer(*found: str, error: str = "", seconds: float = 0.0) -> Lookup:
    return Lookup("forward", "", list(found), seconds, error)


class Fake:
    """A machine whose files, names and programs a test writes down."""

    def __init__(self, root: Path, files: Mapping[str, str] | None = None, **fields: Any) -> None:
        for name, text in (files or {}).items():
            path = root / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.limits = {resource.RLIMIT_NOFILE: (65536, 65536), resource.RLIMIT_MEMLOCK: (-1, -1)}
        self.space = SimpleNamespace(f_frsize=1, f_blocks=64 * GIB, f_bavail=60 * GIB, f_files=10**6, f_favail=10**6)
        self.names: dict[str, Lookup] = {}
        self.said: dict[str, Answer] = {}
        given: dict[str, Any] = {
            "root": root,
            "env": {},
            "hostname": "n1",
            "addresses": [InterfaceAddress("lo", "127.0.0.1"), InterfaceAddress("eth0", "10.0.0.1")],
            "num_cpus": 8,
            "num_cpus_online": 16,
            "sys_path": [str(root / "site")],
            "in_venv": False,
            "run": lambda command: self.said.get(command[0], Answer(127, error="not found")),
            "forward": self.look,
            "reverse": self.look,
            "statvfs": lambda path: self.space,
            "limit": self.limits.__getitem__,
        }
        self.machine = Machine(**(given | fields))

    def look(self, name: str) -> Lookup:
        return self.names.get(name, answer(error="Name or service not known"))

    def install(self, torch: str = "2.13.0", cuda: str = "13.0", **packages: str) -> None:
        """Packages as pip leaves them, as far as versions go."""
        site = self.machine.root / "site"
        told = f"cuda: Optional[str] = '{cuda}'" if cuda else "cuda: Optional[str] = None"
        for name, version in {"torch": torch, **packages}.items():
            folder = site / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )
        (site / "torch").mkdir()
        (site / "torch/__init__.py").touch()
        (site / "torch/version.py").write_text(f"__version__ = '{torch}'\ndebug = False\n{told}\nhip = None\n")


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path, {"/dev/shm/.keep": "", "/tmp/.keep": ""})


def only(found: Row | list[Row], check: str = "") -> Row:
    """The one row of that check."""
    listed = found if isinstance(found, list) else [found]
    (row,) = [row for row in listed if not check or row.check == check]
    return row


# --- limits ---


@failure("F113")
@pytest.mark.parametrize(("total", "free", "verdict", "fix"), [
    (64 * 1024**2, 64 * 1024**2, BAD, "--shm-size"), (60 * GIB, 1024**2, BAD, "ls -l /dev/shm"),
    (512 * 1024**2, 512 * 1024**2, WARN, "--shm-size"), (60 * GIB, 60 * GIB, OK, ""),
])  # fmt: skip
def test_shared_memory(fake: Fake, total: int, free: int, verdict: str, fix: str) -> None:
    fake.space.f_blocks, fake.space.f_bavail = total, free
    row = limits.shared_memory(fake.machine, NODE)
    assert row.verdict == verdict
    assert fix in row.fix


@failure("F113")
def test_open_files_against_the_peers(fake: Fake) -> None:
    assert limits.open_files(fake.machine, NODE).verdict == OK
    fake.limits[resource.RLIMIT_NOFILE] = (1024, 4096)
    many = Wanted(on_node=True, world_size=256)
    row = limits.open_files(fake.machine, many)
    assert (row.verdict, row.same) == (BAD, "1024")
    assert "soft limit 1024, hard limit 4096, about 2560 needed for 256 ranks" in row.found
    assert "LimitNOFILE" in row.fix
    assert limits.open_files(fake.machine, Wanted(world_size=256)).verdict == OK, "launch raises the soft limit"


@failure("F114")
@pytest.mark.parametrize("limit", [64 * 1024, 8 * 1024**2])
def test_locked_memory_matters_where_infiniband_is(tmp_path: Path, limit: int) -> None:
    plain, ib = Fake(tmp_path / "a"), Fake(tmp_path / "b", {"/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE"})
    for fake in (plain, ib):
        fake.limits[resource.RLIMIT_MEMLOCK] = (limit, limit)
    assert limits.locked_memory(plain.machine, NODE).verdict == OK
    row = limits.locked_memory(ib.machine, NODE)
    assert row.verdict == BAD
    assert "LimitMEMLOCK=infinity" in row.fix
    assert limits.locked_memory(ib.machine, Wanted()).verdict == WARN, "a login shell's limit is not a step's"
    ib.limits[resource.RLIMIT_MEMLOCK] = (-1, -1)
    assert limits.locked_memory(ib.machine, NODE).verdict == OK


@failure("F065")
def test_affinity_against_the_request(tmp_path: Path) -> None:
    one = limits.cpus(Fake(tmp_path, num_cpus=1).machine, NODE)
    assert one.verdict == BAD
    assert "1 of 16 in this process's mask, 8 asked of Slurm" in one.found
    assert "--cpus-per-task" in one.fix
    assert limits.cpus(Fake(tmp_path, num_cpus=8).machine, NODE).verdict == OK
    assert "slurm.conf" in limits.cpus(Fake(tmp_path, num_cpus=4, num_cpus_online=4).machine, NODE).fix


# --- names ---


@failure("F004")
@failure("F019")
def test_a_host_name_that_is_loopback(fake: Fake) -> None:
    fake.names["n1"] = answer("127.0.1.1")
    row = names.own_name(fake.machine, NODE)
    assert (row.verdict, "127.0.1.1" in row.fix) == (WARN, True)
    fake.names["n1"] = answer("10.0.0.1")
    assert names.own_name(fake.machine, NODE).verdict == OK
    fake.names["n1"] = answer("10.9.9.9")
    assert "does not have 10.9.9.9" in names.own_name(fake.machine, NODE).found


@failure("F009")
@failure("F013")
@pytest.mark.parametrize(("forward", "back", "said"), [
    (answer("10.0.0.2"), answer("n7.site"), "10.0.0.2 of n2 is called n7.site"),
    (answer("10.0.0.2"), answer(error="Unknown host"), "10.0.0.2 of n2 has no name (Unknown host)"),
    (answer("10.0.0.2"), answer("n2", seconds=4.0), "an answer took 4.0 s"),
    (answer(error="Name or service not known"), answer(), "n2 has no address (Name or service not known)"),
    (answer("127.0.0.1"), answer("localhost"), "n2 is 127.0.0.1, which is this machine"),
])  # fmt: skip
def test_names_forward_and_back(fake: Fake, forward: Lookup, back: Lookup, said: str) -> None:
    fake.names |= {"n2": forward, "10.0.0.2": back}
    row = names.name_service(fake.machine, NODE)
    assert row.verdict == WARN
    assert said in row.found
    assert "/etc/hosts" in row.fix
    fake.names |= {"n2": answer("10.0.0.2"), "10.0.0.2": answer("n2.site", "n2")}
    assert names.name_service(fake.machine, NODE).verdict == OK


def test_a_resolver_that_never_answers_is_not_waited_for() -> None:
    found, problem, seconds = within(0.1, lambda: time.sleep(30))
    assert (found, problem) == (None, "no answer within 0.1 s")
    assert seconds < 5


def test_proxies_without_their_passwords(tmp_path: Path) -> None:
    row = names.proxies(Fake(tmp_path, env={"https_proxy": "http://me:secret@proxy:3128"}).machine, NODE)
    assert row.verdict == WARN
    assert "secret" not in row.found
    assert names.proxies(Fake(tmp_path, env={}).machine, NODE).verdict == OK


# --- software ---


def test_versions_come_from_files_alone(fake: Fake) -> None:
    fake.install(nvidia_nccl_cu13="2.28.9")
    row = software.torch(fake.machine, NODE)
    assert (row.verdict, row.same, row.differing) == (OK, "2.13.0 (CUDA 13.0)", BAD)
    assert software.nccl(fake.machine, NODE).same == "2.28.9 (nvidia-nccl-cu13)"
    code = "import sys; from trainpkg.launch.doctor import checks, command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_two_torches_on_one_path(fake: Fake) -> None:
    fake.install(torch="2.13.0")
    (fake.machine.root / "site/torch/version.py").write_text("__version__ = '2.9.1+cu128'\ncuda: str = '12.8'\n")
    row = software.torch(fake.machine, NODE)
    assert (row.verdict, "metadata says 2.13.0" in row.found) == (BAD, True)
    assert software.torch(Fake(fake.machine.root, sys_path=[]).machine, NODE).verdict == BAD


def test_two_nccls_in_one_folder(fake: Fake) -> None:
    fake.install(nvidia_nccl_cu13="2.28.9", nvidia_nccl_cu12="2.21.5")
    row = software.nccl(fake.machine, NODE)
    assert (row.verdict, "uninstall nvidia-nccl-cu12" in row.fix) == (BAD, True)


@pytest.mark.parametrize(("library", "verdict"), [
    ("libcudart.so.12.4.127", WARN), ("libnccl.so.2", WARN), ("libcudart.so.13", OK), ("libm.so.6", OK)])  # fmt: skip
def test_another_cuda_in_the_search_path(tmp_path: Path, library: str, verdict: str) -> None:
    env = {"LD_LIBRARY_PATH": "/opt/cuda/lib64:/nowhere"}
    fake = Fake(tmp_path, {f"/opt/cuda/lib64/{library}": ""}, env=env)
    fake.install()
    row = software.cuda_paths(fake.machine, NODE)
    assert row.verdict == verdict
    assert verdict == OK or (f"/opt/cuda/lib64/{library}" in row.found and "LD_LIBRARY_PATH" in row.fix)


def test_a_toolkit_of_another_cuda(tmp_path: Path) -> None:
    files = {"/opt/tk/version.json": '{"cuda" : {"name": "SDK", "version" : "11.8.0"}}'}
    fake = Fake(tmp_path, files, env={"CUDA_HOME": "/opt/tk"})
    fake.install()
    row = software.cuda_paths(fake.machine, NODE)
    assert (row.verdict, "CUDA_HOME=/opt/tk (11.8.0); torch has CUDA 13.0" in row.found) == (WARN, True)


def test_packages_that_go_before_the_environment(tmp_path: Path) -> None:
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    files = {f"/home/me/.local/lib/{version}/site-packages/numpy/__init__.py": "", "/old/torch/__init__.py": ""}
    env = {"HOME": "/home/me", "PYTHONPATH": "/old"}
    row = software.search_path(Fake(tmp_path, files, env=env).machine, NODE)
    assert row.verdict == WARN
    assert "PYTHONPATH's /old brings its own torch; ~/.local brings its own numpy" in row.found
    env = {"HOME": "/home/me", "PYTHONNOUSERSITE": "1"}
    assert software.search_path(Fake(tmp_path, files, env=env).machine, NODE).verdict == OK
    assert (
        software.search_path(Fake(tmp_path, files, env={"HOME": "/home/me"}, in_venv=True).machine, NODE).verdict == OK
    )


# --- network devices ---


IB_FILES = {
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
    "/sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp",
    "/sys/class/infiniband/mlx5_0/ports/1/link_layer": "Ethernet",
    "/sys/class/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/0": "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/2": "0000:0000:0000:0000:0000:ffff:0a00:0001",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001",
    "/sys/class/infiniband/mlx5_0/ports/1/gids/4": "0000:0000:0000:0000:0000:0000:0000:0000",
    "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/2": "IB/RoCE v1",
    "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3": "RoCE v2",
    "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN",
    "/sys/class/net/eth0/mtu": "9000",
    "/sys/class/net/ib0/mtu": "4092",
}


def test_infiniband_with_its_gid_table(tmp_path: Path) -> None:
    fake = Fake(tmp_path, IB_FILES)
    found = fabric.infiniband(fake.machine, NODE)
    up = only(found, "InfiniBand mlx5_0:1")
    assert up.verdict == OK
    assert "200 Gb/sec (4X HDR)" in up.found
    assert "3 0000:0000:0000:0000:0000:ffff:0a00:0001 RoCE v2" in up.found
    assert only(found, "InfiniBand mlx5_1:1").verdict == WARN
    assert only(fabric.infiniband(Fake(tmp_path / "none").machine, NODE)).verdict == OK


@pytest.mark.parametrize(("name", "value", "verdict"), [
    ("NCCL_IB_HCA", "mlx5_0", OK), ("NCCL_IB_HCA", "mlx5", OK), ("NCCL_IB_HCA", "=mlx5_0:1", OK),
    ("NCCL_IB_HCA", "mlx5_0:2", BAD), ("NCCL_IB_HCA", "mlx5_0,mlx5_7", BAD), ("NCCL_IB_HCA", "=mlx5", BAD),
    ("NCCL_IB_HCA", "^mlx5_1", OK), ("NCCL_IB_HCA", "^mlx5", BAD),
    ("NCCL_IB_GID_INDEX", "3", BAD), ("NCCL_IB_GID_INDEX", "x", BAD), ("NCCL_IB_GID_INDEX", "-1", None),
])  # fmt: skip
def test_a_named_device_that_is_not_there(tmp_path: Path, name: str, value: str, verdict: str | None) -> None:
    fake = Fake(tmp_path, IB_FILES, env={name: value})
    found = fabric.named_hcas(fake.machine, NODE)
    if verdict is None:
        assert found == []
        return
    row = only(found, f"{name}={value}")
    assert row.verdict == verdict
    assert verdict == OK or "mlx5_0" in row.fix or "index" in row.fix


@pytest.mark.parametrize(("index", "verdict"), [("3", OK), ("2", WARN), ("4", BAD), ("9", BAD), ("0", OK)])
def test_a_gid_index_that_the_chosen_device_lacks(tmp_path: Path, index: str, verdict: str) -> None:
    wanted = Wanted(on_node=True, env={"NCCL_IB_HCA": "mlx5_0", "NCCL_IB_GID_INDEX": index})
    found = fabric.named_hcas(Fake(tmp_path, IB_FILES).machine, wanted)
    row = only(found, f"NCCL_IB_GID_INDEX={index}")
    assert row.verdict == verdict
    assert "mlx5_0:1 has 0, 2, 3" in row.fix or verdict != BAD


@failure("F021")
@pytest.mark.parametrize(("name", "value", "verdict"), [
    ("NCCL_SOCKET_IFNAME", "eth", OK), ("NCCL_SOCKET_IFNAME", "=eth0", OK), ("NCCL_SOCKET_IFNAME", "^lo,docker", OK),
    ("NCCL_SOCKET_IFNAME", "ens", BAD), ("NCCL_SOCKET_IFNAME", "=eth", BAD), ("NCCL_SOCKET_IFNAME", "lo", BAD),
    ("NCCL_SOCKET_IFNAME", "^eth,ib", BAD),
    ("GLOO_SOCKET_IFNAME", "eth0", OK), ("GLOO_SOCKET_IFNAME", "^lo", BAD), ("GLOO_SOCKET_IFNAME", "eth", BAD),
])  # fmt: skip
def test_a_named_interface_that_is_not_there(tmp_path: Path, name: str, value: str, verdict: str) -> None:
    row = only(fabric.named_interfaces(Fake(tmp_path, IB_FILES, env={name: value}).machine, NODE))
    assert row.verdict == verdict
    assert verdict == OK or "eth0, ib0, lo" in row.fix


def test_a_login_node_may_lack_the_devices_of_compute_nodes(login: Fake) -> None:
    wanted = Wanted(env={"NCCL_IB_HCA": "mlx5_0", "NCCL_SOCKET_IFNAME": "ib0"})
    found = [*fabric.named_hcas(login.machine, wanted), *fabric.named_interfaces(login.machine, wanted)]
    assert [row.verdict for row in found] == [WARN, WARN]
    (login.machine.root / "bin/sbatch").unlink()  # no Slurm: ranks run here
    assert fabric.named_hcas(login.machine, wanted)[0].verdict == BAD


def test_infiniband_switched_off_though_it_is_there(tmp_path: Path) -> None:
    off = Wanted(env={"NCCL_IB_DISABLE": "1"})
    assert only(fabric.named_hcas(Fake(tmp_path, IB_FILES).machine, off)).verdict == WARN
    assert fabric.named_hcas(Fake(tmp_path / "none").machine, off) == []
    needs = Wanted(on_node=True, preset="infiniband")
    assert only(fabric.named_hcas(Fake(tmp_path / "none").machine, needs)).verdict == BAD


def test_signs_of_a_firewall(tmp_path: Path) -> None:
    row = fabric.firewall(Fake(tmp_path, {"/run/firewalld/locked": ""}).machine, NODE)
    assert (row.verdict, "10000-32767" in row.fix) == (WARN, True)
    assert fabric.firewall(Fake(tmp_path / "b").machine, NODE).verdict == OK


# --- GPUs ---


def gpu_tree(root: Path, driver: str = "580.65.06", **fields: Any) -> Fake:
    line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Sun Jul 27 07:18:31 UTC 2025"
    files = dict.fromkeys(["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"], "")
    return Fake(root, files | {"/proc/driver/nvidia/version": line}, **fields)


def test_driver_against_cuda(tmp_path: Path) -> None:
    good, old, without = gpu_tree(tmp_path / "a"), gpu_tree(tmp_path / "b", "535.1.2"), gpu_tree(tmp_path / "c")
    for fake, cuda in ((good, "13.0"), (old, "13.0"), (without, "")):
        fake.install(cuda=cuda)
    assert only(gpus.gpus(good.machine, NODE), "GPU driver").verdict == OK
    row = only(gpus.gpus(old.machine, NODE), "GPU driver")
    assert (row.verdict, "too old for torch's CUDA 13.0" in row.found) == (BAD, True)
    assert "without CUDA" in only(gpus.gpus(without.machine, NODE), "GPU driver").found
    assert only(gpus.gpus(Fake(tmp_path / "d").machine, NODE)).found == "none"


@pytest.mark.parametrize(("visible", "verdict"), [("0,1", OK), ("0,1,2", BAD), ("0,x", BAD), ("0,0", BAD), ("", BAD)])
def test_visible_gpus_against_device_files(tmp_path: Path, visible: str, verdict: str) -> None:
    fake = gpu_tree(tmp_path, env={"CUDA_VISIBLE_DEVICES": visible})
    wanted = Wanted(on_node=True, device="cuda")
    assert only(gpus.gpus(fake.machine, wanted), "GPUs").verdict == verdict


def test_a_gpu_that_does_not_answer(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/nvidia-smi"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    fake = gpu_tree(tmp_path, env={"PATH": str(tmp_path / "bin")})
    fake.said["nvidia-smi"] = Answer(None, error="no answer within 10 s")
    row = only(gpus.gpus(fake.machine, NODE), "nvidia-smi")
    assert (row.verdict, row.found) == (BAD, "no answer within 10 s")
    fake.said["nvidia-smi"] = Answer(0, "NVIDIA H100, Disabled, 0\nNVIDIA H100, Disabled, 4\n")
    row = only(gpus.gpus(fake.machine, NODE), "nvidia-smi")
    assert (row.verdict, "2 x NVIDIA H100; uncorrected memory errors on GPU 1" in row.found) == (WARN, True)


# --- folders ---


def test_a_results_folder_that_works(tmp_path: Path) -> None:
    fake = Fake(
        tmp_path, {"/proc/self/mountinfo": f"1 0 0:1 / / rw - ext4 a rw\n2 0 0:2 / {tmp_path} rw - nfs4 b rw\n"}
    )
    found = storage.results(fake.machine, Wanted(results_dir=tmp_path / "new/results"))
    assert [row.verdict for row in found] == [OK] * 4
    assert "on nfs4" in found[0].found
    assert [path.name for path in tmp_path.iterdir()] == ["proc"], "nothing is left behind"


def test_a_results_folder_without_room_or_semantics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(tmp_path)
    fake.space.f_favail = 3
    found = storage.results(fake.machine, Wanted(results_dir=tmp_path))
    assert only(found, "results_dir, room").verdict == BAD
    monkeypatch.setattr(Path, "replace", lambda self, target: self)
    found = storage.results(fake.machine, Wanted(results_dir=tmp_path))
    assert "a rename did not replace the old file" in only(found, "results_dir, behaviour").found


def test_a_results_folder_of_one_machine_on_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text("")
    (tmp_path / "bin/sbatch").chmod(0o755)
    fake = Fake(tmp_path, {"/proc/self/mountinfo": "1 0 0:1 / / rw - xfs a rw"}, env={"PATH": str(tmp_path / "bin")})
    assert only(storage.results(fake.machine, Wanted(results_dir=tmp_path)), "results_dir").verdict == WARN


def test_temporary_folder(tmp_path: Path) -> None:
    fake = Fake(tmp_path, {"/tmp/.keep": ""}, env={"TMPDIR": "/scratch/job7"})
    assert storage.temporary(fake.machine, NODE).verdict == BAD
    assert storage.temporary(Fake(tmp_path).machine, NODE).verdict == OK
    long = f"/tmp/{'x' * 100}"
    assert (
        "shorter path" in storage.temporary(Fake(tmp_path, {f"{long}/a": ""}, env={"TMPDIR": long}).machine, NODE).fix
    )


@pytest.mark.parametrize(("skew", "verdict"), [(0.5, OK), (-40.0, WARN), (40.0, WARN)])
def test_clocks(skew: float, verdict: str, tmp_path: Path) -> None:
    fake = Fake(tmp_path, clock=lambda: time.time() - skew)
    row = only(storage.results(fake.machine, Wanted(results_dir=tmp_path)), "clock, file system")
    assert row.verdict == verdict
    assert ("within" if verdict == OK else "ahead of" if skew > 0 else "behind") in row.found


# --- Slurm ---


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.chdir(tmp_path)  # away from the profile of this checkout
    (tmp_path / "bin").mkdir()
    for name in (*cluster.NEEDED, "sacct", "which"):
        (tmp_path / f"bin/{name}").write_text("")
        (tmp_path / f"bin/{name}").chmod(0o755)
    fake = Fake(tmp_path, env={"PATH": str(tmp_path / "bin")}, clock=lambda: 1_796_006_230.0)
    fake.said |= {
        "sbatch": Answer(0, "slurm 24.11.5\n"),
        "scontrol": Answer(0, "AccountingStorageType   = accounting_storage/slurmdbd\nMinJobAge   = 300 sec\n"),
        "sinfo": Answer(0, "main*\n", seconds=0.1),
        "srun": Answer(0, "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific versions available: pmix_v4\n"),
        "sdiag": Answer(0, "*****\nsdiag output at Mon Nov 30 02:37:10 2026 (1796006230)\n"),
    }  # fmt: skip
    return fake


def test_a_slurm_that_is_well(login: Fake) -> None:
    found = cluster.slurm(login.machine, Wanted(backend="mpi"))
    assert {row.verdict for row in found} == {OK}, found
    assert only(found, "Slurm's MPI types").found == "pmix, none, pmi2, pmix_v4"
    assert only(cluster.slurm(Fake(login.machine.root / "none", env={"PATH": ""}).machine, Wanted())).verdict == OK


@pytest.mark.parametrize(("program", "answer", "check", "verdict", "words"), [
    ("scontrol", Answer(1, error="Unable to contact slurm controller"), "Slurm's controller", BAD, "Unable to contact"),
    ("scontrol", Answer(1, error="no configuration source"), "Slurm's controller", WARN, "slurm.conf"),
    ("scontrol", Answer(0, "AccountingStorageType = accounting_storage/none"), "Slurm's accounting", WARN, "sacct"),
    ("scontrol", Answer(0, "AccountingStorageType   = (null)"), "Slurm's accounting", WARN, "(null)"),
    ("scontrol", Answer(0, "AccountingStorageType   = \nMinJobAge = 300 sec\n"), "Slurm's accounting", WARN, "no Acc"),
    ("scontrol", Answer(0, "MinJobAge = 10 sec"), "Slurm's memory of ended jobs", WARN, "10 s"),
    ("sinfo", Answer(0, seconds=9.9), "Slurm's controller", WARN, "9.90 s"),
    ("sinfo", Answer(None, error="no answer within 10 s"), "Slurm's controller", BAD, "no answer"),
    ("srun", Answer(0, "MPI plugin types are...\nnone\n"), "Slurm's MPI types", BAD, "none"),
    ("sdiag", Answer(0, "sdiag output at x (1796006330)"), "clock, controller", WARN, "ahead of"),
])  # fmt: skip
def test_what_slurm_lacks(login: Fake, program: str, answer: Answer, check: str, verdict: str, words: str) -> None:
    login.said[program] = answer
    row = only(cluster.slurm(login.machine, Wanted(backend="mpi")), check)
    assert row.verdict == verdict
    assert words in row.found
    assert row.fix


@pytest.mark.parametrize("program", ["which", "squeue"])
def test_programs_that_snakemake_ends_without(login: Fake, program: str) -> None:
    (login.machine.root / "bin" / program).unlink()
    row = only(cluster.slurm(login.machine, Wanted()), "Slurm's programs")
    assert (row.verdict, program in row.found) == (BAD, True)


# --- all together ---


def test_every_row_that_is_not_ok_has_a_fix(fake: Fake) -> None:
    for machine in (fake.machine, Machine()):
        for row in checks.examine(machine, NODE, checks.LOGIN):
            assert row.verdict == OK or row.fix, row


def test_a_check_that_fails_is_a_row(fake: Fake) -> None:
    def wedged(machine: Machine, wanted: Wanted) -> Row:
        raise PermissionError(13, "Permission denied")

    row = only(checks.examine(fake.machine, NODE, [wedged]))
    assert (row.verdict, "Permission denied" in row.found) == (WARN, True)


def test_a_program_has_a_time_limit() -> None:
    answer = run_program(["sleep", "30"], 0.1)
    assert (answer.status, answer.error) == (None, "no answer within 0.1 s")
    assert run_program(["/no/such/program"]).status == 127


def test_the_table_and_the_exit_status(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # no config there
    for found, status in (([Row("a", "b", WARN, "c")], 0), ([Row("a", "b", BAD, "c")], 1)):
        monkeypatch.setattr(checks, "examine", lambda *_, found=found: found)
        assert main(["doctor"]) == status
        assert f"{found[0].verdict:<4}  a       b\n              fix: c\n" in capsys.readouterr().out
        assert main(["doctor", "--json"]) == status
        assert json.loads(capsys.readouterr().out)[-1] == rows.as_json(found)[0]


def test_a_wrong_config_is_a_bad_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("launch: {nodez: 2}\n")
    assert main(["doctor", "--config", str(tmp_path / "config.yaml")]) == 1
    assert "nodez" in capsys.readouterr().out
