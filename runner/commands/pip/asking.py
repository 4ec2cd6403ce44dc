"""The question to the runner: one line of JSON, answered by lines of JSON."""

import json
import socket

# The socket of the runner, in the sandbox's own network namespace.
_SOCKET = "\0isolator-packages"
_LONGEST_REQUEST = 64 << 10
_LONGEST_LINE = 16 << 20
_LONGEST_QUOTE = 200


class Refused(Exception):
    """The packages are not there. ``kind`` is one of the runner's words, or ``failed``."""

    def __init__(self, reason, kind="failed"):
        super().__init__(reason)
        self.reason, self.kind = reason, kind


def clean(text):
    """Text of others, in which no character moves the cursor or hides another one."""
    return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def cut(text):
    """The beginning of a text that can be very long, for a message."""
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def ask(requirements, upgrade, show_progress):
    """Asks for packages. Returns all packages of the set as pairs of name and version, and the normalized names of those that are new.

    Raises Refused with the reason if the sandbox does not get them."""
    request = {"language": "python", "requirements": requirements, "upgrade": upgrade}
    line = json.dumps(request).encode() + b"\n"
    if len(line) > _LONGEST_REQUEST:
        raise Refused("the requirements have %d bytes, and at most %d can be asked for at once" % (len(line), _LONGEST_REQUEST))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(_SOCKET)
            connection.sendall(line)
            with connection.makefile("rb") as answers:
                return _read(answers, show_progress)
        except OSError as error:
            reason = "the runner of this sandbox gives no packages (%s): use what the image has, or name packages in the call" % error
            raise Refused(reason, "off") from None


def _read(answers, show_progress):
    while True:
        line = answers.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise Refused("the runner ended the request without an answer: try again")
        try:
            answer = json.loads(line)
            if "progress" in answer:
                show_progress(clean(answer["progress"]))
            elif "refused" in answer:
                refused = answer["refused"]
                raise Refused(clean(refused["reason"]), str(refused["kind"]))
            else:
                bound = answer["bound"]
                packages = [(clean(package["name"]), clean(package["version"])) for package in bound["packages"]]
                return packages, {normalized(name) for name in bound["new"]}
        except (ValueError, KeyError, TypeError):
            raise Refused("the runner gave an answer that can't be read: %s" % clean(line[:200].decode(errors="replace"))) from None


def normalized(name):
    """The name of a package in the spelling that all its spellings share."""
    parts = str(name).lower().replace("_", "-").replace(".", "-").split("-")
    return "-".join(part for part in parts if part)
