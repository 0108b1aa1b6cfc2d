"""The network interface at which gloo should wait for other hosts.

Gloo waits at the address of this host's name. On many systems that is loopback (Debian writes `127.0.1.1 NAME` into
/etc/hosts), where no other host can connect, and the run would end in a timeout.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys

ADDRESS_OF = 0x8915  # Linux's SIOCGIFADDR
# an address of documentation, to which nothing is sent: only the route there is asked for
ANYWHERE = "192.0.2.1"


def name_interface(master: str) -> None:
    """Set GLOO_SOCKET_IFNAME if gloo would choose loopback: to the interface towards `master`, the address at which all
    ranks meet, else to the one of the default route, else to the only one.

    Nothing happens if it is set already, or if `master` is "localhost", so that all are on this machine. Raises
    RuntimeError if there are several interfaces, and no route prefers one.
    """
    if sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ or is_literal_loopback(master):
        return
    name = socket.gethostname()
    if not is_loopback(own := address_of(name)):
        return
    found = interfaces()
    routes = [
        found[address] for address in map(address_towards, (master, ANYWHERE)) if address in found
    ]
    if not routes and len(found) > 1:
        raise RuntimeError(
            f"this host's name, {name}, stands for {own}, where no other host can connect, and it has "
            f"{len(found)} network interfaces: set GLOO_SOCKET_IFNAME to the one through which the "
            f"hosts reach each other ({', '.join(found.values())})"
        )
    for interface in [*routes, *found.values()][:1]:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def is_literal_loopback(host: str) -> bool:
    """Whether it says itself that it is this machine; a name may stand for loopback only here."""
    return host in ("localhost", "::1") or host.startswith("127.")


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def address_of(host: str) -> str:
    """Loopback if nobody knows the name: so gloo does."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return "127.0.0.1"


def address_towards(host: str) -> str:
    """This host's own address on the way to `host`; "" if there is no way. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect((host, 9))
        return asked.getsockname()[0]
    return ""


def interfaces() -> dict[str, str]:
    """The names of all network interfaces but loopback, by their IPv4 addresses."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asked, ADDRESS_OF, struct.pack("256s", name.encode()))
                address = socket.inet_ntoa(answer[20:24])
                if not is_loopback(address):
                    found[address] = name
    return found
