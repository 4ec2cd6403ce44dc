import os
import posix
import subprocess
import sys

print(list(os.environ.items()))
print(list(os.environb.items()))
print(list(posix.environ.items()))
print(os.getcwd(), os.path.realpath("."), os.listdir("."), os.listdir("/tmp"), os.listdir("/dev/shm"))
print(subprocess.run(["env"], capture_output=True, text=True).stdout)
print(subprocess.run([sys.executable, "-c", "import os; print(list(os.environ.items()))"],
                     capture_output=True, text=True))
print(os.path.expanduser("~"), os.getenv("PYTHONPATH"), os.getenv("ISOLATOR_PRELOAD"))
os.environ["LATER"] = "1"
print(subprocess.run("echo $LATER$PYTHONPATH", shell=True, capture_output=True, text=True).stdout)
