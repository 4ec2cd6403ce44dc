import os
import signal
import time

try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt as error:
    print(repr(error))
signal.signal(signal.SIGTERM, lambda number, frame: print(number, frame.f_lineno, frame.f_code.co_name))
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.05)
signal.pause()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending(), signal.sigwait([signal.SIGUSR1]))
signal.signal(signal.SIGCHLD, lambda *_: print("child"))
if os.fork() == 0:
    os._exit(0)
print(os.wait()[1])
