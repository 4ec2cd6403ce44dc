"""The newest SDK for Python with the second way to find a sandbox: a name for each of its ports, with TLS.

`E2B_DOMAIN` names the domain. No name server knows the sandboxes of a test, so the script adds the names of one to the file of
hosts, which must be one of its own: `HOSTS` is its path, and it is mounted at /etc/hosts. The SDK reads that file once, so
another process creates the sandbox.
"""

import os
import subprocess
import sys
from pathlib import Path

from e2b_checks import done, equal, main
from e2b_code_interpreter import AsyncSandbox, Sandbox

HOST = os.environ["E2B_DOMAIN"].partition(":")[0]
CREATE = "from e2b_code_interpreter import Sandbox; print(Sandbox.create(timeout=300).sandbox_id)"


def created():
    """The id of a sandbox whose ports have names, as an operator's name server has them for *.DOMAIN."""
    sandbox_id = subprocess.run([sys.executable, "-c", CREATE], check=True, capture_output=True, text=True).stdout.strip()
    with Path(os.environ["HOSTS"]).open("a") as hosts:
        for port in (49983, 49999):
            hosts.write(f"127.0.0.1 {port}-{sandbox_id}.{HOST}\n")
    return sandbox_id


SANDBOX_ID = created()


async def by_name(world):
    sandbox = await done(world.Sandbox.connect(SANDBOX_ID))
    equal((await done(sandbox.run_code("x = 41; x + 1"))).text, "42")
    equal((await done(sandbox.commands.run("echo hello"))).stdout, "hello\n")
    await done(sandbox.files.write("a", b"content"))
    equal(await done(sandbox.files.read("a")), "content")
    assert sandbox.get_host(49983).startswith(f"49983-{SANDBOX_ID}.{HOST}")


main({"sync": Sandbox, "async": AsyncSandbox}, [by_name], "e2b", "e2b-code-interpreter")
