#: {"status": "timeout", "timeout": "1s"}
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    pass
