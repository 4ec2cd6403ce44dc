"""One program over HTTP: to one node after the other, until one has run it.

A program has no network and leaves nothing, so it may be sent again whenever its answer is missing. Nothing here needs Ray.
"""

import http.client
import json
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

# What an answer may take beyond the time of the program: the queue and the sandbox.
BEYOND_S = 15
# A node that is there takes a connection at once.
CONNECT_S = 2
# The longest pause before all nodes are asked again.
PAUSE_S = 2
MAX_ANSWER = 64 << 20
# After these statuses a later call or another node may run it.
ELSEWHERE = (429, 502, 503, 504)


class Unserved(Exception):
    """No node has run the program in time. The text has the last reason of each."""


class Failed(Exception):
    """The request is wrong, so that no node would run it. The text is the node's."""


@dataclass(frozen=True)
class Ran:
    """The end of a program."""

    # "Finished" or "TimeLimitExceeded"; None if the sandbox failed.
    status: str
    return_code: int | None
    stdout: str
    stderr: str
    # Seconds that it ran.
    seconds: float
    # The address of the node that has run it.
    address: str
    # Files that were asked for, by their names, in base64.
    files: dict = field(default_factory=dict)

    @property
    def ok(self):
        """Whether it has exited with 0."""
        return self.status == "Finished" and self.return_code == 0


def run_on(addresses, code, language="python", timeout=10.0, within=None, token=None, **fields):
    """Runs a program on the first of these addresses that runs it, and returns its end as `Ran`.

    `timeout` is how long the program can run, `within` how long all tries can take together. Other arguments are fields of
    SandboxFusion's `/run_code`, such as `stdin`, `files` and `memory_limit_MB`.
    """
    until = time.monotonic() + (within or 3 * (timeout + BEYOND_S))
    body = json.dumps({"code": code, "language": language, "run_timeout": timeout} | fields).encode()
    reasons, pause = {}, 0.05
    while True:
        asked = list(addresses() if callable(addresses) else addresses)
        for address in asked:
            left = until - time.monotonic()
            if left <= 0:
                break
            ran, reason = _try(address, body, min(timeout + BEYOND_S, left), token)
            if ran is not None:
                return ran
            reasons[address] = reason
        if time.monotonic() + pause >= until:
            told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise Unserved(told or "there is no node; call isolator_ray.start() first")
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, PAUSE_S)


def _try(address, body, timeout, token):
    """Sends it to one node. Returns the end of the program, or why there is none and another node should be asked."""
    try:
        status, headers, answer = _post(address, "/run_code", body, timeout, token)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{type(error).__name__}: {error}"
    text = answer.decode(errors="replace")
    if status == 200:
        return _read(text, address)
    if status in ELSEWHERE or headers.get("Isolator-Outcome") in ("not-run", "unknown") and status >= 500:
        return None, f"HTTP {status}: {text[:500]}"
    raise Failed(f"{address}: HTTP {status}: {text[:2000]}")


def _read(text, address):
    try:
        found = json.loads(text)
        ended = found["run_result"]
        if found.get("status") == "SandboxError" or not ended:
            return None, str(found.get("message"))[:500]
        ran = Ran(
            status=ended["status"],
            return_code=ended.get("return_code"),
            stdout=ended.get("stdout") or "",
            stderr=ended.get("stderr") or "",
            seconds=ended.get("execution_time") or 0.0,
            address=address,
            files=found.get("files") or {},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "its answer is not SandboxFusion's"
    return ran, None


def _post(address, path, body, timeout, token):
    place = urlsplit(address)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection, ending = kind(place.hostname, place.port, timeout=min(CONNECT_S, timeout)), None
    try:
        connection.connect()
        connection.sock.settimeout(timeout)
        # A timeout of the socket is that of one read, and an answer could come byte by byte.
        ending = threading.Timer(timeout, _end, (connection.sock,))
        ending.daemon = True
        ending.start()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read(MAX_ANSWER + 1)
        if len(content) > MAX_ANSWER:
            raise http.client.HTTPException("the answer is too long")
        return answer.status, answer.headers, content
    finally:
        if ending:
            ending.cancel()
        connection.close()


def _end(connected):
    try:
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
    except OSError:
        # It has ended just now.
        return


def host_of(address):
    """The host of an address, or None if it is no address."""
    try:
        return urlsplit(address).hostname
    except (ValueError, AttributeError):
        return None


def is_loopback(host):
    """Whether it is the machine of the process that asks."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
