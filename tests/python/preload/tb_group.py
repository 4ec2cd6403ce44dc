#: {"status": "error"}
def fail(kind):
    raise kind("from here")


errors = []
for kind in (ValueError, TypeError, OSError):
    try:
        fail(kind)
    except Exception as error:
        errors.append(error)
raise ExceptionGroup("several", [errors[0], ExceptionGroup("inner", errors[1:])])
