import logging
import logging.handlers
import sys

print(logging.root.handlers, logging.root.level, logging.lastResort, list(logging.root.manager.loggerDict)[:0])
logging.warning("shown by the last resort")
logging.getLogger("a").info("not shown")
logging.getLogger("b").error("shown")
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(levelname)s %(name)s %(lineno)d %(message)s",
                    force=True)
logging.getLogger("a.b").debug("now shown")
memory = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stderr))
logging.getLogger("m").addHandler(memory)
logging.getLogger("m").info("at the end")
try:
    1 / 0
except ZeroDivisionError:
    logging.exception("with a traceback")
