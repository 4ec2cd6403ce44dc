"""Kernels of Jupyter, for comparison with sessions.

`Jupyter` starts this file with a Python that has `jupyter_client` and `ipykernel`, which no lock of ours has. There it takes
orders on standard input, a line each, and answers on standard output.
"""

import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path

# Has a module for Jupyter's kernels in the image.
MODULES = Path(__file__).parents[1] / "notebook"
PACKAGES = ["ipykernel", "jupyter_client"]
STARTED_WITHIN_S = 120


class Jupyter:
    """A process that has kernels of Jupyter."""

    def __init__(self, python):
        command = [str(python), __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(STARTED_WITHIN_S)

    def start(self, folder):
        """Starts a kernel. Returns its number, its process, and the seconds until it could take a cell."""
        answer = self._ask(do="start", folder=str(folder))
        return answer["kernel"], answer["pid"], answer["took"]

    def cell(self, kernel, code, timeout=300):
        """Runs a cell. Returns its outputs, as a notebook has them, and the seconds that it took."""
        answer = self.answer(kernel, code, timeout)
        return answer["outputs"], answer["took"]

    def answer(self, kernel, code, timeout=300, silent=False):
        """Runs a cell. Returns its outputs, what the front end is asked for (`payload`), and the name of its error: some are
        printed and not among the outputs. A silent cell has no number, and no outputs."""
        return self._ask(do="cell", kernel=kernel, code=code, timeout=timeout, silent=silent)

    def stop(self, kernel):
        self._ask(do="stop", kernel=kernel)

    def _ask(self, **order):
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process with the kernels has ended"
        return json.loads(line)


def environment(folder, packages=()):
    """Makes a Python with Jupyter's kernel and more packages in a folder, and returns it."""
    venv.create(folder, with_pip=True)
    python = Path(folder, "bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES, *packages]
    subprocess.run(install, check=True)
    return python


class _Kernel:
    def __init__(self, folder):
        from jupyter_client import KernelManager

        self.manager = KernelManager()
        # It warns of what is right for a kernel of this machine's own, and prints what programs of a cell print.
        env = os.environ | {"PYTHONPATH": f"{MODULES}:{os.environ.get('PYTHONPATH', '')}"}
        self.manager.start_kernel(cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=STARTED_WITHIN_S)

    def cell(self, code, timeout, silent):
        outputs, payload, error = [], [], None

        def take(message):
            if message["msg_type"] in ("stream", "error", "execute_result", "display_data", "update_display_data"):
                outputs.append({"output_type": message["msg_type"]} | message["content"])

        try:
            asked = {"silent": silent, "store_history": not silent, "allow_stdin": False}
            reply = self.client.execute_interactive(code, timeout=timeout, output_hook=take, **asked)
            payload, error = reply["content"].get("payload", []), reply["content"].get("ename")
        except TimeoutError:
            self.manager.interrupt_kernel()
            outputs.append({"output_type": "error", "ename": "TimeoutError", "evalue": "", "traceback": []})
        return {"outputs": outputs, "payload": payload, "error": error}

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def _serve():
    kernels = {}
    answers = sys.stdout
    # Whatever prints must not print between the answers.
    sys.stdout = sys.stderr
    for number, line in enumerate(sys.stdin):
        order = json.loads(line)
        began = time.perf_counter()
        if order["do"] == "start":
            kernels[number] = _Kernel(order["folder"])
            answer = {"kernel": number, "pid": kernels[number].manager.provisioner.pid}
        elif order["do"] == "cell":
            answer = kernels[order["kernel"]].cell(order["code"], order["timeout"], order["silent"])
        else:
            kernels.pop(order["kernel"]).stop()
            answer = {}
        answers.write(json.dumps(answer | {"took": time.perf_counter() - began}) + "\n")
        answers.flush()
    for kernel in kernels.values():
        kernel.stop()


if __name__ == "__main__":
    _serve()
