# An interpreter that is not needed takes no thread from the program, not even for a moment.
import threading

end = threading.Event()
started = 0
try:
    for _ in range(100):
        threading.Thread(target=end.wait, daemon=True).start()
        started += 1
except RuntimeError as error:
    print(error, started >= 60)
end.set()
