#: {"status": "error"}
print("never")
def f(:
    pass
