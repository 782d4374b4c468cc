"""Network devices: interfaces, InfiniBand with its GIDs, firewalls, and settings that name what is not there."""

from __future__ import annotations

import re
from collections import defaultdict

from trainpkg.launch import network
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row
from trainpkg.launch.ports import FIRST_PORT, LAST_PORT

NET, IB = "/sys/class/net", "/sys/class/infiniband"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
SHOWN_GIDS = 6
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")


def interfaces(machine: Machine, wanted: Wanted) -> list[Row]:
    """All interfaces with their addresses; on a node the one towards the first node, whose MTU nodes must share."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for entry in machine.addresses:
        by_name[entry.interface].append(entry.address)
    told = [f"{name} {'/'.join(some)} mtu {_mtu(machine, name)}" for name, some in by_name.items()]
    rows = [Row("interfaces", "; ".join(told) or "none has an address", OK if told else WARN, "Bring a network up.")]
    own = network.source_address_towards(wanted.head, 9) if wanted.head else None
    chosen = next((entry.interface for entry in machine.addresses if entry.address == own), "")
    if chosen:
        mtu = _mtu(machine, chosen)
        fix = "Give it one MTU on all nodes (ip link set dev IF mtu N): large messages vanish between unequal ones."
        rows.append(Row("interface to the first node", f"{chosen}, mtu {mtu}", fix=fix, same=f"mtu {mtu}"))
    return rows


def infiniband(machine: Machine, wanted: Wanted) -> list[Row]:
    """Each port with state, link layer, rate and GIDs."""
    rows = []
    for device in machine.names_in(IB):
        for port in machine.names_in(f"{IB}/{device}/ports"):
            base = f"{IB}/{device}/ports/{port}"
            state, layer = machine.read(f"{base}/state"), machine.read(f"{base}/link_layer")
            text = f"{state}, {machine.read(f'{base}/phys_state')}, {layer}, {machine.read(f'{base}/rate')}"
            gids = gid_table(machine, device, port)
            shown = [f"{index} {gid} {kind}".rstrip() for index, (gid, kind) in gids.items()]
            text += f", GIDs: {'; '.join(shown[:SHOWN_GIDS]) or 'none'}"
            text += f" and {len(shown) - SHOWN_GIDS} more" if len(shown) > SHOWN_GIDS else ""
            fix = (
                "Look at the cable and the subnet manager (ibstat, ibv_devinfo), or leave the port out of NCCL_IB_HCA."
            )
            rows.append(Row(f"InfiniBand {device}:{port}", text, OK if "ACTIVE" in state else WARN, fix))
    return rows or [Row("InfiniBand", "no device")]


def gid_table(machine: Machine, device: str, port: str) -> dict[int, tuple[str, str]]:
    """Index -> GID and its type (`IB/RoCE v1`, `RoCE v2`); unused entries are left out."""
    base, found = f"{IB}/{device}/ports/{port}", {}
    for name in sorted(filter(str.isdigit, machine.names_in(f"{base}/gids")), key=int):
        gid = machine.read(f"{base}/gids/{name}")
        if gid and gid != NO_GID:
            found[int(name)] = gid, machine.read(f"{base}/gid_attrs/types/{name}")
    return found


def named_interfaces(machine: Machine, wanted: Wanted) -> list[Row]:
    """*_SOCKET_IFNAME against the interfaces of this machine. NCCL takes prefixes, `^` and `=`; gloo one exact name."""
    have = sorted({*machine.names_in(NET), *(entry.interface for entry in machine.addresses)})
    rows = []
    for name, value in _settings(machine, wanted, IFNAMES).items():
        nccl = name.startswith("NCCL")
        wrong = "" if (match_names(value, have) if nccl else value in have) else "names no interface of this machine"
        if not nccl and re.search(r"[\^=]", value):
            wrong = "is NCCL's way of writing, which gloo does not know"
        if wanted.world_size > wanted.num_ranks and re.fullmatch(r"=?lo", value):
            wrong = "is loopback, which leads to no other node"
        fix = f"Name one of {', '.join(have)}, or unset it: launch finds the interface that leads to the first node."
        rows.append(Row(f"{name}={value}", wrong or "is here", _verdict(machine, wanted, wrong), fix))
    return rows


def named_hcas(machine: Machine, wanted: Wanted) -> list[Row]:
    """NCCL_IB_HCA and NCCL_IB_GID_INDEX against the devices; NCCL_IB_DISABLE against them too."""
    env = _settings(machine, wanted, ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_DISABLE"))
    ports = [(dev, port) for dev in machine.names_in(IB) for port in machine.names_in(f"{IB}/{dev}/ports")]
    names = [f"{device}:{port}" for device, port in ports]
    rows, chosen = [], ports
    if (value := env.get("NCCL_IB_HCA")) is not None:
        chosen = [pair for pair, name in zip(ports, names, strict=True) if match_hca(value, name)]
        lacking = [] if value.startswith("^") else [
            part for part in value.lstrip("=").split(",") if not any(match_hca(value[: value.startswith("=")] + part, n)
                                                                     for n in names)
        ]  # fmt: skip
        fix = f"This machine has {', '.join(names) or 'no InfiniBand device'}: name those, or unset the variable."
        wrong = f"{', '.join(lacking)}: no such device or port" if lacking else "" if chosen else "leaves no device"
        rows.append(Row(f"NCCL_IB_HCA={value}", wrong or "is here", _verdict(machine, wanted, wrong), fix))
    if (value := env.get("NCCL_IB_GID_INDEX")) is not None and not value.startswith("-"):
        rows.append(_gid_index(machine, wanted, value, chosen))
    active = [
        n for (d, p), n in zip(ports, names, strict=True) if "ACTIVE" in machine.read(f"{IB}/{d}/ports/{p}/state")
    ]
    if env.get("NCCL_IB_DISABLE") == "1" and active:
        fix = "Unset NCCL_IB_DISABLE (1 means off), unless TCP is what you want: it is many times slower."
        rows.append(Row("NCCL_IB_DISABLE=1", f"though {', '.join(active)} is active", WARN, fix))
    if wanted.preset == "infiniband" and not ports and wanted.on_node:
        rows.append(Row("preset infiniband", "no InfiniBand device here", BAD, "Set launch.preset: ethernet."))
    return rows


def _gid_index(machine: Machine, wanted: Wanted, value: str, chosen: list[tuple[str, str]]) -> Row:
    check = f"NCCL_IB_GID_INDEX={value}"
    if not value.isdigit():
        return Row(check, "is no number", BAD, "Give the index of a GID, as `show_gids` lists them.")
    tables = {f"{device}:{port}": gid_table(machine, device, port) for device, port in chosen}
    lacking = [name for name, gids in tables.items() if int(value) not in gids]
    fix = "Unset it (NCCL 2.21 and newer find the RoCE v2 entry), or give an index that all named devices have: " + (
        "; ".join(f"{name} has {', '.join(map(str, gids)) or 'none'}" for name, gids in tables.items())
        or "no device here"
    )
    if lacking or not tables:
        wrong = f"not in the GID table of {', '.join(lacking) or 'any device'}"
        return Row(check, wrong, _verdict(machine, wanted, wrong), fix)
    kinds = {gids[int(value)][1] for gids in tables.values()} - {""}
    old = "IB/RoCE v1" in kinds and any(kind == "RoCE v2" for gids in tables.values() for _, kind in gids.values())
    text = f"{', '.join(tables)}: {', '.join(sorted(kinds)) or 'type unknown'}"
    return Row(check, text, WARN if old else OK, "Routed networks need the index of a RoCE v2 entry.")


def match_names(value: str, have: list[str]) -> bool:
    """Whether NCCL's expression leaves an interface: prefixes, `=` exact ones, `^` all others."""
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = [part for part in value.lstrip("^=").split(",") if part]
    hit = [name for name in have if any(name == part if exact else name.startswith(part) for part in parts)]
    return bool([name for name in have if name not in hit and name != "lo"] if exclude else hit)


