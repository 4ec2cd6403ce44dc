"""The official SDK of SandboxFusion: what its functions return, sync and async, and many at once."""

import asyncio
import base64
import json
import os
import sys
from importlib.metadata import version

# example
from sandbox_fusion import RunCodeRequest, RunStatus, run_code, run_concurrent, set_endpoint
# end
from sandbox_fusion import (
    CommandRunStatus,
    RunJupyterRequest,
    SummaryMapping,
    run_code_async,
    run_jupyter,
    summary_run_code_result,
)


def text_of(files, name):
    return base64.b64decode(files[name]).decode()


def example(url):
    # example
    set_endpoint(url)
    result = run_code(RunCodeRequest(code="print(6 * 7)", language="python"), client_timeout=30)
    assert result.status == RunStatus.Success
    assert result.run_result.stdout == "42\n"
    # end


def files(url):
    sent = {"data/in.txt": base64.b64encode(b"abc").decode(), "none.txt": None}
    code = "open('out.txt', 'w').write(open('data/in.txt').read() * 2)"
    result = run_code(RunCodeRequest(code=code, language="python", files=sent, fetch_files=["out.txt"]), endpoint=url)
    assert text_of(result.files, "out.txt") == "abcabc", result


def verdicts(url):
    mapping = SummaryMapping(RunFailed="failed", RunTimeout="timeout", Success="ok")

    def judged(code, **limits):
        request = RunCodeRequest(code=code, language="python", **limits)
        return summary_run_code_result(run_code(request, endpoint=url), mapping)

    assert judged("pass") == "ok"
    assert judged("import sys; sys.exit(2)") == "failed"
    assert judged("while True: pass", run_timeout=1) == "timeout"
    assert judged("x = bytearray(1 << 30)") == "failed"


def others(url):
    for language, code in [("nodejs", "console.log(6 * 7)"), ("typescript", "const a: number = 42; console.log(a)")]:
        result = run_code(RunCodeRequest(code=code, language=language), endpoint=url)
        assert result.run_result.stdout == "42\n", result
    try:
        run_code(RunCodeRequest(code="1", language="racket"), endpoint=url, max_attempts=1)
    except Exception as error:
        assert "422" in str(error) and "typescript" in str(error), error
    else:
        raise AssertionError("racket is there")


def asynchronous(url):
    request = RunCodeRequest(code="print(input())", language="python", stdin="hello")
    result = asyncio.run(run_code_async(request, endpoint=url))
    assert result.run_result.stdout == "hello\n", result


def concurrent(url):
    def one(number):
        result = run_code(RunCodeRequest(code=f"print({number} ** 2)", language="python"), endpoint=url)
        return int(result.run_result.stdout)

    assert run_concurrent(one, args=[[number] for number in range(64)], concurrency=32) == [n * n for n in range(64)]


def cells(url):
    code = ["a = 123", "a", "print(a)", "import sys; _ = sys.stderr.write('said')", "raise RuntimeError('why')"]
    result = run_jupyter(RunJupyterRequest(cells=code), endpoint=url)
    assert (result.status, result.driver.status) == (RunStatus.Success, CommandRunStatus.Finished), result
    assert result.cells[1].display == [{"text/plain": "123"}], result
    assert (result.cells[2].stdout, result.cells[3].stderr) == ("123\n", "said"), result
    (error,) = result.cells[4].error
    assert (error["ename"], error["evalue"]) == ("RuntimeError", "why"), result


CHECKS = [example, files, verdicts, others, asynchronous, concurrent, cells]


def main():
    url, outcomes = os.environ["SANDBOX_FUSION_ENDPOINT"], {}
    for check in CHECKS:
        try:
            check(url)
            outcomes[check.__name__] = "works"
        except Exception as error:
            outcomes[check.__name__] = repr(error)
    json.dump({"versions": {"sandbox-fusion": version("sandbox-fusion")}, "checks": outcomes}, sys.stdout)


main()
