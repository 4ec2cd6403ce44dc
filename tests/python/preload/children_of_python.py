#: {"files": {"tool.py": "import sys; print(__name__, sys.argv, sys.path[0])"}}
import subprocess
import sys

for command in (
    [sys.executable, "tool.py", "a"],
    [sys.executable, "-m", "tool", "b"],
    ["python3", "-c", "import tool"],
    ["python", "-"],
    [sys.executable, "-m", "json.tool", "--compact"],
    [sys.executable, "-m", "site"],
    [sys.executable, "-i"],
):
    result = subprocess.run(command, input='{"a": 1}', capture_output=True, text=True)
    print(command, result.returncode, result.stdout, result.stderr)
print(subprocess.getstatusoutput("echo $PPID > ppid; exit 3"), subprocess.check_output(["pwd"]))
try:
    subprocess.run(["no-such-command"])
except FileNotFoundError as error:
    print(error)
try:
    subprocess.run(["sleep", "5"], timeout=0.1)
except subprocess.TimeoutExpired as error:
    print(error)
