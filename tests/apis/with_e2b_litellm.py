"""LiteLLM: code of a model in a sandbox of E2B. It knows only the second way to find a sandbox, the names of hosts with TLS.

`E2B_DOMAIN` names the domain, and SSL_CERT_FILE the certificate of its authority. The test has no name server, so the names
of the domain are resolved here, as an operator's name server would do it for `*.DOMAIN`.
"""

import os
import socket

import litellm
from frameworks import main

DOMAIN = os.environ["E2B_DOMAIN"]
HOST = DOMAIN.partition(":")[0]
resolve = socket.getaddrinfo


def resolve_names_of_the_domain(host, *others, **more):
    name = host.decode() if isinstance(host, bytes) else host
    return resolve("127.0.0.1" if name and name.endswith(f".{HOST}") else host, *others, **more)


socket.getaddrinfo = resolve_names_of_the_domain


async def a_code_interpreter():
    domain = DOMAIN
    # example
    result = await litellm.acode_interpreter_tool(
        provider="e2b",
        code="print(sum(range(10)))\n6 * 7",
        api_base=f"https://api.{domain}",
    )
    print(result.stdout)  # 45
    # end
    assert (result.stdout, result.results[0]["text"]) == ("45\n", "42"), result
    assert result.error is None, result


async def a_sandbox_with_state():
    """A sandbox keeps its variables, and an error is data."""
    base = f"https://api.{DOMAIN}"
    sandbox = await litellm.acreate_sandbox(provider="e2b", api_base=base, timeout=300)
    await litellm.arun_code(provider="e2b", container=sandbox, code="x = 1")
    result = await litellm.arun_code(provider="e2b", container=sandbox, code="x / 0")
    assert result.error["name"] == "ZeroDivisionError", result
    assert await litellm.adelete_sandbox(provider="e2b", container=sandbox, api_base=base)


main([a_code_interpreter, a_sandbox_with_state], "litellm")
