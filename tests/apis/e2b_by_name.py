"""The newest SDK for Python with the second way to find a sandbox: a name for each of its ports, with TLS.

`E2B_DOMAIN` names the domain. No name server knows the sandboxes of a test, so the script adds their names to the file of
hosts, which must be one of its own: `HOSTS` is its path, and it is mounted at /etc/hosts.
"""

import os
from pathlib import Path

from e2b_checks import done, equal, main
from e2b_code_interpreter import AsyncSandbox, Sandbox

HOST = os.environ["E2B_DOMAIN"].partition(":")[0]


def resolvable(sandbox):
    """Names for the ports of a sandbox, as an operator's name server has them for *.DOMAIN."""
    with Path(os.environ["HOSTS"]).open("a") as hosts:
        for port in (49983, 49999):
            hosts.write(f"127.0.0.1 {port}-{sandbox.sandbox_id}.{HOST}\n")
    return sandbox


async def by_name(world):
    sandbox = resolvable(world.sandbox)
    equal((await done(sandbox.run_code("x = 41; x + 1"))).text, "42")
    equal((await done(sandbox.commands.run("echo hello"))).stdout, "hello\n")
    await done(sandbox.files.write("a", b"content"))
    equal(await done(sandbox.files.read("a")), "content")
    assert sandbox.get_host(49983).startswith(f"49983-{sandbox.sandbox_id}.{HOST}")


main({"sync": Sandbox, "async": AsyncSandbox}, [by_name], "e2b", "e2b-code-interpreter")