def match_hca(value: str, name: str) -> bool:
    """Whether NCCL's expression takes this `device:port`."""
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    device, _, port = name.partition(":")
    for part in filter(None, value.lstrip("^=").split(",")):
        wanted, _, wanted_port = part.partition(":")
        if (device == wanted if exact else device.startswith(wanted)) and wanted_port in ("", port):
            return not exclude
    return exclude


def firewall(machine: Machine, wanted: Wanted) -> Row:
    """Signs of a firewall: whether it closes ports between nodes only a connection tells (the roll call makes one)."""
    signs = []
    if machine.path("/run/firewalld").exists():
        signs.append("firewalld runs")
    if "ENABLED=yes" in machine.read("/etc/ufw/ufw.conf"):
        signs.append("ufw is enabled")
    tables = machine.read("/proc/net/ip_tables_names").split()
    if "filter" in tables:
        signs.append("iptables has a filter table")
    fix = f"See that TCP ports {FIRST_PORT}-{LAST_PORT} are open between nodes, or name an open range in launch.port."
    loud = [sign for sign in signs if "iptables" not in sign]
    return Row("firewall", ", ".join(signs) or "no sign of one", WARN if loud else OK, fix)


def _verdict(machine: Machine, wanted: Wanted, wrong: str) -> str:
    return OK if not wrong else BAD if machine.runs_ranks(wanted) else WARN


def _settings(machine: Machine, wanted: Wanted, names: tuple[str, ...]) -> dict[str, str]:
    env = dict(machine.env) | dict(wanted.env)
    return {name: env[name] for name in names if env.get(name)}


def _mtu(machine: Machine, interface: str) -> str:
    return machine.read(f"{NET}/{interface}/mtu") or "unknown"
