"""Names: DNS forward and back with its latency, a host name that leads to loopback, proxies."""

from __future__ import annotations

import re

from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import OK, WARN, Row
from trainpkg.launch.names import SLOW_S
from trainpkg.launch.network import is_loopback

MAX_HOSTS = 4
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
HOSTS_FIX = "Write the nodes' names and addresses into /etc/hosts on all nodes, or mend the DNS server's answer."


def own_name(machine: Machine, wanted: Wanted) -> Row:
    """The own host name must lead to an address that others reach: Debian writes 127.0.1.1 for it into /etc/hosts."""
    looked = machine.forward(machine.hostname)
    text = f"{machine.hostname} is {looked.error or ', '.join(looked.answers[:4])}{_pace(looked.seconds)}"
    if looked.error:
        return Row("own name", text, WARN, HOSTS_FIX)
    if all(is_loopback(address) for address in looked.answers):
        if not wanted.hosts and machine.which("sbatch") is None:
            return Row("own name", text + ", enough on one machine")
        fix = f"Give {machine.hostname} its network address in /etc/hosts in place of {looked.answers[0]}."
        return Row("own name", text + ", loopback: other nodes cannot use it", WARN, fix)
    own = {entry.address for entry in machine.addresses}
    foreign = [a for a in looked.answers if a not in own and not is_loopback(a) and not a.startswith("fe80")]
    if foreign:
        fix = f"Correct the entry of {machine.hostname} in DNS or /etc/hosts, or set launch.master_addr."
        return Row("own name", f"{text}, but this machine does not have {', '.join(foreign)}", WARN, fix)
    slow = looked.seconds > SLOW_S
    return Row("own name", text, WARN if slow else OK, HOSTS_FIX)


def name_service(machine: Machine, wanted: Wanted) -> Row:
    """Names of the nodes forward, and their addresses back: torch asks for the name of every peer that connects."""
    hosts = [host for host in wanted.hosts if host != machine.hostname][:MAX_HOSTS] or [machine.hostname]
    problems, slowest = [], 0.0
    for host in hosts:
        there = machine.forward(host)
        slowest = max(slowest, there.seconds)
        if there.error:
            problems.append(f"{host} has no address ({there.error})")
            continue
        if host != machine.hostname and all(is_loopback(address) for address in there.answers):
            problems.append(f"{host} is {there.answers[0]}, which is this machine")
            continue
        address = next((a for a in there.answers if not is_loopback(a)), None)
        if address is None:
            continue
        back = machine.reverse(address)
        slowest = max(slowest, back.seconds)
        if back.error:
            problems.append(f"{address} of {host} has no name ({back.error})")
        elif _short(host) not in {_short(name) for name in back.answers}:
            problems.append(f"{address} of {host} is called {back.answers[0]}")
    if slowest > SLOW_S:
        problems.append(f"an answer took {slowest:.1f} s")
    agree = f"{', '.join(hosts)}: forward and back agree{_pace(slowest)}"
    return Row("name service", "; ".join(problems) or agree, WARN if problems else OK, HOSTS_FIX)


def proxies(machine: Machine, wanted: Wanted) -> Row:
    """Proxy variables, without what they hold of passwords. Ranks talk past them, trackers and downloads do not."""
    found = {name: machine.env[name] for name in PROXIES if machine.env.get(name)}
    if not found:
        return Row("proxies", "none set")
    bare = {name: re.sub(r"//[^@/]*@", "//", value) for name, value in found.items()}
    text = ", ".join(f"{name}={value}" for name, value in bare.items())
    if machine.env.get("no_proxy") or machine.env.get("NO_PROXY"):
        return Row("proxies", f"{text}, with no_proxy")
    fix = "Set no_proxy=localhost,127.0.0.1 and the nodes' names, else services inside the job are asked of the proxy."
    return Row("proxies", f"{text}, without no_proxy", WARN, fix)


def _pace(seconds: float) -> str:
    """Coarse, so that nodes which differ by milliseconds say the same."""
    return f", answered in {seconds:.1f} s" if seconds > SLOW_S else f", answered within {SLOW_S:g} s"


def _short(name: str) -> str:
    return name.lower().split(".")[0]
