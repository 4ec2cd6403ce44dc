#: {"args": ["one", "two words", "", "ü", "-x", "--"]}
import sys

print(sys.argv, sys.orig_argv)
print(sys.path)
print(sys.flags, sys._xoptions, sys.warnoptions)
print(sys.executable, sys._base_executable, sys.prefix, sys.exec_prefix, sys.base_prefix)
print(sys.platlibdir, sys.pycache_prefix, sys.dont_write_bytecode)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.getdlopenflags(), sys.get_int_max_str_digits())
print(sys.gettrace(), sys.getprofile(), sys.get_coroutine_origin_tracking_depth(), sys.get_asyncgen_hooks())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
print(sys.breakpointhook is sys.__breakpointhook__, sys.unraisablehook is sys.__unraisablehook__)
print(sys.exc_info(), hasattr(sys, "last_exc"), hasattr(sys, "last_traceback"), hasattr(sys, "ps1"))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(type(stream).__name__, stream.name, stream.mode, stream.encoding, stream.errors, stream.newlines)
    print(stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno(), stream.closed)
    print(type(stream.buffer).__name__, type(getattr(stream.buffer, "raw", None)).__name__)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print(sys.path_hooks, [getattr(finder, "__name__", finder) for finder in sys.meta_path[:3]])
print(sys._git, sys.implementation.cache_tag, sys.version, sys.thread_info, sys.hash_info)
print(sys._framework, sys.float_repr_style, sys._is_gil_enabled(), sys.is_finalizing())
print([name for name in dir(sys) if name not in ("last_exc",)])
