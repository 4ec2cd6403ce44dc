import subprocess
import sys

look = "import sys; print(sys.flags, sys.warnoptions, sys._xoptions, list(sys.modules), sys.path)"
for options in ([], ["-I"], ["-S"], ["-E"], ["-X", "dev"], ["-W", "error"], ["-O"], ["-X", "utf8=0"], ["-s", "-B"]):
    result = subprocess.run([sys.executable, *options, "-c", look], capture_output=True, text=True)
    print(options, result.returncode, result.stdout, result.stderr)
result = subprocess.run([sys.executable, "-v", "-c", "1"], capture_output=True, text=True)
print(sorted(line for line in result.stderr.splitlines() if "isolator" in line or line.startswith("import '")))
